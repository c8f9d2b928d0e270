"""From draws to predictions, credible intervals and measures of how far to trust them.

`analyze` reads a few images at a time, so a draws file, or the parts of one, may be larger than
memory. It keeps a few numbers for each image and class.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument
from bayescaffe.common.files import scratch_file
from bayescaffe.common.packages import import_optional
from bayescaffe.common.progress import ProgressBar
from bayescaffe.stats import intervals, metrics
from bayescaffe.stats.decisions import DecisionRule, Decisions, as_decision_rule
from bayescaffe.stats.draws import Draws
from bayescaffe.stats.merging import open_draws

SUM_TOLERANCE = 1e-3
"""How far the probabilities of an image may be from a sum of 1."""
COVERAGES = (0.5, 0.8, 0.9, 0.95, 0.99, 1.0)
"""Where the summary gives the risk."""


@dataclass(frozen=True)
class Analysis:
    """The result of `analyze`. Arrays have one entry, or one row of classes, for each image."""

    draws: int
    """Of each image; after adaptive sampling, of those that were never settled."""
    images: int
    classes: int
    level: float
    interval: str
    warnings: list[str]
    """Why some figures may be unreliable, such as too few draws for the level."""
    names: list[str] | None
    """Names of the image files."""
    class_names: list[str] | None

    mean: np.ndarray
    """Images x classes: mean probability over the draws."""
    predicted: np.ndarray
    """Class with the largest mean probability; the first one if several are equal."""
    confidence: np.ndarray
    """The mean probability of the predicted class."""
    lower: np.ndarray
    """Images x classes: lower end of the credible interval of the class's probability."""
    upper: np.ndarray
    """Images x classes: upper end of the interval."""
    certain: np.ndarray
    """Whether the predicted class's interval overlaps the interval of no other class."""
    entropy: np.ndarray
    """Entropy of the mean probabilities, in nats; the sum of the next two."""
    aleatoric: np.ndarray
    """Mean entropy of a single draw, in nats."""
    epistemic: np.ndarray
    """Mutual information of class and weights, in nats."""
    between_models: np.ndarray | None = None
    """The part of it that is mutual information of class and model; None for one model."""
    is_analytic: bool = False
    """Whether the draws are of the scores' distribution, and not of the weights."""
    draw_counts: np.ndarray | None = None
    """After adaptive sampling, the number of draws of each image, which all of its figures are
    computed from; None if all images have all draws."""

    # Without labels these are None or empty.
    labels: np.ndarray | None = None
    """The true classes."""
    correct: np.ndarray | None = None
    """Whether the predicted class is the true one."""
    wrong_draws: np.ndarray | None = None
    """Share of the draws that, each on its own, predict a wrong class."""
    metrics: dict[str, float] = field(default_factory=dict)
    """error, single_draw_error, nll, brier, ece, adaptive_ece, aurc, excess_aurc, aurc_epistemic;
    docs/metrics.md defines them."""
    table: dict[str, int] | None = None
    """Number of images: correct_certain, correct_uncertain, wrong_certain, wrong_uncertain."""
    reliability: list[dict] | None = None
    """Bins of equal width: lower, upper, count, confidence, accuracy."""
    risk_coverage: dict[str, np.ndarray] | None = None
    """coverage and risk if images are answered in order of decreasing confidence."""

    ood: dict | None = None
    """Out-of-distribution images: images, certain (images), mean entropy, aleatoric and epistemic.
    `scores` tells how well entropy, epistemic and confidence each separate the two sets: auroc and
    fpr95. None without out-of-distribution draws."""
    decisions: Decisions | None = None
    """What a calibration of decisions says to the images; None without one."""

    def __repr__(self) -> str:
        """A few lines for a terminal or a notebook, without arrays."""
        lines = [
            f"Analysis of {self.draws:,} draws x {self.images:,} images x {self.classes:,} classes",
            f"  {100 * self.level:g} % intervals ({self.interval}): certain of "
            f"{self.certain.sum():,} images",
        ]
        if self.table is not None:
            figures = ("error", "single_draw_error", "nll", "ece", "aurc")
            found = ", ".join(f"{name} {self.metrics[name]:.4g}" for name in figures)
            lines += [f"  {found}", f"  {', '.join(f'{k} {n:,}' for k, n in self.table.items())}"]
        if self.ood is not None:
            scores = ", ".join(
                f"{name} {score['auroc']:.4g}" for name, score in self.ood["scores"].items()
            )
            lines.append(f"  {self.ood['images']:,} out-of-distribution images, AUROC: {scores}")
        return "\n".join([*lines, *(f"  warning: {warning}" for warning in self.warnings)])

    @property
    def mean_draws(self) -> float:
        """The mean number of draws of an image."""
        return float(self.draws if self.draw_counts is None else self.draw_counts.mean())

    def summary(self) -> dict:
        """Everything that is not per image, ready for JSON."""
        risks = None
        if self.risk_coverage is not None:
            risk = self.risk_coverage["risk"]
            risks = [{"coverage": c, "risk": metrics.risk_at(c, risk)} for c in COVERAGES]
        return {
            "draws": self.draws,
            "mean_draws": self.mean_draws,
            "analytic": self.is_analytic,
            "images": self.images,
            "classes": self.classes,
            "level": self.level,
            "interval": self.interval,
            "draws_needed": intervals.draws_needed(self.level),
            "warnings": self.warnings,
            "certain": int(self.certain.sum()),
            "entropy": float(self.entropy.mean()),
            "aleatoric": float(self.aleatoric.mean()),
            "epistemic": float(self.epistemic.mean()),
            "between_models": (
                None if self.between_models is None else float(self.between_models.mean())
            ),
            "metrics": self.metrics,
            "table": self.table,
            "risk_at_coverage": risks,
            "reliability": self.reliability,
            "ood": self.ood,
            "decisions": self.decisions and self.decisions.summary(self.labels, self.predicted),
        }

    def write_csv(self, path: str | os.PathLike) -> None:
        """Write one line per image; `lower` and `upper` are those of the predicted class."""
        columns = {name: _texts(values) for name, values in self._columns().items()}
        with (
            scratch_file(Path(path)) as scratch,
            scratch.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
        ):
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))

    def to_dataframe(self):
        """A DataFrame of pandas with the columns of `write_csv` and a row per image."""
        pandas = import_optional("pandas", "to_dataframe")
        return pandas.DataFrame(self._columns()).set_index("image")

    def _columns(self) -> dict[str, np.ndarray | list]:
        """By name, a value for each image."""
        index = np.arange(self.images)
        return {
            "image": index,
            **({} if self.names is None else {"name": self.names}),
            **({} if self.labels is None else {"label": self._named(self.labels)}),
            "predicted": self._named(self.predicted),
            **({} if self.correct is None else {"correct": self.correct}),
            "certain": self.certain,
            "confidence": self.confidence,
            "lower": self.lower[index, self.predicted],
            "upper": self.upper[index, self.predicted],
            "entropy": self.entropy,
            "aleatoric": self.aleatoric,
            "epistemic": self.epistemic,
            **({} if self.between_models is None else {"between_models": self.between_models}),
            **({} if self.draw_counts is None else {"draws": self.draw_counts}),
            **({} if self.decisions is None else self._decided(self.decisions)),
        }

    def _decided(self, decisions: Decisions) -> dict[str, np.ndarray | list]:
        names = np.array(self._named(np.arange(self.classes)), object)
        sets = [" ".join(map(str, names[row])) for row in decisions.sets]
        return {
            "set": sets,
            **({} if decisions.accepted is None else {"accepted": decisions.accepted}),
        }

    def _named(self, classes: np.ndarray) -> list:
        numbers = classes.tolist()
        return numbers if self.class_names is None else [self.class_names[c] for c in numbers]


