"""Which of several methods is best, and whether the seeds show a difference between two of them."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from scipy import stats

LEVEL = 0.95


@dataclass(frozen=True)
class Measure:
    """A number of an analysis, and how it is printed."""

    title: str
    read: Callable[[dict], float]
    digits: int
    larger_is_better: bool = False
    needs_draws: bool = False
    """Whether it needs several draws, which a stock net does not have."""

    def of(self, analyses: Iterable[dict]) -> list[float]:
        """One number for each seed."""
        return [self.read(analysis) for analysis in analyses]


@dataclass(frozen=True)
class Difference:
    """Ours minus theirs, by a paired t-test over the seeds."""

    mean: float
    interval: tuple[float, float] | None
    """The interval of confidence `LEVEL` for the mean; None with one seed."""

    def verdict(self, larger_is_better: bool = False) -> str:
        """Ours is ahead or behind only if the interval does not contain 0."""
        if self.interval is None:
            return "one seed: no test"
        low, high = self.interval
        if low > 0 or high < 0:
            return "ahead" if (low > 0) == larger_is_better else "behind"
        return "no difference shown"

    def text(self, digits: int) -> str:
        """Such as "−0.06 (−0.11 to −0.02)", or the mean alone with one seed."""
        mean = signed(self.mean, digits)
        if self.interval is None:
            return mean
        return f"{mean} ({' to '.join(signed(end, digits) for end in self.interval)})"


def compare(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Compare the scores of two methods: one number for each seed, in the same order."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean, count = statistics.fmean(differences), len(differences)
    if count < 2:
        return Difference(mean, None)
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, count - 1))
    reach = quantile * statistics.stdev(differences) / math.sqrt(count)
    return Difference(mean, (mean - reach, mean + reach))


def bold_best(groups: Sequence[Sequence[float] | None], measure: Measure) -> list[str]:
    """The scores of each method as text, "–" for None.

    The best mean is bold, and every mean that prints the same, unless there is only one method.
    """
    means = [
        None if group is None else round(statistics.fmean(group), measure.digits)
        for group in groups
    ]
    known = [mean for mean in means if mean is not None]
    best = max(known) if measure.larger_is_better else min(known)
    cells = []
    for group, mean in zip(groups, means, strict=True):
        cell = "–" if group is None else mean_sd(group, measure.digits)
        cells.append(f"**{cell}**" if mean == best and len(known) > 1 else cell)
    return cells


def mean_sd(values: Sequence[float], digits: int) -> str:
    """Mean and standard deviation, such as 0.92 ± 0.03; the number alone if there is one."""
    text = f"{statistics.fmean(values):.{digits}f}"
    return f"{text} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else text


def signed(value: float, digits: int) -> str:
    """With a sign unless it prints as zero, such as +0.10 or −0.06."""
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text if text.strip("+−0.") else text[1:]
