"""Every metric against scikit-learn or SciPy, or a value worked by hand. Needs no Caffe."""

import itertools
import re

import numpy as np
import pytest
from bayescaffe.stats import metrics
from bayescaffe.stats.analysis import analyze
from bayescaffe.stats.draws import Draws
from conftest import REPO
from scipy import stats
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve

RANDOM = np.random.default_rng(5)
PROBABILITIES = RANDOM.dirichlet([3, 1, 1, 0.5], size=400)
LABELS = np.array([RANDOM.choice(4, p=p) for p in PROBABILITIES])
CONFIDENCE = PROBABILITIES.max(axis=1)
CORRECT = PROBABILITIES.argmax(axis=1) == LABELS
BOTH = np.array([True, False])


# Scores of the probabilities


def test_nll_is_sklearns_log_loss():
    assert metrics.nll(PROBABILITIES, LABELS) == pytest.approx(sk.log_loss(LABELS, PROBABILITIES))


def test_nll_of_an_impossible_label_is_finite():
    probabilities = np.array([[1.0, 0], [0.5, 0.5]])
    # 1.17549435e-38 is 2^-126; the other image adds ln 2.
    expected = (126 + 1) * np.log(2) / 2
    assert metrics.nll(probabilities, np.array([1, 0])) == pytest.approx(expected)
    # What float32 can tell from it is not cut off.
    probabilities[0] = 1, 1.3e-38
    assert metrics.nll(probabilities, np.array([1, 0])) < expected - 0.01


def test_brier_is_sklearns():
    expected = sk.brier_score_loss(LABELS, PROBABILITIES, scale_by_half=False, labels=range(4))
    assert metrics.brier(PROBABILITIES, LABELS) == pytest.approx(expected)


def test_brier_by_hand():
    probabilities = np.array([[0.7, 0.2, 0.1], [0, 0, 1.0]])
    # 0.09 + 0.04 + 0.01, and 1 + 1 for what is certain and wrong.
    assert metrics.brier(probabilities, np.array([0, 1])) == pytest.approx((0.14 + 2) / 2)


# Calibration


@pytest.mark.parametrize("bins", [1, 5, 15])
@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_bins_are_those_of_sklearns_calibration_curve(bins, strategy):
    edges = {
        "uniform": metrics.equal_width(bins),
        "quantile": metrics.equal_mass(CONFIDENCE, bins),
    }[strategy]
    found = metrics.reliability(CONFIDENCE, CORRECT, edges)
    filled = [one for one in found if one["count"]]
    accuracy, confidence = calibration_curve(CORRECT, CONFIDENCE, n_bins=bins, strategy=strategy)
    assert [one["accuracy"] for one in filled] == pytest.approx(accuracy)
    assert [one["confidence"] for one in filled] == pytest.approx(confidence)
    assert len(found) == bins
    assert sum(one["count"] for one in found) == 400
    weights = np.array([one["count"] for one in filled]) / 400
    assert metrics.calibration_error(found) == pytest.approx(weights @ abs(accuracy - confidence))


def test_equal_mass_bins_hold_equally_many():
    found = metrics.reliability(CONFIDENCE, CORRECT, metrics.equal_mass(CONFIDENCE, 7))
    counts = [one["count"] for one in found]
    assert max(counts) - min(counts) <= 2
    # Half of the images share one confidence: they are in one bin, and the others in the rest.
    confidence = np.r_[np.full(50, 0.9), np.linspace(0.3, 0.8, 50)]
    found = metrics.reliability(confidence, CORRECT[:100], metrics.equal_mass(confidence, 4))
    counts = [one["count"] for one in found]
    assert sorted(counts) == [0, 25, 25, 50]