def analyze(
    draws: Draws | str | os.PathLike | Sequence[str | os.PathLike],
    level: float = 0.95,
    interval: str = "equal-tailed",
    ood: Draws | str | os.PathLike | Sequence[str | os.PathLike] | None = None,
    bins: int = 15,
    calibration: DecisionRule | str | os.PathLike | None = None,
    progress: bool = True,
) -> Analysis:
    """Compute predictions, credible intervals and metrics from draws.

    Args:
        draws: `Draws`, or the path of a draws file. Several paths, or a folder of draws files,
            are parts of one: the figures are those of the file that `merge` would write. For
            arrays of your own, pass `Draws(probabilities, labels)`.
        level: level of the credible intervals, between 0 and 1.
        interval: "equal-tailed" or "hdi" (highest density).
        ood: draws of the same net for out-of-distribution images, which should be less certain.
        bins: number of bins of the reliability diagram and of both calibration errors.
        calibration: a `DecisionRule` of `calibrate_decisions`, or its file; for draws of the same
            net, seed and number, of other images.
        progress: show a progress bar on a terminal or in a notebook if this takes long.
    """
    draws = _opened(draws)
    ood = None if ood is None else _opened(ood)
    if interval not in intervals.KINDS:
        kinds = " or ".join(map(repr, intervals.KINDS))
        raise BayesCaffeError(f"{argument('interval', interval)} is not known; expected {kinds}")
    if bins < 1:
        raise BayesCaffeError(f"{argument('bins', bins)}: expected at least 1")
    name = _name(draws, "draws")
    count, images, classes = _shape(draws, name)
    labels = _labels(draws, name)
    if ood is not None:
        other_name = _name(ood, "ood draws")
        if _shape(ood, other_name)[2] != classes:
            raise BayesCaffeError(
                f"{other_name}: {ood.probabilities.shape[2]} classes, but {name}: {classes}; "
                "both must be draws of the same net"
            )

    rule = calibration
    if calibration is not None:
        rule, called = as_decision_rule(calibration)
        rule.check_draws(draws, called)
    few = intervals.too_few_draws(count, level)
    warnings = [few] if few else []
    if count > 1 and not draws.meta.get("is_random", True):
        warnings.append(f"all {count} draws are the same, because no layer of the net is random")
    if draws.part:
        warnings.append(f"only a part: {draws.part}; `bayescaffe merge` joins parts")
    warnings += _other_interval(draws, level, interval)
    found = _per_image(draws, name, labels, level, interval, progress)
    judged = {} if labels is None else _judge(found, labels, bins)
    if ood is not None:
        warnings += _differences(draws, ood)
        other = _per_image(ood, other_name, None, level, interval, progress)
        judged["ood"] = _compare(found, other)
    return Analysis(
        draws=count,
        images=images,
        classes=classes,
        level=level,
        interval=interval,
        warnings=warnings,
        names=_names(draws, "names", images, name),
        class_names=_names(draws, "class_names", classes, name),
        is_analytic=draws.is_analytic,
        draw_counts=draws.draw_counts if draws.is_adaptive else None,
        decisions=None if rule is None else rule.decide(draws, found["predicted"]),
        **found,
        **judged,
    )


