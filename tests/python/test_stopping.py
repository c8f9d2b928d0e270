"""The stopping rule of adaptive sampling keeps what it promises. Needs no Caffe."""

import json
import math

import numpy as np
import pytest
from bayescaffe import BayesCaffeError, Draws, StoppingRule, analyze, stopping_rule
from bayescaffe.stats import rule_files, stopping
from scipy import stats

ERROR = 0.02
PASSES = 40
"""Stages 4, 8, 16 and 32."""


def draws_of(odds):
    """Draws of two classes, the first of which has these log odds, draws x images."""
    own = 1 / (1 + np.exp(-odds))
    return Draws(np.stack([own, 1 - own], axis=-1).astype(np.float32))


def population(images, seed, passes=PASSES, outliers=(0, 0.02, 0.06, 0.2)):
    """Images of all kinds: clear and doubtful ones, and such with outliers that few draws do not
    show. An image has one of these shares of outliers."""
    random = np.random.default_rng(seed)
    odds = random.normal(random.gamma(2, 3, images), random.gamma(3, 0.4, images), (passes, images))
    outlier = random.random((passes, images)) < random.choice(outliers, images)
    odds[outlier] = -random.gamma(2, 2, outlier.sum())
    return draws_of(odds)


def settled_draws(draws, rule):
    """How many draws each image gets with a rule."""
    counts = np.full(draws.probabilities.shape[1], rule.passes)
    for stage in reversed(rule.stages):
        counts[rule.settles(draws.probabilities[:stage])] = stage
    return counts


def disagreement(draws, rule, level=0.95, interval="equal-tailed"):
    """The share of images with another answer than by all draws, as `analyze` tells it."""
    whole = analyze(draws, level, interval)
    counts = settled_draws(draws, rule)
    another = 0
    for count in np.unique(counts):
        rows = counts == count
        few = analyze(Draws(draws.probabilities[:count, rows]), level, interval)
        same = (few.predicted == whole.predicted[rows]) & (few.certain == whole.certain[rows])
        another += (~same).sum()
    return another / len(counts)


# ---- The bound


def violations(repetitions, images):
    """How often the true share of other answers is above the error."""
    everybody = population(20_000, seed=0)
    known, found = {}, 0
    for seed in range(1, repetitions + 1):
        rule = stopping_rule(population(images, seed), ERROR)
        assert rule.passes == PASSES and rule.stages == (4, 8, 16, 32)
        if rule.threshold not in known:
            known[rule.threshold] = disagreement(everybody, rule)
        found += known[rule.threshold] > ERROR
    assert len(known) > 2
    return found / repetitions


def test_the_share_of_other_answers_is_bounded():
    """Rules of many calibrations: at most 5 % of them exceed the error, up to chance."""
    assert violations(200, 400) <= stats.binom.ppf(0.999, 200, 0.05) / 200


def test_a_weaker_test_breaks_the_bound(monkeypatch):
    """Taking the observed share for the true one does, so the population is a hard one."""
    monkeypatch.setattr(stopping, "CONFIDENCE", 0.5)
    assert violations(100, 400) > stats.binom.ppf(0.999, 100, 0.05) / 100


@pytest.mark.parametrize(
    ("level", "interval"), [(0.95, "equal-tailed"), (0.8, "equal-tailed"), (0.95, "hdi")]
)
def test_most_clear_images_are_settled_with_the_right_answer(level, interval):
    rule = stopping_rule(population(5000, 1, outliers=[0]), ERROR, level, interval)
    new = population(5000, 2, outliers=[0])
    assert (rule.level, rule.interval, rule.images) == (level, interval, 5000)
    # Up to three standard errors of 5,000 images.
    assert disagreement(new, rule, level, interval) <= ERROR + 3 * math.sqrt(ERROR / 5000)
    counts = settled_draws(new, rule)
    assert (counts == 4).mean() > 0.5 and counts.mean() < 0.5 * PASSES
    assert rule.mean_draws == pytest.approx(counts.mean(), rel=0.1)


def test_what_a_rule_tells_of_its_calibration():
    held_out = population(2000, 1)
    rule = stopping_rule(held_out, ERROR)
    counts = settled_draws(held_out, rule)
    assert rule.mean_draws == counts.mean()
    assert rule.settled == (counts < PASSES).mean()
    assert rule.disagreements / 2000 == disagreement(held_out, rule)
    assert stats.binom.cdf(rule.disagreements, 2000, ERROR) <= 0.05


def test_images_that_turn_late_are_not_settled_before():
    """Half of them look clear in the first 8 draws and are the opposite in the others."""
    odds = np.random.default_rng(0).normal(8, 0.5, (PASSES, 3000))
    odds[8:, ::2] = -8
    rule = stopping_rule(draws_of(odds), ERROR)
    counts = settled_draws(draws_of(odds), rule)
    assert (counts > 8).mean() > 1 - ERROR
    assert 0.45 < rule.settled < 0.5 + ERROR and rule.disagreements / 3000 < ERROR


def test_the_first_failure_ends_the_search(monkeypatch):
    """A laxer rule that passes again is not taken: that would be another try."""
    images, wrong = 3000, 100
    clear, same = np.zeros((4, images)), np.ones((4, images), bool)
    # At a threshold of 5 they are settled after 8 draws, with another answer; at 3 after 4 draws,
    # with the same.
    clear[0, :wrong], clear[1, :wrong], same[1, :wrong] = 3, 5, False
    monkeypatch.setattr(stopping, "_against_all", lambda *_: (clear, same))
    rule = stopping_rule(population(images, 0), ERROR)
    assert rule.threshold > 5 and rule.disagreements == 0


# ---- The numbers


