"""Credible intervals and the overlap test. Needs no Caffe."""

import itertools
import math

import numpy as np
import pytest
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.stats import intervals
from bayescaffe.stats.intervals import certain, equal_tailed, highest_density
from scipy import stats

LEVELS = (0.1, 0.5, 0.57, 0.9, 0.95, 0.99)
KINDS = tuple(intervals.KINDS.values())


def skewed(*shape, seed=0):
    return np.random.default_rng(seed).gamma(2, size=shape)


# Equal-tailed intervals


def test_equal_tailed_by_hand():
    # Positions 0.2 * 5 = 1 and 4 from the smallest; then 0.1 * 5 = 0.5 and 4.5.
    samples = np.array([5.0, 0, 40, 3, 1, 8])
    assert equal_tailed(samples, 0.6) == (1, 8)
    assert equal_tailed(samples, 0.8) == (0.5, 24)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("draws", [1, 2, 3, 40, 41, 100, 1001])
def test_equal_tailed_is_numpys_quantiles(level, draws):
    samples = skewed(draws, 4, 3)
    expected = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2], axis=0)
    np.testing.assert_allclose(equal_tailed(samples, level), expected, rtol=1e-12)


def test_coverage_of_a_known_normal():
    """The interval holds the part of the distribution that its level says."""
    for interval in KINDS:
        lower, upper = interval(stats.norm(3, 2).rvs(200_000, random_state=1), 0.95)
        inside = stats.norm(3, 2).cdf(upper) - stats.norm(3, 2).cdf(lower)
        assert inside == pytest.approx(0.95, abs=0.003)  # five standard errors of the quantiles
        assert (lower, upper) == pytest.approx((3 - 1.96 * 2, 3 + 1.96 * 2), abs=0.2)


# Highest-density intervals


def test_highest_density_by_hand():
    # floor(0.5 * 6) = 3 gaps: of [0, 5], [1, 8] and [3, 40] the first is the shortest.
    samples = np.array([5.0, 0, 40, 3, 1, 8])
    assert highest_density(samples, 0.5) == (0, 5)
    assert highest_density(-samples, 0.5) == (-5, 0)
    # floor(0.95 * 6) = 5 gaps: all draws.
    assert highest_density(samples, 0.95) == (0, 40)
    # [1, 2], [2, 3] and [3, 4] are equally short: the lowest.
    assert highest_density(np.array([4.0, 3, 2, 1]), 0.25) == (1, 2)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("draws", [1, 2, 3, 20, 41, 100])
def test_highest_density_is_the_shortest_of_all_intervals(level, draws):
    """By trying every pair of draws with enough gaps between them, as arviz defines it."""
    samples = skewed(draws, 3, seed=draws)
    gaps = math.floor(round(level * draws, 9))
    lower, upper = highest_density(samples, level)
    for column, low, high in zip(samples.T, lower, upper, strict=True):
        ordered = sorted(column)
        pairs = itertools.combinations_with_replacement(range(draws), 2)
        shortest = min(ordered[j] - ordered[i] for i, j in pairs if j - i >= gaps)
        assert high - low == shortest
        assert np.count_nonzero((low <= column) & (column <= high)) == gaps + 1


def test_levels_are_decimal_numbers():
    """0.57 * 100 is a little less than 57 in binary; (1 - 0.95) * 40 / 2 is not exactly 1."""
    samples = np.arange(100.0)
    lower, upper = highest_density(samples, 0.57)
    assert upper - lower == 57
    assert equal_tailed(np.arange(41.0), 0.95) == (1, 39)


def test_highest_density_of_a_skewed_distribution_is_shorter_and_lower():
    samples = skewed(20_000)
    low, high = highest_density(samples, 0.9)
    lower, upper = equal_tailed(samples, 0.9)
    assert high - low < 0.95 * (upper - lower)
    assert low < lower
    # The density of a gamma distribution is the same at both ends of its HDI.
    assert stats.gamma(2).pdf(low) == pytest.approx(stats.gamma(2).pdf(high), abs=0.02)


# Both


@pytest.mark.parametrize("interval", KINDS)
def test_any_axis_and_the_type_of_the_draws(interval):
    samples = skewed(50, 4, 3).astype(np.float32)
    expected = interval(samples, 0.9)
    assert expected[0].shape == (4, 3)
    for axis in (1, 2, -1):
        ends = interval(np.moveaxis(samples, 0, axis), 0.9, axis=axis)
        np.testing.assert_array_equal(ends, expected)
    assert {end.dtype for end in expected} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(interval(np.arange(41), 0.95), interval(np.arange(41.0), 0.95))


