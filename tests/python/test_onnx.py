"""ONNX files: every type of layer, whole nets, and noise that is noise."""

import json
import re
import sys
from types import SimpleNamespace

import bayescaffe
import numpy as np
import onnx
import onnx.reference
import pytest
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.exporting.onnx_file import write_onnx
from bayescaffe.exporting.onnx_layers import LAYERS
from bayescaffe.net.messages import parse_message
from bayescaffe.net.stock import stock_layers
from conftest import REPO, input_net, make_net, small_net
from export_nets import (
    NETS,
    assert_close,
    images_of,
    model_of,
    onnx_session,
    randomize,
    run_onnxruntime,
    run_opencv_onnx,
    run_reference,
    saved,
    without_noise,
)

pytestmark = pytest.mark.engine
# Layers are written for one batch size and run with another: as many images as LRN has channels,
# because onnx's reference takes the one for the other.
BATCH, IMAGES = 3, 5

# The type of a layer, its options, and shapes of its inputs without the batch. Sizes are odd, so
# that windows do not fit.
LAYER_CASES = [
    ("AbsVal", "", [(3, 5, 7)]),
    ("BatchNorm", "", [(3, 5, 7)]),
    ("BatchNorm", "batch_norm_param { eps: 0.01 }", [(6,)]),
    ("Bias", "", [(3, 5, 7)]),
    ("Bias", "bias_param { axis: 0 }", [(3, 5, 7), (3,)]),
    ("Concat", "", [(3, 5, 7), (1, 5, 7), (4, 5, 7)]),
    ("Concat", "concat_param { axis: -1 }", [(3, 5, 7), (3, 5, 2)]),
    ("Concat", "concat_param { concat_dim: 2 }", [(3, 5, 7), (3, 1, 7)]),
    ("Convolution", "convolution_param { num_output: 4 kernel_size: 3 }", [(3, 9, 7)]),
    (
        "Convolution",
        "convolution_param { num_output: 6 kernel_size: 3 group: 2 dilation: 2 pad: 1 stride: 2 }",
        [(4, 11, 13)],
    ),
    (
        "Convolution",
        "convolution_param { num_output: 2 kernel_h: 3 kernel_w: 2 pad_h: 2 pad_w: 0 stride_h: 1 "
        "stride_w: 3 bias_term: false }",
        [(3, 8, 11)],
    ),
    ("Convolution", "convolution_param { num_output: 2 kernel_size: 2 }", [(3, 5)]),
    ("Crop", "crop_param { axis: 2 offset: 1 }", [(3, 9, 8), (1, 5, 4)]),
    ("Crop", "crop_param { axis: 1 offset: 1 offset: 0 offset: 2 }", [(3, 9, 8), (2, 5, 4)]),
    (
        "Deconvolution",
        "convolution_param { num_output: 4 kernel_size: 3 stride: 2 pad: 1 group: 2 }",
        [(6, 5, 7)],
    ),
    ("Deconvolution", "convolution_param { num_output: 4 kernel_size: 3 pad: 1 }", [(6, 5, 7)]),
    ("Dropout", "", [(3, 5, 7)]),
    ("ELU", "elu_param { alpha: 0.7 }", [(3, 5, 7)]),
    ("Eltwise", "", [(3, 5, 7)] * 3),
    ("Eltwise", "eltwise_param { operation: PROD }", [(3, 5, 7)] * 3),
    ("Eltwise", "eltwise_param { operation: MAX }", [(3, 5, 7)] * 3),
    ("Eltwise", "eltwise_param { coeff: 1 coeff: -0.5 }", [(3, 5, 7)] * 2),
    ("Exp", "", [(3, 5, 7)]),
    ("Exp", "exp_param { base: 2 scale: 0.5 shift: 3 }", [(3, 5, 7)]),
    ("Flatten", "", [(3, 5, 7)]),
    ("Flatten", "flatten_param { axis: 2 end_axis: 3 }", [(3, 5, 7, 2)]),
    ("InnerProduct", "inner_product_param { num_output: 4 }", [(3, 5, 7)]),
    ("InnerProduct", "inner_product_param { num_output: 4 axis: 2 bias_term: false }", [(3, 5, 7)]),
    ("InnerProduct", "inner_product_param { num_output: 4 axis: -1 transpose: true }", [(3, 5)]),
    ("LRN", "lrn_param { local_size: 3 alpha: 0.5 beta: 0.6 k: 2 }", [(5, 5, 3)]),
    (
        "LRN",
        "lrn_param { norm_region: WITHIN_CHANNEL local_size: 3 alpha: 0.5 beta: 0.6 }",
        [(2, 5, 7)],
    ),
    ("Log", "log_param { shift: 9 }", [(3, 5, 7)]),
    ("Log", "log_param { base: 2 scale: 0.5 shift: 9 }", [(3, 5, 7)]),
    ("PReLU", "", [(3, 5, 7)]),
    ("PReLU", "prelu_param { channel_shared: true }", [(3, 5, 7)]),
    ("Power", "power_param { power: 2 scale: 0.5 shift: 0.1 }", [(3, 5, 7)]),
    ("Power", "power_param { scale: -2 }", [(3, 5, 7)]),
    ("ReLU", "", [(3, 5, 7)]),
    ("ReLU", "relu_param { negative_slope: 0.2 }", [(3, 5, 7)]),
    ("Reshape", "reshape_param { shape { dim: 0 dim: -1 dim: 5 } }", [(3, 5, 7)]),
    ("Reshape", "reshape_param { axis: 2 num_axes: 1 shape { dim: 2 dim: 3 } }", [(3, 6, 7)]),
    ("Scale", "scale_param { bias_term: true }", [(3, 5, 7)]),
    ("Scale", "scale_param { axis: 2 num_axes: 2 }", [(3, 5, 7)]),
    ("Scale", "scale_param { axis: -1 num_axes: 1 }", [(3, 5, 7)]),
    ("Scale", "scale_param { axis: 0 }", [(3, 5, 7), (3,)]),
    ("Sigmoid", "", [(3, 5, 7)]),
    ("Slice", "", [(4, 5, 7)]),
    ("Slice", "slice_param { axis: 2 slice_point: 1 }", [(4, 5, 7)]),
    ("Softmax", "", [(4, 5, 7)]),
    ("Softmax", "softmax_param { axis: -1 }", [(4, 5, 7)]),
    ("Split", "", [(3, 5, 7)]),
    ("TanH", "", [(3, 5, 7)]),
    *(
        ("Pooling", f"pooling_param {{ pool: {pool} {options} }}", [shape])
        for pool in ("MAX", "AVE")
        for options, shape in (
            ("kernel_size: 2 stride: 2", (3, 6, 8)),
            ("kernel_size: 3 stride: 2", (3, 8, 7)),
            ("kernel_size: 3 stride: 2 pad: 1", (3, 7, 8)),
            ("kernel_size: 3 stride: 3 pad: 1", (3, 8, 9)),
            ("kernel_size: 4 stride: 3 pad: 2", (3, 9, 10)),
            ("kernel_size: 2 stride: 3 pad: 1", (3, 6, 8)),
            ("kernel_h: 3 kernel_w: 2 stride_h: 1 stride_w: 2 pad_h: 1 pad_w: 0", (3, 5, 7)),
            ("kernel_size: 3 stride: 2 round_mode: FLOOR", (3, 8, 7)),
            ("global_pooling: true", (3, 5, 7)),
        )
    ),
]


