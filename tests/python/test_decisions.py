"""Decisions with a guarantee: sets of classes, and the error of what is accepted."""

import json
import math

import mnist_draws
import numpy as np
import pytest
from bayescaffe import (
    BayesCaffeError,
    DecisionRule,
    Draws,
    analyze,
    calibrate_decisions,
    open_images,
)
from bayescaffe.stats import decisions, exact, rule_files
from bayescaffe.stats.temperature import tempered
from conftest import REPO, load_script
from scipy import stats

CLASSES = 5


def softmax(scores):
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return scores / scores.sum(axis=-1, keepdims=True)


def drawn(images, seed, draws=1, meta=None, sharpness=6.0):
    """Draws of a net that is too sure: labels come from the probabilities at temperature 1.5."""
    random = np.random.default_rng(seed)
    base = sharpness * random.standard_normal((1, images, CLASSES))
    scores = base + 0.5 * random.standard_normal((draws, images, CLASSES))
    below = softmax(base[0] / 1.5).cumsum(axis=1) < random.random((images, 1))
    labels = below.sum(axis=1).clip(max=CLASSES - 1)
    return Draws(softmax(scores).astype(np.float32), labels, meta or {})


EVERYBODY = drawn(100_000, seed=0)


# ---- Coverage ------------------------------------------------------------------------------------


def coverages(method, level, images, repetitions):
    """The true coverage of rules of many calibrations, and how many images each has."""
    mean = {}
    found = []
    for seed in range(1, repetitions + 1):
        rule = calibrate_decisions(drawn(images, seed), level, method=method, temperature=1.5)
        if not mean:
            mean["all"] = tempered(EVERYBODY.probabilities, 1.5)[0]
        key = (method, rule.free_places)
        if key not in mean:
            strange = decisions.scores(mean["all"], method, rule.free_places)
            mean[key] = np.sort(strange[np.arange(len(strange)), EVERYBODY.labels])
        below = np.searchsorted(mean[key], rule.largest_score, side="right")
        found.append(below / len(mean[key]))
    return np.array(found), rule.images


@pytest.mark.parametrize("level", [0.8, 0.9])
def test_coverage_has_its_exact_distribution(level):
    """The coverage of a LAC rule of n images is beta distributed: that of the k-th of n uniform
    numbers. Its mean is between the level and the level + 1 / (n + 1)."""
    found, images = coverages("lac", level, 125, 400)
    assert images == 100
    rank = math.ceil((images + 1) * level)
    beta = stats.beta(rank, images + 1 - rank)
    assert level <= beta.mean() <= level + 1 / (images + 1)
    assert abs(found.mean() - beta.mean()) < 3.3 * beta.std() / math.sqrt(len(found))
    assert stats.kstest(found, beta.cdf).pvalue > 1e-3


@pytest.mark.parametrize("method", ["aps", "raps"])
def test_coverage_of_other_sets_is_at_least_the_level(method):
    """The true class of many images is the first one, of score 0. Above that, there are no ties, so
    the distribution is that of LAC."""
    found, images = coverages(method, 0.9, 125, 300)
    beta = stats.beta(math.ceil((images + 1) * 0.9), images + 1 - math.ceil((images + 1) * 0.9))
    assert abs(found.mean() - beta.mean()) < 3.3 * beta.std() / math.sqrt(len(found))


def test_where_the_first_class_is_nearly_always_right_sets_have_one_class():
    rule = calibrate_decisions(drawn(500, 1, sharpness=20), 0.9, method="aps")
    assert rule.largest_score == 0 and rule.covered / rule.images > 0.93
    new = analyze(drawn(500, 2, sharpness=20), calibration=rule)
    assert (new.decisions.sets.sum(axis=1) == 1).all()
    # LAC keeps the level, by sets without a class.
    rule = calibrate_decisions(drawn(500, 1, sharpness=20), 0.9)
    sizes = analyze(drawn(500, 2, sharpness=20), calibration=rule).decisions.sets.sum(axis=1)
    assert sizes.max() == 1 and 0.03 < (sizes == 0).mean() < 0.15