@pytest.mark.parametrize("interval", KINDS)
def test_draws_are_left_alone_and_may_be_read_only(interval):
    samples = skewed(50, 4)
    before = samples.copy()
    samples.flags.writeable = False
    interval(samples, 0.9)
    np.testing.assert_array_equal(samples, before)


@pytest.mark.parametrize("interval", KINDS)
def test_one_draw_is_an_interval_without_width(interval):
    lower, upper = interval(np.array([[0.25, 0.75]]), 0.95)
    np.testing.assert_array_equal(lower, [0.25, 0.75])
    np.testing.assert_array_equal(upper, [0.25, 0.75])


@pytest.mark.parametrize("interval", KINDS)
def test_what_cannot_be_an_interval(interval):
    for level in (0, 1, -0.5, 95, float("nan")):
        with pytest.raises(BayesCaffeError, match=f"level={level:g}: .*write 95 % as 0.95"):
            interval(np.arange(9.0), level)
    with pytest.raises(BayesCaffeError, match="at least one draw"):
        interval(np.empty((0, 3)), 0.9)
    with pytest.raises(BayesCaffeError, match="NaN"):
        interval(np.array([0, np.nan, 1]), 0.9)


# Enough draws


@pytest.mark.parametrize(
    ("level", "needed"), [(0.5, 5), (0.8, 11), (0.9, 21), (0.95, 41), (0.99, 201), (0.999, 2001)]
)
def test_from_the_passes_needed_on_outliers_do_not_move_the_interval(level, needed):
    assert intervals.draws_needed(level) == needed

    def moved(interval, draws):
        samples = skewed(draws)
        outliers = samples.copy()
        outliers[[samples.argmin(), samples.argmax()]] = -1000, 1000
        return not np.array_equal(interval(samples, level), interval(outliers, level))

    assert not moved(equal_tailed, needed)
    assert moved(equal_tailed, needed - 1)
    low, high = highest_density(np.r_[-1000, skewed(needed - 2), 1000], level)
    assert low > -1000 and high < 1000


def test_too_few_passes_says_why_and_what_to_do():
    assert intervals.too_few_draws(41, 0.95) is None
    assert "40 draws are too few" in intervals.too_few_draws(40, 0.95)
    assert "use at least 41 draws" in intervals.too_few_draws(40, 0.95)
    assert "one draw has no spread" in intervals.too_few_draws(1, 0.95)


# The overlap test


@pytest.mark.parametrize(
    ("lower", "upper", "answer"),
    [
        ([0.6, 0.0, 0.1], [0.9, 0.2, 0.5], True),
        ([0.4, 0.0, 0.1], [0.9, 0.2, 0.5], False),
        ([0.5, 0.0, 0.1], [0.9, 0.2, 0.5], False),  # they touch
        ([0.4, 0.3, 0.1], [0.9, 0.8, 0.3], False),  # the second inside the first
        ([0.5, 0.4, 0.1], [0.5, 0.4, 0.1], True),  # points, as of one draw
        ([0.4, 0.4, 0.2], [0.4, 0.4, 0.2], False),  # equal points
        ([0.1, 0.3, 0.1], [0.2, 0.4, 0.2], False),  # below another one
    ],
)
def test_certain_by_hand(lower, upper, answer):
    lower, upper = np.array(lower), np.array(upper)
    assert certain(lower, upper, np.array(0)) == answer
    # The same for many images at once, with the classes in any order.
    for order in itertools.permutations(range(3)):
        many = certain(lower[None, order], upper[None, order], np.array([order.index(0)]))
        assert many.tolist() == [answer]


def test_certain_is_the_papers_test_of_overlap():
    """Wherever the predicted class's interval is not below another one, image by image."""
    samples = np.random.default_rng(3).dirichlet([4, 2, 0.5], size=(50, 300))
    lower, upper = equal_tailed(samples, 0.9)
    predicted = samples.mean(axis=0).argmax(axis=-1)
    found = certain(lower, upper, predicted)
    for image, best in enumerate(predicted):
        overlaps = any(
            lower[image, c] <= upper[image, best] and lower[image, best] <= upper[image, c]
            for c in range(3)
            if c != best
        )
        assert found[image] == (not overlaps)


def test_certain_keeps_its_input():
    lower, upper = np.array([[0.1, 0.6]]), np.array([[0.2, 0.7]])
    certain(lower, upper, np.array([1]))
    assert (lower.tolist(), upper.tolist()) == ([[0.1, 0.6]], [[0.2, 0.7]])