def layer_net(kind, options, shapes, batch=BATCH) -> str:
    inputs = "".join(
        f'layer {{ name: "in{i}" type: "Input" top: "in{i}" input_param {{ shape {{ dim: {batch} '
        f"{' '.join(f'dim: {size}' for size in shape)} }} }} }}\n"
        for i, shape in enumerate(shapes)
    )
    bottoms = " ".join(f'bottom: "in{i}"' for i in range(len(shapes)))
    tops = 'top: "out" top: "other"' if kind in ("Slice", "Split") else 'top: "out"'
    return f'{inputs}layer {{ name: "it" type: "{kind}" {bottoms} {tops} {options} }}'


def write_layer(folder, text, net, output="out"):
    model = SimpleNamespace(message=parse_message(text, "NetParameter"), caffe_net=net)
    shapes = {name: blob.data.shape for name, blob in net.blobs.items()}
    layers = stock_layers(model, None)
    return write_onnx(layers, shapes, output, "one layer", {}, folder / "it")


@pytest.mark.parametrize(
    "kind, options, shapes", LAYER_CASES, ids=lambda part: part if isinstance(part, str) else ""
)
def test_a_layer_computes_what_caffe_does(kind, options, shapes, tmp_path):
    text = layer_net(kind, options, shapes)
    net = make_net(tmp_path, text)
    randomize(net)
    random = np.random.default_rng(5)
    inputs = {
        f"in{i}": random.standard_normal((IMAGES, *shape)).astype(np.float32)
        for i, shape in enumerate(shapes)
    }
    for output in ("out", "other") if kind in ("Slice", "Split") else ("out",):
        path = write_layer(tmp_path, text, net, output=output)
        for name, array in inputs.items():
            net.blobs[name].reshape(*array.shape)
            net.blobs[name].data[...] = array
        net.forward()
        wanted = net.blobs[output].data.copy()
        (found,) = onnx_session(path).run(None, inputs_of(path, inputs))
        assert found.shape == wanted.shape
        assert_close(found, wanted)
        if kind == "Deconvolution" and "group" in options:
            continue  # onnx's reference fails
        (found,) = onnx.reference.ReferenceEvaluator(str(path)).run(None, inputs)
        assert found.shape == wanted.shape
        assert_close(found, wanted)


