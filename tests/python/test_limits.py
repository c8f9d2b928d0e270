"""Numbers that no net or solver can work with: caffe.Error names them, nothing crashes or hangs.

Each case is one that ended the interpreter, trained to NaN or said nothing of use.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import CAFFE, REPO, caffe, input_net, make_net, python, small_net, write_solver

sys.path.append(str(REPO / "tests/faults"))
import fuzz_nets

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
pytestmark = pytest.mark.engine


def one_layer(kind: str, parameters: str, shape=(2, 4, 6, 6), bottoms: int = 1) -> str:
    """A net of an input and one layer, "x"."""
    dims = " ".join(f"dim: {length}" for length in shape)
    tops = " ".join(f'top: "data{i or ""}"' for i in range(max(bottoms, 1)))
    names = " ".join(f'bottom: "data{i or ""}"' for i in range(bottoms))
    return f"""
        layer {{ name: "data" type: "Input" {tops} input_param {{ shape {{ {dims} }} }} }}
        layer {{ name: "x" type: "{kind}" {names} top: "x" {parameters} }}
    """


def message_of(call, *arguments, **options) -> str:
    """What the caffe.Error of a call says."""
    with pytest.raises(pycaffe.Error) as caught:
        call(*arguments, **options)
    return caught.value.message


# ---- layers ------------------------------------------------------------------------------------

WINDOW = "but must be 1 to 16777216"
CONVOLUTIONS = [
    ("pad: 4294967295", "pad is 4294967295, but must be 0 to 16777216"),
    ("pad: 2147483648", "pad is 2147483648, but must be 0 to 16777216"),
    ("pad_h: 2147483648 pad_w: 0", "pad_h is 2147483648, but must be 0 to 16777216"),
    ("pad_h: 0 pad_w: 2147483648", "pad_w is 2147483648, but must be 0 to 16777216"),
    ("dilation: 2147483648", f"dilation is 2147483648, {WINDOW}"),
    ("dilation: 0", f"dilation is 0, {WINDOW}"),
    ("stride_h: 0 stride_w: 1", f"stride_h is 0, {WINDOW}"),
    ("stride: 0", f"stride is 0, {WINDOW}"),
    ("group: 0", "group is 0, but must be 1 to 2147483647"),
    ("axis: -2147483648", "axis is -2147483648, but must be -32 to 32"),
    ("weight_filler { value: inf }", "weight_filler.value is inf, but must be a finite number"),
    ("bias_filler { std: nan }", "bias_filler.std is nan, but must be a finite number, 0 or gr"),
    ("weight_filler { min: -inf }", "weight_filler.min is -inf, but must be a finite number"),
]


@pytest.mark.parametrize("kind", ["Convolution", "BayesConvolution", "Deconvolution"])
@pytest.mark.parametrize(("parameters", "says"), CONVOLUTIONS)
def test_convolution_is_refused(tmp_path, kind, parameters, says):
    net = one_layer(kind, f"convolution_param {{ num_output: 4 kernel_size: 3 {parameters} }}")
    message = message_of(make_net, tmp_path, net)
    assert message.startswith(f"layer 'x': convolution_param.{says}")


@pytest.mark.parametrize(
    ("kind", "parameters", "says"),
    [
        (
            "Reshape",
            "reshape_param { shape { dim: 0 dim: 2147483648 } }",
            "reshape_param.shape.dim is 2147483648, but must be -1 to 2147483647",
        ),
        (
            "SPP",
            "spp_param { pyramid_height: 2147483647 }",
            "spp_param.pyramid_height is 2147483647, but must be 1 to 16",
        ),
        (
            "Data",
            "data_param { prefetch: 0 batch_size: 2 }",
            "data_param.prefetch is 0, but must be 1 to 1024",
        ),
        ("Data", "", "data_param.batch_size is missing, but must be 1 to 2147483647"),
        ("Data", "data_param { batch_size: 0 }", "data_param.batch_size is 0, but must be 1"),
        ("InnerProduct", "", "inner_product_param.num_output is missing, but must be 1 to"),
        (
            "Dropout",
            "dropout_param { dropout_ratio: 1 }",
            "dropout_param.dropout_ratio is 1, but must be 0 or greater and less than 1",
        ),
        ("Dropout", "dropout_param { dropout_ratio: -0.5 }", "dropout_ratio is -0.5, but must be"),
        ("Dropout", "dropout_param { dropout_ratio: nan }", "dropout_ratio is nan, but must be"),
        ("Power", "loss_weight: nan", "loss_weight is nan, but must be a finite number"),
        ("Power", "loss_weight: inf", "loss_weight is inf, but must be a finite number"),
        ("Bias", "param { lr_mult: -1 }", "param.lr_mult is -1, but must be a finite number, 0"),
        ("Bias", "param { lr_mult: inf }", "param.lr_mult is inf, but must be a finite number"),
        ("Bias", "param { decay_mult: nan }", "param.decay_mult is nan, but must be a finite"),
        ("Power", "power_param { shift: inf }", "power_param.shift is inf, but must be a finite"),
    ],
)
def test_layer_is_refused(tmp_path, kind, parameters, says):
    message = message_of(make_net, tmp_path, one_layer(kind, parameters))
    assert message.startswith("layer 'x': ") and says in message


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ("tau_init: 1e38", "tau_init is 1e+38, but must be 0 to 1000"),
        ("bias_tau_init: 1e38", "bias_tau_init is 1e+38, but must be 0 to 1000"),
        ("prior_std: 1e-30", "prior_std is 1e-30, but must be 1e-06 to 1000000"),
        ("bias_prior_std: 1e30", "bias_prior_std is 1e+30, but must be 1e-06 to 1000000"),
        ("prior_mean: -1e30", "prior_mean is -1e+30, but must be -1000000 to 1000000"),
        ("draws_per_batch: 1000000000", "draws_per_batch is 1000000000, but must be 1 to 1024"),
    ],
)
def test_bayes_param_is_refused(tmp_path, parameters, says):
    layer = f"inner_product_param {{ num_output: 3 }} bayes_param {{ kl_weight: 0 {parameters} }}"
    for phase in (pycaffe.TRAIN, pycaffe.TEST):
        message = message_of(make_net, tmp_path, one_layer("BayesInnerProduct", layer), phase)
        assert f"layer 'x': bayes_param.{says}" in message


def test_all_layers_are_checked_before_the_first_is_made(tmp_path):
    net = 'layer { name: "no" type: "NoSuchLayer" }' + one_layer("ReLU", "loss_weight: nan")
    assert "layer 'x': loss_weight is nan" in message_of(make_net, tmp_path, net)


@pytest.mark.parametrize("kind", ["BayesScale", "Dropout"])
def test_one_name_for_two_layers_is_refused(tmp_path, kind):
    net = one_layer(kind, "") + 'layer { name: "x" type: "TanH" bottom: "x" top: "y" }'
    says = "layer 'x': another layer of the same net has this name, but a layer with weights or dra"
    assert says in message_of(make_net, tmp_path, net)
    # In different phases it is the usual way.
    phases = net.replace('"TanH"', '"TanH" include { phase: TRAIN }')
    assert list(make_net(tmp_path, phases).blobs) == ["data", "x"]
    # And Caffe's autoencoder has two losses of one name.
    assert list(make_net(tmp_path, net.replace(kind, "ReLU")).blobs) == ["data", "x", "y"]


# ---- sizes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "parameters", "says"),
    [
        (
            "Convolution",
            "convolution_param { num_output: 4 kernel_size: 9 }",
            "the kernel is larger than the image along spatial axis 0: kernel_size is 9, with "
            "dilation 1 it covers 9 pixels, but must cover at most the 6 that there are (6 and 2 "
            "times a pad of 0)",
        ),
        (
            "Im2col",
            "convolution_param { kernel_size: 3 dilation: 4 pad: 1 }",
            "kernel_size is 3, with dilation 4 it covers 9 pixels, but must cover at most the 8",
        ),
        (
            "Convolution",
            "convolution_param { num_output: 4 kernel_size: 3 stride_h: 2 }",
            "stride along spatial axis 1 must be 1 or more; stride_h and stride_w are given tog",
        ),
        (
            "Deconvolution",
            "convolution_param { num_output: 4 kernel_size: 3 pad: 4 }",
            "the output would have 0 pixels along spatial axis 0 (kernel_size 3, stride 1, dil",
        ),
        (
            "Pooling",
            "pooling_param { kernel_size: 8 stride: 2 }",
            "kernel_size is 8, but must be at most 7, as there are 6 pixels, a pad of 0 and a st",
        ),
        (
            "Pooling",
            "pooling_param { kernel_size: 7 stride: 2 round_mode: FLOOR }",
            "kernel_size is 7, but must be at most 6, as there are 6 pixels, a pad of 0 and a st",
        ),
        (
            "Convolution",
            "convolution_param { num_output: 4 kernel_size: 3 pad: 16777216 }",
            "blob size exceeds INT_MAX: the shape is 2 x 4 x 33554436 x 33554436",
        ),
        (
            "Reshape",
            "reshape_param { shape { dim: 65536 dim: 65536 dim: -1 } }",
            "a blob of 65536 times 65536 elements is too large",
        ),
    ],
)
def test_size_that_cannot_be_is_named(tmp_path, kind, parameters, says):
    message = message_of(make_net, tmp_path, one_layer(kind, parameters))
    assert message.startswith("layer 'x': ")
    assert says in message


def test_windows_that_upstream_allows_stay(tmp_path):
    net = make_net(tmp_path, one_layer("Pooling", "pooling_param { kernel_size: 7 stride: 2 }"))
    assert net.blobs["x"].data.shape == (2, 4, 1, 1)
    text = "convolution_param { num_output: 1 kernel_size: 3 dilation: 4 pad: 2 }"
    assert make_net(tmp_path, one_layer("Im2col", text)).blobs["x"].data.shape == (2, 36, 2, 2)


def test_empty_batch_is_named(tmp_path):
    net = make_net(tmp_path, one_layer("ReLU", "", (0, 4)))
    says = "the blob has no elements: 0 4 (0)"
    assert says in message_of(net.forward)
    assert says in message_of(net.sample, 1, np.zeros((1, 4)))


def test_blob_that_is_refused_a_shape_keeps_its_own(tmp_path):
    net = make_net(tmp_path, one_layer("ReLU", ""))
    net.blobs["data"].data[...] = 1
    says = "blob size exceeds INT_MAX: the shape is 60000 x 60000 x 6"
    assert says in message_of(net.blobs["data"].reshape, 60000, 60000, 6)
    assert "negative" in message_of(net.blobs["data"].reshape, 3, -2)
    assert net.blobs["data"].data.shape == (2, 4, 6, 6)
    assert net.forward()["x"].sum() == 2 * 4 * 6 * 6


def test_what_memory_cannot_hold_names_layer_and_size(tmp_path):
    (tmp_path / "net.prototxt").write_text(
        one_layer("InnerProduct", "inner_product_param { num_output: 14000000 }")
    )
    said = python(f"""
