"""`bayescaffe check` counts the memory that `caffe train` takes."""

import contextlib
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import REPO

pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe import check  # noqa: E402

CAFFE = REPO / "build/caffe/tools/caffe"
SOLVER = """net: "{net}" base_lr: 0.001 lr_policy: "fixed" momentum: 0.9 max_iter: 3 type: "{type}"
snapshot_after_train: false snapshot_prefix: "{net}" solver_mode: CPU
"""


def write(folder, net, solver="SGD"):
    (folder / "net.prototxt").write_text(net)
    path = folder / "solver.prototxt"
    path.write_text(SOLVER.format(net=folder / "net.prototxt", type=solver))
    return path


def peak(solver):
    """Bytes of memory that three iterations take at most."""
    command = [CAFFE, "train", "-solver", solver]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    most = 0
    while process.poll() is None:
        # Not the resources of a child that has ended: those count this process before exec.
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            if "Name:\tcaffe\n" in status and (found := re.search(r"VmHWM:\s+(\d+) kB", status)):
                most = max(most, int(found[1]) * 1024)
        time.sleep(0.002)
    assert process.returncode == 0 and most > 0
    return most


def layer(kind, name, bottom, options, bayes=""):
    return (
        f'layer {{ name: "{name}" type: "{bayes}{kind}" bottom: "{bottom}" top: "{name}" {options} '
        + ("bayes_param { kl_weight: 0 }" if bayes else "")
        + "}\n"
    )


def net(batch, size, bayes="", width=2048):
    """Two convolutions, of which both batch normalisation and a sum read the first, and three wide
    inner products."""
    filler = 'weight_filler { type: "xavier" }'
    dense = f"inner_product_param {{ num_output: {width} {filler} }}"
    conv = f"convolution_param {{ num_output: 32 kernel_size: 3 pad: 1 {filler} }}"
    shape = f"dim: {batch} dim: 3 dim: {size} dim: {size}"
    return (
        f'layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ {shape} }} }} }}'
        f'layer {{ name: "label" type: "Input" top: "label" input_param {{ shape {{ dim: {batch} }}'
        " } }\n"
        + layer("Convolution", "conv1", "data", conv, bayes)
        + layer("Convolution", "conv2", "conv1", conv, bayes)
        + 'layer { name: "norm" type: "BatchNorm" bottom: "conv2" top: "conv2" }\n'
        + 'layer { name: "sum" type: "Eltwise" bottom: "conv1" bottom: "conv2" top: "sum" }\n'
        + layer("LRN", "lrn", "sum", "")
        + layer("Pooling", "pool", "lrn", "pooling_param { kernel_size: 4 stride: 4 }")
        + layer("InnerProduct", "fc1", "pool", dense, bayes)
        + 'layer { name: "drop" type: "Dropout" bottom: "fc1" top: "fc1" }\n'
        + layer("InnerProduct", "fc2", "fc1", dense, bayes)
        + 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc2" bottom: "label" top: "loss" }'
    )


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """What the program takes by itself: libraries, threads and a net of a few kilobytes."""
    folder = tmp_path_factory.mktemp("small")
    return peak(write(folder, net(1, 8, width=2)))


# Weights are most of the first net, and what the layers give is most of the second.
@pytest.mark.parametrize("bayes", ["", "Bayes"])
@pytest.mark.parametrize(
    ("batch", "size", "solver"), [(2, 48, "SGD"), (2, 48, "Adam"), (48, 64, "SGD")]
)
def test_training_takes_the_memory_that_is_counted(tmp_path, program, batch, size, solver, bayes):
    path = write(tmp_path, net(batch, size, bayes), solver)
    found = check(path)
    assert found.is_good, found.findings
    measured = peak(path) - program
    assert measured == pytest.approx(found.memory.total, rel=0.06)
    assert (found.stock_memory is None) == (not bayes)
    if bayes:
        stock = check(write(tmp_path, net(batch, size), solver)).memory
        assert found.stock_memory == stock


def test_lenet_takes_the_memory_that_is_counted(tmp_path, program):
    sys.path.insert(0, str(REPO / "benchmarks"))
    from nets import NETS, prototxt

    sys.path.remove(str(REPO / "benchmarks"))
    for bayes in (False, True):
        path = write(tmp_path, prototxt(NETS["lenet"], 256, bayes, train=True))
        counted = check(path).memory.total
        assert peak(path) - program == pytest.approx(counted, rel=0.1)