def test_a_temperature_fitted_with_the_calibrated_images_would_be_another():
    """It is fitted with a fifth of the images, and what the others are does not matter."""
    draws = drawn(1000, 3)
    tuning = np.random.default_rng(0).permutation(1000)[:200]
    rest = np.setdiff1d(np.arange(1000), tuning)
    others = draws.labels.copy()
    others[rest] = (others[rest] + 1) % CLASSES
    changed = Draws(draws.probabilities, others)
    first, second = (calibrate_decisions(one, 0.9) for one in (draws, changed))
    assert first.temperature == second.temperature != 1
    assert first.largest_score < second.largest_score


# ---- Scores --------------------------------------------------------------------------------------


def test_scores_by_hand():
    p = np.array([[0.5, 0.2, 0.2, 0.1], [0.1, 0.7, 0.15, 0.05]])
    assert np.allclose(decisions.scores(p, "lac"), 1 - p)
    aps = [[0, 0.5, 0.5, 0.9], [0.85, 0, 0.7, 0.95]]
    assert np.allclose(decisions.scores(p, "aps"), aps)
    # Places 1, 2, 2, 4 and 3, 1, 2, 4; one is free.
    places = np.array([[0, 1, 1, 3], [2, 0, 1, 3]])
    assert np.allclose(decisions.scores(p, "raps", 1), np.array(aps) + 0.01 * places)


def test_the_rank_is_of_the_decimal_number():
    # 20 * 0.95 is 19 exactly; as binary numbers it may be more.
    assert [decisions._rank(n, 0.95) for n in (19, 20, 99, 100)] == [19, 20, 95, 96]
    assert decisions._rank(9, 0.9) == 9 and decisions._rank(999, 0.7) == 700


def test_a_set_does_not_depend_on_the_images_beside():
    draws = drawn(400, 5, draws=7)
    rule = calibrate_decisions(draws, 0.9, 0.2, method="raps")
    whole = analyze(drawn(50, 6, draws=7), calibration=rule).decisions
    for row in range(0, 50, 7):
        one = Draws(drawn(50, 6, draws=7).probabilities[:, row : row + 1])
        alone = analyze(one, calibration=rule).decisions
        assert np.array_equal(alone.sets[0], whole.sets[row])
        assert alone.accepted[0] == whole.accepted[row]