def by_hand(odds):
    """The clearness of one image."""
    squares = sum((x - np.mean(odds)) ** 2 for x in odds)
    return np.mean(odds) / math.sqrt((squares + 8 * 1.5**2) / (len(odds) + 7))


def test_clearness_by_hand():
    odds = np.array([[1.0, 5.0], [2.0, 5.0], [6.0, 5.0], [3.0, 5.0]])
    found = stopping.clearness(draws_of(odds).probabilities)
    assert found == pytest.approx([by_hand(odds[:, 0]), by_hand(odds[:, 1])], rel=1e-5)
    # The class is that of the largest mean, also where another leads in most draws.
    lead = np.array([[[0.4, 0.6]], [[0.4, 0.6]], [[0.99, 0.01]], [[0.4, 0.6]]], np.float32)
    expected = by_hand(np.log([2 / 3, 2 / 3, 99, 2 / 3]))
    assert stopping.clearness(lead)[0] == pytest.approx(expected, rel=1e-4)
    # Of three classes, the strongest other one of each draw counts.
    three = np.array([[[0.5, 0.3, 0.2]], [[0.5, 0.1, 0.4]], [[0.2, 0.3, 0.5]]], np.float32)
    expected = by_hand(np.log([5 / 3, 5 / 4, 2 / 5]))
    assert stopping.clearness(three)[0] == pytest.approx(expected, rel=1e-4)


def test_a_probability_of_0_has_finite_odds():
    sure, even = np.zeros((4, 1, 3), np.float32), np.full((4, 1, 2), 0.5, np.float32)
    sure[..., 1] = 1
    assert stopping.clearness(sure)[0] == pytest.approx(by_hand([126 * math.log(2)] * 4))
    assert stopping.clearness(even)[0] == 0


def test_images_needed():
    assert stopping.images_needed(0.001) == 2995
    assert 0.999**2995 <= 0.05 < 0.999**2994


# ---- What is refused


def test_too_few_images_are_told():
    with pytest.raises(
        BayesCaffeError, match="100 images cannot show an error of at most 0.001"
    ) as e:
        stopping_rule(population(100, 0))
    assert "needs 2,995 images or more; with these, error=0.0296 is possible" in str(e.value)
    assert stopping_rule(population(100, 0), 0.0296).images == 100


@pytest.mark.parametrize("error", [0, 1, -0.1])
def test_an_error_that_is_none(error):
    with pytest.raises(BayesCaffeError, match=rf"error={error} is not between 0 and 1"):
        stopping_rule(population(100, 0), error)


def test_draws_that_no_rule_can_be_made_of():
    with pytest.raises(BayesCaffeError, match="4 draws; a stopping rule needs more than 4"):
        stopping_rule(population(300, 0, passes=4), ERROR)
    still = Draws(population(300, 0).probabilities, None, {"is_random": False})
    with pytest.raises(BayesCaffeError, match="no layer of the net is random"):
        stopping_rule(still, ERROR)
    adaptive = Draws(still.probabilities, None, {"stopping_rule": {}})
    with pytest.raises(BayesCaffeError, match="is of adaptive sampling; a stopping rule needs all"):
        stopping_rule(adaptive, ERROR)


def test_no_rule_within_the_error():
    """Half of the images are the opposite from draw 32 on, and clear without spread before."""
    odds = np.full((PASSES, 300), 100.0)
    odds[32:, ::2] = -100
    with pytest.raises(
        BayesCaffeError, match="the strictest settles 150 of 300 images with another"
    ):
        stopping_rule(draws_of(odds), ERROR)


# ---- The file


@pytest.fixture
def rule():
    meta = {"seed": 7, "weights_sha256": "ab", "mc_dropout": True}
    return stopping_rule(Draws(population(400, 1).probabilities, None, meta), ERROR)


def test_what_is_saved_is_loaded(rule, tmp_path):
    rule.save(tmp_path / "rule.json")
    assert StoppingRule.load(tmp_path / "rule.json") == rule
    assert (rule.seed, rule.weights_sha256, rule.mc_dropout) == (7, ("ab",), True)


def saved(rule, tmp_path, **changes):
    """The file of a rule with other fields, and a digest of them."""
    said = {**rule.as_dict(), **changes}
    path = tmp_path / "rule.json"
    path.write_text(json.dumps({"stopping_rule": said, "sha256": rule_files.digest(said)}))
    return path


def test_a_changed_number_is_noticed(rule, tmp_path):
    path = saved(rule, tmp_path)
    assert StoppingRule.load(path) == rule
    path.write_text(path.read_text().replace('"error": 0.02', '"error": 0.01'))
    with pytest.raises(BayesCaffeError, match="rule.json: was changed"):
        StoppingRule.load(path)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"stopping_rule": 3}', "[" * 100_000])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "rule.json").write_text(text)
    with pytest.raises(BayesCaffeError, match="rule.json: not a stopping rule"):
        StoppingRule.load(tmp_path / "rule.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"passes": "100"}, "'passes' is '100', expected a whole number"),
        ({"threshold": "2"}, "'threshold' is '2', expected a number"),
        ({"threshold": float("nan")}, "'threshold' is nan"),
        ({"stages": [4, "8"]}, r"'stages' is \[4, '8'\], expected whole numbers"),
        ({"stages": [4, 8, 16, 64]}, r"stages \[4, 8, 16, 64\] for 40 draws"),
        ({"stages": []}, "'stages' is"),
        ({"error": 2}, "'error' is 2, expected a number from 0 to 1"),
        ({"interval": ["hdi"]}, "'interval' is"),
        ({"more": 1}, "of this version: it has the fields"),
    ],
)
def test_wrong_fields_are_named(rule, tmp_path, changes, message):
    with pytest.raises(BayesCaffeError, match=message):
        StoppingRule.load(saved(rule, tmp_path, **changes))
