"""`models/suite`: its numbers against known ones, and a small suite with every method and its page.

The small suite trains some forty nets for 16 iterations each.
"""

import json
import multiprocessing
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import REPO, write_digits
from scipy.special import softmax
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

SUITE_FOLDER = REPO / "models/suite"
sys.path.insert(0, str(SUITE_FOLDER))

pytest.importorskip("caffe", reason="pycaffe is not built")

import swag  # noqa: E402
import tasks  # noqa: E402
from bayescaffe import BayesCaffeError, Model  # noqa: E402
from bayescaffe.data import from_arrays, prepare_idx  # noqa: E402
from bayescaffe.net.messages import read_message  # noqa: E402
from bayescaffe.stats import metrics  # noqa: E402
from bayescaffe.stats.temperature import tempered  # noqa: E402
from families import FAMILIES, PRETRAINED, Place, Training  # noqa: E402
from laplace import LastLayer, features_and_scores  # noqa: E402
from marked_part import SUITE  # noqa: E402
from methods import HELD_OUT, METHODS, TEST, Fit, mixture, prediction_file  # noqa: E402
from plan_suite import Job, Plan, run_jobs  # noqa: E402
from scores import (  # noqa: E402
    BINS,
    FLAGGED,
    MEASURES,
    Scores,
    Weights,
    _auroc,
    difference,
    interval,
    mcnemar,
    measure,
    score,
)
from shifts import SHIFTS, STRENGTHS, shifted  # noqa: E402
from stock_nets import lenet, resnet  # noqa: E402
from suite_page import by_machine, write_page  # noqa: E402
from tasks import Measured, Task, load  # noqa: E402
from trained import train  # noqa: E402
from tuning import Tuned, beyond  # noqa: E402

TRIALS = {name: family.trials for name, family in FAMILIES.items()}
"""Of the suite itself; the small one has fewer."""

# ---- Measures -----------------------------------------------------------------------------------


