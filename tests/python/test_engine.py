"""The CPU engine: all instruction sets and upstream's code agree, and a forked process computes."""

from pathlib import Path

import numpy as np
import pytest
from conftest import agree, engine_is_chosen, python

pytest.importorskip("caffe", reason="pycaffe is not built")
pytestmark = pytest.mark.engine


def bayes_layer(kind, name, bottom, options):
    field = "convolution_param" if kind == "Convolution" else "inner_product_param"
    return f"""
        layer {{
          name: "{name}" type: "Bayes{kind}" bottom: "{bottom}" top: "{name}"
          {field} {{ {options} weight_filler {{ type: "xavier" }} }}
          bayes_param {{ kl_weight: 1 dataset_size: 100 prior_std: 1 }}
        }}"""


def pooling(name, bottom, options="pool: MAX kernel_size: 2 stride: 2"):
    return f"""
        layer {{
          name: "{name}" type: "Pooling" bottom: "{bottom}" top: "{name}"
          pooling_param {{ {options} }}
        }}"""


def plain_layer(kind, name, bottoms, top, options=""):
    names = " ".join(f'bottom: "{bottom}"' for bottom in bottoms.split())
    return f'layer {{ name: "{name}" type: "{kind}" {names} top: "{top}" {options} }}'


WITHIN = "lrn_param { norm_region: WITHIN_CHANNEL local_size: 3 beta: 0.6 }"
INPUTS = """
    force_backward: true
    layer { name: "data" type: "Input" top: "data"
            input_param { shape { dim: 5 dim: 1 dim: 28 dim: 28 } } }
    layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 5 } } }
    """

# LeNet, and beside its second pooling a branch with other layers.
LENET = (
    INPUTS
    + bayes_layer("Convolution", "conv1", "data", "num_output: 20 kernel_size: 5")
    + pooling("pool1", "conv1")
    + bayes_layer("Convolution", "conv2", "pool1", "num_output: 50 kernel_size: 5")
    + pooling("pool2", "conv2")
    + plain_layer("LRN", "across", "conv2", "across", "lrn_param { alpha: 0.1 }")
    + plain_layer("LRN", "within", "across", "within", WITHIN)
    + pooling("padded", "within", "pool: MAX kernel_size: 3 stride: 1 pad: 1")
    + pooling("average", "padded", "pool: AVE kernel_size: 3 stride: 2 pad: 1")
    + pooling("whole", "average", "pool: AVE global_pooling: true")
    + """
    layer { name: "flat" type: "Flatten" bottom: "pool2" top: "flat" }
    layer { name: "whole_flat" type: "Flatten" bottom: "whole" top: "whole_flat" }
    layer { name: "both" type: "Concat" bottom: "flat" bottom: "whole_flat" top: "both" }
    """
    + bayes_layer("InnerProduct", "fc1", "both", "num_output: 70")
    + 'layer { name: "relu" type: "ReLU" bottom: "fc1" top: "fc1" }'
    + bayes_layer("InnerProduct", "fc2", "fc1", "num_output: 10")
    + """
    layer { name: "prob" type: "Softmax" bottom: "fc2" top: "prob" }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc2" bottom: "label" top: "loss" }
    """
)

# A residual block and activations, with the same names. Biases right before a BatchNorm would have
# the gradient 0.
RESIDUAL = (
    INPUTS
    + bayes_layer("Convolution", "conv1", "data", "num_output: 8 kernel_size: 5 stride: 2")
    + plain_layer("ELU", "elu", "conv1", "conv1")
    + plain_layer("BatchNorm", "norm1", "conv1", "conv1")
    + """
    layer {
      name: "scale1" type: "BayesScale" bottom: "conv1" top: "conv1"
      scale_param { bias_term: true }
      bayes_param { kl_weight: 1 dataset_size: 100 prior_std: 1 draws_per_batch: 5 }
    }
    """
    + bayes_layer("Convolution", "conv2", "conv1", "num_output: 8 kernel_size: 3 pad: 1 group: 8")
    + plain_layer("Swish", "swish", "conv2", "conv2")
    + plain_layer("BatchNorm", "norm2", "conv2", "norm2")
    + plain_layer("Scale", "scale2", "norm2", "norm2", "scale_param { bias_term: true }")
    + plain_layer("Eltwise", "sum", "conv1 norm2", "sum", "eltwise_param { coeff: 1 coeff: 0.5 }")
    + plain_layer("PReLU", "prelu", "sum", "sum")
    + plain_layer("Bias", "bias", "sum", "sum")
    + bayes_layer("InnerProduct", "fc1", "sum", "num_output: 70")
    + plain_layer("TanH", "tanh", "fc1", "fc1")
    + plain_layer("Sigmoid", "sigmoid", "fc1", "gate")
    + plain_layer("Eltwise", "gated", "fc1 gate", "gated", "eltwise_param { operation: PROD }")
    + bayes_layer("InnerProduct", "fc2", "gated", "num_output: 10")
    + """
    layer { name: "prob" type: "Softmax" bottom: "fc2" top: "prob" }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc2" bottom: "label" top: "loss" }
    """
)

