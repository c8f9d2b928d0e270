"""What is measured, and how sure a difference is.

Every measure takes weights of the images: 1 for each gives the measure itself, as bayescaffe.stats
has it; how often a bootstrap has drawn each gives that of the resample.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bayescaffe.common.files import scratch_file
from bayescaffe.stats.metrics import SMALLEST, equal_mass, equal_width
from bayescaffe.stats.temperature import tempered
from comparison import LEVEL, Difference, Measure
from scipy import stats
from scipy.special import entr
from tasks import Measured

FLAGGED = 0.038
"""The share of the images that a person reviews; the paper's net leaves as many to one."""
BINS = 15
RESAMPLES = 500


@dataclass(frozen=True)
class Weights:
    """How often each image counts: resamples x images."""

    test: np.ndarray
    shifted: np.ndarray
    ood: np.ndarray

    @classmethod
    def once(cls, found: Measured) -> "Weights":
        sizes = _sizes(found)
        return cls(*(np.ones((1, size)) for size in sizes))

    @classmethod
    def resampled(cls, found: Measured, count: int, rng: np.random.Generator) -> "Weights":
        return cls(*(_counts(size, count, rng) for size in _sizes(found)))


def _counts(size: int, resamples: int, rng: np.random.Generator) -> np.ndarray:
    drawn = [rng.integers(size, size=size) if size else [] for _ in range(resamples)]
    return np.array([np.bincount(one, minlength=size) for one in drawn], np.float64)


def _sizes(found: Measured) -> tuple[int, int, int]:
    return len(found.test), found.shifted.shape[2], len(found.ood)


def measure(found: Measured, temperature: float, weights: Weights) -> dict[str, np.ndarray]:
    """Every measure of what a method has predicted, one number for each resample."""
    probabilities, labels = found.test.astype(np.float64), found.labels
    rows = np.arange(len(labels))
    confidence = probabilities.max(axis=1)
    wrong = (probabilities.argmax(axis=1) != labels).astype(np.float64)
    of_label = probabilities[rows, labels]
    calibrated = tempered(probabilities, temperature)[rows, labels]
    ranked = _ranked(confidence, wrong, weights.test)
    result = {
        "error": _mean(wrong, weights.test),
        "nll": _mean(_losses(of_label), weights.test),
        "calibrated_nll": _mean(_losses(calibrated), weights.test),
        "brier": _mean(np.square(probabilities).sum(axis=1) + 1 - 2 * of_label, weights.test),
        "ece": _gaps(confidence, wrong, equal_width(BINS), weights.test),
        "adaptive_ece": _gaps(confidence, wrong, equal_mass(confidence, BINS), weights.test),
        "aurc": ranked["aurc"],
        "flagged": ranked["flagged"],
    }
    if found.shifted.size:
        by_image = shifted_by_image(found)
        for name, values in by_image.items():
            result[f"shifted_{name}"] = _mean(values.mean(axis=(0, 1)), weights.shifted)
        entropy = [entr(given.astype(np.float64)).sum(axis=1) for given in (found.test, found.ood)]
        result["auroc"] = _auroc(*entropy, weights.test, weights.ood)
    return result


def shifted_by_image(found: Measured) -> dict[str, np.ndarray]:
    """Whether each shifted image is wrong, and its NLL: shifts x strengths x images."""
    labels = found.labels[: found.shifted.shape[2]]
    of_label = np.take_along_axis(found.shifted, labels[:, np.newaxis][np.newaxis, np.newaxis], -1)
    wrong = found.shifted.argmax(axis=-1) != labels
    return {"error": wrong.astype(np.float64), "nll": _losses(of_label[..., 0])}


def _losses(of_label: np.ndarray) -> np.ndarray:
    return -np.log(np.maximum(of_label, SMALLEST).astype(np.float64))


def _mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return weights @ values / weights.sum(axis=1)


