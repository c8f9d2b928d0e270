"""What the draws of a net say: predictions, credible intervals, and how far to trust them.

`analyze` goes through a draws file a few images at a time, so the draws may be larger than memory;
what it keeps is a few numbers for each image and class.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_file
from bayescaffe.common.progress import ProgressBar
from bayescaffe.stats import intervals, metrics

if TYPE_CHECKING:
    from bayescaffe.stats.draws import Draws

CHUNK_NUMBERS = 2**18
"""Probabilities that are worked on at a time: some megabytes with all copies."""
SUM_TOLERANCE = 1e-3
"""How far the probabilities of an image may be from adding up to 1."""
COVERAGES = (0.5, 0.8, 0.9, 0.95, 0.99, 1.0)
"""Where the summary gives the risk."""


@dataclass(frozen=True)
class Analysis:
    """What `analyze` found. Arrays have one entry, or one row of classes, for each image."""

    draws: int
    images: int
    classes: int
    level: float
    interval: str
    warnings: list[str]
    """Why some figures may be less than they seem, e.g. too few passes for the level."""
    names: list[str] | None
    """Of the images' files."""
    class_names: list[str] | None

    mean: np.ndarray
    """Images x classes: mean probability over the passes."""
    predicted: np.ndarray
    """Class of the largest mean probability, of equal ones the first."""
    confidence: np.ndarray
    """The mean probability of the predicted class."""
    lower: np.ndarray
    """Images x classes: lower end of the credible interval of the class's probability."""
    upper: np.ndarray
    certain: np.ndarray
    """Whether the predicted class's interval overlaps that of no other class."""
    entropy: np.ndarray
    """Of the mean probabilities, in nats; the sum of the next two."""
    aleatoric: np.ndarray
    """Mean entropy of a single pass, in nats."""
    epistemic: np.ndarray
    """Mutual information of class and weights, in nats."""

    # Without labels these are None or empty.
    labels: np.ndarray | None = None
    """The true classes."""
    correct: np.ndarray | None = None
    wrong_draws: np.ndarray | None = None
    """Share of the passes that by themselves predict another class than the true one."""
    metrics: dict[str, float] = field(default_factory=dict)
    """error, single_draw_error, nll, brier, ece, adaptive_ece, aurc, excess_aurc, aurc_epistemic;
    docs/metrics.md says what they are."""
    table: dict[str, int] | None = None
    """Images that are correct_certain, correct_uncertain, wrong_certain, wrong_uncertain."""
    reliability: list[dict] | None = None
    """Bins of equal width: lower, upper, count, confidence, accuracy."""
    risk_coverage: dict[str, np.ndarray] | None = None
    """coverage and risk when images are taken in the order of falling confidence."""

    ood: dict | None = None
    """Of the other set: images, certain (images), mean entropy, aleatoric and epistemic, and in
    `scores` for each of entropy, epistemic and confidence how well it tells the sets apart: auroc
    and fpr95. None if no other set was given."""

    def summary(self) -> dict:
        """All that is not per image, ready for JSON."""
        risks = None
        if self.risk_coverage is not None:
            risk = self.risk_coverage["risk"]
            risks = [{"coverage": c, "risk": metrics.risk_at(c, risk)} for c in COVERAGES]
        return {
            "draws": self.draws,
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
            "metrics": self.metrics,
            "table": self.table,
            "risk_at_coverage": risks,
            "reliability": self.reliability,
            "ood": self.ood,
        }

    def write_csv(self, path: str | os.PathLike) -> None:
        """Write one line for each image; `lower` and `upper` are those of the predicted class."""
        index = np.arange(self.images)
        columns: dict[str, list] = {"image": index.tolist()}
        if self.names is not None:
            columns["name"] = self.names
        if self.labels is not None:
            columns["label"] = self._named(self.labels)
        columns["predicted"] = self._named(self.predicted)
        if self.correct is not None:
            columns["correct"] = self.correct.astype(int).tolist()
        columns["certain"] = self.certain.astype(int).tolist()
        for name, numbers in {
            "confidence": self.confidence,
            "lower": self.lower[index, self.predicted],
            "upper": self.upper[index, self.predicted],
            "entropy": self.entropy,
            "aleatoric": self.aleatoric,
            "epistemic": self.epistemic,
        }.items():
            columns[name] = [f"{number:.9g}" for number in numbers.tolist()]
        with scratch_file(Path(path)) as scratch, scratch.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))

    def _named(self, classes: np.ndarray) -> list:
        numbers = classes.tolist()
        return numbers if self.class_names is None else [self.class_names[c] for c in numbers]


