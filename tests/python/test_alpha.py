"""`loss_param { alpha }`: the loss of several draws of each image together."""

import re
from pathlib import Path

import numpy as np
import pytest
from conftest import caffe, make_net, small_net, write_solver
from test_models import LENET, generator, shorten, workplace  # noqa: F401

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe import check, sample  # noqa: E402

LOSS = 'top: "loss"'
TRAINED = re.compile(r'top: "data"( top: "label" include { phase: TRAIN })')
GOOD = "dataset_size: 330 kl_weight: 1e-5"


def alpha_net(digits, alpha, copies, bayes):
    """The small net, which trains on `copies` of each image."""
    tile = f"""layer {{ name: "copies" type: "Tile" bottom: "images" top: "data"
        include {{ phase: TRAIN }} tile_param {{ axis: 0 tiles: {copies} }} }}
        layer {{ name: "conv" """
    text = small_net(digits, bayes)
    text = TRAINED.sub(r'top: "images"\1', text)
    text = re.sub(r'layer \{\s+name: "conv"', lambda _: tile, text)
    return text.replace(LOSS, f"{LOSS} loss_param {{ alpha: {alpha} }}")


@pytest.mark.engine
@pytest.mark.parametrize("alpha", [0, 0.5, 1])
def test_the_loss_is_that_of_the_draws_together(tmp_path, digits, alpha):
    text = alpha_net(digits, alpha, 3, f"{GOOD} draws_per_batch: 3")
    net = make_net(tmp_path, text, phase=pycaffe.TRAIN)
    net.forward()
    scores, labels = net.blobs["out"].data.astype(float), net.blobs["label"].data.astype(int)
    images = net.blobs["data"].data
    assert images.shape[0] == 60
    np.testing.assert_array_equal(images[:20], images[40:])
    # Each copy has a draw of its own.
    assert np.abs(scores[:20] - scores[20:40]).max() > 1e-3
    logs = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    logs = logs.reshape(3, 20, 4)[:, np.arange(20), labels]
    losses = (
        -np.log(np.mean(np.exp(alpha * logs), axis=0)) / alpha if alpha else -np.mean(logs, axis=0)
    )
    assert net.blobs["loss"].data == pytest.approx(losses.mean(), rel=1e-5)


@pytest.mark.engine
def test_zero_trains_as_without(tmp_path, digits):
    """With alpha 0 the copies are a larger batch."""
    tiled = alpha_net(digits, 0, 2, f"{GOOD} draws_per_batch: 2")
    labels = """layer { name: "labels" type: "Tile" bottom: "label" top: "labels"
        tile_param { axis: 0 tiles: 2 } } layer { name: "loss" """
    plain = tiled.replace("loss_param { alpha: 0 }", "").replace('layer { name: "loss" ', labels)
    plain = re.sub(r'(name: "loss".*?bottom: "out" bottom: ")label', r"\1labels", plain)
    nets = []
    for name, text in {"tiled": tiled, "plain": plain}.items():
        folder = tmp_path / name
        folder.mkdir()
        pycaffe.set_random_seed(3)
        nets.append(make_net(folder, text, phase=pycaffe.TRAIN))
    for name, blobs in nets[0].params.items():
        for first, second in zip(blobs, nets[1].params[name], strict=True):
            second.data[...] = first.data
    losses = []
    for net in nets:
        net.set_draw(5)
        losses.append(net.forward()["loss"].item())
        net.backward()
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for name, blobs in nets[0].params.items():
        for first, second in zip(blobs, nets[1].params[name], strict=True):
            scale = np.abs(second.diff).max()
            np.testing.assert_allclose(first.diff, second.diff, atol=1e-4 * scale + 1e-9)


def test_trains_tests_and_samples(tmp_path, digits):
    text = alpha_net(digits, 0.5, 2, f"{GOOD} draws_per_batch: 2")
    solver = write_solver(tmp_path, text, 30)
    assert check(solver).findings == []
    done = caffe("train", "-solver", solver, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    (weights,) = tmp_path.glob("*_iter_30.caffemodel")
    draws = sample(tmp_path / "run.net.prototxt", passes=3, weights=weights, progress=False)
    assert draws.probabilities.shape[::2] == (3, 4)


def test_the_generator_writes_such_lenets(workplace):  # noqa: F811
    folder = workplace / "models/alpha"
    generator().write(folder, "models/alpha", alpha=0.5, copies=2)
    for name in ("bayes-dropout", "stock-dropout"):
        text = (folder / name / "train_test.prototxt").read_text()
        is_stock = text == (LENET / name / "train_test.prototxt").read_text()
        assert is_stock == name.startswith("stock")
    solver = "models/alpha/bayes-dropout/solver.prototxt"
    shorten(workplace / solver)
    done = caffe("train", "-solver", solver, cwd=workplace)
    assert done.returncode == 0, done.stdout
    assert "accuracy = " in done.stdout and "nan" not in done.stdout


@pytest.mark.parametrize(
    ("copies", "bayes", "finding"),
    [
        (1, GOOD, "alpha has no effect, as there are as many scores as labels"),
        (2, GOOD, "2 copies of an image share draws in conv, hidden, out; set draws_per_batch: 2"),
        (2, f"{GOOD} draws_per_batch: 3", "share draws in conv, hidden, out"),
        (2, f"{GOOD} draws_per_batch: 4", None),
    ],
)
def test_check_tells_what_alpha_needs(tmp_path, monkeypatch, digits, copies, bayes, finding):
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(alpha_net(digits, 0.5, copies, bayes))
    found = [str(one) for one in check("net.prototxt").findings]
    if finding is None:
        assert found == []
    else:
        assert len(found) == 1
        assert found[0].startswith("warning: net.prototxt, layer 'loss': ")
        assert finding in found[0]


def test_check_tells_of_a_loss_that_ignores_alpha(tmp_path, monkeypatch, digits):
    monkeypatch.chdir(tmp_path)
    text = small_net(digits, GOOD).replace("SoftmaxWithLoss", "HingeLoss")
    Path("net.prototxt").write_text(text.replace(LOSS, f"{LOSS} loss_param {{ alpha: 1 }}"))
    found = "\n".join(map(str, check("net.prototxt").findings))
    assert "loss_param.alpha is for SoftmaxWithLoss, and HingeLoss ignores it" in found
