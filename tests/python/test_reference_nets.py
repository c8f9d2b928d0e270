"""The nets of benchmarks/reference_nets.py and their benchmark."""

import json
import subprocess
import sys

import pytest
from conftest import REPO

pytest.importorskip("caffe", reason="pycaffe is not built")
# With biases, and a scale and a bias for each map after batch normalisation.
PARAMETERS = {
    "alexnet": 60_965_224,
    "googlenet": 6_998_552,
    "vgg16": 138_357_544,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "mobilenet": 4_231_976,
}


@pytest.fixture(scope="module", autouse=True)
def benchmarks():
    sys.path.insert(0, str(REPO / "benchmarks"))
    yield
    sys.path.remove(str(REPO / "benchmarks"))


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_reference_net_has_its_published_size(name):
    from bench import caffe_net
    from nets import Conv, Dense, GlobalPool, Lrn, Pool, Together, prototxt
    from reference_nets import REFERENCE_NETS

    architecture = REFERENCE_NETS[name]
    # Without fillers, to be fast.
    text = prototxt(architecture, 1, bayes=False, train=False)
    net = caffe_net(
        text.replace('"msra"', '"constant"').replace('"gaussian" std: 0.01', '"constant"')
    )
    counts = {
        layer: sum(blob.count for blob in blobs)
        for layer, blobs in net.params.items()
        if not layer.startswith("norm_")
    }
    assert sum(counts.values()) == PARAMETERS[name]
    # The shapes that operations and bytes are counted from are Caffe's.
    layers = [layer for layer in net.blobs if layer.startswith("layer") and "split" not in layer]
    new = [
        result
        for layer, _, result in architecture.shapes()
        if isinstance(layer, Conv | Dense | GlobalPool | Lrn | Pool | Together)
    ]
    assert len(new) == len(layers)
    for layer, shape in zip(layers, new, strict=True):
        assert net.blobs[layer].shape[1] == shape.maps
        assert net.blobs[layer].count == shape.count
    weights = sum(blobs[0].count for layer, blobs in net.params.items() if layer in net.blobs)
    assert architecture.weights() == weights


def test_operations_and_bytes_are_counted_by_hand():
    from nets import Conv, Dense, Net, Pool, Together

    # 2 maps of 4 x 4; a 1 x 1 and a grouped 3 x 3 convolution side by side; a pool; 3 neurons.
    ways = Together(((Conv(2, 1),), (Conv(4, 3, 1, groups=2),)))
    net = Net(2, 4, 1, 1, 1, (ways, Pool(), Dense(3)))
    weights = 2 * 2 + 4 * 9 + 3 * 6 * 4
    assert net.weights() == weights
    assert net.flops() == 2 * (16 * (2 * 2 + 4 * 9) + 3 * 6 * 4)
    moved = (32 + 32) + (32 + 64) + (96 + 96) + (96 + 24) + (24 + 3)
    assert net.bytes(5) == 4 * (5 * moved + weights)


@pytest.mark.parametrize("kind, bayesian", [("all", 3), ("last", 1), ("none", 0)])
def test_the_script_writes_nets_that_check_accepts(tmp_path, kind, bayesian):
    from bayescaffe.net.checking import check

    script = REPO / "benchmarks/reference_nets.py"
    command = [sys.executable, script, "--nets", "mobilenet", "--batch", "2"]
    subprocess.run([*command, "--bayes", kind, "--out", tmp_path], check=True, cwd=REPO)
    found = check(tmp_path / "mobilenet_solver.prototxt")
    assert found.is_good, found.findings
    types = [layer.type for layer in found.layers if layer.type.startswith("Bayes")]
    assert (len(types) == 28) if kind == "all" else (len(types) == bayesian)
    if kind != "none":
        assert types[-1] == "BayesInnerProduct"