def test_calibration_error_by_hand():
    # (0.4, 0.6]: confidence 0.55, one of two right. (0.8, 1]: 0.95, one of one right.
    confidence, correct = np.array([0.5, 0.6, 0.95]), np.array([True, False, True])
    found = metrics.reliability(confidence, correct, metrics.equal_width(5))
    assert [one["count"] for one in found] == [0, 0, 2, 0, 1]
    assert (found[0]["accuracy"], found[0]["confidence"]) == (None, None)
    assert found[2]["accuracy"] == 0.5
    assert (found[2]["lower"], found[2]["upper"]) == pytest.approx((0.4, 0.6))
    assert metrics.calibration_error(found) == pytest.approx((2 * 0.05 + 0.05) / 3)


def test_confidence_at_the_ends_is_counted():
    edges = metrics.equal_width(10)
    found = metrics.reliability(np.array([0, 1 + 1e-7]), BOTH, edges)
    assert (found[0]["count"], found[9]["count"]) == (1, 1)


# Risk and coverage


def test_risk_coverage_by_hand():
    score = np.array([0.9, 0.5, 0.8, 0.6])
    correct = np.array([True, False, False, True])
    coverage, risk = metrics.risk_coverage(score, correct)
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1]
    assert risk == pytest.approx([0, 1 / 2, 1 / 3, 2 / 4])
    assert metrics.aurc(risk) == pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 4)
    # Best: the two wrong ones last, at risks 0, 0, 1/3, 1/2.
    assert metrics.best_aurc(correct) == pytest.approx((1 / 3 + 1 / 2) / 4)
    at = [metrics.risk_at(coverage, risk) for coverage in (0.01, 0.5, 0.51, 1)]
    assert at == pytest.approx([0, 1 / 2, 1 / 3, 1 / 2])


def test_risk_of_equal_scores_is_the_mean_over_their_orders():
    score = np.array([2, 1, 1, 1, 1, 0])
    correct = np.array([True, False, True, True, False, True])
    risks = []
    for order in itertools.permutations(range(1, 5)):
        wrong = ~correct[[0, *order, 5]]
        risks.append(np.cumsum(wrong) / np.arange(1, 7))
    expected = np.mean(risks, axis=0)
    for _ in range(5):
        order = RANDOM.permutation(6)
        _, risk = metrics.risk_coverage(score[order], correct[order])
        assert risk == pytest.approx(expected)


def test_risk_by_a_score_that_says_nothing_is_the_error():
    _, risk = metrics.risk_coverage(np.zeros(400), CORRECT)
    np.testing.assert_allclose(risk, 1 - CORRECT.mean())


def test_risk_at_takes_a_coverage_as_written():
    """0.07 * 100 is a little more than 7 in binary."""
    assert metrics.risk_at(0.07, np.arange(100.0)) == 6


# Entropies


def test_uncertainty_is_scipys_entropies():
    draws = np.random.default_rng(6).dirichlet([3, 1, 1, 0.5], size=(20, 30))
    total, aleatoric, epistemic = metrics.uncertainty(draws)
    np.testing.assert_allclose(total, stats.entropy(draws.mean(axis=0), axis=-1))
    np.testing.assert_allclose(aleatoric, stats.entropy(draws, axis=-1).mean(axis=0))
    # The mutual information is the mean divergence of a draw from the mean of all.
    divergence = stats.entropy(draws, draws.mean(axis=0, keepdims=True), axis=-1).mean(axis=0)
    np.testing.assert_allclose(epistemic, divergence)


def test_uncertainty_by_hand():
    agree = [[[0.5, 0.5]], [[0.5, 0.5]]]
    disagree = [[[1.0, 0.0]], [[0.0, 1.0]]]
    for draws, expected in (
        (agree, (np.log(2), np.log(2), 0)),
        (disagree, (np.log(2), 0, np.log(2))),
    ):
        found = metrics.uncertainty(np.array(draws, np.float32))
        assert [part.item() for part in found] == pytest.approx(expected)