def inputs_of(path, inputs):
    """onnxruntime refuses inputs that were left out, because nothing depends on them."""
    names = {value.name for value in onnx.load(path).graph.input}
    return {name: array for name, array in inputs.items() if name in names}


def test_every_layer_of_the_table_is_tested():
    assert {kind for kind, _, _ in LAYER_CASES} == set(LAYERS)
    named = (REPO / "docs/export.md").read_text().split("**Layers in ONNX.**")[1]
    assert set(re.findall(r"`(\w+)`", named)) == set(LAYERS)


@pytest.mark.parametrize(
    "kind, options, shapes, message",
    [
        (
            "MVN",
            "",
            [(3, 5, 7)],
            r"layer 'it' \(MVN\) cannot be .* supported are AbsVal, BatchNorm",
        ),
        ("Softmax", "softmax_param { axis: 0 }", [(3,)], "its axis is 0, so it mixes the images"),
        ("Flatten", "flatten_param { axis: 0 }", [(3, 5)], "it mixes the images of a batch"),
        ("BatchNorm", "batch_norm_param { use_global_stats: false }", [(3, 5, 7)], "mixes the"),
        (
            "Pooling",
            "pooling_param { kernel_size: 1 stride: 3 }",
            [(3, 6, 6)],
            "its last window lies wholly outside of the image",
        ),
        (
            "Convolution",
            "convolution_param { num_output: 2 kernel_size: 1 axis: 2 }",
            [(2, 3, 5, 5)],
            "its axis is 2, and ONNX has the channels at axis 1",
        ),
        ("Bias", "bias_param { axis: 1 }", [(3, 5), (5,)], "belongs to axis 1"),
    ],
)
def test_what_cannot_be_written_names_the_layer(kind, options, shapes, message, tmp_path):
    text = layer_net(kind, options, shapes, batch=3)
    net = make_net(tmp_path, text)
    with pytest.raises(BayesCaffeError, match=message):
        write_layer(tmp_path, text, net)
    assert not (tmp_path / "it.onnx").exists()


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("form", ["means", 1])
def test_a_net_computes_what_ours_does(name, form, tmp_path):
    model = model_of(tmp_path, name)
    images = images_of(model, 1)
    (path,) = bayescaffe.export(model, tmp_path, form, to="onnx")
    if form == "means":
        wanted = without_noise(model, tmp_path).sample(images, 1)[0]
    else:
        wanted = model.sample(images, [form])[0]
    assert wanted.max() < 0.99
    assert_close(run_onnxruntime(path, images), wanted)
    assert_close(run_reference(path, images), wanted)


def test_the_batch_size_is_free(tmp_path):
    model = model_of(tmp_path, "cifar10_quick")
    (path,) = bayescaffe.export(model, tmp_path, 0, to="onnx")
    images = images_of(model, 5)
    assert_close(run_onnxruntime(path, images), model.sample(images, 1)[0])
    shape = onnx.load(path).graph.input[0].type.tensor_type.shape.dim
    assert shape[0].dim_param == "batch" and [size.dim_value for size in shape[1:]] == [3, 32, 32]