def made_up(images: int = 400, seed: int = 0, sharp: float = 2) -> Measured:
    """Probabilities of a method that is right more often than not, rounded so that some tie."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, images)

    def given(*shape: int) -> np.ndarray:
        scores = rng.normal(0, 1, (*shape, 5)) + sharp * np.eye(5)[labels[: shape[-1]]]
        return softmax(np.round(scores), axis=-1)

    return Measured(given(images), labels, given(2, 5, 40), softmax(rng.normal(0, 1, (60, 5)), 1))


def test_measures_are_those_of_scikit_learn_and_of_the_package():
    found = made_up()
    given, labels = found.test, found.labels
    once = {name: value[0] for name, value in measure(found, 1.7, Weights.once(found)).items()}
    assert set(once) == set(MEASURES)
    correct, confidence = given.argmax(axis=1) == labels, given.max(axis=1)
    assert once["error"] == pytest.approx(1 - correct.mean())
    assert once["nll"] == pytest.approx(log_loss(labels, given))
    assert once["calibrated_nll"] == pytest.approx(log_loss(labels, tempered(given, 1.7)))
    one_by_one = [brier_score_loss(labels == c, given[:, c]) for c in range(5)]
    assert once["brier"] == pytest.approx(sum(one_by_one))
    for name, edges in (
        ("ece", metrics.equal_width(BINS)),
        ("adaptive_ece", metrics.equal_mass(confidence, BINS)),
    ):
        bins = metrics.reliability(confidence, correct, edges)
        assert once[name] == pytest.approx(metrics.calibration_error(bins))
    coverage, risk = metrics.risk_coverage(confidence, correct)
    assert once["aurc"] == pytest.approx(metrics.aurc(risk))
    entropy = [-(p * np.log(p)).sum(axis=1) for p in (given, found.ood)]
    is_ood = np.repeat([0, 1], [400, 60])
    assert once["auroc"] == pytest.approx(roc_auc_score(is_ood, np.concatenate(entropy)))
    losses = [
        log_loss(labels[:40], part, labels=range(5)) for part in found.shifted.reshape(10, 40, 5)
    ]
    assert once["shifted_nll"] == pytest.approx(np.mean(losses))


def test_auroc_counts_ties_half():
    rng = np.random.default_rng(2)
    scores, ood = rng.integers(0, 5, 50), rng.integers(2, 7, 30)
    expected = roc_auc_score(np.repeat([0, 1], [50, 30]), np.concatenate([scores, ood]))
    assert _auroc(scores, ood, np.ones((1, 50)), np.ones((1, 30))) == pytest.approx(expected)


def test_errors_flagged_at_a_share_is_worked_by_hand():
    """Of 1,000 images the 38 least confident are flagged, and with them 7 of the 10 errors."""
    confidence = np.linspace(0.6, 0.99, 1000)
    labels = np.zeros(1000, int)
    labels[[0, 5, 10, 20, 30, 36, 37, 38, 500, 999]] = 1  # predicted is 0
    given = np.stack([confidence, 1 - confidence], axis=1)
    found = Measured(given, labels, np.empty((0, 0, 0, 2)), np.empty((0, 2)))
    assert FLAGGED == 0.038
    assert measure(found, 1, Weights.once(found))["flagged"] == pytest.approx(0.7)


def test_weights_are_repetitions():
    found = made_up(images=100)
    rng = np.random.default_rng(1)
    times, ood_times = rng.integers(0, 4, 100), rng.integers(0, 3, 60)
    weights = replace(
        Weights.once(found), test=times[np.newaxis] * 1.0, ood=ood_times[np.newaxis] * 1.0
    )
    repeated = replace(
        found,
        test=found.test.repeat(times, axis=0),
        labels=found.labels.repeat(times),
        ood=found.ood.repeat(ood_times, axis=0),
    )
    repeated_weights = Weights.once(repeated)
    one, other = measure(found, 2, weights), measure(repeated, 2, repeated_weights)
    for name in ("error", "nll", "calibrated_nll", "brier", "ece", "auroc"):
        assert one[name] == pytest.approx(other[name]), name


def test_the_nll_of_an_ensemble_is_that_of_the_mean_probability():
    labels = np.array([0, 1])
    none = {"shifted": np.empty((0, 0, 0, 2)), "ood": np.empty((0, 2))}
    parts = [
        Measured(np.array(test), labels, **none)
        for test in ([[0.9, 0.1], [0.5, 0.5]], [[0.3, 0.7], [0.1, 0.9]])
    ]
    found = mixture(parts)
    value = measure(found, 1, Weights.once(found))["nll"]
    assert value == pytest.approx(-(np.log(0.6) + np.log(0.7)) / 2)


# ---- Differences --------------------------------------------------------------------------------


def test_the_interval_covers():
    """Seeds and images differ, and pairs of both. Five seeds alone, resampled, cover too little."""
    rng = np.random.default_rng(5)
    covered, covered_by_resampling = 0, 0
    trials, seeds, images = 600, 5, 50
    for _ in range(trials):
        gaps = 0.3 + rng.normal(0, 0.3, (seeds, 1)) + rng.normal(0, 1, (1, images))
        gaps = gaps + rng.normal(0, 0.5, (seeds, images))
        by_seed = gaps.mean(axis=1)
        low, high = interval(by_seed, gaps.mean(axis=0).var() / images)
        covered += low < 0.3 < high
        chosen = rng.integers(seeds, size=(200, seeds))
        low, high = np.quantile(by_seed[chosen].mean(axis=1), (0.025, 0.975))
        covered_by_resampling += low < 0.3 < high
    assert 0.93 < covered / trials < 0.99
    assert covered_by_resampling / trials < 0.85


def test_the_variance_over_images_is_that_of_the_mean():
    ours, theirs = (
        score([made_up(seed=0, sharp=sharp) for _ in range(2)], 1, resamples=2000)
        for sharp in (3, 2)
    )
    gaps = ours.wrong[0].astype(float) - theirs.wrong[0]
    found = difference(ours, theirs, "error")
    # Equal seeds have no variance, so the interval is that of the images, in %.
    reach = 100 * 1.96 * gaps.std() / np.sqrt(len(gaps))
    assert found.mean == pytest.approx(100 * gaps.mean())
    assert found.interval[1] - found.mean == pytest.approx(reach, rel=0.08)
    assert found.verdict() == "ahead"
    assert difference(theirs, ours, "error").verdict() == "behind"
    assert difference(ours, ours, "nll").interval == (0, 0)


def test_mcnemar_is_worked_by_hand():
    """Ten images that only theirs gets wrong, two that only ours does: 2 (1 + 12 + 66) / 2^12."""
    ours, theirs = np.zeros((2, 100), bool)
    ours[:2], theirs[2:12] = True, True
    ours[50:60] = theirs[50:60] = True
    assert mcnemar(ours, theirs) == pytest.approx(158 / 4096)
    assert mcnemar(ours, ours) == 1


def test_commits_are_told_once_for_each_machine():
    origins = ["commit 1 on 2 cores of A, on B", "commit 2 on C", "commit 3 on 2 cores of A, on B"]
    assert by_machine(origins) == "1, 3 on 2 cores of A, on B; 2 on C"


# ---- SWAG and Laplace ---------------------------------------------------------------------------


def test_swag_has_the_moments_of_its_snapshots():
    rng = np.random.default_rng(6)
    snapshots = rng.normal(0, 1, (5, 4)).cumsum(axis=0)
    moments = swag.Moments.of(list(snapshots))
    draws = np.array([moments.draw(rng) for _ in range(20_000)])
    covariance = np.cov(snapshots, rowvar=False)
    expected = (np.diag(snapshots.var(axis=0)) + covariance) / 2
    error = 5 * np.sqrt(expected.diagonal().max() / 20_000)
    assert draws.mean(axis=0) == pytest.approx(snapshots.mean(axis=0), abs=error)
    assert np.cov(draws, rowvar=False) == pytest.approx(
        expected, abs=0.05 * expected.diagonal().max()
    )


def test_laplace_of_a_linear_model_is_the_closed_form():
    """With equal class probabilities the Gauss-Newton matrix is a Kronecker product."""
    rng = np.random.default_rng(7)
    features, new = rng.normal(0, 1, (30, 3)), rng.normal(0, 1, (2, 3))
    layer = LastLayer.of(features, np.full((30, 4), 0.25))
    wide = np.hstack([features, np.ones((30, 1))])
    curvature = np.eye(4) / 4 - np.full((4, 4), 1 / 16)
    precision = sum(np.kron(np.outer(row, row), curvature) for row in wide) + 0.7 * np.eye(16)
    for row, variances in zip(new, layer.variances(new, 0.7), strict=True):
        jacobian = np.kron(np.append(row, 1), np.eye(4))
        expected = jacobian @ np.linalg.inv(precision) @ jacobian.T
        found = layer.class_basis @ np.diag(variances) @ layer.class_basis.T
        assert found == pytest.approx(expected)
    scores = rng.normal(0, 1, (2, 4))
    assert layer.predict(new, scores, 1e12, 1) == pytest.approx(softmax(scores, axis=1), abs=1e-5)
    assert layer.predict(new, 5 * scores, 0.01, 1).max() < softmax(5 * scores, axis=1).max()


# ---- Shifts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SHIFTS)
def test_shifts_repeat_and_grow(kind):
    rng = np.random.default_rng(8)
    # Soft blobs: of pure noise, a small rotation is as far away as a large one.
    images = blobs(rng)
    gaps = []
    for strength in STRENGTHS:
        found = shifted(images, kind, strength)
        assert found.dtype == np.uint8 and found.shape == images.shape
        assert (found == shifted(images, kind, strength)).all()
        gaps.append(np.abs(found.astype(float) - images).mean())
    assert gaps[0] > 0 and gaps == sorted(gaps)


def blobs(rng: np.random.Generator) -> np.ndarray:
    from scipy.ndimage import gaussian_filter

    noise = gaussian_filter(rng.normal(0, 1, (30, 1, 28, 28)), (0, 0, 4, 4))
    return np.clip(128 + 600 * noise, 0, 255).astype(np.uint8)


def test_what_shifts_do_to_a_pixel():
    image = np.zeros((1, 1, 21, 21), np.uint8)
    image[0, 0, 10, 18] = 200  # eight to the right of the centre
    turned = shifted(image, "rotation", 5)[0, 0].astype(float)
    rows, columns = np.indices(turned.shape)
    place = [(turned * one).sum() / turned.sum() - 10 for one in (rows, columns)]
    assert np.hypot(*place) == pytest.approx(8, abs=0.3)
    assert abs(np.degrees(np.arctan2(*place))) == pytest.approx(60, abs=3)
    assert shifted(image, "brightness", 2)[0, 0, 10, 18] == 248
    assert (shifted(image, "stripe", 5) == 255).any(axis=(0, 1, 2)).sum() == 5
    colour = np.zeros((1, 3, 32, 32), np.uint8)
    assert [kind for kind, shift in SHIFTS.items() if not shift.fits(colour)] == [
        "dotted line",
        "zigzag",
    ]


# ---- A small suite ------------------------------------------------------------------------------

SMALL = {
    "digits": Task(
        "mnist",
        300,
        lenet,
        16,
        "fashion-mnist",
        base_lr=0.005,
        methods=tasks.OF_LENET,
        trial_share=2,
        shifted=20,
    ),
    "colours": Task(
        "cifar10", 300, partial(resnet, classes=4, stages=(4, 8)), 16, "shapes", shifted=20
    ),
    "transfer": Task(
        "mnist",
        60,
        partial(tasks.lenet_of_five, last="digits"),
        8,
        "fashion-mnist",
        base_lr=0.005,
        classes=(5, 6, 7, 8, 9),
        methods=tasks.OF_TRANSFER,
        pretrained="digits",
        shifted=20,
    ),
}


def write_known(folder: Path) -> None:
    """Small sets in place of the known ones."""
    folder.mkdir()
    for name in ("mnist", "fashion-mnist"):
        write_digits(folder / f"{name}-idx", train=400, test=150, size=28, classes=10)
        prepare_idx(folder / f"{name}-idx", folder / name, progress=False)
    rng = np.random.default_rng(3)
    labels = np.arange(550) % 4
    pixels = rng.integers(0, 120, (550, 32, 32, 3)) + 30 * labels[:, None, None, None]
    first, test = (pixels[:400], labels[:400]), (pixels[400:], labels[400:])
    from_arrays(
        first[0].astype(np.uint8),
        first[1],
        folder / "cifar10",
        channels="rgb",
        val=0,
        test=(test[0].astype(np.uint8), test[1]),
        progress=False,
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The plan of the small suite, which was run, and its page."""
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("suite")
    write_known(folder / "data")
    for name in list(tasks.TASKS):
        patch.delitem(tasks.TASKS, name)
    for name, task in SMALL.items():
        patch.setitem(tasks.TASKS, name, task)
    for name in ("ensemble", "ours-ensemble"):
        patch.setitem(METHODS, name, replace(METHODS[name], members=2))
    for name, family in FAMILIES.items():
        fewer = tuple((field, values[:1]) for field, values in family.choices[:2])
        patch.setitem(FAMILIES, name, replace(family, choices=fewer))
    patch.setattr("tasks.HELD_OUT", 60)
    patch.setattr("tasks.OOD_IMAGES", 30)
    patch.setattr("swag.SNAPSHOTS", 4)
    patch.setattr("families.SNAPSHOTS", 4)
    patch.setattr("swag.NORM_BATCHES", 2)
    place = Place(folder / "data", folder / "out", folder / "scores")
    tuned = Tuned.read(folder / "tuned.json")
    plan = Plan(place, tuned, ("digits",), tuple(METHODS), seeds=2, draws=3, jobs=2)
    plan.run(quiet=True)
    some = ("stock", "swag", "laplace", "ours")
    replace(plan, rows=("colours",), methods=some).run(quiet=True)
    replace(plan, rows=("transfer",)).run(quiet=True)
    page = folder / "RESULTS.md"
    page.write_text("# Results\n\nThe paper's.\n")
    assert write_page(page, plan) == ["digits", "colours", "transfer"]
    yield plan, page
    patch.undo()


