"""The stopping rule of adaptive sampling: when fewer draws give the same answer.

rule = bayescaffe.stopping_rule("held-out.npz", error=0.001)
rule.save("rule.json")

The answer to an image is its class and whether that is certain. All N draws give the answer that
counts. Adaptive sampling draws in stages, 4, 8, 16, …, and settles an image at the first stage
where its answer is clear enough:

    x[j] = ln(p / q)      p of the predicted class and the largest q of another one, in draw j
    clearness = mean of x / spread of x >= threshold

`clearness` tells how the spread is computed. Which statistic it is matters for speed only. What is
promised rests on the threshold, and on no assumption about the draws:

Full draws of n held-out images tell for every threshold how many images would be settled with
another answer than that of all draws. Is d of n so few that their share in the population is at
most `error`? An exact binomial test decides, from the strictest threshold on, and the last one
before the first failure is taken; `exact` tells why.

So with 95 % confidence in the choice of the held-out images, at most `error` of all images like
them get another class or another verdict than all draws would give. It is a share of all images,
not only of the settled ones, and it is for the draws of one seed of one net.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument
from bayescaffe.stats import exact, intervals, metrics, rule_files
from bayescaffe.stats.draws import Draws
from bayescaffe.stats.merging import open_draws
from bayescaffe.stats.rule_files import RuleFile

FIRST_STAGE = 4
"""Draws before the first decision; each stage doubles them."""
THRESHOLDS = tuple(np.geomspace(50, 1 / 50, 199).tolist())
"""Those that are tried, the strictest first."""
PRIOR_SPREAD, PRIOR_DRAWS = 1.5, 8
"""The spread of few draws is uncertain: as many more are taken to have shown this one."""
CONFIDENCE = 0.95
DEFAULT_ERROR = 0.001


@dataclass(frozen=True)
class StoppingRule:
    """When an image needs no more draws; see the module's first lines for what it promises."""

    stages: tuple[int, ...]
    """Numbers of draws after which an image may be settled."""
    threshold: float
    """The `clearness` that settles it."""
    passes: int
    """The draws of an image that is never settled, and those of the answer that counts."""
    level: float
    interval: str
    """Of the credible intervals that tell what is certain."""
    error: float
    """At most this share of the images gets another answer, …"""
    confidence: float
    """… with this confidence."""
    images: int
    """How many images it was calibrated with."""
    disagreements: int
    """How many of these it settles with another answer."""
    settled: float
    """Share of these that it settles."""
    mean_draws: float
    """Mean number of draws of these."""
    seed: int | None
    """Of the draws that it was calibrated with; it is for these draws only."""
    weights_sha256: tuple[str | None, ...]
    """Of the caffemodels that they were drawn from."""
    mc_dropout: bool
    antithetic: bool

    def settles(self, probabilities: np.ndarray) -> np.ndarray:
        """Whether images are settled, by their first draws: draws x images x classes, with as many
        draws as one of the stages."""
        return clearness(probabilities) >= self.threshold

    def as_dict(self) -> dict:
        """All fields, as JSON has them."""
        return rule_files.as_json(asdict(self))

    def save(self, path: str | os.PathLike) -> None:
        """Write the rule to a JSON file."""
        _FILE.save(path, self.as_dict())

    @staticmethod
    def load(path: str | os.PathLike) -> "StoppingRule":
        """Read a file of `save`. A file that was changed is an error."""
        rule = StoppingRule(**_FILE.load(path))
        counts = [1, *rule.stages, rule.passes]
        if counts != sorted(set(counts)):
            raise BayesCaffeError(
                f"{path}: not a stopping rule: stages {list(rule.stages)} for {rule.passes} draws"
            )
        return rule


def stopping_rule(
    draws: Draws | str | os.PathLike | Sequence[str | os.PathLike],
    error: float = DEFAULT_ERROR,
    level: float = 0.95,
    interval: str = "equal-tailed",
) -> StoppingRule:
    """Calibrate a stopping rule with full draws of images that the net was not trained with.

    Args:
        draws: `Draws`, or the path of a draws file, or several of parts, as in `analyze`; all draws
            of each image.
        error: the largest share of images that may get another class or another verdict, certain
            or not, than all draws would give.
        level, interval: of the credible intervals, as in `analyze`.
    """
    draws = draws if isinstance(draws, Draws) else open_draws(draws)
    name = str(draws.meta.get("path", "draws"))
    passes, images = draws.probabilities.shape[:2]
    _check(draws, name, error)
    stages = [FIRST_STAGE]
    while 2 * stages[-1] < passes:
        stages.append(2 * stages[-1])
    clear, same = _against_all(draws, stages, level, interval)

    def tests() -> Iterator[tuple[tuple[float, int, float, float], int, int]]:
        for threshold in THRESHOLDS:
            settles = clear >= threshold
            stage, is_settled = settles.argmax(axis=0), settles.any(axis=0)
            wrong = int((is_settled & ~same[stage, np.arange(images)]).sum())
            counts = np.where(is_settled, np.array(stages)[stage], passes)
            yield (threshold, wrong, float(is_settled.mean()), float(counts.mean())), wrong, images

    chosen, failed = exact.last_shown(tests(), error, CONFIDENCE)
    if chosen is None:
        raise BayesCaffeError(
            f"{name}: no stopping rule is within {argument('error', error)}: the strictest settles "
            f"{failed[0]} of {images:,} images with another answer"
        )
    threshold, wrong, settled, mean_draws = chosen
    return StoppingRule(
        stages=tuple(stages),
        threshold=threshold,
        passes=passes,
        level=level,
        interval=interval,
        error=error,
        confidence=CONFIDENCE,
        images=images,
        disagreements=wrong,
        settled=settled,
        mean_draws=mean_draws,
        seed=draws.meta.get("seed"),
        weights_sha256=tuple(model["weights_sha256"] for model in draws.models),
        mc_dropout=bool(draws.meta.get("mc_dropout", False)),
        antithetic=bool(draws.meta.get("antithetic", False)),
    )