@pytest.mark.parametrize("level", [0.8, 0.9, 0.95])
def test_sets_of_lac_are_those_of_mapie(level):
    """MAPIE's sets of APS and RAPS count the class's own probability, so they are larger."""
    classification = pytest.importorskip("mapie.classification")

    class Known:
        """A classifier whose input is its answer."""

        classes_ = np.arange(CLASSES)
        _estimator_type = "classifier"

        def fit(self, x, y):
            return self

        def __sklearn_is_fitted__(self):
            return True

        def predict_proba(self, x):
            return np.asarray(x, float)

        def predict(self, x):
            return np.argmax(x, axis=1)

    held_out, new = drawn(600, 1), drawn(400, 2)
    rule = calibrate_decisions(held_out, level, temperature=1.0)
    rest = np.random.default_rng(0).permutation(600)[600 // decisions.TUNING :]
    peer = classification.SplitConformalClassifier(Known(), confidence_level=level)
    peer.conformalize(held_out.probabilities[0, rest], held_out.labels[rest])
    _, sets = peer.predict_set(new.probabilities[0])
    assert np.array_equal(analyze(new, calibration=rule).decisions.sets, sets[:, :, 0])


# ---- Accept --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def true_error():
    """The error of what is accepted with a threshold, at temperature 1.5."""
    mean = tempered(EVERYBODY.probabilities, 1.5)[0]
    predicted = EVERYBODY.probabilities[0].argmax(axis=1)
    own = mean[np.arange(len(mean)), predicted]
    order = np.argsort(-own)
    wrong = np.cumsum((predicted != EVERYBODY.labels)[order])

    def find(threshold):
        accepted = np.searchsorted(-own[order], -threshold, side="right")
        return wrong[accepted - 1] / accepted

    return find


def failures(true_error, repetitions, images, error, confidence):
    """How often the true error of what is accepted is above the error that was asked for; nothing
    may be accepted."""
    found = accepted = 0
    for seed in range(1, repetitions + 1):
        try:
            rule = calibrate_decisions(
                drawn(images, seed), 0.9, error, confidence=confidence, temperature=1.5
            )
        except BayesCaffeError as why:
            assert "nothing can be accepted" in str(why)
            continue
        accepted += rule.accepted / rule.images
        found += true_error(rule.threshold) > error
    assert accepted > 0.1 * repetitions
    return found


@pytest.mark.parametrize(("error", "confidence"), [(0.1, 0.9), (0.05, 0.8)])
def test_the_error_of_what_is_accepted_is_bounded(true_error, error, confidence):
    """At most 1 - confidence of the rules exceed it, up to chance."""
    found = failures(true_error, 150, 500, error, confidence)
    assert found <= stats.binom.ppf(0.999, 150, 1 - confidence)


@pytest.fixture(scope="module")
def halves():
    """Digits of MNIST, divided at random 100 times: one half to calibrate with, one that is new."""
    digits, random = mnist_draws.read(), np.random.default_rng(1)
    found = []
    for _ in range(100):
        rows = np.split(random.permutation(len(digits.labels)), 2)
        found.append([Draws(digits.probabilities[:, one], digits.labels[one]) for one in rows])
    return found


def test_halves_have_each_digit_once(tmp_path, monkeypatch, digits):
    script = load_script(REPO / "models/lenet/halves.py")
    (tmp_path / "test_lmdb").symlink_to(digits / "test_lmdb")
    monkeypatch.setattr(script, "DIGITS", tmp_path)
    script.main()
    first, second = (np.load(tmp_path / name) for name in ("held-out.npz", "new.npz"))
    images, labels = open_images(digits / "test_lmdb").in_order()(100)
    both = np.concatenate([first["images"], second["images"]])
    assert first["images"].shape[0] == 50
    assert sorted(image.tobytes() for image in both) == sorted(one.tobytes() for one in images)
    known = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
    for half in (first, second):
        assert [known[image.tobytes()] for image in half["images"]] == half["labels"].tolist()


@pytest.mark.parametrize("method, level", [("lac", 0.95), ("lac", 0.99), ("raps", 0.995)])
def test_coverage_of_held_out_digits(halves, method, level):
    """Whatever the 4,000 images are, k of n + 1 are covered on average over all ways to divide
    them, if no scores are equal near the k-th."""
    found = []
    for held_out, new in halves:
        rule = calibrate_decisions(held_out, level, method=method)
        sets = analyze(new, calibration=rule, progress=False).decisions.sets
        found.append(sets[np.arange(len(sets)), new.labels].mean())
    expected = math.ceil((rule.images + 1) * level) / (rule.images + 1)
    error = np.std(found, ddof=1) / math.sqrt(len(found))
    assert rule.images == 1600 and error < 0.001
    assert abs(np.mean(found) - expected) < 3.3 * error


def test_the_error_of_accepted_digits(halves):
    """If all were accepted, it would be above the bound, which holds for 95 of 100."""
    rates, shares, all_wrong = [], [], []
    for held_out, new in halves:
        rule = calibrate_decisions(held_out, error=0.008)
        decided = analyze(new, calibration=rule, progress=False)
        accepted, is_wrong = decided.decisions.accepted, decided.predicted != new.labels
        rates.append(is_wrong[accepted].mean())
        shares.append(accepted.mean())
        all_wrong.append(is_wrong.mean())
    assert np.mean(rates) < 0.008 < np.mean(all_wrong)
    assert np.quantile(rates, 0.95) <= 0.008
    assert 0.9 < np.mean(shares) < 1


def test_a_weaker_test_breaks_the_bound(true_error, monkeypatch):
    """Taking the observed error for the true one does, so the images are hard ones."""
    real = exact.last_shown
    monkeypatch.setattr(exact, "last_shown", lambda tests, error, _: real(tests, error, 0.5))
    assert failures(true_error, 150, 500, 0.1, 0.9) > stats.binom.ppf(0.999, 150, 0.1)


def test_the_first_failure_ends_the_search():
    tests = [("a", 0, 100), ("b", 1, 200), ("c", 50, 300), ("d", 0, 10_000)]
    assert exact.last_shown(tests, 0.05, 0.95) == ("b", (50, 300))
    assert exact.last_shown(tests[2:], 0.05, 0.95) == (None, (50, 300))
    assert exact.last_shown(tests[3:], 0.05, 0.95) == ("d", None)
    assert exact.last_shown([("a", 0, 0)], 0.05, 0.95) == (None, (0, 0))


def test_exact_intervals_are_those_of_scipy():
    for count, total in ((0, 10), (3, 10), (10, 10), (7, 5000)):
        expected = stats.binomtest(count, total).proportion_ci(0.9, "exact")
        assert exact.interval(count, total, 0.9) == pytest.approx(tuple(expected), abs=1e-12)


def test_what_a_rule_tells_of_its_calibration():
    draws = drawn(2000, 1, draws=3)
    rule = calibrate_decisions(draws, 0.9, 0.15)
    assert rule.images == 1600 and rule.classes == CLASSES and rule.passes == 3
    assert rule.covered == math.ceil(1601 * 0.9)
    assert stats.binom.cdf(rule.wrong, rule.accepted, 0.15) <= 0.05
    found = analyze(drawn(2000, 2, draws=3), calibration=rule)
    told = found.summary()["decisions"]
    covered = found.decisions.sets[np.arange(2000), found.labels]
    assert told["coverage"] == covered.mean()
    assert sum(told["set_sizes"]) == 2000 and len(told["set_sizes"]) == CLASSES + 1
    assert told["mean_set_size"] == np.dot(told["set_sizes"], np.arange(CLASSES + 1)) / 2000
    for number, one in enumerate(told["class_coverage"]):
        assert one["coverage"] == covered[found.labels == number].mean()
    assert told["accepted"] == found.decisions.accepted.sum()
    wrong = (~found.correct & found.decisions.accepted).sum()
    assert told["accepted_wrong"] == wrong
    low, high = told["accepted_error_interval"]
    assert low < wrong / told["accepted"] < high


# ---- What it is for ------------------------------------------------------------------------------

ORIGIN = {"seed": 1, "net_sha256": "n", "weights_sha256": "w", "data_sha256": "held out"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data_sha256": "held out"}, "was calibrated with the images of"),
        ({"seed": 2}, "is for the draws of seed 1"),
        ({"weights_sha256": "x"}, "other weights"),
        ({"weights_sha256": None}, "other weights"),
        ({"net_sha256": "x"}, "other nets"),
        ({"mc_dropout": True}, "without MC dropout"),
        ({"antithetic": True}, "without antithetic pairs"),
        ({"analytic": True}, "without the analytic pass"),
        ({"stopping_rule": {"threshold": 1}}, "all draws of each image"),
        ({"part": {"first_draw": 0, "first_image": 50, "all_images": 90}, "passes": 2}, "a part"),
    ],
)
def test_other_draws_are_refused(changes, message):
    rule = calibrate_decisions(drawn(200, 1, 2, ORIGIN), 0.9)
    good = {**ORIGIN, "data_sha256": "new"}
    assert analyze(drawn(40, 2, 2, good), calibration=rule).decisions is not None
    with pytest.raises(BayesCaffeError, match=message):
        analyze(drawn(40, 2, 2, {**good, **changes}), calibration=rule)