def _texts(values: np.ndarray | list) -> list:
    """Values as they stand in a CSV file."""
    kind = values.dtype.kind if isinstance(values, np.ndarray) else ""
    if kind == "f":
        return [f"{value:.9g}" for value in values.tolist()]
    return values.astype(int).tolist() if kind == "b" else list(values)


def _opened(draws: Draws | str | os.PathLike | Sequence[str | os.PathLike]) -> Draws:
    return draws if isinstance(draws, Draws) else open_draws(draws)


def _name(draws: Draws, default: str) -> str:
    """What errors call the draws: their file if it is known."""
    return str(draws.meta.get("path", default))


def _shape(draws: Draws, name: str) -> tuple[int, int, int]:
    shape = draws.probabilities.shape
    if len(shape) != 3 or 0 in shape or shape[2] < 2:
        raise BayesCaffeError(
            f"{name}: probabilities of shape {' x '.join(map(str, shape))}, expected draws x "
            "images x classes, at least one draw, one image and two classes"
        )
    return draws.passes, *shape[1:]


def _labels(draws: Draws, name: str) -> np.ndarray | None:
    if draws.labels is None:
        return None
    labels = np.asarray(draws.labels)
    _, images, classes = draws.probabilities.shape
    if labels.shape != (images,) or labels.dtype.kind not in "iu":
        raise BayesCaffeError(
            f"{name}: labels are {labels.dtype} of shape {labels.shape}, expected one whole number "
            f"for each of {images} images"
        )
    outside = np.flatnonzero((labels < 0) | (labels >= classes))
    if outside.size:
        raise BayesCaffeError(
            f"{name}: image {outside[0]} has the label {labels[outside[0]]}, expected a class "
            f"within 0..{classes - 1} ({outside.size} of {images} labels are outside)"
        )
    return labels.astype(np.int64)


def _names(draws: Draws, key: str, count: int, name: str) -> list | None:
    names = draws.meta.get(key)
    if names is not None and len(names) != count:
        raise BayesCaffeError(f"{name}: {len(names)} {key} in its meta, expected {count}")
    return names


def _per_image(
    source: Draws,
    name: str,
    labels: np.ndarray | None,
    level: float,
    interval: str,
    progress: bool,
) -> dict[str, np.ndarray]:
    """The fields of `Analysis` that are computed image by image."""
    parts, order = [], []
    model_of_draw = _names(source, "model_of_draw", source.passes, name)
    with ProgressBar(source.probabilities.shape[1], "analysing", show=progress, delay=1) as bar:
        for images, chunk in source.parts():
            _check(chunk, source, name, images)
            mean = chunk.mean(axis=0, dtype=np.float64)
            predicted = mean.argmax(axis=-1)
            lower, upper = intervals.KINDS[interval](chunk, level)
            entropy, aleatoric, epistemic = metrics.uncertainty(chunk)
            part = {
                "mean": mean,
                "predicted": predicted,
                "confidence": mean.max(axis=-1),
                "lower": lower,
                "upper": upper,
                "certain": intervals.certain(lower, upper, predicted),
                "entropy": entropy,
                "aleatoric": aleatoric,
                "epistemic": epistemic,
            }
            if model_of_draw is not None:
                models = np.array(model_of_draw[: len(chunk)])
                part["between_models"] = metrics.between_models(chunk, models)
            if labels is not None:
                wrong = chunk.argmax(axis=-1) != labels[images]
                part["wrong_draws"] = wrong.mean(axis=0)
            parts.append(part)
            order.append(images)
            bar.advance(len(images))
    place = np.argsort(np.concatenate(order))
    return {key: np.concatenate([part[key] for part in parts])[place] for key in parts[0]}


