"""Decisions with a guarantee, from held-out draws: sets of classes, and when to accept a class.

    rule = bayescaffe.calibrate_decisions("held-out.npz", coverage=0.95, error=0.01)
    rule.save("calibration.json")

All probabilities here are means over the draws at one temperature: softmax(ln p / T).

Sets of classes (split conformal prediction). A score tells how strange a class is for an image:

    lac   1 - p of the class; the smallest sets on average, some of them may be empty
    aps   the sum of p over all classes that are more probable; the first class has 0, so no set is
          empty
    raps  aps + PENALTY for each place of the class after place `free_places`

With the scores s of the true classes of n images, the set of a new image is all classes whose score
is at most the k-th smallest of the s, k = ceil((n + 1) coverage). If the new image is like the n,
the rank of its own score among all n + 1 is uniform, so its class is in the set with probability
k / (n + 1) or, where scores are equal, more. There is no random number in it: randomised APS gives
sets that are a little smaller on average, but two answers to the same image, or empty ones.

Accept. A class is accepted if its p is at least the threshold. With given confidence, at most the
share `error` of what is accepted is wrong. Thresholds are tested from a strict one on, by the
images that each accepts: `exact` tells how.

Both need numbers that are chosen before they see the n images: T, `free_places` and the thresholds
that are tried. A fifth of the held-out images, by a fixed permutation, serves for these alone.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument
from bayescaffe.stats import exact, rule_files
from bayescaffe.stats.draws import Block, Draws, load_draws
from bayescaffe.stats.rule_files import RuleFile
from bayescaffe.stats.temperature import LARGEST, NoTemperatureError, fit_temperature, tempered_mean

TUNING = 5
"""One image of so many chooses temperature, `free_places` and the thresholds that are tried."""
PENALTY = 0.01
"""Of RAPS, for each place."""
STEPS = 100
"""How many thresholds are tried at most."""
DEFAULT_COVERAGE = 0.95
DEFAULT_CONFIDENCE = 0.95
METHODS = ("lac", "aps", "raps")


@dataclass(frozen=True)
class DecisionRule:
    """Sets of classes and a threshold that keep a promise; see the module's first lines."""

    method: str
    """Of the sets: lac, aps or raps."""
    coverage: float
    """The share of images whose class is in their set, at least."""
    largest_score: float
    """The score that a class of a set has at most."""
    free_places: int | None
    """Of RAPS; None for the others."""
    temperature: float
    error: float | None
    """At most this share of the accepted images is wrong, …"""
    confidence: float | None
    """… with this confidence."""
    threshold: float | None
    """The probability from which on a class is accepted; these three are None if no error was
    asked for."""
    images: int
    """How many images it was calibrated with, without those that chose the temperature."""
    covered: int
    """How many of these have their class in the set."""
    accepted: int | None
    """How many of these are accepted, …"""
    wrong: int | None
    """… and how many of the accepted are wrong."""
    classes: int
    missing_classes: tuple[int, ...]
    """Classes that none of the images has."""
    passes: int
    """The number of draws; it is for these draws of this net and seed only."""
    seed: int | None
    net_sha256: tuple[str | None, ...]
    weights_sha256: tuple[str | None, ...]
    mc_dropout: bool
    antithetic: bool
    analytic: bool
    stopping_rule_sha256: str | None
    """Of the rule of adaptive sampling; None if all images have all draws."""
    data_sha256: str | None
    """Of all held-out images."""

    def sets(self, probabilities: np.ndarray) -> np.ndarray:
        """Images x classes: whether the class is in the image's set.

        Args:
            probabilities: images x classes: means of draws at `temperature`.
        """
        found = scores(probabilities, self.method, self.free_places)
        return found <= self.largest_score

    def decide(self, draws: Draws, predicted: np.ndarray) -> "Decisions":
        """What it says to draws that it is for; `check` tells whether it is.

        Args:
            predicted: the class of each image that is accepted or not.
        """
        mean = tempered_mean(draws, self.temperature)
        own = _of_class(mean, predicted)
        accepted = None if self.threshold is None else own >= self.threshold
        return Decisions(self, self.sets(mean), accepted, own)

    def check(
        self, name: str, origin: dict[str, object], what: str, data_sha256: str | None = None
    ) -> None:
        """Raise if it is for other draws than these.

        Args:
            name: of the rule, for messages.
            origin: the fields of `origin_of`.
            what: the draws, for messages.
        """
        for key, is_for in (
            ("classes", "{} classes"),
            ("passes", "{} draws"),
            ("seed", "the draws of seed {}"),
        ):
            expected, found = getattr(self, key), origin[key]
            if expected is not None and found != expected:
                raise BayesCaffeError(
                    f"{name}: is for {is_for.format(expected)}, but {what} has {key} {found}"
                )
        for key, kind in (("weights_sha256", "weights"), ("net_sha256", "nets")):
            expected = getattr(self, key)
            if None not in expected and origin[key] != expected:
                raise BayesCaffeError(
                    f"{name}: was calibrated with draws of other {kind} than {what}; calibrate "
                    "with held-out draws of these"
                )
        for key, kind in (
            ("mc_dropout", "MC dropout"),
            ("antithetic", "antithetic pairs"),
            ("analytic", "the analytic pass"),
        ):
            if getattr(self, key) != origin[key]:
                has = "with" if getattr(self, key) else "without"
                raise BayesCaffeError(f"{name}: is for draws {has} {kind}, unlike {what}")
        if self.stopping_rule_sha256 != origin["stopping_rule_sha256"]:
            needed = "all draws of each image"
            if self.stopping_rule_sha256 is not None:
                needed = "adaptive sampling by the rule of the held-out draws"
            raise BayesCaffeError(f"{name}: is for {needed}, unlike {what}")
        if data_sha256 is not None and data_sha256 == self.data_sha256:
            raise BayesCaffeError(
                f"{name}: was calibrated with the images of {what}; what these show says nothing "
                "about others"
            )

    def check_draws(self, draws: Draws, name: str = "the calibration") -> None:
        """Raise if it is for other draws than these, or was calibrated with their images."""
        what = _name(draws)
        if draws.part:
            raise BayesCaffeError(
                f"{what}: only a part: {draws.part}; a calibration needs the whole, which "
                "`bayescaffe merge` makes of parts"
            )
        self.check(name, origin_of(draws), what, draws.meta.get("data_sha256"))

    def as_dict(self) -> dict:
        """All fields, as JSON has them."""
        return rule_files.as_json(asdict(self))

    def save(self, path: str | os.PathLike) -> None:
        """Write it to a JSON file."""
        _FILE.save(path, self.as_dict())

    @staticmethod
    def load(path: str | os.PathLike) -> "DecisionRule":
        """Read a file of `save`. A file that was changed is an error."""
        rule = DecisionRule(**_FILE.load(path))
        together = (rule.error, rule.confidence, rule.threshold, rule.accepted, rule.wrong)
        if rule.temperature <= 0 or len({value is None for value in together}) > 1:
            raise BayesCaffeError(
                f"{path}: not a calibration: temperature {rule.temperature:g}, threshold "
                f"{rule.threshold}, error {rule.error}"
            )
        return rule


