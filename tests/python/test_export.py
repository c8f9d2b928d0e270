"""`bayescaffe export` and the files that it writes for Caffe's readers."""

import json
import re

import bayescaffe
import numpy as np
import pytest
from bayescaffe.cli import main
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.net.stock import stock_layers
from conftest import input_net, make_net, small_net
from export_nets import (
    NETS,
    assert_close,
    images_of,
    model_of,
    run_opencv,
    run_pycaffe,
    saved,
    without_noise,
)

pytestmark = pytest.mark.engine
DROPOUT = """layer { name: "drop" type: "Dropout" bottom: "hidden" top: "hidden"
                     dropout_param { dropout_ratio: 0.4 sample_weights_test: true } }"""


@pytest.fixture(scope="module")
def small(digits, tmp_path_factory):
    """A Bayesian net with random dropout and a KL top, in a folder with a space in its name."""
    folder = tmp_path_factory.mktemp("a net")
    text = input_net(small_net(digits, "dataset_size: 330", DROPOUT), batch=3)
    text = text.replace('top: "conv"', 'top: "conv" top: "kl" loss_weight: 0 loss_weight: 1')
    text = text.replace("num_output: 16", "num_output: 16 engine: CAFFE")
    return saved(folder, text)


def expected(model, images, draw):
    return model.sample(images, [draw])[0]


def test_a_draw_is_the_network_of_set_draw(small, tmp_path):
    images = images_of(small, 5)
    paths = bayescaffe.export(small, tmp_path / "out here", range(3, 5), to="caffe", progress=False)
    assert [path.name for path in paths] == [
        *("draw-3.prototxt", "draw-3.caffemodel", "draw-4.prototxt", "draw-4.caffemodel"),
    ]
    for draw in (3, 4):
        stem = tmp_path / f"out here/draw-{draw}"
        assert_close(run_pycaffe(stem, images), expected(small, images, draw))
        assert_close(run_opencv(stem, images), expected(small, images, draw))
    assert np.abs(expected(small, images, 3) - expected(small, images, 4)).max() > 0.01


def test_the_seed_matters(small, tmp_path):
    images = images_of(small)
    other = bayescaffe.Model(small.path, small.weights, seed=2)
    bayescaffe.export(other, tmp_path, 0, to="caffe")
    found = run_pycaffe(tmp_path / "draw-0", images)
    assert_close(found, expected(other, images, 0))
    assert np.abs(found - expected(small, images, 0)).max() > 0.01


def test_the_weights_of_a_draw_are_those_of_the_layer(small, tmp_path):
    """To the bit, up to the last one where the compiler multiplies and adds in one step."""
    net = small.caffe_net
    drawn = {layer.param.name: layer.blobs for layer in stock_layers(small, 7)}
    eye = np.eye(16, dtype=np.float32)
    text = """layer { name: "in" type: "Input" top: "in" input_param { shape { dim: 16 dim: 16 } } }
        layer { name: "out" type: "BayesInnerProduct" bottom: "in" top: "out"
                inner_product_param { num_output: 4 } bayes_param { dataset_size: 1 } }"""
    alone = make_net(tmp_path, text)
    for blob, source in zip(alone.params["out"], net.params["out"], strict=True):
        blob.data[...] = source.data
    alone.set_draw(7)
    products = alone.forward(**{"in": eye})["out"]
    weights, biases = drawn["out"]
    np.testing.assert_allclose(products, weights.T + biases, rtol=1e-6, atol=1e-7)


def test_the_means_are_the_net_without_noise(small, tmp_path):
    images = images_of(small, 5)
    wanted = expected(without_noise(small, tmp_path), images, 0)
    bayescaffe.export(small, tmp_path, to="caffe")
    assert_close(run_pycaffe(tmp_path / "means", images), wanted)
    assert_close(run_opencv(tmp_path / "means", images), wanted)


def test_nothing_is_left_that_stock_caffe_does_not_know(small, tmp_path):
    for form in ("means", 0):
        bayescaffe.export(small, tmp_path, form, to="caffe")
    for name in ("means", "draw-0"):
        text = (tmp_path / f"{name}.prototxt").read_text()
        for word in ("Bayes", "bayes", "sample_weights_test", "kl", "engine", "loss", "param {}"):
            assert word not in text
        assert re.search(r"shape \{\s+dim: 3\s+dim: 1\s+dim: 12\s+dim: 12\s+\}", text)
        binary = (tmp_path / f"{name}.caffemodel").read_bytes()
        assert b"Bayes" not in binary


def test_a_dropout_mask_is_frozen(small):
    def frozen(draw):
        return next(layer for layer in stock_layers(small, draw) if layer.param.name == "drop")

    assert frozen(5).param.type == "Scale"
    (mask,) = frozen(5).blobs
    assert set(np.unique(mask)) == {np.float32(0), np.float32(1 / 0.6)}
    assert np.array_equal(mask, frozen(5).blobs[0])
    assert not np.array_equal(mask, frozen(6).blobs[0])