def cells(page: Path, row: str, title: str) -> dict[str, str]:
    """By the title of the column: what the first table of the page says of a method."""
    lines = [line.strip("| ").split(" | ") for line in page.read_text().splitlines()]
    head = next(line for line in lines if line[:2] == ["row", "method"])
    found = next(line for line in lines if line[:2] == [row, title])
    return dict(zip(head, found, strict=True))


def test_the_page_has_every_method_and_its_numbers(small):
    plan, page = small
    columns = {name: METHODS[name] for name in SMALL["digits"].methods}
    for name, method in columns.items():
        results = [one.found for one in plan.results("digits", name)]
        assert len(results) == (2 if method.members == 1 else 1)
        wrong = [100 * (one.test.argmax(axis=1) != one.labels).mean() for one in results]
        shown = cells(page, "digits", method.title)
        assert shown["error, %"].strip("*").startswith(f"{np.mean(wrong):.2f}"), name
        assert "–" not in shown.values()
    assert cells(page, "colours", "SWAG")["error, %"]
    for measure_ in MEASURES.values():
        column = [cells(page, "digits", one.title)[measure_.title] for one in columns.values()]
        numbers = [float(cell.strip("*").split(" ")[0]) for cell in column]
        best = max(numbers) if measure_.larger_is_better else min(numbers)
        assert [cell.startswith("**") for cell in column] == [number == best for number in numbers]