import resource
import caffe
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
try:
    caffe.Net({str(tmp_path / "net.prototxt")!r}, caffe.TEST)
except caffe.Error as error:
    print(error.message)
""")
    assert said.startswith("layer 'x': ")
    assert "out of memory: a blob of 8064000000 bytes is needed" in said


# ---- the nets and solvers of Caffe -------------------------------------------------------------

CAFFE_TREE = REPO / "build/caffe-src"
PROTOTXTS = sorted((CAFFE_TREE / "models").glob("**/*.prototxt"))
PROTOTXTS += sorted((CAFFE_TREE / "examples").glob("**/*.prototxt"))
PROTOTXTS += sorted((REPO / "models").glob("**/*.prototxt"))


def test_nets_of_caffe_are_allowed(tmp_path):
    """A layer that does not exist stops them after the check of all numbers."""
    nets = [path for path in PROTOTXTS if "solver" not in path.name]
    assert len(nets) > 30
    for path in nets:
        net = path.read_text()
        stop = "layers" if "layers {" in net else "layer"
        kind = "type: NONE" if stop == "layers" else 'type: "NoSuchLayer"'
        for phase in (pycaffe.TRAIN, pycaffe.TEST):
            text = f'{stop} {{ name: "stop" {kind} }}\n{net}'
            message = message_of(make_net, tmp_path, text, phase)
            # The autoencoder has a data layer only where its solver says which.
            stopped = ("Unknown layer type: ", "Unknown bottom blob 'data'")
            assert any(says in message for says in stopped), (path, message)


def test_solvers_of_caffe_are_allowed(tmp_path, monkeypatch):
    """They stop at files that are not there, after the check of all numbers."""
    solvers = [path for path in PROTOTXTS if "solver" in path.name]
    assert len(solvers) > 15
    monkeypatch.chdir(tmp_path)
    for path in solvers:
        message = message_of(pycaffe.get_solver, str(path))
        assert "No such file" in message or "Cannot write" in message, (path, message)


# ---- solvers -----------------------------------------------------------------------------------

POSITIVE = "but must be a finite number, 0 or greater"
SHARE = "but must be 0 or greater and less than 1"


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("momentum", "1", SHARE),
        ("momentum", "-0.1", SHARE),
        ("momentum", "nan", SHARE),
        ("momentum2", "1", SHARE),
        ("rms_decay", "1.5", SHARE),
        ("base_lr", "-0.1", POSITIVE),
        ("base_lr", "nan", POSITIVE),
        ("base_lr", "inf", POSITIVE),
        ("weight_decay", "-1", POSITIVE),
        ("weight_decay", "nan", POSITIVE),
        ("clip_gradients", "nan", "but must be a finite number"),
        ("clip_gradients", "inf", "but must be a finite number"),
        ("gamma", "-1", POSITIVE),
        ("power", "nan", "but must be a finite number"),
        ("iter_size", "0", "but must be 1 to 2147483647"),
        ("average_loss", "0", "but must be 1 to 2147483647"),
        ("test_iter", "0", "but must be 1 to 2147483647"),
        ("snapshot", "-1", "but must be 0 to 2147483647"),
        ("test_draws", "-1", "but must be 0 to 2147483647"),
    ],
)
def test_solver_is_refused(tmp_path, digits, field, value, says):
    solver = write_solver(tmp_path, small_net(digits, None), 2, **{field: value})
    message = message_of(pycaffe.get_solver, str(solver))
    assert message == f"solver: {field} is {value}, {says}"


def test_negative_max_iter_is_refused(tmp_path, digits):
    solver = write_solver(tmp_path, small_net(digits, None), -1)
    says = "solver: max_iter is -1, but must be 0 to 2147483647"
    assert message_of(pycaffe.get_solver, str(solver)) == says


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ('"multistep"', "solver: stepvalue is missing, but must be given once or more with lr_p"),
        ('"multistep"\nstepvalue: 5\nstepvalue: 3', "solver: stepvalue is 3 after 5, but each mu"),
        ('"step"', 'solver: stepsize is missing, but must be 1 to 2147483647 with lr_policy: "st'),
        ('"step"\nstepsize: 0', "solver: stepsize is 0, but must be 1 to 2147483647"),
    ],
)
def test_steps_of_the_rate_are_refused(tmp_path, digits, options, says):
    solver = write_solver(tmp_path, small_net(digits, None), 2, lr_policy=options)
    assert says in message_of(pycaffe.get_solver, str(solver))


def test_usual_exceptions_stay_allowed(tmp_path, digits):
    options = {"clip_gradients": -1, "momentum": 0, "weight_decay": 0, "gamma": 0.1}
    steps = '"multistep"\nstepvalue: 1\nstepvalue: 1\nstepvalue: 2'
    net = small_net(digits, None).replace("num_output: 16", "num_output: 16 bias_term: false")
    net = net.replace(
        "inner_product_param", "param { lr_mult: 0 decay_mult: 0 } inner_product_param"
    )
    net = net.replace('top: "loss"', 'top: "loss" loss_weight: 0.3')
    solver = write_solver(tmp_path, net, 3, lr_policy=steps, **options)
    pycaffe.get_solver(str(solver)).solve()


def test_one_name_for_two_layers_with_weights_is_not_trained(tmp_path, digits):
    text = small_net(digits, None).replace('name: "out"', 'name: "hidden"')
    loaded = pycaffe.get_solver(str(write_solver(tmp_path, text, 2)))
    assert "layer 'hidden': another layer of the same net has this" in message_of(loaded.step, 1)


def test_net_without_loss_is_not_trained(tmp_path, digits):
    text = small_net(digits, None)
    solver = write_solver(tmp_path, text[: text.index('layer { name: "loss"')], 2)
    # Only training it is refused.
    loaded = pycaffe.get_solver(str(solver))
    says = "has no loss in the TRAIN phase, so there is nothing to train; it must have a loss layer"
    assert says in message_of(loaded.step, 1)
    done = caffe("train", "-solver", solver)
    assert done.returncode == 1 and says in done.stdout


# ---- numbers that are not finite ---------------------------------------------------------------


@pytest.mark.parametrize("snapshot", [0, 1])
@pytest.mark.parametrize("bayes", [None, "dataset_size: 330 kl_weight: 0.001"])
def test_training_that_ends_as_nan_fails(tmp_path, digits, snapshot, bayes):
    options = {"display": 0, "base_lr": 1e30, "snapshot": snapshot}
    solver = write_solver(tmp_path, small_net(digits, bayes), 5, **options)
    done = caffe("train", "-solver", solver)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].endswith("; did the training diverge?")
    for model in tmp_path.glob("*.caffemodel"):
        make_net(tmp_path, small_net(digits, bayes), weights=model)  # refuses what is not finite
    assert "Optimization Done" not in done.stdout


BAYES = "kl_weight: 0"


def test_output_that_is_not_finite_names_draw_and_layer(tmp_path, digits):
    net = make_net(tmp_path, input_net(small_net(digits, BAYES), 4))
    images = np.random.default_rng(0).random((6, 1, 12, 12), np.float32)
    assert np.isfinite(net.sample(3, images)).all()
    net.params["hidden"][0].data[...] = 3e38
    says = "the output 'out' of image 0 in draw 7 is "
    message = message_of(net.sample, [7], images)
    assert says in message and message.endswith("the first layer that is not is 'hidden'")
    spoiled = images.copy()
    spoiled[5, 0, 3, 3] = np.inf
    net = make_net(tmp_path, input_net(small_net(digits, BAYES), 4))
    message = message_of(net.sample, 2, spoiled)
    assert "the output 'out' of image 5 in draw " in message
    assert message.endswith("the first layer that is not is 'data'")
    # And all is in order behind it.
    assert np.isfinite(net.sample(3, images)).all()


def test_output_of_a_stock_net_that_is_not_finite_names_the_layer(tmp_path, digits):
    net = make_net(tmp_path, input_net(small_net(digits, None), 4))
    images = np.ones((4, 1, 12, 12), np.float32)
    net.params["conv"][0].data[...] = np.nan
    message = message_of(net.sample, 2, images)
    assert message.endswith("is nan, but must be finite; the first layer that is not is 'conv'")


def test_kl_that_overflows_says_so(tmp_path):
    layer = """top: "kl" inner_product_param { num_output: 3 weight_filler { value: 1e30 } }
               bayes_param { kl_weight: 1 dataset_size: 10 sample: NEVER }"""
    net = make_net(tmp_path, one_layer("BayesInnerProduct", layer))
    assert "layer 'x': its KL is inf, but must be finite" in message_of(net.forward)
    assert "layer 'x': its KL overflows with tau = 0.4" in message_of(net.posteriors)


# ---- random nets -------------------------------------------------------------------------------


def test_random_nets_with_extreme_numbers_do_not_crash():
    """A sample; tests/faults/fuzz_nets.py runs more of them."""
    results, failures = fuzz_nets.fuzz(seed=13, count=150, seconds=60)
    assert not failures
    # Both happen often, or the fuzzer does not test what it is for.
    assert results["works"] > 30 and results["error"] > 30


def test_fuzzer_knows_every_layer():
    assert set(pycaffe.layer_type_list()) <= set(fuzz_nets.LAYERS) | fuzz_nets.LEFT_OUT
    assert CAFFE.is_file() and Path(fuzz_nets.__file__).is_file()