def test_uncertainty_between_models_by_hand():
    sure, other, half = [1, 0], [0, 1], [0.5, 0.5]
    ln2 = np.log(2)
    for draws, models, expected in (
        # Two models that are sure of different classes, in each of their draws.
        ([sure, other, sure, other], [0, 1, 0, 1], ln2),
        # All that differs differs within the models.
        ([sure, sure, other, other], [0, 1, 0, 1], 0),
        ([half, half], [0, 1], 0),
        # One draw each: all of the epistemic uncertainty.
        ([sure, half], [0, 1], stats.entropy([0.75, 0.25]) - ln2 / 2),
        # The first has two of three draws.
        ([sure, sure, other], [0, 0, 1], stats.entropy([2 / 3, 1 / 3])),
    ):
        array = np.array(draws, np.float32)[:, np.newaxis]
        found = metrics.between_models(array, np.array(models))
        assert found == pytest.approx([expected], abs=1e-7)


def test_uncertainty_between_models_is_a_part_of_the_epistemic():
    draws = RANDOM.dirichlet(np.ones(4), (12, 50)).astype(np.float32)
    epistemic = metrics.uncertainty(draws)[2]
    each = metrics.between_models(draws, np.arange(12))
    np.testing.assert_allclose(each, epistemic, atol=1e-9)
    three = metrics.between_models(draws, np.arange(12) % 3)
    # The models' means are draws, too.
    means = np.stack([draws[model::3].mean(axis=0, dtype=np.float64) for model in range(3)])
    np.testing.assert_allclose(three, metrics.uncertainty(means)[2], atol=1e-9)
    assert (three < epistemic).all()
    assert not metrics.between_models(draws, np.zeros(12)).any()


def test_epistemic_uncertainty_is_never_negative_and_0_for_one_pass():
    one = np.random.default_rng(7).dirichlet(np.ones(10), size=1000).astype(np.float32)
    assert not metrics.uncertainty(one[np.newaxis])[2].any()
    epistemic = metrics.uncertainty(np.repeat(one[np.newaxis], 7, axis=0))[2]
    assert epistemic.min() >= 0
    assert epistemic.max() < 1e-14


# Other data


@pytest.mark.parametrize("digits", [1, 8])  # with and without ties
def test_auroc_and_fpr95_are_sklearns(digits):
    random = np.random.default_rng(8)
    score, ood_score = (
        random.normal(0, 1, 333).round(digits),
        random.normal(1, 2, 217).round(digits),
    )
    positive = np.r_[np.zeros(333), np.ones(217)]
    both = np.r_[score, ood_score]
    assert metrics.auroc(score, ood_score) == pytest.approx(sk.roc_auc_score(positive, both))
    false, true, _ = sk.roc_curve(positive, both, drop_intermediate=False)
    assert metrics.fpr95(score, ood_score) == pytest.approx(false[true >= 0.95].min())


def test_ood_scores_by_hand():
    score, ood_score = np.array([1, 2, 3, 4.0]), np.array([2.5, 4, 5])
    # Of 12 pairs 2 + 3.5 + 4 are won. All three must be flagged for 95 %: from 2.5 on.
    assert metrics.auroc(score, ood_score) == pytest.approx(9.5 / 12)
    assert metrics.fpr95(score, ood_score) == 0.5
    # 95 % of 20 are 19: the lowest may be missed.
    assert metrics.fpr95(score, np.r_[0, np.full(19, 3.5)]) == 0.25
    assert (metrics.auroc(score, score + 9), metrics.fpr95(score, score + 9)) == (1, 0)
    assert (metrics.auroc(score, score), metrics.fpr95(np.ones(3), np.ones(3))) == (0.5, 1)


# Their description


def test_every_figure_of_the_summary_is_described():
    text = (REPO / "docs/metrics.md").read_text()
    described = set(re.findall(r"(?:\*\*|`)([a-z_0-9]+)(?:\*\*|`)", text))

    def names(part):
        if isinstance(part, dict):
            return set(part).union(*map(names, part.values()))
        return set().union(*map(names, part)) if isinstance(part, list) else set()

    probabilities = PROBABILITIES[np.newaxis].astype(np.float32)
    draws = Draws(probabilities, LABELS, {})
    found = names(analyze(draws, ood=draws).summary())
    assert {"error", "fpr95", "aleatoric", "wrong_certain", "coverage"} <= found
    # Sizes and bin edges speak for themselves.
    assert found - described == {"classes", "lower", "upper"}