def clearness(probabilities: np.ndarray) -> np.ndarray:
    """Per image: mean / spread over the draws of the log ratio of its class and the next one.

    The class is the one of the largest mean probability, the next one is the strongest other class
    of each draw. The spread is sqrt((S + n s^2) / (k - 1 + n)), where S is the sum of squared
    differences from the mean of k draws, and n and s are PRIOR_DRAWS and PRIOR_SPREAD.

    Args:
        probabilities: draws x images x classes.
    """
    predicted = probabilities.mean(axis=0, dtype=np.float64).argmax(axis=-1)
    index = np.broadcast_to(predicted[:, np.newaxis], (*probabilities.shape[:2], 1))
    own = np.take_along_axis(probabilities, index, axis=-1)[..., 0]
    others = np.array(probabilities)
    np.put_along_axis(others, index, 0, axis=-1)
    logs = (
        np.log(np.maximum(part, metrics.SMALLEST, dtype=np.float64))
        for part in (own, others.max(axis=-1))
    )
    ratio = np.subtract(*logs)
    squares = ratio.var(axis=0) * len(ratio) + PRIOR_DRAWS * PRIOR_SPREAD**2
    return ratio.mean(axis=0) / np.sqrt(squares / (len(ratio) - 1 + PRIOR_DRAWS))


def images_needed(error: float) -> int:
    """The fewest images that can show an error of at most this, if no answer differs."""
    return exact.sample_needed(error, CONFIDENCE)


def _check(draws: Draws, name: str, error: float) -> None:
    passes, images = draws.probabilities.shape[:2]
    if not 0 < error < 1:
        raise BayesCaffeError(f"{argument('error', error)} is not between 0 and 1")
    if draws.is_adaptive:
        raise BayesCaffeError(
            f"{name}: is of adaptive sampling; a stopping rule needs all draws of each image"
        )
    if draws.is_analytic:
        raise BayesCaffeError(f"{name}: is analytic, from one pass; a stopping rule needs draws")
    if draws.draw_range.start:
        raise BayesCaffeError(
            f"{name}: begins with draw {draws.draw_range.start}; a stopping rule needs draw 0 and "
            "the next ones"
        )
    if not draws.meta.get("is_random", True):
        raise BayesCaffeError(f"{name}: no layer of the net is random, so one draw is enough")
    if passes <= FIRST_STAGE:
        raise BayesCaffeError(
            f"{name}: {passes} draws; a stopping rule needs more than {FIRST_STAGE}"
        )
    if images < (needed := images_needed(error)):
        possible = math.ceil(-1e4 * math.expm1(math.log(1 - CONFIDENCE) / images)) / 1e4
        raise BayesCaffeError(
            f"{name}: {images:,} images cannot show an error of at most {error:g} with "
            f"{CONFIDENCE:.0%} confidence, so no image could be settled. It needs {needed:,} "
            f"images or more; with these, {argument('error', possible)} is possible"
        )


def _against_all(
    draws: Draws, stages: list[int], level: float, interval: str
) -> tuple[np.ndarray, np.ndarray]:
    """For each stage and image: `clearness`, and whether the answer is that of all draws."""
    clear = np.empty((len(stages), draws.probabilities.shape[1]))
    same = np.empty(clear.shape, bool)

    def answer(chunk: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        predicted = chunk.mean(axis=0, dtype=np.float64).argmax(axis=-1)
        return predicted, intervals.certain(*intervals.KINDS[interval](chunk, level), predicted)

    for images, chunk in draws.parts():
        predicted, certain = answer(chunk)
        for row, count in enumerate(stages):
            clear[row, images] = clearness(chunk[:count])
            found = answer(chunk[:count])
            same[row, images] = (found[0] == predicted) & (found[1] == certain)
    return clear, same


_FILE = RuleFile(
    key="stopping_rule",
    name="a stopping rule",
    command="bayescaffe analyze --stopping-rule",
    expected={
        **dict.fromkeys(("passes", "images", "disagreements"), rule_files.COUNT),
        **dict.fromkeys(("level", "error", "confidence", "settled"), rule_files.SHARE),
        **dict.fromkeys(("threshold", "mean_draws"), rule_files.NUMBER),
        "seed": rule_files.or_null(rule_files.COUNT),
        "stages": rule_files.each(rule_files.COUNT, "whole numbers"),
        "weights_sha256": rule_files.HASHES,
        "interval": rule_files.one_of((*intervals.KINDS,), "a kind of interval"),
        **dict.fromkeys(("mc_dropout", "antithetic"), rule_files.FLAG),
    },
)