def _check(chunk: np.ndarray, source: Draws, name: str, images: np.ndarray) -> None:
    """Raise if these are not probabilities; `images` are the indices of the chunk's images."""
    with np.errstate(invalid="ignore"):
        sums = chunk @ np.ones(chunk.shape[2], chunk.dtype)
        error = np.abs(sums - 1)
    # A NaN is neither within the tolerance nor at least 0.
    if error.max() <= SUM_TOLERANCE and chunk.min() >= 0:
        return
    is_good = (error <= SUM_TOLERANCE) & (chunk >= 0).all(axis=-1)
    number, image = np.argwhere(~is_good)[0]
    numbers = chunk[number, image]
    raise BayesCaffeError(
        f"{name}: draw {source.draw_range[number]} of image {source.image_range[images[image]]} is "
        f"not probabilities: expected numbers from 0 to 1 with a sum of 1, found "
        f"{numbers.min():g} to {numbers.max():g} with a sum of {sums[number, image]:g}"
    )


def _judge(found: dict[str, np.ndarray], labels: np.ndarray, bins: int) -> dict:
    """The fields of `Analysis` that need labels."""
    confidence, certain = found["confidence"], found["certain"]
    correct = found["predicted"] == labels
    reliability, adaptive = (
        metrics.reliability(confidence, correct, edges)
        for edges in (metrics.equal_width(bins), metrics.equal_mass(confidence, bins))
    )
    coverage, risk = metrics.risk_coverage(confidence, correct)
    _, risk_by_epistemic = metrics.risk_coverage(-found["epistemic"], correct)
    return {
        "labels": labels,
        "correct": correct,
        "metrics": {
            "error": float((~correct).mean()),
            "single_draw_error": float(found["wrong_draws"].mean()),
            "nll": metrics.nll(found["mean"], labels),
            "brier": metrics.brier(found["mean"], labels),
            "ece": metrics.calibration_error(reliability),
            "adaptive_ece": metrics.calibration_error(adaptive),
            "aurc": metrics.aurc(risk),
            "excess_aurc": metrics.aurc(risk) - metrics.best_aurc(correct),
            "aurc_epistemic": metrics.aurc(risk_by_epistemic),
        },
        "table": {
            "correct_certain": int((correct & certain).sum()),
            "correct_uncertain": int((correct & ~certain).sum()),
            "wrong_certain": int((~correct & certain).sum()),
            "wrong_uncertain": int((~correct & ~certain).sum()),
        },
        "reliability": reliability,
        "risk_coverage": {"coverage": coverage, "risk": risk},
    }


def _compare(found: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict:
    """`Analysis.ood`."""

    def tell_apart(key: str, sign: int = 1) -> dict[str, float]:
        scores = sign * found[key], sign * other[key]
        return {"auroc": metrics.auroc(*scores), "fpr95": metrics.fpr95(*scores)}

    return {
        "images": len(other["certain"]),
        "certain": int(other["certain"].sum()),
        **{key: float(other[key].mean()) for key in ("entropy", "aleatoric", "epistemic")},
        "scores": {
            "entropy": tell_apart("entropy"),
            "epistemic": tell_apart("epistemic"),
            "confidence": tell_apart("confidence", -1),  # low confidence is suspicious
        },
    }


def _other_interval(draws: Draws, level: float, interval: str) -> list[str]:
    """Why a stopping rule says nothing about these intervals."""
    rule = draws.meta.get("stopping_rule") or {}
    known = rule.get("level"), rule.get("interval")
    if known in ((None, None), (level, interval)):
        return []
    return [
        f"the images were settled for {known[1]} intervals at level {known[0]}; for others, the "
        "bound of the stopping rule does not hold"
    ]


def _differences(draws: Draws, ood: Draws) -> list[str]:
    """Why the scores of the two sets may not be comparable."""
    warnings = []
    count, ood_count = draws.passes, ood.passes
    if draws.is_adaptive or ood.is_adaptive:
        warnings.append(
            "adaptive sampling gave some images fewer draws: few draws underestimate epistemic "
            "uncertainty, and no stopping rule is calibrated for out-of-distribution images"
        )
    if count != ood_count:
        warnings.append(
            f"the out-of-distribution images have {ood_count} draws, the others {count}: fewer "
            "draws underestimate epistemic uncertainty"
        )
    weights = [[model["weights_sha256"] for model in one.models] for one in (draws, ood)]
    if not any(None in one for one in weights) and weights[0] != weights[1]:
        warnings.append(
            "the out-of-distribution draws come from different weights: the scores compare two nets"
        )
    return warnings