def test_the_rest_of_the_page_stays(small):
    plan, page = small
    text = page.read_text()
    assert text.startswith("# Results\n\nThe paper's.\n") and text.endswith(f"{SUITE.end}\n")
    write_page(page, plan)
    again = page.read_text()
    assert again.count(SUITE.start) == 1 and again.startswith("# Results\n\nThe paper's.\n")
    assert "ours, ensemble of 5 − deep ensemble of 5" in again and "p = " in again
    assert (page.parent / "docs/figures/suite.png").read_bytes().startswith(b"\x89PNG")


def test_what_was_measured_elsewhere_is_not_measured_again(small, tmp_path):
    """Without nets and predictions: the scores are in the repository."""
    plan, page = small
    text = page.read_text()
    elsewhere = replace(plan, place=replace(plan.place, out=tmp_path))
    assert "0 trials of tuning, 0 nets" in elsewhere.estimate()
    elsewhere.run(quiet=True)
    write_page(page, elsewhere)
    assert page.read_text() == text and not list(tmp_path.rglob("*.caffemodel"))


def test_scores_are_read_as_they_were_written(tmp_path):
    found = score([made_up(seed=seed) for seed in (0, 1)], 1.5, resamples=20)
    found.save(tmp_path / "row/method.npz", {"seed": 3})
    again = Scores.read(tmp_path / "row/method.npz")
    assert Scores.facts(tmp_path / "row/method.npz") == {"seed": 3}
    assert Scores.facts(tmp_path / "row/other.npz") is None
    assert again.by_seed == found.by_seed
    assert np.array_equal(again.wrong, found.wrong)
    for one, other in (
        (again.resampled, found.resampled),
        (again.by_strength, found.by_strength),
    ):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-6)


