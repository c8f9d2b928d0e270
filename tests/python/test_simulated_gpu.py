"""Training on the GPU, which is simulated: see tests/simulated_cuda/simulated_cuda.hpp."""

import re

import numpy as np
import pytest
from conftest import CAFFE, REPO, caffe, small_net, write_solver

SIMULATED = REPO / "build/caffe_simulated_tool"

pytestmark = pytest.mark.skipif(
    not SIMULATED.exists(), reason="build/caffe_simulated_tool is not built: make test-cpp does it"
)


def train(solver, *options, tool=SIMULATED, **environment):
    """The losses that the log tells of."""
    done = caffe("train", "-solver", solver, *options, tool=tool, **environment)
    assert done.returncode == 0, done.stdout
    return [float(loss) for loss in re.findall(r"Iteration .*, loss = (\S+)", done.stdout)]


def weights(path):
    from caffe.proto import caffe_pb2

    net = caffe_pb2.NetParameter()
    net.ParseFromString(path.read_bytes())
    return np.concatenate([blob.data for layer in net.layer for blob in layer.blobs])


@pytest.mark.engine
def test_training_is_that_of_the_cpu(tmp_path, digits):
    solver = write_solver(tmp_path, small_net(digits, bayes=None), max_iter=40)
    on_cpu = train(solver, tool=CAFFE)
    on_gpu = train(solver, "-gpu", "0")
    assert on_cpu[-1] < on_cpu[0] / 2
    assert on_gpu == pytest.approx(on_cpu, rel=1e-3)
    assert train(solver, "-gpu", "1", SIMULATED_CUDA_ORDER="backwards") == on_gpu


def test_two_devices_are_one_with_twice_the_batch(tmp_path, digits):
    half = write_solver(tmp_path, small_net(digits, bayes=None, batch=10), max_iter=20, name="half")
    whole = write_solver(tmp_path, small_net(digits, bayes=None), max_iter=20, name="whole")
    train(half, "-gpu", "0,1")
    train(whole, "-gpu", "0")
    expected = weights(tmp_path / "whole_iter_20.caffemodel")
    assert np.ptp(expected) > 0.5
    assert weights(tmp_path / "half_iter_20.caffemodel") == pytest.approx(expected, abs=1e-4)


def test_counters_are_printed_when_asked_for(tmp_path, digits):
    solver = write_solver(tmp_path, small_net(digits, bayes=None), max_iter=5)
    done = caffe(
        "train", "-solver", solver, "-gpu", "0", tool=SIMULATED, SIMULATED_CUDA_COUNTERS="1"
    )
    # Of five iterations, and six blobs.
    assert re.search(r"^kernel ReLUForward +5$", done.stdout, re.M), done.stdout
    assert re.search(r"^kernel SGDUpdate +30$", done.stdout, re.M)
    assert re.search(r"^copies, host to device +\d+  \d+ bytes$", done.stdout, re.M)