@dataclass(frozen=True)
class Decisions:
    """What a `DecisionRule` says to images."""

    rule: DecisionRule
    sets: np.ndarray
    """Images x classes: whether the class is in the image's set."""
    accepted: np.ndarray | None
    """Whether the image's class is accepted; None if the rule has no threshold."""
    probability: np.ndarray
    """Of the image's class, at the rule's temperature."""

    def summary(
        self, labels: np.ndarray | None, predicted: np.ndarray, confidence: float = 0.95
    ) -> dict:
        """The figures of docs/metrics.md, ready for JSON; without labels some are None."""
        sizes = self.sets.sum(axis=1)
        images = len(sizes)
        found = {
            "method": self.rule.method,
            "level": self.rule.coverage,
            "temperature": self.rule.temperature,
            "mean_set_size": float(sizes.mean()),
            "set_sizes": np.bincount(sizes, minlength=self.rule.classes + 1).tolist(),
            "coverage": None,
            "coverage_interval": None,
            "class_coverage": None,
            "error_target": self.rule.error,
            "confidence": self.rule.confidence,
            "threshold": self.rule.threshold,
            "accepted": None if self.accepted is None else int(self.accepted.sum()),
            "accepted_wrong": None,
            "accepted_error": None,
            "accepted_error_interval": None,
        }
        if labels is None:
            return found
        covered = _of_class(self.sets, labels)
        of_class = []
        for number in range(self.rule.classes):
            rows = labels == number
            total, count = int(rows.sum()), int(covered[rows].sum())
            of_class.append(
                {
                    "images": total,
                    "coverage": count / total if total else None,
                    "interval": exact.interval(count, total, confidence) if total else None,
                }
            )
        found["coverage"] = float(covered.mean())
        found["coverage_interval"] = exact.interval(int(covered.sum()), images, confidence)
        found["class_coverage"] = of_class
        if found["accepted"]:
            wrong = int((predicted != labels)[self.accepted].sum())
            found["accepted_wrong"] = wrong
            found["accepted_error"] = wrong / found["accepted"]
            found["accepted_error_interval"] = exact.interval(wrong, found["accepted"], confidence)
        return found