def test_error_by_strength_is_the_mean_over_seeds_and_shifts():
    seeds = [made_up(seed=seed) for seed in (0, 1)]
    found = score(seeds, 1, resamples=1).by_strength["error"]
    labels = [one.labels[:40] for one in seeds]
    still = [(one.test[:40].argmax(1) != y).mean() for one, y in zip(seeds, labels, strict=True)]
    third = [
        (one.shifted[:, 2].argmax(-1) != y).mean() for one, y in zip(seeds, labels, strict=True)
    ]
    assert found[[0, 3]] == pytest.approx([np.mean(still), np.mean(third)])


def test_both_sides_are_tuned_with_the_same_effort(small):
    assert TRIALS.pop("paper") == 0 and set(TRIALS.values()) == {6}
    plan, _ = small
    tuned = json.loads(plan.tuned.path.read_text())["rows"]["digits"]
    counts = {name: len(family["trials"]) for name, family in tuned["families"].items()}
    assert all(3 <= counts[name] <= 5 for name in ("stock", "bayes", "dropout"))
    assert tuned["families"].pop("paper")["trials"] == []
    for family in tuned["families"].values():
        (chosen,) = [one for one in family["trials"] if family["settings"].items() <= one.items()]
        # Two may be equal, as they are rounded.
        assert chosen["nll"] == min(trial["nll"] for trial in family["trials"])
    assert tuned["methods"]["laplace"]["prior_precision"] > 0
    assert set(tuned["methods"]) == set(SMALL["digits"].methods)


