"""A stock net on your own images: `convert --data`, and solvers in place of nets."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import small_net, write_solver

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe import BayesCaffeError, convert, data, train  # noqa: E402
from bayescaffe.cli import main  # noqa: E402
from bayescaffe.net.messages import parse_message, read_message, read_weights  # noqa: E402
from PIL import Image  # noqa: E402

NAMES = ["ant", "bee", "Käfer"]


def write_set(out, shape=(12, 12, 3), **options):
    """Fifteen images of three classes, six of which are for validation."""
    random = np.random.default_rng(2)
    images = random.integers(0, 256, (15, *shape), np.uint8)
    options = {"channels": "rgb" if len(shape) == 3 else None, "val": 1 / 3, **options}
    return data.from_arrays(images, np.arange(15) % 3, out, class_names=NAMES, **options)


@pytest.fixture
def stock(tmp_path, monkeypatch):
    """The net and the solver of others, for four classes and a GPU; images in `my data`."""
    monkeypatch.chdir(tmp_path)
    write_set("my data")
    text = small_net(Path("theirs"), bayes=None)
    text = text.replace("scale: 0.00390625", 'mean_file: "theirs/mean.binaryproto"  # BGR\n')
    Path("nets").mkdir()
    solver = write_solver(Path("nets"), text, 2, test_iter=50, test_interval=1, solver_mode="GPU")
    text = (
        solver.read_text().replace("train_net:", "net:").replace("nets/run.net", "theirs/run.net")
    )
    solver.write_text(text)
    return solver


def data_layers(net):
    return [layer for layer in read_message(net, "NetParameter").layer if layer.type == "Data"]


def test_a_net_reads_other_data_and_learns_its_classes(stock):
    done = convert(stock, data="my data", out="out", cpu=True)
    assert done.dataset_size == 9
    assert done.notes == [
        "nets/run.net.prototxt, beside the solver, in place of theirs/run.net.prototxt, which is "
        "not here",
        "my data/mean.binaryproto in place of theirs/mean.binaryproto",
        "3 classes in place of 4: out",
    ]
    assert [layer.data_param.source for layer in data_layers(done.nets[0])] == [
        *("my data/train_lmdb", "my data/val_lmdb"),
    ]
    text = done.nets[0].read_text()
    assert text.count('mean_file: "my data/mean.binaryproto"  # BGR') == 2
    solver = read_message(done.solver, "SolverParameter")
    assert (list(solver.test_iter), solver.net) == ([1], "out/run.net.prototxt")
    trained = train(done.solver, progress=False)
    assert trained.iterations == 2 and trained.test_error is not None
    out = {layer.name: layer for layer in read_weights(trained.snapshot)}["out"]
    assert out.blobs[0].shape == (3, 16)


def test_weights_of_other_classes_are_left_out(stock):
    """Fine-tuning: the last layer is new, all others start from the stock weights."""
    stock.write_text(stock.read_text().replace("base_lr: 0.01", "base_lr: 1e-9"))
    once = convert(stock, data="my data", out="once", cpu=True)
    text = once.nets[0].read_text().replace("num_output: 3", "num_output: 4")
    Path("four.prototxt").write_text(text)
    convert("four.prototxt", to_stock=True, out="stock")
    net = pycaffe.Net("stock/four.prototxt", pycaffe.TRAIN)
    net.save("stock.caffemodel")
    done = convert(stock, "stock.caffemodel", data="my data", out="out", cpu=True)
    assert "stock.caffemodel has no weights for out: they start from fillers" in done.notes
    before = {layer.name: layer.blobs for layer in read_weights("stock.caffemodel")}
    assert [layer.name for layer in read_weights(done.weights)] == ["conv", "hidden"]
    trained = train(done.solver, progress=False)
    for layer in read_weights(trained.snapshot):
        if layer.name != "out":
            np.testing.assert_allclose(layer.blobs[0], before[layer.name][0], atol=1e-5)


def test_a_mean_that_fits_stays(stock):
    Path("theirs").mkdir()
    Path("my data/mean.binaryproto").rename("theirs/mean.binaryproto")
    done = convert(stock, data="my data", out="out", cpu=True)
    assert 'mean_file: "theirs/mean.binaryproto"' in done.nets[0].read_text()


def test_a_mean_of_three_channels_for_grey_images(stock):
    write_set("grey", shape=(12, 12))
    net = Path("nets/run.net.prototxt")
    mean = "mean_value: 104 mean_value: 117 mean_value: 123"
    net.write_text(net.read_text().replace('mean_file: "theirs/mean.binaryproto"', mean))
    done = convert(stock, data="grey", out="out", cpu=True)
    for layer in data_layers(done.nets[0]):
        assert np.array(layer.transform_param.mean_value) == pytest.approx([128], abs=5)
    assert train(done.solver, progress=False).iterations == 2


def test_a_net_of_its_own_for_tests_reads_the_validation_images(stock):
    text = Path("nets/run.net.prototxt").read_text()
    for phase, name in enumerate(("train", "test")):
        message = parse_message(text, "NetParameter")
        layers = [one for one in message.layer if not one.include or one.include[0].phase == phase]
        for layer in layers:
            layer.ClearField("include")
        Path(f"nets/{name}.prototxt").write_text(str(type(message)(layer=layers)))
    fields = 'train_net: "nets/train.prototxt"\ntest_net: "nets/test.prototxt"\n'
    stock.write_text(fields + stock.read_text().split("\n", 1)[1])
    done = convert(stock, data="my data", out="out", cpu=True)
    found = [layer.data_param.source for net in done.nets for layer in data_layers(net)]
    assert found == ["my data/train_lmdb", "my data/val_lmdb"]
    assert train(done.solver, progress=False).test_error is not None


def test_a_net_for_deployment_gets_the_classes(stock):
    text = Path("nets/run.net.prototxt").read_text()
    text = text[
        text.index('layer {\n          name: "conv"') : text.index('layer {\n          name: "acc')
    ]
    head = 'input: "data" input_shape { dim: 1 dim: 3 dim: 12 dim: 12 }'
    softmax = 'layer { name: "prob" type: "Softmax" bottom: "out" top: "prob" }'
    Path("deploy.prototxt").write_text(head + text + softmax)
    done = convert("deploy.prototxt", data="my data")
    assert done.solver is None
    assert pycaffe.Net(str(done.nets[0]), pycaffe.TEST).blobs["prob"].data.shape == (1, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("mean_file", "crop_size: 13 mean_file"),
            r"crop_size of the layer 'data' is 13, but .* 3x12x12",
        ),
        (('type: "Data"', 'type: "HDF5Data"'), "data='my data' needs a layer of type Data"),
        (None, "data='nowhere': has no train_lmdb that `bayescaffe data` wrote"),
    ],
)
def test_what_does_not_fit_is_told(stock, change, message):
    folder = "my data" if change else "nowhere"
    net = Path("nets/run.net.prototxt")
    if change:
        net.write_text(net.read_text().replace(*change))
    with pytest.raises(BayesCaffeError, match=message):
        convert(stock, data=folder, out="out")
    assert not Path("out").exists()


def test_snapshots_of_hdf5_become_caffemodels(stock):
    stock.write_text(stock.read_text() + "\nsnapshot_format: HDF5\n")
    done = convert(stock, data="my data", out="out", cpu=True)
    assert "snapshot_format is now BINARYPROTO" in done.notes[-1]
    assert train(done.solver, progress=False).snapshot.suffix == ".caffemodel"


# ---- A solver in place of net and weights -------------------------------------------------------


def test_a_solver_stands_for_its_net_and_its_newest_weights(stock, capsys):
    done = convert(stock, data="my data", out="out", cpu=True)
    solver = str(done.solver)
    assert main(["sample", solver]) == 1
    assert "no good snapshot out/run_iter_*.solverstate; train it with" in capsys.readouterr().err
    train(done.solver, progress=False)
    Image.new("RGB", (30, 20)).save("a.png")
    Image.new("L", (30, 20)).save("b.png")
    capsys.readouterr()
    assert main(["sample", solver, "--passes", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["out"] == "run_iter_2.draws.npz"
    for images in (["a.png"], ["a.png", "b.png"], ["out/run_iter_2.caffemodel", "a.png"]):
        assert main(["predict", solver, *images, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["images"]
        assert [one["image"] for one in found] == [name for name in images if "png" in name]
        assert found[0]["class_name"] in NAMES
    assert main(["export", solver, "--means", "--to", "caffe", "--out", "exported"]) == 0
    assert main(["sample", str(done.nets[0])]) == 1
    assert (
        "a prototxt has no weights; give the caffemodel, too, as WEIGHTS" in capsys.readouterr().err
    )
