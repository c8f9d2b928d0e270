"""Credible intervals from draws, and the paper's test of whether a prediction is certain.

Two kinds of interval at level L from n draws of a quantity, sorted x[0] <= ... <= x[n-1]:

equal-tailed      from the (1-L)/2 quantile to the (1+L)/2 quantile, as in the paper. The q-quantile
                  is at position (n-1) q of the sorted draws, with linear interpolation between two
                  draws (NumPy's default).
highest density   the shortest interval [x[i], x[i+k]] with k = floor(L n), as ArviZ defines it; the
                  lowest one if several are equally short.

A level means the decimal number as written: 0.95 is exactly 95/100.
"""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument

Interval = Callable[..., tuple[np.ndarray, np.ndarray]]


def equal_tailed(samples: np.ndarray, level: float, axis: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends of the equal-tailed interval of the draws along `axis`."""
    exact = _exact(level)
    ordered = _sorted(samples, axis)
    position = (len(ordered) - 1) * (1 - exact) / 2
    first = math.floor(position)
    second = min(first + 1, len(ordered) - 1)
    weight = ordered.dtype.type(position - first)
    lower = ordered[first] + weight * (ordered[second] - ordered[first])
    upper = ordered[-1 - first] - weight * (ordered[-1 - first] - ordered[-1 - second])
    return lower, upper


def highest_density(
    samples: np.ndarray, level: float, axis: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends of the highest-density interval of the draws along `axis`."""
    exact = _exact(level)
    ordered = _sorted(samples, axis)
    gaps = math.floor(exact * len(ordered))
    # In float64: rounded float32 differences would create ties.
    widths = np.subtract(ordered[gaps:], ordered[: len(ordered) - gaps], dtype=np.float64)
    start = widths.argmin(axis=0)[np.newaxis]
    lower, upper = (np.take_along_axis(ordered, start + shift, axis=0)[0] for shift in (0, gaps))
    return lower, upper


KINDS: dict[str, Interval] = {"equal-tailed": equal_tailed, "hdi": highest_density}
"""The kinds of interval, by the name that the user gives."""


def draws_needed(level: float) -> int:
    """The fewest draws with which the ends of an interval do not depend on the extreme draws.

    This is n >= 1 + 2/(1-L): 21 draws at 90 %, 41 at 95 %, 201 at 99 %. With fewer draws, the ends
    of the equal-tailed interval are interpolated from the smallest and the largest draw, so a
    single outlier moves them. With enough draws the value of an outlier does not matter, and a
    highest-density interval can leave out both the smallest and the largest draw.
    """
    return math.ceil(1 + 2 / (1 - _exact(level)))


def too_few_draws(draws: int, level: float) -> str | None:
    """Why `draws` are too few for intervals at `level`; None if they are enough."""
    needed = draws_needed(level)
    if draws >= needed:
        return None
    if draws == 1:
        return (
            "one draw has no spread: intervals have no width, every prediction except a tie counts "
            f"as certain, and epistemic uncertainty is 0; level {level:g} needs {needed} draws"
        )
    return (
        f"{draws} draws are too few for intervals at level {level:g}: the ends depend on the "
        f"smallest and the largest draw; use at least {needed} draws, or a lower level"
    )


def certain(lower: np.ndarray, upper: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """The paper's test: the predicted class's interval overlaps the interval of no other class.

    Intervals are closed: two intervals that share only an end point overlap, and so do two equal
    points. The predicted class's interval must also lie above all others. (The paper does not say
    so. It matters only if the interval of the class with the largest mean lies below another one.)

    Args:
        lower, upper: ... x classes.
        predicted: index of the predicted class; the shape of `lower` without its last axis.
    """
    index = np.asarray(predicted)[..., np.newaxis]
    others = np.array(upper, copy=True)
    np.put_along_axis(others, index, -np.inf, axis=-1)
    return np.take_along_axis(np.asarray(lower), index, axis=-1)[..., 0] > others.max(axis=-1)


def _exact(level: float) -> Fraction:
    if not 0 < level < 1:
        raise BayesCaffeError(
            f"{argument('level', level)}: the level of a credible interval is between 0 and 1 "
            "(write 95 % as 0.95)"
        )
    return Fraction(repr(float(level)))


def _sorted(samples: np.ndarray, axis: int) -> np.ndarray:
    """A sorted copy with the draws along axis 0, in floating point."""
    samples = np.moveaxis(np.asarray(samples), axis, 0)
    if not np.issubdtype(samples.dtype, np.floating):
        samples = samples.astype(np.float64)
    if len(samples) == 0:
        raise BayesCaffeError("a credible interval needs at least one draw; there is none")
    ordered = np.sort(samples, axis=0)
    if np.isnan(ordered[-1]).any():  # NaNs are sorted to the end
        raise BayesCaffeError("a credible interval needs numbers, but some draws are NaN")
    return ordered