def calibrate_decisions(
    draws: Draws | str | os.PathLike,
    coverage: float = DEFAULT_COVERAGE,
    error: float | None = None,
    *,
    method: str = "lac",
    confidence: float = DEFAULT_CONFIDENCE,
    temperature: float | None = None,
) -> DecisionRule:
    """Calibrate sets of classes, and when to accept, with draws of held-out images.

    Args:
        draws: `Draws`, or the path of a draws file; with labels, of images that the net was not
            trained with, like those that the rule is for.
        coverage: the share of images whose class is to be in their set.
        error: the largest share of the accepted images that may be wrong; without it, there is no
            threshold.
        method: of the sets: "lac", "aps" or "raps".
        confidence: that the error of the accepted is at most `error`.
        temperature: take this one; by default it is fitted.
    """
    draws = draws if isinstance(draws, Draws) else load_draws(draws)
    name = _name(draws)
    _check(draws, name, coverage, error, method, confidence, temperature)
    labels, images = draws.labels, draws.probabilities.shape[1]
    order = np.random.default_rng(0).permutation(images)
    tuning, rest = np.split(order, [images // TUNING])
    if temperature is None:
        temperature = _temperature(draws, tuning)
    predicted = np.empty(images, np.int64)
    for rows, part in draws.parts():
        predicted[rows] = part.mean(axis=0, dtype=np.float64).argmax(axis=-1)
    mean = tempered_mean(draws, temperature)
    if not np.isfinite(mean).all():
        raise BayesCaffeError(f"{name}: has draws that are not numbers; `analyze` tells which")
    free_places = None
    if method == "raps":
        places = _of_class(_places(mean[tuning]), labels[tuning])
        free_places = int(np.quantile(places, coverage, method="higher"))
    strange = _of_class(scores(mean[rest], method, free_places), labels[rest])
    largest = float(np.sort(strange)[_rank(len(rest), coverage) - 1])
    own, is_wrong = _of_class(mean, predicted), predicted != labels
    threshold = accepted = wrong = None
    if error is not None:
        tried = thresholds(own[tuning], len(rest), error, confidence)
        threshold, failed = exact.last_shown(
            _tests(tried, own[rest], is_wrong[rest]), error, confidence
        )
        if threshold is None:
            raise BayesCaffeError(
                f"{name}: nothing can be accepted with {argument('error', error)}: of the "
                f"{failed[1]:,} most probable classes, {failed[0]:,} are wrong, and that does not "
                f"show it with {confidence:.0%} confidence. Allow more errors, or take more images"
            )
        rows = own[rest] >= threshold
        accepted, wrong = int(rows.sum()), int(is_wrong[rest][rows].sum())
    return DecisionRule(
        method=method,
        coverage=coverage,
        largest_score=largest,
        free_places=free_places,
        temperature=temperature,
        error=error,
        confidence=None if error is None else confidence,
        threshold=threshold,
        images=len(rest),
        covered=int((strange <= largest).sum()),
        accepted=accepted,
        wrong=wrong,
        missing_classes=tuple(
            np.flatnonzero(np.bincount(labels[rest], minlength=mean.shape[1]) == 0).tolist()
        ),
        data_sha256=draws.meta.get("data_sha256"),
        **origin_of(draws),
    )


def as_decision_rule(rule: DecisionRule | str | os.PathLike) -> tuple[DecisionRule, str]:
    """A rule, from its file if it is not loaded, and what messages call it."""
    if isinstance(rule, DecisionRule):
        return rule, "the calibration"
    return DecisionRule.load(rule), str(rule)


def scores(probabilities: np.ndarray, method: str, free_places: int | None = None) -> np.ndarray:
    """How strange each class is for its image, images x classes.

    Classes that are equally probable have the same score, whatever their order.
    """
    if method == "lac":
        return 1 - probabilities
    order = np.argsort(-probabilities, axis=1, kind="stable")
    falling = np.take_along_axis(probabilities, order, axis=1)
    before = np.cumsum(falling, axis=1) - falling
    before[:, 0] = 0
    places = np.arange(falling.shape[1])
    is_new = np.diff(falling, axis=1, prepend=np.inf) != 0
    first = np.maximum.accumulate(np.where(is_new, places, 0), axis=1)
    found = np.take_along_axis(before, first, axis=1)
    if method == "raps":
        found += PENALTY * np.maximum(first + 1 - free_places, 0)
    result = np.empty_like(found)
    np.put_along_axis(result, order, found, axis=1)
    return result


def thresholds(tuning: np.ndarray, images: int, error: float, confidence: float) -> list[float]:
    """The thresholds to try, the strictest first.

    They are quantiles of probabilities of other images than those that they are tried with. The
    first accepts four times as many images as can show the error, so that a few may be wrong; or,
    if there are not so many, as many as are needed and half of the others.
    """
    needed = exact.sample_needed(error, confidence)
    first = min(4 * needed, (needed + images) / 2) / images
    shares = np.linspace(first, 1, STEPS, endpoint=False)
    found = np.quantile(tuning, 1 - shares, method="lower")
    return [*sorted(set(found.tolist()), reverse=True), 0.0]


def images_needed(
    coverage: float, error: float | None = None, confidence: float = DEFAULT_CONFIDENCE
) -> int:
    """The fewest held-out images for a coverage, and for an error if none of them is wrong."""
    exactly = Fraction(repr(float(coverage)))
    needed = math.ceil(exactly / (1 - exactly))
    if error is not None:
        needed = max(needed, exact.sample_needed(error, confidence))
    images = needed
    while images - images // TUNING < needed:
        images += 1
    return max(images, TUNING)


def origin_of(draws: Draws) -> dict[str, object]:
    """What a rule remembers of its draws."""
    rule = draws.meta.get("stopping_rule")
    return {
        "classes": draws.probabilities.shape[2],
        "passes": draws.passes,
        "seed": draws.meta.get("seed"),
        "net_sha256": tuple(model["net_sha256"] for model in draws.models),
        "weights_sha256": tuple(model["weights_sha256"] for model in draws.models),
        "mc_dropout": bool(draws.meta.get("mc_dropout", False)),
        "antithetic": bool(draws.meta.get("antithetic", False)),
        "analytic": draws.is_analytic,
        "stopping_rule_sha256": None if rule is None else rule_files.digest(rule),
    }


def _temperature(draws: Draws, rows: np.ndarray) -> float:
    """That of these images; 1 if there is none, as when all of them are right."""
    rows = np.sort(rows)
    later = []
    for block in draws.later:
        inside = np.isin(block.images, rows)
        if inside.any():
            images = np.searchsorted(rows, block.images[inside])
            later.append(Block(block.first, images, block.probabilities[:, inside]))
    few = Draws(draws.probabilities[:, rows], draws.labels[rows], draws.meta, tuple(later))
    try:
        return fit_temperature(few).temperature
    except NoTemperatureError:
        return 1.0


def _tests(
    tried: list[float], own: np.ndarray, is_wrong: np.ndarray
) -> Iterator[tuple[float, int, int]]:
    for threshold in tried:
        rows = own >= threshold
        yield threshold, int(is_wrong[rows].sum()), int(rows.sum())


def _rank(images: int, coverage: float) -> int:
    """Of the largest score that is in a set: ceil((n + 1) coverage), for the decimal number."""
    return math.ceil((images + 1) * Fraction(repr(float(coverage))))


def _places(probabilities: np.ndarray) -> np.ndarray:
    """Which place each class has, from 1 on."""
    order = np.argsort(-probabilities, axis=1, kind="stable")
    return np.argsort(order, axis=1, kind="stable") + 1


def _of_class(values: np.ndarray, classes: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values, classes[:, np.newaxis], axis=1)[:, 0]


def _name(draws: Draws) -> str:
    return str(draws.meta.get("path", "the draws"))


def _check(
    draws: Draws,
    name: str,
    coverage: float,
    error: float | None,
    method: str,
    confidence: float,
    temperature: float | None,
) -> None:
    shares = {"coverage": coverage, "error": error, "confidence": confidence}
    for key, value in shares.items():
        if value is not None and not 0 < value < 1:
            raise BayesCaffeError(f"{argument(key, value)} is not between 0 and 1")
    if method not in METHODS:
        raise BayesCaffeError(
            f"{argument('method', method)} is not known; expected {', '.join(METHODS)}"
        )
    if temperature is not None and not 1 / LARGEST <= temperature <= LARGEST:
        raise BayesCaffeError(
            f"{argument('temperature', temperature)} is not within {1 / LARGEST:g}..{LARGEST:g}"
        )
    if draws.labels is None:
        raise BayesCaffeError(f"{name}: has no labels, so nothing can be calibrated")
    images, classes = draws.probabilities.shape[1:]
    outside = np.flatnonzero((draws.labels < 0) | (draws.labels >= classes))
    if len(outside):
        raise BayesCaffeError(
            f"{name}: image {outside[0]} has the label {draws.labels[outside[0]]}, expected a "
            f"class within 0..{classes - 1}"
        )
    if draws.part:
        raise BayesCaffeError(
            f"{name}: only a part: {draws.part}; calibrate with the whole, which `bayescaffe "
            "merge` makes of parts"
        )
    for asked, needed in (
        (argument("coverage", coverage), images_needed(coverage)),
        (argument("error", error), images_needed(coverage, error, confidence)),
    ):
        if images < needed:
            raise BayesCaffeError(
                f"{name}: {images:,} images are too few for {asked}; it needs {needed:,} or more"
            )


_FILE = RuleFile(
    key="decisions",
    name="a calibration of decisions",
    command="bayescaffe calibrate DRAWS",
    expected={
        "method": rule_files.one_of(METHODS, "a kind of sets"),
        **dict.fromkeys(("coverage",), rule_files.SHARE),
        **dict.fromkeys(("largest_score", "temperature"), rule_files.NUMBER),
        **dict.fromkeys(("error", "confidence", "threshold"), rule_files.or_null(rule_files.SHARE)),
        **dict.fromkeys(("images", "covered", "classes", "passes"), rule_files.COUNT),
        **dict.fromkeys(
            ("free_places", "accepted", "wrong", "seed"), rule_files.or_null(rule_files.COUNT)
        ),
        "missing_classes": rule_files.each(rule_files.COUNT, "whole numbers", fewest=0),
        **dict.fromkeys(("net_sha256", "weights_sha256"), rule_files.HASHES),
        **dict.fromkeys(("mc_dropout", "antithetic", "analytic"), rule_files.FLAG),
        **dict.fromkeys(
            ("stopping_rule_sha256", "data_sha256"), rule_files.or_null(rule_files.TEXT)
        ),
    },
)
