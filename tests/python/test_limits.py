"""Numbers that no net or solver can work with: caffe.Error names them, nothing crashes or hangs.

Each case is one that ended the interpreter, trained to NaN or said nothing of use.
"""

import sys
from pathlib import Path

import bad_numbers
import numpy as np
import pytest
from bad_numbers import one_layer
from conftest import CAFFE, REPO, caffe, input_net, make_net, python, small_net, write_solver

sys.path.append(str(REPO / "tests/faults"))
import fuzz_nets

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
pytestmark = pytest.mark.engine


def message_of(call, *arguments, **options) -> str:
    """What the caffe.Error of a call says."""
    with pytest.raises(pycaffe.Error) as caught:
        call(*arguments, **options)
    return caught.value.message


# ---- layers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", bad_numbers.CONVOLUTION_KINDS)
@pytest.mark.parametrize(("parameters", "says"), bad_numbers.CONVOLUTIONS)
def test_convolution_is_refused(tmp_path, kind, parameters, says):
    net = one_layer(kind, f"convolution_param {{ num_output: 4 kernel_size: 3 {parameters} }}")
    message = message_of(make_net, tmp_path, net)
    assert message.startswith(f"layer 'x': convolution_param.{says}")


@pytest.mark.parametrize(("kind", "parameters", "says"), bad_numbers.LAYERS)
def test_layer_is_refused(tmp_path, kind, parameters, says):
    message = message_of(make_net, tmp_path, one_layer(kind, parameters))
    assert message.startswith("layer 'x': ") and says in message


@pytest.mark.parametrize(("parameters", "says"), bad_numbers.BAYES_PARAMS)
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


@pytest.mark.parametrize(("kind", "parameters", "says"), bad_numbers.SIZES)
def test_size_that_cannot_be_is_named(tmp_path, kind, parameters, says):
    message = message_of(make_net, tmp_path, one_layer(kind, parameters))
    assert message.startswith("layer 'x': ")
    assert says in message


def test_windows_that_upstream_allows_stay(tmp_path):
    net = make_net(tmp_path, one_layer("Pooling", "pooling_param { kernel_size: 7 stride: 2 }"))
    assert net.blobs["x"].data.shape == (2, 4, 1, 1)
    floor = "pooling_param { pool: AVE kernel_size: 1 stride: 2 round_mode: FLOOR }"
    assert make_net(tmp_path, one_layer("Pooling", floor)).blobs["x"].data.shape == (2, 4, 3, 3)
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


@pytest.mark.parametrize(("field", "value", "says"), bad_numbers.SOLVERS)
def test_solver_is_refused(tmp_path, digits, field, value, says):
    solver = write_solver(tmp_path, small_net(digits, None), 2, **{field: value})
    message = message_of(pycaffe.get_solver, str(solver))
    assert message == f"solver: {field} is {value}, {says}"


def test_negative_max_iter_is_refused(tmp_path, digits):
    solver = write_solver(tmp_path, small_net(digits, None), -1)
    says = "solver: max_iter is -1, but must be 0 to 2147483647"
    assert message_of(pycaffe.get_solver, str(solver)) == says


@pytest.mark.parametrize(("options", "says"), bad_numbers.STEPS)
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
