"""What the user sees while a training runs: a bar on a terminal or in a notebook, else lines."""

import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tqdm import tqdm

from bayescaffe.common.printing import printable
from bayescaffe.common.progress import bar_class, is_notebook
from bayescaffe.net.checking import Finding
from bayescaffe.training.log import LogParser

logger = logging.getLogger(__name__)

LINE_SECONDS = 10
"""The least time between two lines where there is no terminal."""


@dataclass(frozen=True)
class Share:
    """One training of several that run one after the other."""

    name: str
    """Such as "seed 3"."""
    others: int
    """Iterations of the others that are done."""
    total: int
    """Iterations of all."""


class TrainingView:
    """The progress of one training, from iteration `first` to iteration `last`.

    Of one among several, the bar and the time left are those of all.
    """

    def __init__(self, first: int, last: int, progress: bool, share: Share | None = None) -> None:
        self._first, self._last = first, last
        self._share = share or Share("", 0, last)
        self._begin = time.monotonic()
        self._next_line = self._begin
        show_bar = bar_class() if progress else None
        is_bar = show_bar is not None
        self._lines = progress and not is_bar
        self._bar = (show_bar or tqdm)(
            total=self._share.total,
            initial=self._share.others + first,
            desc=self._share.name or None,
            unit="it",
            disable=not is_bar,
            dynamic_ncols=True,
        )
        self._taus = tqdm(
            bar_format="{desc}",
            position=1,
            leave=False,
            # The text of a notebook has one line for bars.
            disable=not is_bar or is_notebook(),
            dynamic_ncols=True,
        )

    def show(self, parser: LogParser) -> None:
        """Show the newest numbers of the log."""
        iteration = parser.rows[-1]["iteration"]
        taus = ", ".join(f"{printable(name)} {tau:.3g}" for name, tau in parser.taus().items())
        text = ", ".join(_figures(parser))
        self._bar.set_postfix_str(text, refresh=False)
        all_done = self._share.others + iteration
        self._bar.update(all_done - self._bar.n)
        self._taus.set_description_str(f"tau: {taus}" if taus else "")
        now = time.monotonic()
        if self._lines and now >= self._next_line:
            self._next_line = now + LINE_SECONDS
            done = iteration - self._first
            left = (now - self._begin) / done * (self._share.total - all_done) if done else None
            text += f", tau: {taus}" if taus else ""
            text += f", {tqdm.format_interval(left)} left" if left is not None else ""
            text += " for all" if left is not None and self._share.name else ""
            start = f"{self._share.name}, iteration" if self._share.name else "Iteration"
            logger.info("%s %d of %d: %s", start, iteration, self._last, text)

    def warn(self, finding: Finding) -> None:
        """Print a finding above the bar."""
        with tqdm.external_write_mode(file=sys.stderr):
            logger.warning("%s", finding)

    def close(self) -> None:
        """Leave the last numbers on the screen."""
        self._taus.close()
        self._bar.close()


def _figures(parser: LogParser) -> Iterator[str]:
    loss, kl = parser.latest("loss"), parser.latest("kl_term")
    if loss is not None:
        yield f"loss {loss:.4f}" + (f" + KL {kl:.4f}" if kl is not None else "")
    if (error := parser.latest("test_error")) is not None:
        yield f"test error {error:.2%}"
    if (error := parser.latest("mean_test_error")) is not None:
        yield f"of {parser.draws} draws {error:.2%}"