def test_a_mask_of_an_image_is_frozen(digits, tmp_path):
    """Masks with three axes, where Scale must cover all of them."""
    text = input_net(small_net(digits, None), batch=2)
    drop = DROPOUT.replace("hidden", "conv")
    at = text.index('layer {\n          name: "hidden"')
    model = saved(tmp_path, text[:at] + drop + text[at:])
    images = images_of(model)
    bayescaffe.export(model, tmp_path, 2, to="caffe")
    for run in (run_pycaffe, run_opencv):
        assert_close(run(tmp_path / "draw-2", images), expected(model, images, 2))


@pytest.mark.parametrize("name", NETS)
def test_opencv_and_caffe_compute_what_ours_does(name, tmp_path):
    model = model_of(tmp_path, name)
    images = images_of(model, 1)
    bayescaffe.export(model, tmp_path, 1, to="caffe")
    wanted = expected(model, images, 1)
    assert wanted.max() < 0.99
    assert_close(run_pycaffe(tmp_path / "draw-1", images), wanted)
    assert_close(run_opencv(tmp_path / "draw-1", images), wanted)


def test_a_net_of_training_is_exported_with_its_transform(digits, tmp_path):
    net = make_net(tmp_path, small_net(digits, "dataset_size: 330"))
    net.save(str(tmp_path / "net.caffemodel"))
    names = tmp_path / "names.txt"
    names.write_text("zero\none\ntwo\nthree\n")
    files = [str(tmp_path / name) for name in ("net.prototxt", "net.caffemodel")]
    options = ["--means", "--to", "caffe", "--out", str(tmp_path / "new"), "--classes", str(names)]
    assert main(["export", *files, *options]) == 0
    text = (tmp_path / "new/means.prototxt").read_text()
    assert text.startswith("# form: means\n# input_shape: 1x12x12\n")
    assert "# scale: 0.00390625\n# mean: 0\n" in text
    assert '# class_names: ["zero", "one", "two", "three"]\n' in text
    assert "Data" not in text and "Softmax" in text


def test_the_command_prints_the_files(small, tmp_path, capsys):
    files = [str(small.path), str(small.weights)]
    command = ["export", *files, "--to", "caffe", "--out", str(tmp_path)]
    assert main([*command, "--draws", "0-1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["files"]
    assert len(found) == 4 and found[-1] == str(tmp_path / "draw-1.caffemodel")
    assert main([*command, "--draw", "1"]) == 0
    assert capsys.readouterr().out.split() == found[2:]


@pytest.mark.parametrize(
    "options, message",
    [
        (["--draws", "5-2"], "argument --draws: '5-2' is not A-B, such as 0-99"),
        (["--draws", "7"], "argument --draws: '7' is not A-B, such as 0-99"),
        (["--draw", "-1"], "argument --draw: "),
        (["--draw", "1", "--means"], "not allowed with argument"),
        ([], "one of the arguments --means --stochastic --draw --draws is required"),
        (["--stochastic"], "--stochastic needs --to onnx"),
    ],
)
def test_wrong_usage_names_the_option(options, message, small, tmp_path, capsys):
    command = ["export", str(small.path), str(small.weights), "--to", "caffe"]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--out", str(tmp_path), *options])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "form, to, message",
    [
        ("mean", "caffe", "form='mean' is not means, stochastic or"),
        ("means", "torch", "to='torch' is not one of caffe, onnx"),
        ([0, -2], "caffe", "form=-2 is not the index of a draw"),
        ("stochastic", "caffe", "form='stochastic' needs to='onnx'"),
    ],
)
def test_wrong_arguments_are_named(form, to, message, small, tmp_path):
    with pytest.raises(BayesCaffeError, match=re.escape(message)):
        bayescaffe.export(small, tmp_path, form, to=to)
    assert list(tmp_path.iterdir()) == []


def test_a_stock_net_has_means_but_no_draws(digits, tmp_path):
    model = saved(tmp_path, input_net(small_net(digits, None), batch=2))
    images = images_of(model)
    bayescaffe.export(model, tmp_path, to="caffe")
    assert_close(run_opencv(tmp_path / "means", images), expected(model, images, 0))
    with pytest.raises(BayesCaffeError, match="no layer is random"):
        bayescaffe.export(model, tmp_path, 0, to="caffe")


def test_what_is_read_is_not_overwritten(digits, tmp_path):
    model = saved(tmp_path, input_net(small_net(digits, None), batch=2))
    for name in ("prototxt", "caffemodel"):
        (tmp_path / f"net.{name}").rename(tmp_path / f"means.{name}")
    model = bayescaffe.Model(tmp_path / "means.prototxt", tmp_path / "means.caffemodel")
    before = (tmp_path / "means.prototxt").read_bytes()
    with pytest.raises(BayesCaffeError, match="would overwrite what is read"):
        bayescaffe.export(model, tmp_path, to="caffe")
    assert (tmp_path / "means.prototxt").read_bytes() == before