def test_the_file_tells_what_a_program_must_know(digits, tmp_path):
    text = input_net(small_net(digits, "dataset_size: 330"), batch=2)
    model = saved(tmp_path, text, seed=9, scale=0.25, mean=[7.5])
    (path,) = bayescaffe.export(model, tmp_path, 4, to="onnx", class_names=["a", "b", "ç", "d"])
    found = {one.key: one.value for one in onnx.load(path).metadata_props}
    assert json.loads(found.pop("class_names")) == ["a", "b", "ç", "d"]
    assert json.loads(found.pop("mean")) == [7.5]
    assert found == {
        "form": "draw 4 of seed 9",
        "input": "(pixel - mean) * scale",
        "input_shape": "1x12x12",
        "scale": "0.25",
    }
    onnx.checker.check_model(str(path), full_check=True)


def test_without_onnx_the_error_says_what_to_install(digits, tmp_path, monkeypatch):
    model = saved(tmp_path, input_net(small_net(digits, "dataset_size: 330"), batch=2))
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(BayesCaffeError, match="`pip install onnx` installs it"):
        bayescaffe.export(model, tmp_path, to="onnx")


# ---- Noise ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lenet", "resnet"])
def test_a_stochastic_net_differs_from_run_to_run(name, tmp_path):
    model = model_of(tmp_path, name)
    (path,) = bayescaffe.export(model, tmp_path, "stochastic", to="onnx")
    assert path.name == "stochastic.onnx"
    images = np.repeat(images_of(model, 1), 2, axis=0)
    session = onnx_session(path)
    first, second = (session.run(None, {"data": images})[0] for _ in range(2))
    assert np.abs(first - second).max() > 1e-3
    assert np.abs(first[0] - first[1]).max() > 1e-3, "each image has its own noise"
    for run in (run_reference, run_opencv_onnx):
        assert np.abs(run(path, images) - run(path, images)).max() > 1e-3


STOCHASTIC_CASES = [
    ("BayesInnerProduct", "inner_product_param { num_output: 3 }", (2, 3)),
    ("BayesConvolution", "convolution_param { num_output: 2 kernel_size: 2 pad: 1 }", (2, 3, 3)),
    ("BayesDeconvolution", "convolution_param { num_output: 2 kernel_size: 2 }", (2, 2, 3)),
    ("BayesScale", "scale_param { bias_term: true }", (3, 2)),
    ("Dropout", "dropout_param { dropout_ratio: 0.3 sample_weights_test: true }", (3, 2)),
]


@pytest.mark.parametrize("kind, options, shape", STOCHASTIC_CASES)
def test_the_noise_has_the_mean_and_variance_of_draws(kind, options, shape, tmp_path):
    """Against 20,000 draws of the layer itself, whose weights are random."""
    bayes = "bayes_param { dataset_size: 1 }" if kind != "Dropout" else ""
    text = layer_net(kind, f"{options} {bayes}", [shape], batch=1)
    net = make_net(tmp_path, text)
    randomize(net)
    path = write_layer(tmp_path, text, net)
    count = 20_000
    image = np.random.default_rng(6).standard_normal((1, *shape)).astype(np.float32)
    drawn = net.sample(count, image, output="out")[:, 0]
    (found,) = onnx_session(path).run(None, {"in0": np.repeat(image, count, axis=0)})
    for array in (drawn, found):
        assert array.std(axis=0).max() > 0.05
    deviation = drawn.std(axis=0)
    # The error of a mean is sd / sqrt(count), that of an sd about 0.7 of it; 6 times of both.
    error = 6 * deviation * np.sqrt(2 / count) + 1e-6
    assert np.all(np.abs(found.mean(axis=0) - drawn.mean(axis=0)) <= error)
    assert np.all(np.abs(found.std(axis=0) - deviation) <= error)


def test_the_means_of_a_net_have_no_noise(digits, tmp_path):
    model = saved(tmp_path, input_net(small_net(digits, "dataset_size: 330"), batch=2))
    for form in ("means", 3):
        (path,) = bayescaffe.export(model, tmp_path, form, to="onnx")
        operators = {node.op_type for node in onnx.load(path).graph.node}
        assert not any(operator.startswith("Random") for operator in operators)