def analyze(
    draws: Draws,
    level: float = 0.95,
    interval: str = "equal-tailed",
    ood: Draws | None = None,
    bins: int = 15,
    progress: bool = True,
) -> Analysis:
    """Analyse draws; see `Analysis` for what comes of it.

    Args:
        level: of the credible intervals, between 0 and 1.
        interval: "equal-tailed" or "hdi" (highest density).
        ood: draws of the same net for other images, which it should be less sure of.
        bins: of the reliability diagram and of both calibration errors.
        progress: show a progress bar if this takes long and runs on a terminal.
    """
    if interval not in intervals.KINDS:
        kinds = " or ".join(map(repr, intervals.KINDS))
        raise BayesCaffeError(f"unknown interval {interval!r}, expected {kinds}")
    if bins < 1:
        raise BayesCaffeError(f"{bins} bins, expected at least 1")
    name = _name(draws, "draws")
    count, images, classes = _shape(draws, name)
    labels = _labels(draws, name)
    if ood is not None:
        other_name = _name(ood, "ood draws")
        if _shape(ood, other_name)[2] != classes:
            raise BayesCaffeError(
                f"{other_name}: {ood.probabilities.shape[2]} classes, but {name}: {classes}; "
                "both must come from the same net"
            )

    few = intervals.too_few_draws(count, level)
    warnings = [few] if few else []
    if count > 1 and not draws.meta.get("is_random", True):
        warnings.append(f"all {count} draws are the same, since no layer of the net is random")
    found = _per_image(draws.probabilities, name, labels, level, interval, progress)
    judged = {} if labels is None else _judge(found, labels, bins)
    if ood is not None:
        warnings += _differences(draws, ood)
        other = _per_image(ood.probabilities, other_name, None, level, interval, progress)
        judged["ood"] = _compare(found, other)
    return Analysis(
        draws=count,
        images=images,
        classes=classes,
        level=level,
        interval=interval,
        warnings=warnings,
        names=draws.meta.get("names"),
        class_names=draws.meta.get("class_names"),
        **found,
        **judged,
    )


def _name(draws: Draws, default: str) -> str:
    """What errors call the draws: their file where it is known."""
    return str(draws.meta.get("path", default))


def _shape(draws: Draws, name: str) -> tuple[int, int, int]:
    shape = draws.probabilities.shape
    if len(shape) != 3 or 0 in shape:
        raise BayesCaffeError(
            f"{name}: probabilities of shape {' x '.join(map(str, shape))}, expected at least one "
            "pass, image and class: passes x images x classes"
        )
    return shape


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


def _per_image(
    probabilities: np.ndarray,
    name: str,
    labels: np.ndarray | None,
    level: float,
    interval: str,
    progress: bool,
) -> dict[str, np.ndarray]:
    """The fields of `Analysis` that are found image by image."""
    passes, images, classes = probabilities.shape
    find_interval = intervals.KINDS[interval]
    found = {
        "mean": np.empty((images, classes)),
        "lower": np.empty((images, classes), np.float32),
        "upper": np.empty((images, classes), np.float32),
        "predicted": np.empty(images, np.int64),
        "certain": np.empty(images, bool),
        **{key: np.empty(images) for key in ("confidence", "entropy", "aleatoric", "epistemic")},
    }
    if labels is not None:
        found["wrong_draws"] = np.empty(images)
    step = max(1, CHUNK_NUMBERS // (passes * classes))
    with ProgressBar(images, "analysing", show=progress, delay=1) as bar:
        for start in range(0, images, step):
            part = slice(start, start + step)
            chunk = np.asarray(probabilities[:, part])
            _check(chunk, name, start)
            mean = chunk.mean(axis=0, dtype=np.float64)
            predicted = mean.argmax(axis=-1)
            lower, upper = find_interval(chunk, level)
            found["mean"][part] = mean
            found["predicted"][part] = predicted
            found["confidence"][part] = mean.max(axis=-1)
            found["lower"][part], found["upper"][part] = lower, upper
            found["certain"][part] = intervals.certain(lower, upper, predicted)
            uncertainty = metrics.uncertainty(chunk)
            for key, values in zip(("entropy", "aleatoric", "epistemic"), uncertainty, strict=True):
                found[key][part] = values
            if labels is not None:
                wrong = chunk.argmax(axis=-1) != labels[part]
                found["wrong_draws"][part] = wrong.mean(axis=0)
            bar.advance(chunk.shape[1])
    return found


def _check(chunk: np.ndarray, name: str, start: int) -> None:
    """Raise if these are not probabilities; `start` is the number of the chunk's first image."""
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
        f"{name}: pass {number} of image {start + image} is not probabilities: expected numbers "
        f"from 0 to 1 that add up to 1, found {numbers.min():g} to {numbers.max():g} with the sum "
        f"{sums[number, image]:g}"
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
            "confidence": tell_apart("confidence", -1),  # other images have a lower one
        },
    }


def _differences(draws: Draws, ood: Draws) -> list[str]:
    """Why scores of the two sets may not be comparable."""
    warnings = []
    passes, other_passes = len(draws.probabilities), len(ood.probabilities)
    if passes != other_passes:
        warnings.append(
            f"the other set has {other_passes} passes, this one {passes}: the fewer passes, the "
            "smaller the epistemic uncertainty comes out"
        )
    weights = [one.meta.get("weights_sha256") for one in (draws, ood)]
    if None not in weights and weights[0] != weights[1]:
        warnings.append("the other set was drawn with other weights: its scores are another net's")
    return warnings