def test_tuning_goes_on_beyond_its_list():
    assert beyond(4, [1, 0.25, 4]) == 16 and beyond(16, [1, 0.25, 4, 16]) == 64
    assert beyond(0.25, [1, 0.25, 4]) == 0.0625
    assert beyond(1, [1, 0.25, 4]) is None
    assert beyond(0, [1, 0, 10]) is None and beyond(100, [1, 0, 10, 100]) == 1000
    assert beyond(1, [1, 0]) is None


def test_tuning_sees_no_test_image(small):
    plan, _ = small
    task = tasks.TASKS["digits"]

    def pixels(task: Task) -> list[set[bytes]]:
        split = load(task, plan.place.known)
        return [{*map(bytes, part[0])} for part in (split.train, split.held_out, split.test)]

    parts = pixels(task)
    assert list(map(len, parts)) == [300, 60, 150] and len(set.union(*parts)) == 510
    exchanged = pixels(replace(task, images=150, is_exchanged=True))
    assert exchanged[0] == parts[2] and list(map(len, exchanged)) == [150, 60, 340]
    assert len(set.union(*exchanged)) == 550


def test_fine_tuned_nets_start_from_those_of_another_row(small):
    plan, _ = small
    settings = {"stock": "stock", "fine-tuned": "stock", "bayes": "bayes", "prior": "bayes"}

    def first_weights(training: Training) -> np.ndarray:
        found = train(training, plan.place)
        return Model(found.net, found.weights).caffe_net.params["conv1"][0].data.ravel().copy()

    for family, source in settings.items():
        chosen = plan.tuned.settings("transfer", family)
        net = first_weights(Training.of("transfer", family, chosen, 2))
        start = first_weights(Training.of("digits", source, PRETRAINED, 1))
        likeness = np.corrcoef(net, start)[0, 1]
        assert likeness > 0.9 if family in ("fine-tuned", "prior") else abs(likeness) < 0.3, family


def test_the_posterior_of_another_row_is_the_prior(small):
    plan, _ = small
    training = Training.of("transfer", "prior", plan.tuned.settings("transfer", "prior"), 1)
    net = train(training, plan.place).net
    layers = read_message(net, "NetParameter").layer
    given = {one.name: one.bayes_param.prior_from for one in layers if "Bayes" in one.type}
    assert given.pop("digits") == ""
    (source,) = set(given.values())
    start = train(Training.of("digits", "bayes", PRETRAINED, 1), plan.place)
    assert Path(source) == start.weights and len(given) == 3