LAYERS = ("conv1", "conv2", "fc1", "fc2")

# Takes random images through the net in the file NET.
FORWARD = """
import caffe, numpy as np
caffe.set_random_seed(3)
net = caffe.Net(NET, caffe.TRAIN)
random = np.random.default_rng(0)
net.blobs["data"].data[...] = random.random(net.blobs["data"].data.shape)
net.blobs["label"].data[...] = random.integers(0, 10, 5)
net.forward()
"""

# Saves all that this computes, and the gradients, as OUT.
SAVE = """
net.backward()
results = {}
for name, blob in net.blobs.items():
    results["value of " + name] = blob.data
    results["gradient of " + name] = blob.diff
for name, params in net.params.items():
    for i, blob in enumerate(params):
        results[f"value of {name} {i}"] = blob.data
        results[f"gradient of {name} {i}"] = blob.diff
np.savez(OUT, **results)
"""


@pytest.fixture(scope="module", params=[LENET, RESIDUAL], ids=["lenet", "residual"])
def computed(request, tmp_path_factory):
    """What each instruction set computes, and upstream's code."""
    folder = tmp_path_factory.mktemp("engine")
    (folder / "net.prototxt").write_text(request.param)
    results = {}
    for name, environment in {
        "best": {"BAYESCAFFE_ISA": "", "BAYESCAFFE_ENGINE": ""},
        "avx2": {"BAYESCAFFE_ISA": "avx2", "BAYESCAFFE_ENGINE": ""},
        "plain": {"BAYESCAFFE_ISA": "plain", "BAYESCAFFE_ENGINE": ""},
        "caffe": {"BAYESCAFFE_ENGINE": "caffe"},
    }.items():
        out = folder / f"{name}.npz"
        places = f"NET, OUT = {str(folder / 'net.prototxt')!r}, {str(out)!r}\n"
        python(places + FORWARD + SAVE, **environment)
        results[name] = dict(np.load(out))
    return results


@pytest.mark.parametrize("engine", ["best", "avx2", "plain"])
def test_each_engine_computes_what_upstream_does(computed, engine):
    expected, found = computed["caffe"], computed[engine]
    assert expected.keys() == found.keys()
    assert [key for key in expected if not agree(found[key], expected[key])] == []
    for layer in LAYERS:
        for blob in range(4):
            assert np.any(found[f"gradient of {layer} {blob}"])


def test_the_draw_is_the_same_bits_in_each(computed):
    for results in computed.values():
        for layer in LAYERS:
            for blob in (4, 5):
                key = f"value of {layer} {blob}"
                assert results[key].std() > 0.5
                assert np.array_equal(results[key], computed["best"][key])


def test_switches_switch(computed):
    """Other sums are other roundings: engines that agree to the bit are one engine."""
    key = "gradient of conv1 0"
    assert not np.array_equal(computed["caffe"][key], computed["plain"][key])
    if "avx2" in Path("/proc/cpuinfo").read_text():
        assert not np.array_equal(computed["avx2"][key], computed["plain"][key])


def test_monte_carlo_inference_is_forward(tmp_path):
    """There each thread of the team runs whole layers by itself."""
    (tmp_path / "net.prototxt").write_text(LENET)
    sample = """
inputs = {name: net.blobs[name].data.copy() for name in net.inputs}
sampled = net.sample(3, inputs, output="prob")
for draw in range(3):
    net.set_draw(draw)
    net.forward()
    print(np.abs(sampled[draw] - net.blobs["prob"].data).max() / net.blobs["prob"].data.max())
"""
    output = python(f"NET = {str(tmp_path / 'net.prototxt')!r}\n" + FORWARD + sample)
    # BLAS, in the place of the engine, sums in another order for another batch.
    assert max(map(float, output.split())) <= (0 if engine_is_chosen() else 1e-5)


def test_a_forked_process_computes(tmp_path):
    """It has none of its parent's threads, and must not wait for them."""
    (tmp_path / "net.prototxt").write_text(LENET)
    fork = """
import os, signal
expected = net.blobs["prob"].data.copy()
child = os.fork()
if child == 0:
    signal.alarm(120)  # ends a child that hangs
    for _ in range(3):
        net.set_draw(0)
        net.forward()
    net.backward()
    sampled = net.sample(2, {name: net.blobs[name].data for name in net.inputs}, output="prob")
    same = np.array_equal(expected, net.blobs["prob"].data) and sampled.shape == (2, 5, 10)
    os._exit(0 if same else 1)
print(os.waitpid(child, 0)[1])
"""
    path = str(tmp_path / "net.prototxt")
    for threads in ("1", "3"):
        # Python 3.12 warns of every fork beside threads.
        output = python(
            f"NET = {path!r}\n" + FORWARD + fork,
            OMP_NUM_THREADS=threads,
            PYTHONWARNINGS="ignore::DeprecationWarning",
        )
        assert output.strip() == "0"
