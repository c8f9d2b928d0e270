"""The log: progress from the caffe tool, nothing in Python, all that Caffe can tell on demand."""

import os
import sys

import pytest
from conftest import caffe, input_net, python, save_weights, small_net, write_solver

SETUP = (
    "Initializing solver from parameters",
    "Creating training net",
    "Creating layer conv",
    "Setting up conv",
    "Opened lmdb",
    "conv needs backward computation",
    "Memory required for data",
)
PROGRESS = ("Iteration 0 (", "Iteration 10, lr = ", "Snapshotting to", "Optimization Done.")


def found(messages, output):
    return [message for message in messages if message in output]


@pytest.fixture
def solver(tmp_path, digits):
    return write_solver(tmp_path, small_net(digits, None), 20)


def test_training_shows_progress_and_no_setup(solver):
    done = caffe("train", "-solver", solver)
    assert done.returncode == 0, done.stdout
    assert found(PROGRESS, done.stdout) == list(PROGRESS)
    assert found(SETUP, done.stdout) == []


@pytest.mark.parametrize("flag", [["-v"], ["--v"], ["-v=1"], ["-v", "1"], ["-minloglevel=0"]])
def test_setup_is_shown_on_demand(solver, flag):
    everything = list(SETUP + PROGRESS)
    for arguments in (
        ["train", *flag, "-solver", solver],
        ["train", "-solver", solver, *flag],
        [*flag, "train", "-solver", solver],
    ):
        done = caffe(*arguments)
        assert done.returncode == 0, done.stdout
        assert found(everything, done.stdout) == everything


def test_chosen_level_is_kept(solver):
    for flag in ("-minloglevel=1", "-minloglevel=2"):
        assert caffe("train", flag, "-solver", solver).stdout == ""
    everything = list(SETUP + PROGRESS)
    for level, shown in (("0", everything), ("1", [])):
        done = caffe("train", "-solver", solver, GLOG_minloglevel=level)
        assert found(everything, done.stdout) == shown


def test_scores_and_times_are_shown_without_setup(tmp_path, solver):
    assert caffe("train", "-solver", solver).returncode == 0
    net = ["-model", tmp_path / "run.net.prototxt", "-iterations", "2"]
    scored = caffe("test", *net, "-weights", tmp_path / "run_iter_20.caffemodel")
    timed = caffe("time", *net)
    assert "Batch 1, accuracy = " in scored.stdout and "Loss: " in scored.stdout
    assert "Average Forward-Backward: " in timed.stdout
    assert found(SETUP, scored.stdout + timed.stdout) == []
    assert "Setting up conv" in caffe("time", "-v", *net).stdout


def test_warnings_and_errors_of_the_setup_are_shown(tmp_path, digits):
    solver = write_solver(tmp_path, small_net(digits, None), 1, solver_type="SGD")
    assert caffe("train", "-solver", solver).returncode == 0
    other = write_solver(tmp_path, small_net(digits, None).replace('"hidden"', '"other"'), 1)
    done = caffe("train", "-solver", other, "-weights", tmp_path / "run_iter_1.caffemodel")
    assert done.returncode == 0, done.stdout
    assert "Ignoring the weights of layer hidden" in done.stdout
    assert "Attempting to upgrade" not in done.stdout
    done = caffe("train", "-solver", tmp_path / "nowhere.prototxt")
    assert done.returncode != 0
    assert "nowhere.prototxt" in done.stdout
    (tmp_path / "run.net.prototxt").write_text('layer { name: "x" type: "NoSuchLayer" }')
    done = caffe("train", "-solver", solver)
    assert done.returncode != 0
    assert "Unknown layer type: NoSuchLayer" in done.stdout


def test_python_layer_leaves_the_log_of_the_tool_alone(tmp_path, digits):
    pytest.importorskip("caffe", reason="pycaffe is not built")
    (tmp_path / "same.py").write_text(
        "import caffe\n"
        "class Same(caffe.Layer):\n"
        "    def setup(self, bottom, top): pass\n"
        "    def reshape(self, bottom, top): top[0].reshape(1)\n"
        "    def forward(self, bottom, top): pass\n"
    )
    layer = (
        'layer { name: "same" type: "Python" bottom: "label" top: "same"'
        ' python_param { module: "same" layer: "Same" } }'
    )
    solver = write_solver(tmp_path, small_net(digits, None) + layer, 20)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    quiet = caffe("train", "-solver", solver, PYTHONPATH=path)
    assert quiet.returncode == 0, quiet.stdout
    assert found(PROGRESS + SETUP, quiet.stdout) == list(PROGRESS)
    verbose = caffe("train", "-v", "-solver", solver, PYTHONPATH=path)
    assert found(PROGRESS + SETUP, verbose.stdout) == list(PROGRESS + SETUP)


def test_python_logs_on_demand_only(solver):
    pytest.importorskip("caffe", reason="pycaffe is not built")
    run = f"caffe.get_solver({str(solver)!r}).solve()"
    assert python(f"import caffe; {run}") == ""
    everything = list(SETUP + PROGRESS[:-1])
    for output in (
        python(f"import caffe; {run}", GLOG_minloglevel="0"),
        python(f"import os; os.environ['GLOG_minloglevel'] = '0'; import caffe; {run}"),
        python(f"import caffe; caffe.init_log(0, True); {run}"),
    ):
        assert found(everything, output) == everything


def test_python_shows_warnings(tmp_path, digits):
    pytest.importorskip("caffe", reason="pycaffe is not built")
    net = input_net(small_net(digits, None), batch=1)
    _, weights = save_weights(tmp_path, net)
    path = tmp_path / "other.prototxt"
    path.write_text(net.replace('"hidden"', '"other"'))
    output = python(f"import caffe; caffe.Net({str(path)!r}, {str(weights)!r}, caffe.TEST)")
    assert "Ignoring the weights of layer hidden" in output
    assert found(SETUP, output) == []
