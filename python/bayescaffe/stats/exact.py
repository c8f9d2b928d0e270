"""Exact binomial statements: how large a share may be of which a sample is known, and tests of it
in a fixed order.

A test asks whether a share is shown to be at most `error`. It is if so few of n were counted that
a share of `error` has them, or fewer, with a probability of at most 1 - confidence. Tests in an
order that does not depend on the sample, which end with the first failure, may each use the whole
of 1 - confidence (fixed-sequence testing; "Learn then Test" by Angelopoulos and others, 2021).
"""

import math
from collections.abc import Iterable
from typing import TypeVar

Candidate = TypeVar("Candidate")


def interval(count: int, total: int, confidence: float) -> tuple[float, float]:
    """The interval of Clopper and Pearson of a share, from `count` of `total`."""
    from scipy.special import betaincinv  # importing it takes longer than a prediction

    tail = (1 - confidence) / 2
    low = float(betaincinv(count, total - count + 1, tail)) if count else 0.0
    high = float(betaincinv(count + 1, total - count, 1 - tail)) if count < total else 1.0
    return low, high


def last_shown(
    tests: Iterable[tuple[Candidate, int, int]], error: float, confidence: float
) -> tuple[Candidate | None, tuple[int, int] | None]:
    """The last candidate before the first whose share is not shown to be at most `error`.

    Args:
        tests: candidates in their fixed order; of each, how many of how many were counted.

    Returns:
        The candidate, None if the first one fails; and the two numbers of the one that fails, None
        if all pass.
    """
    from scipy.special import bdtr

    passed = None
    for candidate, count, total in tests:
        if total == 0 or bdtr(count, total, error) > 1 - confidence:
            return passed, (count, total)
        passed = candidate
    return passed, None


def sample_needed(error: float, confidence: float) -> int:
    """The smallest sample that can show a share of at most `error`, if nothing is counted."""
    return math.ceil(math.log(1 - confidence) / math.log1p(-error))
