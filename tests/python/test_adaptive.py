"""Adaptive sampling: the same draws, fewer of them, and files that tell how many."""

import csv
import json
import re
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import REPO, assert_same, bash, save_weights, small_net, write_digits, write_solver

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
import bayescaffe  # noqa: E402
from bayescaffe import (  # noqa: E402
    Draws,
    Mixture,
    StoppingRule,
    analyze,
    cli,
    load_draws,
    predict,
    sample,
    save_draws,
    stopping_rule,
    train,
)
from bayescaffe.common.errors import BayesCaffeError  # noqa: E402
from bayescaffe.data.datasets import prepare_idx  # noqa: E402
from bayescaffe.data.lmdb import LmdbImages  # noqa: E402
from bayescaffe.infer import stages, work  # noqa: E402
from bayescaffe.net.model import Model  # noqa: E402

pytestmark = pytest.mark.engine
PASSES, ERROR = 50, 0.02
NOISE = "kl_weight: 0 tau_init: 0.4"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A trained net, 600 images to calibrate with and 600 others, and a rule.

    Each image has a second one over it, more or less, so that they are clear and doubtful.
    """
    folder = tmp_path_factory.mktemp("adaptive")
    write_digits(folder / "idx", train=330, test=1200, size=12, classes=4)
    prepare_idx(folder / "idx", folder, progress=False)
    solver = write_solver(folder, small_net(folder, NOISE), 60)
    weights = train(solver, progress=False).snapshot
    pixels, labels = LmdbImages(folder / "test_lmdb").in_order()(1200)
    share = np.random.default_rng(0).uniform(0.5, 1, (1200, 1, 1, 1))
    pixels = (share * pixels + (1 - share) * pixels[::-1]).astype(np.uint8)
    model = Model(folder / "run.net.prototxt", weights)
    np.savez(folder / "held-out.npz", images=pixels[:600], labels=labels[:600])
    held_out = sample(model, pixels[:600], PASSES, labels=labels[:600])
    images, labels = pixels[600:], labels[600:]
    rule = stopping_rule(held_out, ERROR)
    rule.save(folder / "rule.json")
    np.savez(folder / "new.npz", images=images, labels=labels)
    return SimpleNamespace(
        folder=folder, weights=weights, model=model, held_out=held_out, rule=rule,
        images=images, labels=labels, full=sample(model, images, PASSES, labels=labels),
        few=sample(model, images, labels=labels, adaptive=rule),
    )  # fmt: skip


def assert_first_draws(few, full):
    """The draws of each image are the first ones of all."""
    seen = []
    for images, found in few.parts():
        assert_same(found, full.probabilities[: len(found), images])
        assert (few.draw_counts[images] == len(found)).all()
        seen += images.tolist()
    assert sorted(seen) == list(range(full.probabilities.shape[1]))


# ---- The draws


def test_images_have_the_first_draws_until_they_are_settled(world):
    assert world.rule.stages == (4, 8, 16, 32)
    assert_first_draws(world.few, world.full)
    expected = np.full(600, PASSES)
    for stage in reversed(world.rule.stages):
        expected[world.rule.settles(world.full.probabilities[:stage])] = stage
    assert np.array_equal(world.few.draw_counts, expected)
    assert set(expected) >= {4, 8, PASSES} and expected.mean() < 0.7 * PASSES


def test_held_out_images_get_the_answer_of_all_draws(world):
    few, full = analyze(world.few), analyze(world.full)
    another = (few.predicted != full.predicted) | (few.certain != full.certain)
    assert another.mean() <= ERROR
    settled = world.few.draw_counts < PASSES
    assert settled.mean() > 0.4 and not another[~settled].any()


def test_parts_and_waiting_images_change_nothing(world, monkeypatch):
    """The images come in parts of 64, and wait until there are as many for the next stage."""
    sizes, draw = [], Model.sample

    def spy(self, images, *args, **options):
        sizes.append(len(images))
        return draw(self, images, *args, **options)

    monkeypatch.setattr(stages, "PART_BYTES", 64 * 4 * PASSES * 4)
    monkeypatch.setattr(Model, "sample", spy)
    found = sample(world.model, world.images, adaptive=world.rule)
    assert np.array_equal(found.draw_counts, world.few.draw_counts)
    assert_first_draws(found, world.full)
    counts = world.few.draw_counts
    assert sum(sizes) == 600 + sum((counts > stage).sum() for stage in world.rule.stages)
    assert sizes[:2] == [64, 64] and max(sizes) < 64 * 5 and len(sizes) < 35


def test_a_file_is_what_stays_in_memory(world, tmp_path):
    found = sample(
        world.model, world.images, labels=world.labels, adaptive=world.rule, out=tmp_path / "x.npz"
    )
    assert np.array_equal(found.draw_counts, world.few.draw_counts)
    assert_first_draws(found, world.full)
    assert np.array_equal(found.labels, world.labels)
    assert found.meta["stopping_rule"] == world.rule.as_dict() and found.passes == PASSES
    with np.load(tmp_path / "x.npz") as file:
        counts = file["draw_counts"]
        assert file["probabilities"].shape == (4, 600, 4)
        assert_same(file["probabilities"], world.full.probabilities[:4])
        rows = np.flatnonzero(counts > 32)
        assert_same(file["probabilities_32"], world.full.probabilities[32:, rows])
    assert (tmp_path / "x.npz").stat().st_size < 0.8 * world.full.probabilities.nbytes


def test_all_images_may_be_settled_at_once(world, tmp_path):
    lax = StoppingRule(**{**vars(world.rule), "threshold": -100.0})
    found = sample(world.model, world.images[:9], adaptive=lax, out=tmp_path / "x.npz")
    assert found.draw_counts.tolist() == [4] * 9 and found.later == ()
    assert (found.passes, found.is_adaptive) == (PASSES, True)
    assert analyze(found).draws == PASSES and analyze(found).mean_draws == 4


def test_several_models_take_turns(world, tmp_path):
    net = small_net(world.folder, NOISE)
    other = train(write_solver(tmp_path, net, 60, random_seed=2), progress=False).snapshot
    models = [world.model, Model(world.model.path, other)]
    held_out = sample(Mixture(models), world.images[:300], 30)
    rule = stopping_rule(held_out, 0.1)
    full = sample(Mixture(models), world.images[300:], 30)
    few = sample(Mixture(models), world.images[300:], adaptive=rule)
    assert_first_draws(few, full)
    assert len(np.unique(few.draw_counts)) > 1
    assert analyze(few).between_models.shape == (300,)
    with pytest.raises(BayesCaffeError, match="calibrated with draws of other weights"):
        sample(models[0], world.images, adaptive=rule)


# ---- What is refused


@pytest.mark.parametrize(
    ("options", "passes", "message"),
    [
        ({"seed": 2}, None, "stopping rule: is for the draws of seed 1, not for seed=2"),
        ({}, 20, "is for 50 draws, not for passes=20"),
    ],
)
def test_a_rule_for_other_draws_is_refused(world, options, passes, message):
    model = Model(world.model.path, world.weights, **options)
    for run in (sample, predict):
        with pytest.raises(BayesCaffeError, match=message):
            run(model, world.images[:3], passes, adaptive=world.rule)


@pytest.mark.parametrize("option", ["mc_dropout", "antithetic"])
def test_a_rule_for_draws_of_another_kind_is_refused(world, option):
    rule = StoppingRule(**{**vars(world.rule), option: True})
    with pytest.raises(BayesCaffeError, match=f"stopping rule: is for draws with {option}"):
        sample(world.model, world.images[:3], adaptive=rule)


def test_a_rule_for_other_weights_is_refused(world, tmp_path):
    model = Model(*save_weights(tmp_path, small_net(world.folder, NOISE)))
    with pytest.raises(BayesCaffeError, match="rule.json: was calibrated with draws of other weig"):
        sample(model, world.images, adaptive=world.folder / "rule.json")


def test_an_image_that_is_not_finite_is_named(world):
    images = world.images.astype(np.float32)
    images[77, 0, 3, 3] = np.nan
    with pytest.raises(BayesCaffeError, match="image 77: has pixels that are no numbers"):
        sample(world.model, images, adaptive=world.rule)


def test_a_late_draw_that_is_not_finite_is_named(world, monkeypatch):
    """In the second stage, images are not at their places any more."""
    waiting = np.flatnonzero(world.few.draw_counts > 4)
    draw = Model.sample

    def fail(self, images, draws, *args, **options):
        if 4 in draws:
            raise work.NotFiniteError("x", 5, "6", "out")
        return draw(self, images, draws, *args, **options)

    monkeypatch.setattr(Model, "sample", fail)
    message = rf"image {waiting[5]}: the net gives .* in draw 6, from layer 'out' on"
    with pytest.raises(BayesCaffeError, match=message):
        sample(world.model, world.images, adaptive=world.rule)


# ---- What follows


def test_an_analysis_takes_the_draws_that_an_image_has(world):
    found = analyze(world.few)
    counts = world.few.draw_counts
    assert np.array_equal(found.draw_counts, counts)
    assert (found.draws, found.mean_draws) == (PASSES, counts.mean())
    for image in (*np.flatnonzero(counts == 8)[:3], *np.flatnonzero(counts == PASSES)[:3]):
        own = world.full.probabilities[: counts[image], image : image + 1]
        alone = analyze(Draws(own, world.labels[image : image + 1]))
        for name in ("mean", "lower", "upper", "entropy", "epistemic", "certain", "wrong_draws"):
            np.testing.assert_allclose(getattr(found, name)[image], getattr(alone, name)[0], 1e-6)
    whole = analyze(world.full)
    assert found.metrics["error"] == pytest.approx(whole.metrics["error"], abs=ERROR)
    assert found.metrics["nll"] == pytest.approx(whole.metrics["nll"], abs=0.02)
    assert whole.draw_counts is None and whole.mean_draws == PASSES


def test_another_level_and_out_of_distribution_images_are_warned_of(world):
    assert analyze(world.few).warnings == []
    (warning,) = analyze(world.few, level=0.9).warnings
    assert "settled for equal-tailed intervals at level 0.95" in warning
    (warning,) = analyze(world.full, ood=world.few).warnings
    assert "adaptive sampling gave some images fewer draws" in warning


def test_predictions_are_those_of_the_draws(world):
    found = predict(world.model, world.images[:40], adaptive=world.rule)
    expected = analyze(world.few)
    assert [one.draws for one in found] == world.few.draw_counts[:40].tolist()
    assert [one.label for one in found] == expected.predicted[:40].tolist()
    assert [one.lower for one in found] == pytest.approx(
        expected.lower[np.arange(40), expected.predicted[:40]], rel=1e-5
    )
    assert {one.draws for one in predict(world.model, world.images[:2], 45)} == {45}
    with pytest.raises(BayesCaffeError, match="rule is for equal-tailed intervals at level 0.95"):
        predict(world.model, world.images[:2], adaptive=world.rule, level=0.9)


def test_draws_as_a_table(world):
    pytest.importorskip("xarray")
    array = world.few.to_xarray()
    assert array.shape == world.full.probabilities.shape
    assert np.array_equal(array.draws, world.few.draw_counts)
    assert np.array_equal(np.isfinite(array[..., 0]).sum("draw"), world.few.draw_counts)
    assert "adaptive: up to 50 draws of an image" in repr(world.few)


def test_progress_goes_to_the_end(world, monkeypatch):
    told = []

    class Bar:
        def __init__(self, total, *_, **__):
            self.total = total

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def move_to(self, done):
            told.append(done / self.total)

    monkeypatch.setattr(work, "ProgressBar", Bar)
    sample(world.model, world.images, adaptive=world.rule)
    assert told == sorted(told) and told[-1] == 1 and len(told) > 4


# ---- The commands


def run(capsys, *arguments):
    assert cli.main([str(word) for word in arguments]) == 0
    return capsys.readouterr().out


def test_the_commands(world, tmp_path, capsys, monkeypatch):
    """Draws of held-out images, a rule, adaptive draws, figures, a report and predictions."""
    monkeypatch.chdir(tmp_path)
    files = (world.model.path, world.weights)
    held_out = ("--data", world.folder / "held-out.npz", "--passes", PASSES, "--out", "h.npz")
    run(capsys, "sample", *files, *held_out)
    words = ("analyze", "h.npz", "--stopping-rule", "rule.json", "--error", ERROR)
    text = run(capsys, *words)
    rule = StoppingRule.load("rule.json")
    assert rule == world.rule
    assert "Do fewer draws give the same answer?" in text
    assert f"  draws       {rule.mean_draws:>10.1f}   of 50 on average with this rule" in text
    assert "With 95% confidence, this is at most 2 % of all images like these." in text
    assert json.loads(run(capsys, *words, "--json"))["stopping_rule"] == rule.as_dict()

    new = ("--data", world.folder / "new.npz", "--out", "x.npz", "--adaptive", "rule.json")
    text = run(capsys, "sample", *files, *new)
    mean = world.few.draw_counts.mean()
    assert f"x.npz: up to 50 draws, {mean:.1f} on average, of 600 images, 4 classes\n" in text
    result = json.loads(run(capsys, "sample", *files, *new, "--json"))
    assert (result["draws"], result["mean_draws"]) == (PASSES, mean)
    assert result["wrong"] == (~analyze(world.few).correct).sum()
    assert_first_draws(load_draws("x.npz"), world.full)

    text = run(capsys, "analyze", "x.npz", "--csv", "x.csv")
    assert f"x.npz: up to 50 draws ({mean:.1f} on average) x 600 images" in text
    with open("x.csv") as file:
        assert [int(row["draws"]) for row in csv.DictReader(file)] == world.few.draw_counts.tolist()
    run(capsys, "report", "x.npz", "--out", "x.html")
    assert "up to 50 networks drawn from the posterior" in (tmp_path / "x.html").read_text()

    from PIL import Image

    Image.fromarray(world.images[0][0]).save("0.png")
    text = run(capsys, "predict", *files, "0.png", "--adaptive", "rule.json")
    head, row = text.splitlines()[:2]
    assert head.endswith("decision  draws") and row.split()[-1] == str(world.few.draw_counts[0])


def test_what_the_readme_shows(world, tmp_path, monkeypatch):
    """Its commands and its lines of Python, with 10 draws and 3,000 images, some of them twice."""
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    shutil.copy(world.weights, "lenet.caffemodel")
    again = np.random.default_rng(0).integers(0, 600, 3000)
    with np.load(world.folder / "held-out.npz") as file:
        np.savez("held-out.npz", images=file["images"][again])
    shutil.copy(world.folder / "new.npz", "new.npz")
    (tmp_path / "scans").mkdir()
    Image.fromarray(world.images[0][0]).save("scans/0.png")
    readme = (REPO / "README.md").read_text()
    part = readme[readme.index("\n## Fewer draws\n") :]
    part = part[: part.index("\n## Data\n")]
    commands, lines = (
        "".join(re.findall(rf"^```{language}\n(.*?)^```$", part, flags=re.M | re.S))
        for language in ("sh", "python")
    )
    assert commands.count("--adaptive") == 2 and commands.count("--passes analytic") == 1
    commands = commands.replace("--data held-out.npz", "--data held-out.npz --passes 10")
    printed = bash(commands)
    assert "With 95% confidence, this is at most 0.1 % of all images like these." in printed
    draws = load_draws("new.draws.npz")
    assert draws.passes == 10 and draws.draw_counts.min() == 4
    names = {"bayescaffe": bayescaffe, "model": Model("lenet.caffemodel"), "images": world.images}
    exec(lines, names)
    assert names["rule"] == StoppingRule.load("rule.json")
    assert np.array_equal(names["draws"].draw_counts, draws.draw_counts)


def test_errors_of_the_commands(world, tmp_path, capsys, caplog, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sample(world.model, world.images[:100], 10, out="x.npz")

    def told(*words):
        assert cli.main([str(word) for word in words]) == 1
        return capsys.readouterr().err

    assert "--error: needs --stopping-rule" in told("analyze", "x.npz", "--error", 0.1)
    text = told("analyze", "x.npz", "--stopping-rule", "rule.json")
    assert re.search(
        "x.npz: 100 images cannot show .* with these, --error 0.0296 is possible", text
    )
    assert not (tmp_path / "rule.json").exists()
    vague = np.random.default_rng(0).dirichlet(np.ones(4), (10, 300)).astype(np.float32)
    save_draws("vague.npz", vague, None, {})
    words = ("analyze", "vague.npz", "--stopping-rule", "vague.json", "--error", "0.01")
    assert cli.main(words) == 0
    assert "vague.json: settles none of these images, so it saves nothing" in caplog.text
    text = told("analyze", "x.npz", "--stopping-rule", "x.npz")
    assert "--stopping-rule x.npz: is already used for another file" in text
    files = (world.model.path, world.weights, "--data", world.folder / "new.npz")
    assert "none.json" in told("sample", *files, "--adaptive", "none.json")
    text = told("sample", *files, "--adaptive", world.folder / "rule.json", "--seed", 3)
    assert "rule.json: is for the draws of seed 1, not for --seed 3" in text


# ---- Damaged files


@pytest.fixture
def members(world, tmp_path):
    sample(world.model, world.images, adaptive=world.rule, out=tmp_path / "good.npz")
    with np.load(tmp_path / "good.npz") as file:
        return dict(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("draw_counts"), "probabilities_4 are float32 of shape"),
        (
            lambda m: m.pop("probabilities_4"),
            "has probabilities_8, but the draws before end with 3",
        ),
        (lambda m: m.pop("probabilities_32"), "draws by draw_counts, expected one of 4, 8, 16, 32"),
        (lambda m: m.update(draw_counts=m["draw_counts"][1:]), "draw_counts are int64 of shape"),
        (lambda m: m.update(draw_counts=m["draw_counts"] / 2), "draw_counts are float64"),
        (lambda m: m.update(probabilities_8=m["probabilities_8"][:, 1:]), "probabilities_8 are"),
        (lambda m: m.update(probabilities_8=m["probabilities_8"][:0]), "probabilities_8 are"),
        (lambda m: _meta(m, passes=20), "'passes' in its meta is 20, but an image has 50 draws"),
        (lambda m: _meta(m, stopping_rule=3), "'stopping_rule' in its meta is 3, expected an obj"),
    ],
)
def test_wrong_members_are_refused(members, tmp_path, change, message):
    change(members)
    np.savez(tmp_path / "bad.npz", **members)
    with pytest.raises(BayesCaffeError, match=f"bad.npz: not a draws file.*{message}"):
        load_draws(tmp_path / "bad.npz")


def _meta(members, **changes):
    members["meta"] = np.array(json.dumps({**json.loads(str(members["meta"])), **changes}))


def test_large_files_are_read_a_part_at_a_time(members, world, tmp_path, monkeypatch):
    monkeypatch.setattr("bayescaffe.common.npz.IN_MEMORY", 0)
    monkeypatch.setattr("bayescaffe.stats.draws.PART_NUMBERS", 7 * PASSES * 4)  # seven images
    draws = load_draws(tmp_path / "good.npz")
    assert isinstance(draws.later[0].probabilities.base, np.memmap)
    assert_first_draws(draws, world.full)
    assert_same(draws.of_image(3), world.full.probabilities[: draws.draw_counts[3], 3])
