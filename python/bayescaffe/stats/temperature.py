"""Temperature scaling: one number that makes a net more or less sure of everything.

    fit = fit_temperature("held-out.npz")
    fit.temperature, fit.low, fit.high

The scores of every draw are divided by the temperature T, so a draw has the probabilities
softmax(ln p / T). T is the one with the lowest NLL of their mean. The class that a draw predicts
stays the same; that of the mean may change where two classes are nearly equal.
"""

import math
import os
from dataclasses import dataclass, field

import numpy as np

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.stats import metrics
from bayescaffe.stats.draws import Draws, load_draws

LARGEST = 20.0
"""Temperatures are between 1 / LARGEST and LARGEST."""
STEP = 0.01
"""In ln T, for the derivatives that the interval is computed from."""
NORMAL_95 = 1.959964
"""How many standard errors a 95 % interval reaches to each side."""
BINS = 15


class NoTemperatureError(BayesCaffeError):
    """No temperature fits images best."""


@dataclass(frozen=True)
class TemperatureFit:
    """The temperature that fits images, and what it does to their probabilities."""

    temperature: float
    low: float
    high: float
    """Its 95 % confidence interval, over the choice of the images."""
    images: int
    nll: tuple[float, float]
    """Before and after."""
    ece: tuple[float, float]
    losses: np.ndarray = field(repr=False, compare=False)
    """The NLL of each image, after."""

    @property
    def is_shown(self) -> bool:
        """Whether the interval does not contain 1."""
        return not self.low <= 1 <= self.high


def tempered(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """softmax(ln p / temperature) over the last axis, as float64."""
    return _softmax(_logs(probabilities) / temperature)


def fit_temperature(draws: Draws | str | os.PathLike) -> TemperatureFit:
    """The temperature with the lowest NLL, from draws of images with labels.

    The images should be none that the net was trained with, and like those that it is used for.

    Raises:
        NoTemperatureError: all images are right, or the net is no better than a guess.
        BayesCaffeError: there are no labels.
    """
    if not isinstance(draws, Draws):
        draws = load_draws(draws)
    where = draws.meta.get("path") or draws.meta.get("data") or "the draws"
    if draws.labels is None:
        raise BayesCaffeError(f"{where}: has no labels, so no temperature can be fitted")
    best = math.log(best_temperature(draws))
    below, at, above = (_losses(draws, best + step) for step in (-STEP, 0, STEP))
    curvature = float((above - 2 * at + below).mean()) / STEP**2
    if abs(best) > 0.98 * math.log(LARGEST) or curvature <= 0:
        kind = "sure enough" if best < 0 else "unsure enough"
        raise NoTemperatureError(
            f"{where}: no temperature between {1 / LARGEST:g} and {LARGEST:g} makes the net {kind} "
            f"of these {len(at):,} images; more images are needed, some of them wrong, or the "
            "labels are of other images"
        )
    # The variance of an estimate that minimises a mean: that of the slopes by the curvature.
    deviation = float(((above - below) / (2 * STEP)).std()) / math.sqrt(len(at)) / curvature
    both = [_scores(draws, temperature) for temperature in (1.0, math.exp(best))]
    return TemperatureFit(
        temperature=math.exp(best),
        low=math.exp(best - NORMAL_95 * deviation),
        high=math.exp(best + NORMAL_95 * deviation),
        images=len(at),
        nll=(both[0][0], both[1][0]),
        ece=(both[0][1], both[1][1]),
        losses=at,
    )


def best_temperature(draws: Draws) -> float:
    """The temperature with the lowest NLL, between 1 / LARGEST and LARGEST."""
    from scipy import optimize  # importing it takes longer than a prediction

    reach = math.log(LARGEST)
    found = optimize.minimize_scalar(
        lambda x: _losses(draws, x).mean(), bounds=(-reach, reach), method="bounded"
    )
    return math.exp(found.x)


def _losses(draws: Draws, log_temperature: float) -> np.ndarray:
    """The NLL of each image."""
    mean = tempered_mean(draws, math.exp(log_temperature))
    return -_logs(np.take_along_axis(mean, draws.labels[:, np.newaxis], axis=1)[:, 0])


def _scores(draws: Draws, temperature: float) -> tuple[float, float]:
    """NLL and ECE of the mean of tempered draws."""
    mean = tempered_mean(draws, temperature)
    correct = mean.argmax(axis=1) == draws.labels
    bins = metrics.reliability(mean.max(axis=1), correct, metrics.equal_width(BINS))
    return metrics.nll(mean, draws.labels), metrics.calibration_error(bins)


def tempered_mean(draws: Draws, temperature: float) -> np.ndarray:
    """The mean of tempered draws, images x classes; a few images at a time are in memory."""
    mean = np.empty(draws.probabilities.shape[1:])
    for rows, part in draws.parts():
        mean[rows] = tempered(part, temperature).mean(axis=0)
    return mean


def _logs(probabilities: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(probabilities, metrics.SMALLEST).astype(np.float64))


def _softmax(scores: np.ndarray) -> np.ndarray:
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return scores / scores.sum(axis=-1, keepdims=True)