def test_each_seed_has_few_images_of_its_own(small):
    plan, _ = small
    known, task = plan.place.known, tasks.TASKS["transfer"]
    sets = [{*map(bytes, load(task, known, seed).train[0])} for seed in (1, 2)]
    assert len(sets[0] & sets[1]) < 30 and list(map(len, sets)) == [60, 60]
    for row in ("digits", "colours"):
        one, other = (load(tasks.TASKS[row], known, seed).train[0] for seed in (1, 2))
        assert np.array_equal(one, other)


def test_the_net_that_was_tuned_is_the_one_that_is_tested(small):
    plan, _ = small
    chosen = plan.tuned.settings("transfer", "bayes")
    tuned, tested = (Training.of("transfer", "bayes", chosen, 1, trial) for trial in (True, False))
    assert tuned == tested
    given = tested, METHODS["ours"], 3, Fit(), plan.place
    files = [prediction_file(*given, of) for of in (HELD_OUT, TEST)]
    test = load(tasks.TASKS["transfer"], plan.place.known).test[0]
    assert [len(Measured.read(file).test) for file in files] == [60, len(test)]
    assert len(test) != 60


def test_a_row_may_have_shorter_trials(small):
    plan, _ = small
    chosen = plan.tuned.settings("digits", "bayes")
    tuned, tested = (Training.of("digits", "bayes", chosen, 1, trial) for trial in (True, False))
    for training, iterations in ((tuned, 8), (tested, 16)):
        assert f"_iter_{iterations}." in train(training, plan.place).weights.name
    assert not list(tuned.folder(plan.place).glob(f"{TEST}*")), "a trial has seen test images"
    # SWAG starts from the net that is tested, so its trials have their whole length.
    swag_trial = Training.of("digits", "swag", plan.tuned.settings("digits", "swag"), 1, True)
    assert swag_trial.iterations == 16


def test_a_row_may_have_some_classes_of_a_set(small):
    plan, _ = small
    known, task = plan.place.known, tasks.TASKS["transfer"]
    split = load(task, known)
    for name, parts in (("train", (split.train, split.held_out)), ("test", (split.test,))):
        everything = tasks.read_images(known / f"mnist/{name}_lmdb")
        label_of = dict(zip(map(bytes, everything[0]), everything[1], strict=True))
        for pixels, labels in parts:
            assert set(labels) == set(range(5))
            assert [label_of[bytes(one)] - 5 for one in pixels] == list(labels)


def test_what_is_done_is_not_done_again(small):
    plan, _ = small
    made = {
        path: path.stat().st_mtime_ns
        for pattern in ("*.caffemodel", "*.npz", "done.json")
        for path in plan.place.out.rglob(pattern)
    }
    assert "0 trials of tuning, 0 nets" in plan.estimate()
    plan.run(quiet=True)
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_a_row_that_was_changed_is_done_again(small, monkeypatch):
    plan, _ = small
    assert "0 nets to train" in plan.estimate()
    changed = replace(tasks.TASKS["digits"], iterations=20)
    monkeypatch.setitem(tasks.TASKS, "digits", changed)
    # Two seeds of five families; the ensembles have the same.
    assert "10 nets to train" in plan.estimate()
    assert plan.results("digits", "ours") is None and plan.scores("digits", "ours") is None


def test_nets_are_shared_by_the_methods(small):
    plan, _ = small
    settings = plan.tuned.settings("digits", "stock")
    folder = Training.of("digits", "stock", settings, 1).folder(plan.place)
    names = {path.stem.split(", ")[1] for path in folder.glob("*.npz")}
    assert {"by_net", "by_laplace"} <= names
    assert Training.of("digits", "dropout", settings, 1).folder(plan.place) == folder


