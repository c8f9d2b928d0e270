"""The log: progress from the caffe tool, all that Caffe can tell on demand."""

import pytest
from conftest import caffe, small_net, write_solver

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
    deprecated = write_solver(tmp_path, small_net(digits, None), 1, solver_type="SGD")
    done = caffe("train", "-solver", deprecated)
    assert done.returncode == 0, done.stdout
    assert "Note that future Caffe releases will only support 'type' field" in done.stdout
    assert "Attempting to upgrade" not in done.stdout
    done = caffe("train", "-solver", tmp_path / "nowhere.prototxt")
    assert done.returncode != 0
    assert "nowhere.prototxt" in done.stdout
    (tmp_path / "run.net.prototxt").write_text('layer { name: "x" type: "NoSuchLayer" }')
    done = caffe("train", "-solver", deprecated)
    assert done.returncode != 0
    assert "Unknown layer type: NoSuchLayer" in done.stdout