def test_other_numbers_of_draws_and_classes_are_refused():
    rule = calibrate_decisions(drawn(200, 1, 2), 0.9)
    with pytest.raises(BayesCaffeError, match="is for 2 draws"):
        analyze(drawn(40, 2, 3), calibration=rule)
    with pytest.raises(BayesCaffeError, match="is for 5 classes"):
        analyze(Draws(np.full((2, 9, 4), 0.25, np.float32)), calibration=rule)


def test_adaptive_draws_need_the_same_rule():
    settled = {"passes": 2, "stopping_rule": {"threshold": 1.5}}
    rule = calibrate_decisions(drawn(200, 1, 2, settled), 0.9)
    assert analyze(drawn(40, 2, 2, settled), calibration=rule).decisions
    for other in ({}, {"stopping_rule": {"threshold": 1.6}}):
        with pytest.raises(BayesCaffeError, match="by the rule of the held-out draws"):
            analyze(drawn(40, 2, 2, other), calibration=rule)


@pytest.mark.parametrize(("level", "error"), [(0.9, None), (0.99, None), (0.9, 0.02)])
def test_too_few_images_tell_how_many_are_needed(level, error):
    needed = decisions.images_needed(level, error)
    with pytest.raises(BayesCaffeError, match=f"it needs {needed} or more"):
        calibrate_decisions(drawn(needed - 1, 1), level, error)
    enough = drawn(needed, 1, sharpness=1000)
    rule = calibrate_decisions(enough, level, error)
    assert rule.images >= (0 if error is None else exact.sample_needed(error, 0.95))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coverage": 1}, "coverage=1 is not between"),
        ({"error": 0.0}, "error=0.0 is not between"),
        ({"confidence": math.nan}, "confidence=nan"),
        ({"method": "best"}, "expected lac, aps, raps"),
        ({"temperature": 0}, "temperature=0 is not within"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(BayesCaffeError, match=message):
        calibrate_decisions(drawn(100, 1), **options)


def test_draws_without_labels_and_with_bad_ones():
    good = drawn(100, 1)
    with pytest.raises(BayesCaffeError, match="has no labels"):
        calibrate_decisions(Draws(good.probabilities))
    with pytest.raises(BayesCaffeError, match="image 3 has the label 5"):
        labels = good.labels.copy()
        labels[3] = CLASSES
        calibrate_decisions(Draws(good.probabilities, labels))
    bad = good.probabilities.copy()
    bad[0, 7] = np.nan
    with pytest.raises(BayesCaffeError, match="not numbers"):
        calibrate_decisions(Draws(bad, good.labels), temperature=1)


def test_a_class_that_is_missing_is_told():
    good = drawn(300, 1)
    labels = np.where(good.labels == 2, 0, good.labels)
    rule = calibrate_decisions(Draws(good.probabilities, labels), 0.9)
    assert rule.missing_classes == (2,)
    told = analyze(Draws(good.probabilities, labels), calibration=rule).summary()["decisions"]
    assert told["class_coverage"][2] == {"images": 0, "coverage": None, "interval": None}


# ---- Files ---------------------------------------------------------------------------------------


def test_a_file_gives_the_rule_back(tmp_path):
    for error, method in ((None, "raps"), (0.2, "lac")):
        rule = calibrate_decisions(drawn(500, 1, 2, ORIGIN), 0.9, error, method=method)
        rule.save(tmp_path / "calibration.json")
        assert DecisionRule.load(tmp_path / "calibration.json") == rule


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threshold": math.nan}, "'threshold' is nan"),
        ({"threshold": None}, "threshold None, error 0.2"),
        ({"temperature": 0}, "temperature 0"),
        ({"coverage": "0.9"}, "'coverage' is '0.9', expected a number from 0 to 1"),
        ({"method": ["lac"]}, "'method' is"),
        ({"missing_classes": [0.5]}, "'missing_classes' is"),
        ({"more": 1}, "of this version"),
    ],
)
def test_wrong_fields_are_named(tmp_path, changes, message):
    path = tmp_path / "calibration.json"
    said = {**calibrate_decisions(drawn(500, 1), 0.9, 0.2).as_dict(), **changes}
    path.write_text(json.dumps({"decisions": said, "sha256": rule_files.digest(said)}))
    with pytest.raises(BayesCaffeError, match=message) as raised:
        DecisionRule.load(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_a_changed_number_and_other_files_are_refused(tmp_path):
    path = tmp_path / "calibration.json"
    calibrate_decisions(drawn(500, 1), 0.9).save(path)
    path.write_text(path.read_text().replace('"coverage": 0.9', '"coverage": 0.99'))
    with pytest.raises(BayesCaffeError, match="was changed"):
        analyze(drawn(20, 2), calibration=path)
    for text in ("[1", "[1]", '{"stopping_rule": {}}'):
        path.write_text(text)
        with pytest.raises(BayesCaffeError, match="not a calibration of decisions"):
            DecisionRule.load(path)