def _gaps(
    confidence: np.ndarray, wrong: np.ndarray, edges: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """The expected calibration error: the gap between accuracy and confidence of each bin."""
    inside = np.searchsorted(edges[1:-1], confidence)
    gaps = np.zeros((len(confidence), len(edges) - 1))
    gaps[np.arange(len(confidence)), inside] = 1 - wrong - confidence
    return np.abs(weights @ gaps).sum(axis=1) / weights.sum(axis=1)


def _ranked(confidence: np.ndarray, wrong: np.ndarray, weights: np.ndarray) -> dict:
    """The area under the risk-coverage curve, and the share of the errors that are flagged."""
    # Images of equal confidence come in random order: each has the mean of their errors.
    _, group, sizes = np.unique(confidence, return_inverse=True, return_counts=True)
    expected = (np.bincount(group, wrong) / sizes)[group]
    order = np.argsort(-confidence)
    ordered = weights[:, order]
    count = np.cumsum(ordered, axis=1)
    errors = np.cumsum(ordered * expected[order], axis=1)
    aurc = (ordered * errors / np.maximum(count, 1)).sum(axis=1) / count[:, -1]
    kept = [np.interp((1 - FLAGGED) * c[-1], c, e) for c, e in zip(count, errors, strict=True)]
    total = errors[:, -1]
    return {"aurc": aurc, "flagged": np.where(total, 1 - kept / np.maximum(total, SMALLEST), 1)}


def _auroc(
    scores: np.ndarray, ood_scores: np.ndarray, weights: np.ndarray, ood_weights: np.ndarray
) -> np.ndarray:
    order = np.argsort(scores)
    ends = [np.searchsorted(scores[order], ood_scores, side) for side in ("left", "right")]
    below = np.hstack([np.zeros((len(weights), 1)), np.cumsum(weights[:, order], axis=1)])
    mean = (below[:, ends[0]] + below[:, ends[1]]) / 2 / below[:, -1:]
    return (mean * ood_weights).sum(axis=1) / ood_weights.sum(axis=1)


def _read(name: str, factor: float) -> Callable[[dict], float]:
    return lambda found: factor * found[name]


MEASURES = {
    name: Measure(title, _read(name, factor), digits, larger_is_better=name in ("flagged", "auroc"))
    for name, title, factor, digits in (
        ("error", "error, %", 100, 2),
        ("nll", "NLL", 1, 4),
        ("calibrated_nll", "NLL, calibrated", 1, 4),
        ("brier", "Brier", 1, 4),
        ("ece", "ECE, %", 100, 2),
        ("adaptive_ece", "adaptive ECE, %", 100, 2),
        ("aurc", "AURC, ‰", 1000, 2),
        ("flagged", f"errors flagged at {100 * FLAGGED:g} %, %", 100, 1),
        ("shifted_error", "shifted: error, %", 100, 1),
        ("shifted_nll", "shifted: NLL", 1, 3),
        ("auroc", "OOD: AUROC, %", 100, 1),
    )
}


@dataclass(frozen=True)
class Scores:
    """The measures of one method on one row."""

    by_seed: list[dict[str, float]]
    resampled: dict[str, np.ndarray]
    """Resamples of the images; the mean over the seeds."""
    wrong: list[np.ndarray]
    """By seed: whether each test image is wrong."""
    by_strength: dict[str, np.ndarray]
    """Error and NLL of the images that are shifted: not shifted, then at each strength. The mean
    over the seeds and the shifts."""

    def save(self, path: Path, facts: dict) -> None:
        """Write them into an npz file, with facts of where they come from."""
        arrays = {f"resampled {name}": one for name, one in self.resampled.items()}
        arrays |= {f"strength {name}": one for name, one in self.by_strength.items()}
        arrays = {name: one.astype(np.float32) for name, one in arrays.items()}
        about = json.dumps({"facts": facts, "by_seed": self.by_seed, "images": len(self.wrong[0])})
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch_file(path) as scratch, scratch.open("wb") as file:
            wrong = np.packbits(self.wrong, axis=1)
            np.savez_compressed(file, about=about, wrong=wrong, **arrays)

    @classmethod
    def read(cls, path: Path) -> "Scores":
        with np.load(path) as file:
            about = json.loads(str(file["about"]))
            wrong = np.unpackbits(file["wrong"], axis=1, count=about["images"]).astype(bool)
            arrays = {kind: {} for kind in ("resampled", "strength")}
            for name in file.files:
                kind, _, measure_ = name.partition(" ")
                if measure_:
                    arrays[kind][measure_] = file[name]
        return cls(about["by_seed"], arrays["resampled"], list(wrong), arrays["strength"])

    @staticmethod
    def facts(path: Path) -> dict | None:
        """The facts in a file that `save` wrote; None if it is not there."""
        if not path.exists():
            return None
        with np.load(path) as file:
            return json.loads(str(file["about"]))["facts"]


def score(results: Sequence[Measured], temperature: float, resamples: int = RESAMPLES) -> Scores:
    """Measure what a method has predicted, seed by seed.

    All methods of a row see the same resamples, so that differences between them are paired.
    """
    by_seed = [
        {
            name: float(value[0])
            for name, value in measure(one, temperature, Weights.once(one)).items()
        }
        for one in results
    ]
    rng = np.random.default_rng(0)
    parts: list[dict[str, np.ndarray]] = []
    # A few resamples at a time: 60,000 test images would need half a gigabyte for a thousand.
    for start in range(0, resamples, 100):
        weights = Weights.resampled(results[0], min(100, resamples - start), rng)
        found = [measure(one, temperature, weights) for one in results]
        parts.append({name: np.mean([one[name] for one in found], axis=0) for name in found[0]})
    resampled = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    wrong = [one.test.argmax(axis=1) != one.labels for one in results]
    return Scores(by_seed, resampled, wrong, _by_strength(results))


def _by_strength(results: Sequence[Measured]) -> dict[str, np.ndarray]:
    lines: dict[str, list] = {}
    for found in results:
        if not found.shifted.size:
            continue
        shown = found.test[: found.shifted.shape[2]]
        still = Measured(shown, found.labels, shown[np.newaxis, np.newaxis], found.ood)
        unshifted, by_image = shifted_by_image(still), shifted_by_image(found)
        for name, values in by_image.items():
            line = [unshifted[name].mean(), *values.mean(axis=(0, 2))]
            lines.setdefault(name, []).append(line)
    return {name: np.mean(each, axis=0) for name, each in lines.items()}


def difference(ours: Scores, theirs: Scores, name: str) -> Difference:
    """Ours minus theirs with its interval, in the unit of the measure.

    The variance over images is that of the bootstrap. The variance over seeds is added, with
    Student's t for so few seeds: a bootstrap of five seeds is too narrow.
    """
    read = MEASURES[name].read
    by_seed = [read(a) - read(b) for a, b in zip(ours.by_seed, theirs.by_seed, strict=True)]
    images = np.var(read(ours.resampled) - read(theirs.resampled))
    return Difference(float(np.mean(by_seed)), interval(by_seed, float(images)))


def interval(by_seed: Sequence[float], image_variance: float) -> tuple[float, float]:
    """The interval of confidence `LEVEL` for a mean over seeds and images."""
    count, mean = len(by_seed), float(np.mean(by_seed))
    seed_variance = float(np.var(by_seed, ddof=1)) / count if count > 1 else 0.0
    variance = image_variance + seed_variance
    # Welch and Satterthwaite; the bootstrap's own variance is taken as known.
    freedom = (count - 1) * (variance / seed_variance) ** 2 if seed_variance else math.inf
    reach = float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(variance)
    return mean - reach, mean + reach


def mcnemar(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The p-value of McNemar's exact test, for two nets that are wrong on these images."""
    only_ours, only_theirs = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    if not only_ours + only_theirs:
        return 1.0
    return float(stats.binomtest(only_ours, only_ours + only_theirs).pvalue)
