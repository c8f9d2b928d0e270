"""Metrics of predictions and of their uncertainty; docs/metrics.md explains each.

`probabilities` are the mean probabilities, images x classes; `labels` are the true classes of the
images; `confidence` is the probability of the predicted class; `correct` tells whether that class
is the true one. No result depends on the order of the images.
"""

import math

import numpy as np

SMALLEST = float(np.finfo(np.float32).tiny)
"""The smallest probability in `nll`; below it the net's float32 softmax loses precision."""
TRUE_POSITIVE_PERCENT = 95


def nll(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Negative log-likelihood: mean of -ln(probability of the true class), in nats.

    A probability below the smallest normal float32, 1.2e-38, counts as 1.2e-38 (87.3 nats), so that
    a single image with a probability of 0 does not make the mean infinite.
    """
    of_label = np.take_along_axis(probabilities, labels[:, np.newaxis], axis=1)
    return float(-np.log(np.maximum(of_label, SMALLEST)).mean())


def brier(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Brier score: squared error of the probabilities, summed over classes; 0 best, 2 worst."""
    of_label = np.take_along_axis(probabilities, labels[:, np.newaxis], axis=1)[:, 0]
    # (p - 1)² for the true class and p² for all others.
    return float((np.square(probabilities).sum(axis=1) + 1 - 2 * of_label).mean())


def equal_width(bins: int) -> np.ndarray:
    """Edges of bins of equal width between 0 and 1."""
    return np.linspace(0, 1, bins + 1)


def equal_mass(confidence: np.ndarray, bins: int) -> np.ndarray:
    """Edges of bins with equal numbers of images, except where images share a confidence."""
    return np.quantile(confidence, np.linspace(0, 1, bins + 1))


def reliability(confidence: np.ndarray, correct: np.ndarray, edges: np.ndarray) -> list[dict]:
    """Per bin: lower and upper edge, count, mean confidence and accuracy (None in an empty bin).

    A bin is open below and closed above. The first bin also takes everything below it, the last bin
    everything above it.
    """
    bins = len(edges) - 1
    index = np.searchsorted(edges[1:-1], confidence)
    counts = np.bincount(index, minlength=bins)
    confidences = np.bincount(index, confidence, bins)
    accuracies = np.bincount(index, correct, bins)
    return [
        {
            "lower": float(edges[i]),
            "upper": float(edges[i + 1]),
            "count": int(counts[i]),
            "confidence": float(confidences[i] / counts[i]) if counts[i] else None,
            "accuracy": float(accuracies[i] / counts[i]) if counts[i] else None,
        }
        for i in range(bins)
    ]


def calibration_error(bins: list[dict]) -> float:
    """ECE: mean over the images of |accuracy - confidence| of their bin, from `reliability`."""
    filled = [one for one in bins if one["count"]]
    gaps = [one["count"] * abs(one["accuracy"] - one["confidence"]) for one in filled]
    return math.fsum(gaps) / sum(one["count"] for one in filled)


def risk_coverage(score: np.ndarray, correct: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coverage k/n and the share of errors among the k images of highest score, for k = 1 ... n.

    Images of equal score come in random order: the risk is the expectation over all orders.
    """
    values, group, sizes = np.unique(score, return_inverse=True, return_counts=True)
    wrong = np.bincount(group, ~correct) / sizes
    expected = np.repeat(wrong[::-1], sizes[::-1])
    count = np.arange(1, len(score) + 1)
    return count / len(score), np.cumsum(expected) / count


def aurc(risk: np.ndarray) -> float:
    """Area under the risk-coverage curve: the mean of its risks."""
    return float(risk.mean())


def best_aurc(correct: np.ndarray) -> float:
    """The AURC if every correct image had a higher score than every wrong image."""
    return aurc(risk_coverage(correct, correct)[1])


def risk_at(coverage: float, risk: np.ndarray) -> float:
    """The risk at the smallest coverage k/n that is at least `coverage`."""
    count = math.ceil(round(coverage * len(risk), 9))
    return float(risk[count - 1])


def uncertainty(probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per image: entropy, aleatoric and epistemic uncertainty, in nats.

    entropy    entropy of the mean probabilities
    aleatoric  mean over the draws of the entropy of one draw: the uncertainty that draws agree on
    epistemic  entropy - aleatoric, the mutual information of class and weights: how much the draws
               disagree; never negative (rounding is cut off at 0)

    Args:
        probabilities: draws x images x classes.
    """
    probabilities = probabilities.astype(np.float64, copy=False)
    total = _entropy_terms(probabilities.mean(axis=0)).sum(axis=-1)
    aleatoric = _entropy_terms(probabilities).mean(axis=0).sum(axis=-1)
    return total, aleatoric, np.maximum(total - aleatoric, 0)


def between_models(probabilities: np.ndarray, model_of_draw: np.ndarray) -> np.ndarray:
    """Per image: the mutual information of class and model, in nats; never negative.

    It is the part of the epistemic uncertainty that remains if each model gives its mean
    probabilities.

    Args:
        probabilities: draws x images x classes.
        model_of_draw: a number for each draw; those of the same model have the same.
    """
    probabilities = probabilities.astype(np.float64, copy=False)
    total = _entropy_terms(probabilities.mean(axis=0)).sum(axis=-1)
    within = 0
    for model in np.unique(model_of_draw):
        own = model_of_draw == model
        within = within + own.mean() * _entropy_terms(probabilities[own].mean(axis=0)).sum(axis=-1)
    return np.maximum(total - within, 0)


def _entropy_terms(probabilities: np.ndarray) -> np.ndarray:
    """-p ln p, which is 0 where p is 0."""
    return -probabilities * np.log(np.where(probabilities > 0, probabilities, 1))


def auroc(score: np.ndarray, ood_score: np.ndarray) -> float:
    """Chance that an out-of-distribution image scores higher than another; ties count half.

    This is the area under the receiver operating characteristic (ROC) curve, with the
    out-of-distribution images as positives.
    """
    from scipy.stats import rankdata  # importing it takes longer than a prediction

    ranks = rankdata(np.concatenate([ood_score, score]))
    count = len(ood_score)
    above = ranks[:count].sum() - count * (count + 1) / 2
    return float(above / (count * len(score)))


def fpr95(score: np.ndarray, ood_score: np.ndarray) -> float:
    """False positive rate at the highest threshold that flags 95 % of the out-of-distribution set.

    An image is flagged if its score is at or above the threshold.
    """
    flagged = -(-TRUE_POSITIVE_PERCENT * len(ood_score) // 100)
    threshold = np.sort(ood_score)[-flagged]
    return float((score >= threshold).mean())
