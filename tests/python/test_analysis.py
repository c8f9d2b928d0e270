"""`bayescaffe analyze`: from draws to predictions, intervals and figures. Needs no Caffe."""

import csv
import dataclasses
import json
import re
import time
import tracemalloc

import numpy as np
import pytest
from bayescaffe import cli
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.stats import metrics
from bayescaffe.stats.analysis import analyze
from bayescaffe.stats.draws import Draws, load_draws, save_draws
from bayescaffe.stats.intervals import KINDS, certain
from scipy import stats
from sklearn import metrics as sk

DRAWS, IMAGES, CLASSES = 60, 90, 4


def random_draws(draws=DRAWS, images=IMAGES, classes=CLASSES, noise=1.0, seed=0, signal=4.0):
    """Draws that are fairly right: the true class has a higher logit, each draw its own noise."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, images)
    logits = random.normal(size=(1, images, classes)) + noise * random.normal(
        size=(draws, images, classes)
    )
    logits[:, np.arange(images), labels] += signal * random.random(images)
    powers = np.exp(logits)
    probabilities = (powers / powers.sum(axis=-1, keepdims=True)).astype(np.float32)
    return Draws(probabilities, labels, {"weights_sha256": "ab"})


def ood_draws(**options):
    return random_draws(seed=1, signal=0, noise=3, **options)


def make_draws(*draws, labels=None):
    return Draws(np.array(draws, np.float32), None if labels is None else np.array(labels), {})


# What it finds


@pytest.mark.parametrize("interval", ["equal-tailed", "hdi"])
def test_per_image_numbers(interval):
    draws = random_draws()
    found = analyze(draws, level=0.9, interval=interval)
    mean = draws.probabilities.mean(axis=0, dtype=np.float64)
    assert (found.draws, found.images, found.classes) == (DRAWS, IMAGES, CLASSES)
    np.testing.assert_allclose(found.mean, mean)
    np.testing.assert_array_equal(found.predicted, mean.argmax(axis=1))
    np.testing.assert_allclose(found.confidence, mean.max(axis=1))
    lower, upper = KINDS[interval](draws.probabilities, 0.9)
    np.testing.assert_array_equal(found.lower, lower)
    np.testing.assert_array_equal(found.upper, upper)
    np.testing.assert_array_equal(found.certain, certain(lower, upper, mean.argmax(axis=1)))
    assert 0 < found.certain.sum() < IMAGES
    np.testing.assert_allclose(found.entropy, stats.entropy(mean, axis=1), rtol=1e-5)
    np.testing.assert_allclose(found.entropy, found.aleatoric + found.epistemic)
    np.testing.assert_array_equal(found.correct, mean.argmax(axis=1) == draws.labels)
    wrong = draws.probabilities.argmax(axis=-1) != draws.labels
    np.testing.assert_allclose(found.wrong_draws, wrong.mean(axis=0))


def test_figures_of_labelled_draws():
    draws = random_draws()
    found = analyze(draws, bins=10)
    mean = draws.probabilities.mean(axis=0, dtype=np.float64)
    confidence, correct = mean.max(axis=1), mean.argmax(axis=1) == draws.labels
    single = [1 - sk.accuracy_score(draws.labels, p.argmax(axis=1)) for p in draws.probabilities]
    _, risk = metrics.risk_coverage(confidence, correct)
    _, risk_by_epistemic = metrics.risk_coverage(-found.epistemic, correct)
    assert found.metrics == pytest.approx(
        {
            "error": 1 - sk.accuracy_score(draws.labels, mean.argmax(axis=1)),
            "single_draw_error": np.mean(single),
            "nll": sk.log_loss(draws.labels, mean / mean.sum(axis=1, keepdims=True)),
            "brier": sk.brier_score_loss(draws.labels, mean, scale_by_half=False, labels=range(4)),
            "ece": metrics.calibration_error(found.reliability),
            "adaptive_ece": metrics.calibration_error(
                metrics.reliability(confidence, correct, metrics.equal_mass(confidence, 10))
            ),
            "aurc": risk.mean(),
            "excess_aurc": risk.mean() - metrics.best_aurc(correct),
            "aurc_epistemic": risk_by_epistemic.mean(),
        },
        rel=1e-6,
    )
    assert len({round(value, 6) for value in found.metrics.values()}) == 9
    assert [one["count"] for one in found.reliability] == [
        *np.histogram(confidence, bins=10, range=(0, 1))[0]
    ]
    np.testing.assert_array_equal(found.risk_coverage["risk"], risk)
    np.testing.assert_allclose(found.risk_coverage["coverage"], np.arange(1, 91) / 90)


def test_the_papers_table():
    # Class 0 in both draws by far; class 0 but once class 1 is close; both also as wrong ones.
    sure, unsure = ([0.9, 0.1, 0], [0.8, 0.1, 0.1]), ([0.9, 0.1, 0], [0.4, 0.5, 0.1])
    images = [sure, sure, sure, unsure, unsure, sure, unsure]
    draws = make_draws(*zip(*images, strict=True), labels=[0, 0, 0, 0, 0, 1, 2])
    found = analyze(draws)
    assert found.table == {
        "correct_certain": 3,
        "correct_uncertain": 2,
        "wrong_certain": 1,
        "wrong_uncertain": 1,
    }
    assert found.summary()["certain"] == 4
    assert found.metrics["error"] == pytest.approx(2 / 7)


def test_of_equally_probable_classes_the_first_is_predicted_and_is_uncertain():
    found = analyze(make_draws([[0.2, 0.4, 0.4]], labels=[1]))
    assert (found.predicted.item(), found.certain.item()) == (1, False)


def test_without_labels():
    draws = random_draws()
    found = analyze(dataclasses.replace(draws, labels=None), ood=ood_draws())
    np.testing.assert_array_equal(found.predicted, analyze(draws).predicted)
    assert found.metrics == {}
    nothing = (found.labels, found.correct, found.wrong_draws, found.table, found.reliability)
    assert nothing == (None,) * 5
    assert found.risk_coverage is None
    assert found.ood["images"] == IMAGES
    json.dumps(found.summary())


def test_one_draw_of_a_stock_net():
    draws = random_draws(draws=1)
    found = analyze(draws)
    np.testing.assert_array_equal(found.lower, draws.probabilities[0])
    np.testing.assert_array_equal(found.upper, draws.probabilities[0])
    assert found.certain.all()  # the largest probability is strictly larger than all others
    assert not found.epistemic.any()
    assert found.metrics["error"] == found.metrics["single_draw_error"]
    assert found.metrics["aurc_epistemic"] == pytest.approx(found.metrics["error"])
    assert len(found.warnings) == 1
    assert "one draw has no spread" in found.warnings[0]


def test_draws_of_a_net_without_randomness_are_a_warning():
    one = random_draws(draws=1).probabilities
    same = Draws(one.repeat(41, axis=0), None, {"is_random": False})
    assert analyze(same).warnings == [
        "all 41 draws are the same, because no layer of the net is random"
    ]
    assert analyze(dataclasses.replace(same, meta={"is_random": True})).warnings == []


def test_too_few_draws_are_a_warning():
    assert analyze(random_draws(draws=41)).warnings == []
    (warning,) = analyze(random_draws(draws=40)).warnings
    assert "40 draws are too few" in warning
    (warning,) = analyze(random_draws(draws=41), level=0.99).warnings
    assert "use at least 201 draws" in warning


def test_chunks_change_nothing_and_bound_the_memory(monkeypatch, tmp_path):
    draws = random_draws(draws=400, images=500)
    save_draws(tmp_path / "draws.npz", draws.probabilities, draws.labels, draws.meta)
    whole = analyze(draws)
    monkeypatch.setattr("bayescaffe.stats.draws.PART_NUMBERS", 400 * 4 * 7)  # seven images
    mapped = load_draws(tmp_path / "draws.npz")
    analyze(mapped)  # imports and caches
    tracemalloc.start()
    pieces = analyze(mapped)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < draws.probabilities.nbytes / 4
    for field in dataclasses.fields(whole):
        np.testing.assert_equal(getattr(pieces, field.name), getattr(whole, field.name))


def test_a_hundred_draws_of_ten_thousand_images_take_less_than_two_seconds():
    draws = random_draws(draws=100, images=10_000, classes=10)
    start = time.thread_time()  # what others do on this machine is not our time
    analyze(draws)
    assert time.thread_time() - start < 2


# Out-of-distribution images


def test_ood_scores_are_sklearns():
    draws, other = random_draws(), ood_draws(images=70)
    found, other_found = analyze(draws, ood=other), analyze(other)
    positive = np.r_[np.zeros(IMAGES), np.ones(70)]
    for name, sign in (("entropy", 1), ("epistemic", 1), ("confidence", -1)):
        score = sign * np.r_[getattr(found, name), getattr(other_found, name)]
        false, true, _ = sk.roc_curve(positive, score, drop_intermediate=False)
        assert found.ood["scores"][name] == pytest.approx(
            {"auroc": sk.roc_auc_score(positive, score), "fpr95": false[true >= 0.95].min()}
        )
    assert found.ood["scores"]["epistemic"]["auroc"] > 0.9
    assert found.ood["images"] == 70
    assert found.ood["certain"] == other_found.certain.sum()
    assert found.ood["entropy"] == other_found.entropy.mean()
    assert found.ood["epistemic"] == other_found.epistemic.mean()
    assert found.warnings == []


def test_sets_that_are_not_comparable_are_a_warning():
    other = ood_draws(draws=50)
    other.meta["weights_sha256"] = "cd"
    draws, weights = analyze(random_draws(), ood=other).warnings
    assert "the out-of-distribution images have 50 draws, the others 60" in draws
    assert "different weights" in weights


# How it is called and shown


def test_draws_come_from_a_file_or_from_arrays(tmp_path):
    draws, ood = random_draws(), ood_draws()
    paths = [tmp_path / "draws.npz", tmp_path / "ood.npz"]
    for path, one in zip(paths, (draws, ood), strict=True):
        save_draws(path, one.probabilities, one.labels, one.meta)
    whole = analyze(draws, ood=ood).summary()
    assert analyze(paths[0], ood=str(paths[1])).summary() == whole
    assert analyze(Draws(draws.probabilities, draws.labels), ood=ood).summary() == whole
    assert analyze(Draws(draws.probabilities)).labels is None


def test_repr_is_a_few_lines_without_arrays():
    draws = random_draws(draws=40, images=1200)
    found = analyze(draws, ood=ood_draws(draws=40))
    text = repr(found)
    assert text.splitlines()[0] == "Analysis of 40 draws x 1,200 images x 4 classes"
    assert f"certain of {found.certain.sum():,} images" in text
    assert f"error {found.metrics['error']:.4g}, " in text
    assert f"wrong_certain {found.table['wrong_certain']:,}, " in text
    assert f"entropy {found.ood['scores']['entropy']['auroc']:.4g}" in text
    assert "warning: 40 draws are too few" in text
    assert len(text.splitlines()) == 6 and len(text) < 700 and "array" not in text
    without = repr(analyze(dataclasses.replace(draws, labels=None)))
    assert "error" not in without and len(without.splitlines()) == 3


# What cannot be analysed


def test_draws_that_are_no_probabilities(monkeypatch):
    monkeypatch.setattr("bayescaffe.stats.draws.PART_NUMBERS", 3 * 2 * 70)  # seventy images
    for bad, what in ((np.nan, "nan"), (-0.1, "-0.1"), (0.9, "1.5"), (np.inf, "inf")):
        probabilities = np.full((3, 200, 2), 0.5, np.float32)
        probabilities[2, 150, 1] = bad
        if bad == -0.1:
            probabilities[2, 150, 0] = 1.1
        with pytest.raises(
            BayesCaffeError, match="draws: draw 2 of image 150 is not prob"
        ) as error:
            analyze(Draws(probabilities, None, {}))
        assert what in str(error.value) or f"{0.5 + bad:g}" in str(error.value)
    with pytest.raises(BayesCaffeError, match="ood draws: draw 2 of image 150"):
        analyze(random_draws(classes=2), ood=Draws(probabilities, None, {}))
    with pytest.raises(BayesCaffeError, match="there.npz: draw 2 of image 150"):
        analyze(Draws(probabilities, None, {"path": "there.npz"}))


@pytest.mark.parametrize("label", [-1, CLASSES, 255])
def test_labels_outside_the_classes(label):
    draws = random_draws()
    draws.labels[5] = label
    with pytest.raises(BayesCaffeError, match=rf"image 5 has the label {label}, .* 0\.\.3"):
        analyze(draws)
    # The labels of the out-of-distribution set are not used: its classes may be unknown to the net.
    analyze(random_draws(), ood=draws)


def test_labels_of_another_number_or_kind():
    draws = random_draws()
    for labels in (draws.labels[:-1], draws.labels.astype(float)):
        with pytest.raises(BayesCaffeError, match="expected one whole number for each of 90"):
            analyze(dataclasses.replace(draws, labels=labels))


@pytest.mark.parametrize("shape", [(0, 90, 4), (60, 0, 4), (60, 90, 0), (60, 90)])
def test_nothing_to_analyse(shape):
    draws = Draws(np.empty(shape, np.float32), None, {})
    with pytest.raises(BayesCaffeError, match=f"draws: .* shape {' x '.join(map(str, shape))}"):
        analyze(draws)
    with pytest.raises(BayesCaffeError, match="ood draws: .* expected draws x images"):
        analyze(random_draws(), ood=draws)


def test_wrong_options():
    draws = random_draws()
    for level in (0, 1, 95):
        with pytest.raises(BayesCaffeError, match="between 0 and 1"):
            analyze(draws, level=level)
    with pytest.raises(BayesCaffeError, match="interval='hpd' is not known; expected .* or 'hdi'"):
        analyze(draws, interval="hpd")
    with pytest.raises(BayesCaffeError, match="bins=0: "):
        analyze(draws, bins=0)
    with pytest.raises(BayesCaffeError, match="ood draws: 3 classes, but draws: 4"):
        analyze(draws, ood=ood_draws(classes=3))


# Files and the command


@pytest.fixture
def folder(tmp_path):
    """A directory with draws.npz (with labels) and other.npz (without)."""
    for name, draws in (("draws", random_draws()), ("other", ood_draws())):
        labels = draws.labels if name == "draws" else None
        save_draws(tmp_path / f"{name}.npz", draws.probabilities, labels, draws.meta)
    return tmp_path


def run(*arguments):
    return cli.main(["analyze", *map(str, arguments)])


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_one_line_for_each_image(tmp_path):
    draws = random_draws()
    found = analyze(draws)
    found.write_csv(tmp_path / "images.csv")
    rows = read_csv(tmp_path / "images.csv")
    assert [int(row["image"]) for row in rows] == list(range(IMAGES))
    for name in ("predicted", "confidence", "certain", "correct", "entropy", "epistemic"):
        column = [float(row[name]) for row in rows]
        np.testing.assert_allclose(column, getattr(found, name), rtol=1e-8)
    assert [int(row["label"]) for row in rows] == draws.labels.tolist()
    for row, lower, upper, best in zip(
        rows, found.lower, found.upper, found.predicted, strict=True
    ):
        assert float(row["lower"]) == pytest.approx(lower[best], rel=1e-8)
        assert float(row["upper"]) == pytest.approx(upper[best], rel=1e-8)
    assert list(tmp_path.iterdir()) == [tmp_path / "images.csv"]


def test_csv_uses_the_names_that_the_draws_have(tmp_path):
    names = {"names": ["a, b.png", "c.png"], "class_names": ["cat", "dog"]}
    draws = Draws(np.array([[[0.1, 0.9], [0.7, 0.3]]], np.float32), np.array([0, 0]), names)
    analyze(draws).write_csv(tmp_path / "images.csv")
    first, second = read_csv(tmp_path / "images.csv")
    assert (first["name"], first["label"], first["predicted"]) == ("a, b.png", "cat", "dog")
    assert (second["name"], second["correct"]) == ("c.png", "1")
    analyze(dataclasses.replace(draws, labels=None)).write_csv(tmp_path / "images.csv")
    assert read_csv(tmp_path / "images.csv")[0].keys().isdisjoint({"label", "correct"})


def test_json_is_the_summary(folder, capsys):
    out = folder / "figures.json"
    options = ("--level", "0.9", "--interval", "hdi", "--bins", "7", "--json", "--out", out)
    assert run(folder / "draws.npz", "--ood", folder / "other.npz", *options) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(out.read_text())
    assert printed.pop("draws_file") == str(folder / "draws.npz")
    assert printed.pop("ood_file") == str(folder / "other.npz")
    assert (
        printed
        == analyze(random_draws(), level=0.9, interval="hdi", ood=ood_draws(), bins=7).summary()
    )
    assert len(printed["reliability"]) == 7
    assert [one["coverage"] for one in printed["risk_at_coverage"]] == [
        0.5,
        0.8,
        0.9,
        0.95,
        0.99,
        1,
    ]


def test_the_figures_are_printed_with_what_they_mean(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert run("draws.npz", "--ood", "other.npz", "--csv", "images.csv") == 0
    text = capsys.readouterr().out
    found = analyze(random_draws(), ood=ood_draws())
    rows = {line.split("  ")[1]: line.split() for line in text.splitlines() if line[:2] == "  "}
    wrong = (~found.correct).sum()
    assert f"{100 * found.metrics['error']:.2f} %   {wrong} of 90 images wrong" in text
    table = found.table
    assert rows["correct"][1:] == [str(table["correct_certain"]), str(table["correct_uncertain"])]
    assert rows["wrong"][1:] == [str(table["wrong_certain"]), str(table["wrong_uncertain"])]
    for name, figure in (("NLL", "nll"), ("ECE", "ece"), ("Brier score", "brier")):
        assert f"{found.metrics[figure]:.4f}" in rows[name]
    assert f"{found.metrics['aurc']:.5f}" in rows["AURC"]
    assert rows["aleatoric"][1] == f"{found.aleatoric.mean():.4f}"
    assert rows["confidence"][1] == f"{found.ood['scores']['confidence']['auroc']:.4f}"
    assert "the predicted class's interval overlaps no other" in text
    assert "warning" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert len(text.splitlines()) <= 40
    assert len(read_csv(folder / "images.csv")) == IMAGES


def test_without_labels_the_command_says_so(folder, capsys):
    assert run(folder / "other.npz", "--level", "0.99") == 0
    text = capsys.readouterr().out
    assert "of 90 images (the predicted class's interval overlaps no other)" in text
    assert "no labels in this file" in text
    assert "warning: 60 draws are too few for intervals at level 0.99" in text
    assert "NLL" not in text


def test_help_shows_examples(capsys):
    with pytest.raises(SystemExit):
        run("--help")
    text = capsys.readouterr().out
    assert "bayescaffe analyze digits.npz --ood clothes.npz" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.npz",), "missing.npz"),
        (("draws.npz", "--level", "95"), "--level 95.0: .*write 95 % as 0.95"),
        (("draws.npz", "--bins", "0"), "--bins 0: "),
        (("draws.npz", "--csv", "draws.npz"), "--csv draws.npz: is already used"),
        (("draws.npz", "--ood", "other.npz", "--out", "./other.npz"), "--out other.npz: is alr"),
        (("draws.npz", "--csv", "same", "--out", "same"), "--out same: is already used"),
        (("draws.npz", "--csv", "none/images.csv"), "none"),
        (("bad.npz",), "bad.npz: draw 3 of image 4 is not probabilities"),
        (("draws.npz", "--ood", "bad.npz"), "bad.npz: draw 3 of image 4 is not probabilities"),
    ],
)
def test_failures_are_one_line_and_leave_all_files(folder, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(folder)
    bad = random_draws()
    bad.probabilities[3, 4] = np.nan
    save_draws(folder / "bad.npz", bad.probabilities, None, {})
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert run(*arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(f"bayescaffe: error: .*{message}.*\n", captured.err)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