def stock_net(plan: Plan, row: str):
    return train(Training.of(row, "stock", plan.tuned.settings(row, "stock"), 1), plan.place)


def test_swag_of_equal_snapshots_is_the_net(small, tmp_path):
    plan, _ = small
    net = stock_net(plan, "digits")
    for number in (1, 2):
        shutil.copy(net.weights, tmp_path / f"net_iter_{number}.caffemodel")
    images = load(tasks.TASKS["digits"], plan.place.known).test[0]
    expected = Model(net.net, net.weights).sample(images, 1)[0]
    found = swag.predict(net.net, tmp_path, images, draws=2, seed=1)
    assert found == pytest.approx(expected, abs=1e-6)


def test_swag_renews_the_statistics_of_batch_norm(small):
    plan, _ = small
    net = stock_net(plan, "colours")
    model = Model(net.net, net.weights)
    (name, *_), (first, *_) = swag._norm_layers(model), model.caffe_net.params
    norms = swag._Norms(model, net.net)
    variances = []
    for factor in (1, 3):
        model.caffe_net.params[first][0].data[...] *= factor
        norms.renew()
        _, variance, count = (blob.data.copy() for blob in model.caffe_net.params[name])
        variances.append(variance / count)
    # Before it is the first convolution, which has no bias. Each time other images are seen.
    assert variances[1] == pytest.approx(9 * variances[0], rel=0.1)


def test_features_and_scores_are_those_of_the_net(small):
    plan, _ = small
    net = stock_net(plan, "digits")
    images = load(tasks.TASKS["digits"], plan.place.known).test[0]
    model = Model(net.net, net.weights)
    features, scores = features_and_scores(model, images)
    expected = Model(net.net, net.weights).sample(images, 1)[0]
    assert softmax(scores, axis=1) == pytest.approx(expected, abs=1e-5)
    last = model.caffe_net.params["fc2"]
    assert features @ last[0].data.T + last[1].data == pytest.approx(scores, abs=1e-3)


def test_a_row_that_is_unknown_is_named():
    command = [sys.executable, SUITE_FOLDER / "suite.py", "--rows", "mnist-7"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "--rows mnist-7: expected some of mnist-55000" in done.stderr


def test_the_time_of_everything_is_told(tmp_path):
    command = [sys.executable, SUITE_FOLDER / "suite.py", "--dry-run", "--out", tmp_path]
    command += ["--rows", "mnist-1000", "--methods", "stock", "ours"]
    command += ["--tuned", tmp_path / "tuned.json", "--jobs", "1"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "12 trials of tuning, 10 nets" in done.stderr and "min with 1 side" in done.stderr


def fail(words: str) -> None:
    raise BayesCaffeError(words)


def test_a_job_that_fails_ends_the_others():
    jobs = [Job("long", time.sleep, (100,), 2), Job("bad", fail, ("no such thing",), 1)]
    before = multiprocessing.active_children()
    with pytest.raises(BayesCaffeError, match="no such thing"):
        run_jobs(jobs, 2, quiet=True)
    end = time.monotonic() + 30
    while set(multiprocessing.active_children()) - set(before):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_jobs_end_with_the_suite():
    """After a `kill` of the first process alone."""
    program = f"""
import sys, time
sys.path[:0] = [{str(SUITE_FOLDER)!r}, {str(REPO / "models/shared")!r}]
from plan_suite import Job, run_jobs
run_jobs([Job("long", time.sleep, (100,), 1)] * 2, 2)
"""
    process = subprocess.Popen([sys.executable, "-c", program])
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while len(started := children.read_text().split()) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(1)  # until they have asked to be told of its end
    process.terminate()
    process.wait(timeout=30)
    end = time.monotonic() + 30
    while any(map(is_running, started)):
        assert time.monotonic() < end
        time.sleep(0.05)


def is_running(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