# All kinds of layers, small.
EVERYTHING = """
import json, sys
sys.path.insert(0, "benchmarks")
import bench_nets
from nets import *
ways = Together(((Conv(4, 1), Relu()), (Conv(6, 3, 1, groups=2), Norm()), (Pool(3, 1, 1),)))
sums = Together(((), (Conv(16, 3, 1, bias=False), Norm(), Relu())), is_sum=True)
layers = (
    Conv(6, 5, 2, 2), Relu(), Lrn(), Pool(3), ways, sums, Relu(),
    Conv(16, 3, 1, 2, groups=16), Pool(3, 2, 1, mean=True), Dense(12), Relu(), Dropout(), Dense(9),
)
net = Net(3, 33, 2, 2, 2, layers, filler="msra")
bench_nets.labels_of = lambda count: __import__("numpy").arange(count) % 9
path = sys.argv[1]
bench_nets.reference(net, path)
found = [bench_nets.check_torch(net, who, path) for who in bench_nets.TORCH[:2]]
for who in (bench_nets.STOCK, bench_nets.BAYES, bench_nets.LAST):
    found.append(bench_nets.check_caffe(net, who, path))
print(json.dumps(found))
# Other weights must not pass.
blobs = bench_nets.read_reference(path)
bench_nets.read_reference = lambda path: ([1.01 * blob for blob in blobs[0]], *blobs[1:])
try:
    bench_nets.check_torch(net, bench_nets.TORCH[0], path)
except SystemExit as error:
    print(error)
"""


def test_all_kinds_of_layers_are_the_same_net_in_pytorch(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    command = [sys.executable, "-c", EVERYTHING, tmp_path / "reference.npz"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPO)
    assert done.returncode == 0, done.stderr
    found, refused = done.stdout.splitlines()
    for differences in json.loads(found):
        assert differences and all(0 <= value < 1e-5 for value in differences.values())
    assert refused.startswith("its scores differ from upstream Caffe's by 0.")


def made_up(forward=0.5, others=0.01):
    """A record of a net that takes as many seconds as its name says."""
    from bench_nets import ALL, BAYES, BY_HAND, FORWARD, LAST, ONE, STEP, STOCK, TORCH, UPSTREAM

    return {
        "commit": "abc1234",
        "machine": "2 cores of CPU X",
        "torch": "1.0",
        "peak": 100e9,
        "bandwidth": 10e9,
        "others": others,
        "times": {
            FORWARD: {STOCK: [forward, forward], UPSTREAM: [3.0], TORCH[0]: [2.0], TORCH[1]: [1.0]},
            STEP: {STOCK: [1.0], BAYES: [1.05], TORCH[0]: [2.0, 4.0], TORCH[1]: "no memory"},
            ALL: {BAYES: [8.0], BY_HAND[1]: [30.0]},
            ONE: {LAST: [1.0], BY_HAND[1]: [4.0]},
        },
    }


def test_the_tables_have_ratios_to_the_best_form_of_pytorch():
    from bench_nets import report
    from reference_nets import REFERENCE_NETS

    text = report({"vgg16 16": made_up(), "alexnet 16": made_up(0.8)})
    share = 16 * REFERENCE_NETS["vgg16"].flops() / 0.5 / 100e9
    moved = REFERENCE_NETS["vgg16"].bytes(16) / 0.5 / 10e9
    assert f"| vgg16 | 0.50 | 0.33 | 1.05 | **0.80** | 0.25 | {share:.2f} | {moved:.2f} |" in text
    assert "| alexnet | **0.80** |" in text
    assert "| vgg16 | 1000 | 1050 | 3000 ± 1000 | no memory |" in text
    assert "at commit `abc1234` on 2 cores of CPU X, torch 1.0: alexnet 100 GFLOP/s" in text
    assert "other processes" not in text
    text = report({"vgg16 16": made_up(others=0.3)})
    assert "10.0 GB/s (other processes had up to 30% of the cores)" in text


def test_what_was_measured_at_this_commit_is_not_measured_again():
    from bench_nets import missing

    wanted = [("vgg16", 1), ("vgg16", 16), ("alexnet", 1)]
    results = {"vgg16 16": {"commit": "abc1234"}, "alexnet 1": {"commit": "0000000"}}
    assert missing(wanted, results, "abc1234") == [("vgg16", 1), ("alexnet", 1)]
