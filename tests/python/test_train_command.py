"""`bayescaffe train`: the log as numbers, the view, resuming, and what may go wrong."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from bayescaffe import cli
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.training import train as training
from bayescaffe.training.log import parse_log, read_curve
from bayescaffe.training.seeds import train_seeds
from bayescaffe.training.train import train
from bayescaffe.training.view import Share, TrainingView
from conftest import caffe, make_net, small_net, write_solver

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")

from bayescaffe.net.posterior import inspect  # noqa: E402
from bayescaffe.training.snapshots import newest_snapshot, read_snapshot  # noqa: E402

BAYES = "kl_weight: 0.01 dataset_size: 330"
TEST = {"test_iter": 5, "test_interval": 20}


@pytest.fixture
def solver(tmp_path, digits):
    return solver_with_tests(tmp_path, digits, 40, snapshot=20)


def solver_with_tests(folder, digits, iterations, name="run", bayes=BAYES, **options):
    test_net = f'"{folder / name}.net.prototxt"'
    options = {"test_net": test_net, **TEST, **options}
    return write_solver(folder, small_net(digits, bayes), iterations, name, **options)


def fake_caffe(monkeypatch, folder, script):
    """Let a shell script stand for the program `caffe`."""
    path = folder / "caffe"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(training, "caffe_tool", lambda: path)


def say(*messages):
    """Shell commands that log these messages."""
    return "\n".join(
        f"echo 'I20261116 07:59:{i:02}.000000 18020 solver.cpp:241] {message}' >&2"
        for i, message in enumerate(messages)
    )


def start(solver, *options):
    """A `bayescaffe train` of its own, which the terminal's Ctrl-C reaches."""
    return subprocess.Popen(
        [sys.executable, "-m", "bayescaffe", "train", str(solver), *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def has_rows(curve, rows=2):
    return lambda: curve.exists() and len(curve.read_text().splitlines()) > rows


# ---- A training from start to end


@pytest.mark.engine
def test_it_is_caffe_train_with_its_figures(tmp_path, digits, solver):
    result = train(solver, progress=False)
    assert result.snapshot == tmp_path / "run_iter_40.caffemodel"
    weights = result.snapshot.read_bytes()
    plain = caffe("train", "-solver", solver)
    assert plain.returncode == 0, plain.stdout
    # The checksum comes first, and what it carries of its net is behind the weights.
    assert weights[21:].startswith(result.snapshot.read_bytes()[21:])

    assert result.iterations == 40
    assert f"accuracy = {1 - result.test_error:g}" in plain.stdout
    assert f"Iteration 40, loss = {result.loss:g}" in plain.stdout
    for layer in inspect(tmp_path / "run.net.prototxt", result.snapshot):
        assert result.tau[layer.name] == pytest.approx(layer.tau, rel=1e-5)
        assert result.tau_bias[layer.name] == pytest.approx(layer.tau_bias, rel=1e-5)


def test_curve_has_a_row_for_each_iteration_that_the_log_tells_of(tmp_path, solver):
    result = train(solver, progress=False)
    assert (result.log, result.curve) == (tmp_path / "train.log", tmp_path / "curve.csv")
    curve = read_curve(result.curve)
    assert curve["iteration"].tolist() == [0, 10, 20, 30, 40]
    assert np.isnan(curve["test_error"]).tolist() == [False, True, False, True, False]
    assert (np.diff(curve["seconds"]) >= 0).all()
    assert curve["lr"][:4].tolist() == [0.01] * 4
    for name, column in parse_log(result.log).items():
        assert np.array_equal(column, curve[name], equal_nan=True), name
    assert curve["loss"][-1] == result.loss < curve["loss"][0]
    assert curve["tau:hidden"][0] == pytest.approx(0.4)
    assert curve["tau_b:hidden"][0] == pytest.approx(0.1)


def test_kl_in_the_log_is_that_of_the_layers(tmp_path, digits):
    # The KL tops of the layers give the same number, scaled.
    net = small_net(digits, BAYES)
    for layer in ("conv", "hidden", "out"):
        net = net.replace(
            f'top: "{layer}" bayes_param', f'top: "{layer}" top: "kl_{layer}" bayes_param'
        )
    result = train(write_solver(tmp_path, net, 1, display=1), progress=False)
    curve = read_curve(result.curve)
    scale = 0.01 / 330
    assert curve["kl_term"][0] == pytest.approx(curve["kl"][0] * scale, rel=1e-4)
    tops = [
        float(line.split(" = ")[1])
        for line in result.log.read_text().splitlines()
        if ": kl_" in line
    ]
    assert len(tops) == 3
    assert curve["kl_term"][0] == pytest.approx(sum(tops), rel=1e-4)


def test_shared_parameters_count_once_in_kl(tmp_path, digits):
    shared = 'param { name: "w" } param { name: "b" }'
    layer = """layer {{ name: "{name}" type: "BayesInnerProduct" bottom: "{bottom}" top: "{name}"
        {param} bayes_param {{ kl_weight: 0 }}
        inner_product_param {{ num_output: 16 weight_filler {{ type: "xavier" }} }} }}"""

    def kl(name, param):
        more = layer.format(name="again", bottom="hidden", param=param) + layer.format(
            name="once_more", bottom="again", param=param
        )
        # Nothing is in place on "hidden" here; "out" takes the last of the three.
        net = small_net(digits, BAYES, more).replace(
            'bottom: "hidden" top: "out"', 'bottom: "once_more" top: "out"'
        )
        result = train(write_solver(tmp_path, net, 1, name, display=1), progress=False)
        return read_curve(result.curve)["kl"][0]

    alone, twice = kl("shared", shared), kl("own", "")
    single = kl("none", shared.replace("w", "v"))
    assert alone == pytest.approx(single)
    assert twice > alone + 100


def test_stock_net_has_no_tau(tmp_path, digits):
    result = train(solver_with_tests(tmp_path, digits, 20, bayes=None), progress=False)
    assert (result.kl, result.tau, result.test_draws, result.mean_test_error) == (
        None,
        {},
        None,
        None,
    )
    assert result.test_error is not None
    assert "tau" not in result.curve.read_text()


def test_command_prints_a_summary(capsys, solver):
    assert cli.main(["train", str(solver), "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for part in (
        "40 iterations in",
        "training loss",
        "(one draw)",
        "hidden",
        "run_iter_40.caffemodel",
    ):
        assert part in out


def test_command_prints_json(capsys, caplog, solver):
    assert cli.main(["train", str(solver), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["snapshot"].endswith("run_iter_40.caffemodel")
    assert result["tau"].keys() == {"conv", "hidden", "out"}
    # On the terminal's side, a line where there is no terminal.
    assert "Iteration 0 of 40: loss 1." in caplog.text


def test_out_is_where_log_and_curve_go(tmp_path, solver):
    result = train(solver, out=tmp_path / "new" / "place", progress=False)
    assert result.curve == tmp_path / "new" / "place" / "curve.csv"
    assert result.log.is_file() and result.curve.is_file()
    assert not (tmp_path / "train.log").exists()


def test_folder_of_the_snapshots_is_made(tmp_path, digits):
    prefix = tmp_path / "deep" / "down" / "net"
    solver = solver_with_tests(tmp_path, digits, 1, snapshot_prefix=f'"{prefix}"')
    result = train(solver, progress=False)
    assert result.snapshot == tmp_path / "deep" / "down" / "net_iter_1.caffemodel"
    assert result.snapshot.is_file()


def test_weights_are_the_start(tmp_path, digits, solver):
    trained = train(solver, progress=False)
    other = solver_with_tests(tmp_path, digits, 10, name="other", random_seed=5)
    result = train(other, weights=trained.snapshot, progress=False)
    assert read_curve(result.curve)["test_error"][0] < 0.1


def test_view_on_a_terminal_refreshes_in_place(solver):
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    subprocess.run(["stty", "cols", "150", "rows", "40"], stdin=slave, check=True)
    command = [sys.executable, "-m", "bayescaffe", "train", str(solver)]
    with subprocess.Popen(command, stderr=slave, stdout=subprocess.DEVNULL) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                shown += os.read(master, 4096)
            except OSError:
                break
    os.close(master)
    assert process.returncode == 0
    text = shown.decode()
    assert "40/40 [" in text and "loss " in text and " + KL 0.2" in text and "test error " in text
    assert "tau: conv 0.4, hidden 0.4, out 0.4" in text
    assert "Iteration 40 of" not in text


# ---- The log as numbers


def test_log_of_an_older_caffe_with_two_test_nets(tmp_path):
    log = tmp_path / "caffe.log"
    log.write_text(
        """\
I0229 23:59:50.000000 1 caffe.cpp:1] Starting Optimization
I0229 23:59:51.000000 1 solver.cpp:1] Iteration 0, Testing net (#0)
I0229 23:59:52.000000 1 solver.cpp:1]     Test net output #0: loss3/top-1 = 0.25
I0229 23:59:52.000000 1 solver.cpp:1]     Test net output #1: accuracy_top5 = 0.75
I0229 23:59:52.000000 1 solver.cpp:1]     Test net output #2: loss1 = 4 (* 0.3 = 1.2 loss)
I0229 23:59:52.000000 1 solver.cpp:1]     Test net output #3: loss3 = 2 (* 1 = 2 loss)
I0229 23:59:52.000000 1 solver.cpp:1] Iteration 0, Testing net (#1)
I0229 23:59:52.000000 1 solver.cpp:1]     Test net output #0: accuracy = 0.5
I0229 23:59:53.000000 1 solver.cpp:1] Iteration 0, loss = 3.5
I0229 23:59:53.000000 1 sgd_solver.cpp:1] Iteration 0, lr = 0.01
I0229 23:59:55.500000 1 solver.cpp:1] Iteration 20 (8 iter/s, 2.5s/20 iters), loss = nan
"""
    )
    curve = parse_log(log)
    assert curve["iteration"].tolist() == [0, 20]
    assert curve["seconds"].tolist() == [2, 4.5]
    assert curve["test_error"][0] == 0.75
    assert curve["test_loss"][0] == pytest.approx(3.2)
    assert np.isnan(curve["loss"][1]) and np.isnan(curve["lr"][1])


def test_log_that_goes_back_keeps_the_later_run(tmp_path):
    log = tmp_path / "two.log"
    line = "I20261116 10:00:{:02}.000000 1 solver.cpp:1] Iteration {}, {} = {}\n"
    runs = [(0, 0, "loss", 5), (4, 10, "loss", 4), (9, 20, "loss", 3)]
    again = [(30, 10, "loss", 2), (32, 20, "loss", 1)]
    log.write_text(
        "".join(line.format(*each) for each in runs)
        + "I20261116 10:00:29.000000 1 caffe.cpp:1] Starting Optimization\n"
        + "".join(line.format(*each) for each in again)
    )
    curve = parse_log(log)
    assert curve["iteration"].tolist() == [0, 10, 20]
    assert curve["loss"].tolist() == [5, 2, 1]
    assert curve["seconds"].tolist() == [0, 0, 2]


def test_what_is_no_log_or_curve_is_refused(tmp_path):
    path = tmp_path / "x"
    path.write_text("hello\n")
    with pytest.raises(BayesCaffeError, match="x: found no iteration"):
        parse_log(path)
    with pytest.raises(BayesCaffeError, match="x: not a curve"):
        read_curve(path)
    path.write_text("iteration,loss\n0,much\n")
    with pytest.raises(BayesCaffeError, match="x: not a curve.*much"):
        read_curve(path)
    path.write_text("")
    with pytest.raises(BayesCaffeError, match="x: not a curve"):
        read_curve(path)


def test_curve_of_a_killed_training_is_read_to_its_last_whole_line(tmp_path):
    path = tmp_path / "curve.csv"
    path.write_text("iteration,loss,lr\n0,2.5,\n10,1.")
    curve = read_curve(path)
    assert curve["iteration"].tolist() == [0]
    assert np.isnan(curve["lr"][0])


def test_curve_is_written_while_it_runs(tmp_path, digits, monkeypatch, solver):
    seen = tmp_path / "seen.csv"
    lines = say("Iteration 0 (1 iter/s), loss = 2.5", "Iteration 0, lr = 0.1")
    fake_caffe(
        monkeypatch,
        tmp_path,
        f"{lines}\nuntil grep -q 2.5 {tmp_path}/curve.csv; do sleep 0.02; done\n"
        f"cp {tmp_path}/curve.csv {seen}",
    )
    train(solver, progress=False)
    assert read_curve(seen)["loss"].tolist() == [2.5]


# ---- Resuming


@pytest.mark.engine
def test_resumed_training_is_the_uninterrupted_one(tmp_path, digits, solver):
    result = train(solver, progress=False)
    weights, curve = result.snapshot.read_bytes(), read_curve(result.curve)
    for path in tmp_path.glob("run_iter_40.*"):
        path.unlink()
    resumed = train(solver, resume=True, progress=False)
    assert resumed.snapshot.read_bytes() == weights
    again = read_curve(resumed.curve)
    assert curve.keys() == again.keys()
    for name in curve.keys() - {"seconds"}:
        assert np.array_equal(curve[name], again[name], equal_nan=True), name
    assert (np.diff(again["seconds"]) >= 0).all()
    log = resumed.log.read_text()
    assert (
        f"# bayescaffe train: resumed from {tmp_path}/run_iter_20.solverstate at iteration 20"
        in log
    )
    assert log.count("Starting Optimization") == 2
    parsed = parse_log(resumed.log)
    assert np.array_equal(parsed["seconds"], again["seconds"])


def test_damaged_snapshots_are_skipped_with_a_word(tmp_path, caplog, solver):
    weights = train(solver, progress=False).snapshot.read_bytes()
    model = tmp_path / "run_iter_40.caffemodel"
    model.write_bytes(weights[:-100])
    resumed = train(solver, resume=True, progress=False)
    assert f"Snapshot skipped: {model}: cut off" in caplog.text
    assert resumed.snapshot.read_bytes() == weights


def test_what_makes_a_snapshot_bad(tmp_path, solver):
    train(solver, progress=False)
    state = tmp_path / "run_iter_40.solverstate"
    model = tmp_path / "run_iter_40.caffemodel"
    whole = {path: path.read_bytes() for path in (state, model)}
    assert read_snapshot(state).model == model

    def spoil(path, data, message):
        path.write_bytes(data)
        with pytest.raises((BayesCaffeError, OSError), match=message):
            read_snapshot(state)
        path.write_bytes(whole[path])

    from caffe.proto import caffe_pb2

    net = caffe_pb2.NetParameter.FromString(whole[model])
    spoil(state, whole[state][:-200], "run_iter_40.solverstate: cut off")
    spoil(model, whole[model][:-200], "run_iter_40.caffemodel: cut off")
    spoil(state, b"", "run_iter_40.solverstate: not complete")
    spoil(model, b"", "it lacks layers")
    # Written by others, without some layers.
    del net.layer[-3:]
    spoil(model, net.SerializeToString(), "run_iter_40.caffemodel: it lacks layers")
    net = caffe_pb2.NetParameter.FromString(whole[model])
    next(layer for layer in net.layer if layer.name == "out").blobs[0].data[3] = float("nan")
    spoil(model, net.SerializeToString(), "layer 'out' are not finite")
    model.unlink()
    with pytest.raises(BayesCaffeError, match="File not found: .*run_iter_40.caffemodel"):
        read_snapshot(state)
    skipped = []
    assert newest_snapshot(tmp_path / "run", skipped.append).iteration == 20
    assert len(skipped) == 1


def test_newest_snapshot_is_the_one_written_last(tmp_path, solver):
    train(solver, progress=False)
    assert newest_snapshot(tmp_path / "run", print).iteration == 40
    (tmp_path / "run_iter_20.solverstate").touch()
    assert newest_snapshot(tmp_path / "run", print).iteration == 20
    assert newest_snapshot(tmp_path / "ru", print) is None
    assert newest_snapshot(tmp_path / "nowhere" / "run", print) is None


def test_hdf5_snapshots_resume(tmp_path, digits, caplog):
    solver = solver_with_tests(tmp_path, digits, 40, snapshot=20, snapshot_format="HDF5")
    result = train(solver, progress=False)
    assert result.snapshot == tmp_path / "run_iter_40.caffemodel.h5"
    state = tmp_path / "run_iter_40.solverstate.h5"
    state.write_bytes(state.read_bytes()[:-50])
    resumed = train(solver, resume=True, progress=False)
    assert "run_iter_40.solverstate.h5: cut off" in caplog.text
    assert resumed.snapshot.is_file()
    assert "at iteration 20" in resumed.log.read_text()


def test_resume_without_a_snapshot_starts_and_says_so(tmp_path, caplog, solver):
    assert train(solver, resume=True, progress=False).snapshot.is_file()
    assert "no good snapshot" in caplog.text and "from scratch" in caplog.text


def test_resume_of_a_finished_training_runs_nothing(tmp_path, monkeypatch, caplog, solver):
    first = train(solver, progress=False)
    fake_caffe(monkeypatch, tmp_path, "exit 1")
    caplog.set_level("INFO")
    assert train(solver, resume=True, progress=False) == first
    assert "nothing is left to do" in caplog.text


def test_resume_mends_a_log_that_ends_within_a_line(tmp_path, solver):
    whole = read_curve(train(solver, progress=False).curve)
    log = tmp_path / "train.log"
    text = log.read_text()
    log.write_text(text[: text.index("Iteration 30 (") + 5])
    for path in tmp_path.glob("run_iter_40.*"):
        path.unlink()
    curve = read_curve(train(solver, resume=True, progress=False).curve)
    assert curve["iteration"].tolist() == [0, 10, 20, 30, 40]
    assert np.array_equal(curve["loss"], whole["loss"])
    assert "\n# bayescaffe train: resumed" in log.read_text()


def test_resume_does_not_take_the_log_of_another_training_for_its_own(tmp_path, digits, solver):
    train(solver, progress=False)
    for path in tmp_path.glob("run_iter_40.*"):
        path.unlink()
    other = train(solver_with_tests(tmp_path, digits, 50, name="other"), progress=False)
    assert read_curve(other.curve)["iteration"].size == 6
    curve = read_curve(train(solver, resume=True, progress=False).curve)
    assert curve["iteration"].tolist() == [20, 30, 40]
    assert read_curve(tmp_path / "curve.old.csv")["iteration"].size == 6


def test_start_from_scratch_keeps_the_old_log_and_curve(tmp_path, caplog, solver):
    train(solver, progress=False)
    old = {name: (tmp_path / name).read_text() for name in ("train.log", "curve.csv")}
    caplog.clear()
    train(solver, progress=False)
    assert "overwrites the snapshots of an earlier training" in caplog.text
    assert (tmp_path / "train.old.log").read_text() == old["train.log"]
    assert (tmp_path / "curve.old.csv").read_text() == old["curve.csv"]
    assert len(read_curve(tmp_path / "curve.csv")["iteration"]) == 5


def test_snapshot_prefix_is_found_as_caffe_does(tmp_path, digits, monkeypatch):
    monkeypatch.chdir(tmp_path)
    solver = solver_with_tests(tmp_path, digits, 10)
    text = solver.read_text()
    solver.write_text(text.replace(f'snapshot_prefix: "{tmp_path / "run"}"', ""))
    result = train(solver.name, progress=False)
    assert result.snapshot == Path("run.solver_iter_10.caffemodel")
    (tmp_path / "folder").mkdir()
    solver.write_text(text.replace(f'"{tmp_path / "run"}"', '"folder"'))
    result = train(solver.name, progress=False)
    assert result.snapshot == Path("folder/run.solver_iter_10.caffemodel")
    assert result.log == Path("folder/train.log")
    assert train(solver.name, resume=True, progress=False).snapshot == result.snapshot


# ---- Interruptions


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_training_leaves_a_snapshot_to_resume_from(tmp_path, digits, number):
    solver = solver_with_tests(tmp_path, digits, 1_000_000)
    process = start(solver)
    wait_for(has_rows(tmp_path / "curve.csv"))
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    (state,) = tmp_path.glob("run_iter_*.solverstate")
    assert f"Snapshot: {state}; --resume continues" in err
    rows = read_curve(tmp_path / "curve.csv")["iteration"]
    assert read_snapshot(state).iteration >= rows[-1] > 0
    # As it is more than done, resuming runs nothing.
    solver = solver_with_tests(tmp_path, digits, 1)
    assert train(solver, resume=True, progress=False).snapshot == state.with_suffix(".caffemodel")


def test_caffe_dies_with_a_killed_parent(tmp_path, monkeypatch, solver):
    # One that says nothing, and so does not notice that nobody listens.
    pid = tmp_path / "pid"
    fake_caffe(monkeypatch, tmp_path, f"echo $$ > {pid}.new\nmv {pid}.new {pid}\nexec sleep 60")
    code = (
        "from bayescaffe.training import train as training\n"
        f"training.caffe_tool = lambda: {str(tmp_path / 'caffe')!r}\n"
        f"training.train({str(solver)!r})"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    wait_for(pid.exists)
    child = Path("/proc") / pid.read_text().strip()
    assert child.exists()
    process.kill()
    process.wait()
    wait_for(lambda: not child.exists(), 10)


def test_second_ctrl_c_does_not_wait(tmp_path, monkeypatch, caplog, solver):
    # A Caffe that ignores the first one.
    fake_caffe(
        monkeypatch,
        tmp_path,
        f"trap 'touch {tmp_path}/asked' INT\nkill -INT $PPID\n"
        f"until [ -e {tmp_path}/asked ]; do sleep 0.02; done\n"
        "kill -INT $PPID\nexec sleep 60",
    )
    begin = time.monotonic()
    # A shell that runs the tests in the background has it ignored.
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(solver, progress=False)
    finally:
        signal.signal(signal.SIGINT, old)
    assert time.monotonic() - begin < 30
    assert "No snapshot was written" in caplog.text


def test_two_trainings_do_not_share_a_log(tmp_path, digits):
    solver = solver_with_tests(tmp_path, digits, 1_000_000)
    process = start(solver, "--quiet")
    try:
        wait_for(has_rows(tmp_path / "curve.csv"))
        with pytest.raises(BayesCaffeError, match="train.log: another training is writing to it"):
            train(solver, progress=False)
    finally:
        process.kill()
        process.communicate()


# ---- What goes wrong


@pytest.mark.engine
def test_training_that_diverges_is_stopped(tmp_path, digits, capsys):
    solver = solver_with_tests(tmp_path, digits, 1_000_000, base_lr=1e4, snapshot=1)
    begin = time.monotonic()
    assert cli.main(["train", str(solver), "--quiet"]) == 1
    assert time.monotonic() - begin < 30
    err = capsys.readouterr().err
    assert "the training diverged and was stopped" in err
    assert "Try a base_lr below 10000" in err
    assert "last good snapshot: " in err
    good = Path(err.split("last good snapshot: ")[1].splitlines()[0])
    assert read_snapshot(good).iteration < 100
    assert read_curve(tmp_path / "curve.csv")["loss"].size >= 1


@pytest.mark.parametrize("wrong", ["nan", "-nan", "inf"])
def test_loss_that_is_no_number_is_named(tmp_path, monkeypatch, solver, wrong):
    lines = say(
        "Iteration 0, loss = 2.5",
        "Iteration 0, lr = 0.1",
        f"Iteration 10, loss = {wrong}",
        "Iteration 10, lr = 0.1",
    )
    fake_caffe(monkeypatch, tmp_path, f"{lines}\nexec sleep 60")
    message = f"loss is {float(wrong)} at iteration 10.*\nno snapshot was written before\nlog: "
    begin = time.monotonic()
    with pytest.raises(BayesCaffeError, match=message):
        train(solver, progress=False)
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize(
    ("loss", "warning"),
    [
        (24.9, None),
        (25.1, "was 2.5 at the start and is 25.1 at iteration 10. Try a base_lr below 0.01"),
        (87.3365, "probability of 0"),
    ],
)
def test_loss_that_explodes_is_warned_of_once(tmp_path, monkeypatch, caplog, solver, loss, warning):
    losses = {0: 2.5, 10: loss, 20: loss, 30: loss}
    lines = [f"Iteration {iteration}, loss = {each}" for iteration, each in losses.items()]
    fake_caffe(monkeypatch, tmp_path, say(*lines))
    result = train(solver, progress=False)
    assert caplog.text.count("the loss was 2.5 at the start") == (warning is not None)
    assert warning is None or warning in caplog.text
    assert len(result.findings) == (warning is not None)


def test_failure_of_caffe_is_told_in_its_words(tmp_path, digits):
    solver = solver_with_tests(tmp_path, digits, 10)
    (tmp_path / "run.net.prototxt").write_text('layer { name: "x" type: "NoSuchLayer" }')
    with pytest.raises(BayesCaffeError, match=r"Unknown layer type: NoSuchLayer(.|\n)*train\.log"):
        train(solver, progress=False)
    (tmp_path / "run.net.prototxt").write_text("layer { nonsense: 1 }")
    with pytest.raises(BayesCaffeError, match=r'net.prototxt:1:\d+: .*"nonsense"'):
        train(solver, progress=False)


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (
            "echo 'caffe: error: no such thing' >&2; exit 1",
            "caffe train failed: no such thing\nlog",
        ),
        ("printf 'caffe: error: one\\ntwo\\n' >&2; exit 1", "failed: one\ntwo\nlog"),
        ("exit 3", "caffe train failed: exit code 3\nlog"),
        ("kill -KILL $$", "caffe train failed: killed by SIGKILL\nlog"),
    ],
)
def test_every_end_of_caffe_is_told(tmp_path, monkeypatch, solver, end, message):
    fake_caffe(monkeypatch, tmp_path, end)
    with pytest.raises(BayesCaffeError, match=message):
        train(solver, progress=False)


def test_gpus_are_named_to_caffe(tmp_path, monkeypatch, solver, capsys):
    fake_caffe(monkeypatch, tmp_path, 'echo "caffe: error: $*" >&2; exit 1')
    for gpu in ("0", "0,2", "all"):
        assert cli.main(["train", str(solver), "--gpu", gpu]) == 1
        assert f"train -solver {solver} -gpu {gpu}\n" in capsys.readouterr().err
    for gpu, message in (("-1", "-1 is not 0 or more"), ("0,x", "invalid indices value: '0,x'")):
        with pytest.raises(SystemExit):
            cli.main(["train", str(solver), f"--gpu={gpu}"])
        assert message in capsys.readouterr().err


def test_bad_arguments_are_named(tmp_path, capsys, solver):
    assert cli.main(["train", str(tmp_path / "nowhere.prototxt")]) == 1
    assert "nowhere.prototxt" in capsys.readouterr().err
    bad = tmp_path / "bad.prototxt"
    bad.write_text("base_lr: much")
    assert cli.main(["train", str(bad)]) == 1
    assert "bad.prototxt: not a SolverParameter" in capsys.readouterr().err
    assert cli.main(["train", str(solver), "--weights", str(tmp_path / "none.caffemodel")]) == 1
    assert "none.caffemodel: no such file" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", str(solver), "--test-draws", "0"])
    assert stop.value.code == 2
    assert "--test-draws: 0 is not 1 or more" in capsys.readouterr().err
    with pytest.raises(BayesCaffeError, match="test_draws=0: must"):
        train(solver, test_draws=0)


# ---- Several draws in the tests


def mean_score(tmp_path, digits, model, draws, images, first=0):
    """Error and loss of the mean of draws, worked out in NumPy."""
    net = make_net(tmp_path, small_net(digits, BAYES, batch=1), weights=model)
    scores, kept = net.sample(draws, images=first + images, output="out", keep=["label"])
    scores, labels = scores[:, first:].astype(float), kept["label"].ravel()[first:].astype(int)
    probabilities = np.exp(scores - scores.max(2, keepdims=True))
    mean = (probabilities / probabilities.sum(2, keepdims=True)).mean(0)
    return (mean.argmax(1) != labels).mean(), -np.log(mean[np.arange(images), labels]).mean()


@pytest.mark.engine
@pytest.mark.parametrize("draws", [1, 7])
def test_mean_of_draws_is_that_of_the_sampled_net(tmp_path, digits, draws):
    # So early that its errors are many.
    solver = solver_with_tests(tmp_path, digits, 8, test_interval=8)
    result = train(solver, test_draws=draws, progress=False)
    error, loss = mean_score(tmp_path, digits, result.snapshot, draws, 100)
    assert error > 0.01
    assert result.test_draws == draws
    assert result.mean_test_error == pytest.approx(error, rel=1e-5)
    assert result.mean_test_loss == pytest.approx(loss, rel=1e-4)
    assert read_curve(result.curve)["mean_test_error"][-1] == result.mean_test_error


@pytest.mark.engine
def test_more_draws_in_tests_leave_training_and_its_tests_alone(tmp_path, digits):
    dropout = """layer { name: "drop" type: "Dropout" bottom: "hidden" top: "hidden"
                         dropout_param { dropout_ratio: 0.3 } }
        layer { name: "noise" type: "DummyData" top: "noise" include { phase: TRAIN }
                dummy_data_param { shape { dim: 1 } data_filler { type: "gaussian" } } }"""
    # Tests of 60 of the 100 images, each from where the one before ended.
    results = {}
    for draws in (None, 3):
        solver = solver_with_tests(tmp_path, digits, 20, f"d{draws}", test_iter=3, test_interval=5)
        (tmp_path / f"d{draws}.net.prototxt").write_text(small_net(digits, BAYES, dropout))
        results[draws] = train(solver, test_draws=draws, out=tmp_path / f"d{draws}", progress=False)
    assert results[None].snapshot.read_bytes() == results[3].snapshot.read_bytes()
    noise = [re.findall(r"noise = \S+", each.log.read_text()) for each in results.values()]
    assert noise[0] == noise[1] and len(set(noise[0])) > 1
    plain, more = (read_curve(results[draws].curve) for draws in (None, 3))
    for name in ("loss", "test_loss", "test_error", "tau:hidden"):
        assert np.array_equal(plain[name], more[name], equal_nan=True), name
    assert np.isnan(plain["mean_test_error"]).all()
    assert np.array_equal(np.isnan(more["mean_test_loss"]), np.isnan(more["test_loss"]))


@pytest.mark.engine
def test_mean_is_of_the_images_that_the_single_draw_is_of(tmp_path, digits):
    # With the means for weights, every draw is the same.
    bayes = BAYES + " sample: TRAIN_ONLY"
    solver = solver_with_tests(tmp_path, digits, 20, bayes=bayes, test_iter=3, test_interval=5)
    curve = read_curve(train(solver, test_draws=2, progress=False).curve)
    tests = ~np.isnan(curve["test_loss"])
    assert tests.sum() == 5
    assert curve["mean_test_loss"][tests] == pytest.approx(curve["test_loss"][tests], rel=1e-4)
    assert curve["mean_test_error"][tests] == pytest.approx(curve["test_error"][tests])


@pytest.mark.engine
def test_tests_of_a_resumed_training_are_those_of_the_uninterrupted_one(tmp_path, digits):
    solver = solver_with_tests(tmp_path, digits, 40, test_iter=3, test_interval=10, snapshot=20)
    whole = read_curve(train(solver, test_draws=3, progress=False).curve)
    for path in tmp_path.glob("run_iter_40.*"):
        path.unlink()
    resumed = read_curve(train(solver, resume=True, test_draws=3, progress=False).curve)
    for name in ("test_loss", "test_error", "mean_test_loss", "mean_test_error"):
        assert np.array_equal(whole[name], resumed[name], equal_nan=True), name


def test_solver_may_ask_for_draws_itself(tmp_path, digits):
    solver = solver_with_tests(tmp_path, digits, 20, test_draws=4)
    done = caffe("train", "-solver", solver)
    assert "Mean of 4 draws: error = " in done.stdout
    # The nets that it makes for it at each test are not the user's.
    assert "Creating layer" not in done.stdout
    done = caffe("train", "-solver", solver, "-test_draws", "2")
    assert "Mean of 2 draws: error = " in done.stdout
    assert "Mean of 4 draws" not in done.stdout
    assert "Mean of" not in caffe("train", "-solver", solver, "-test_draws", "0").stdout


def test_probabilities_of_a_softmax_layer_are_taken_as_they_are(tmp_path, digits):
    # Only an Accuracy layer in the TEST net, behind a Softmax layer.
    net = small_net(digits, BAYES).replace(
        'bottom: "out" bottom: "label" top: "accuracy"',
        'bottom: "probability" bottom: "label" top: "accuracy"',
    )
    softmax = """layer { name: "probability" type: "Softmax" bottom: "out" top: "probability"
                         include { phase: TEST } }
        layer {
          name: "accuracy\""""
    net = net.replace('layer {\n          name: "accuracy"', softmax)
    net = net.replace('top: "loss" }', 'top: "loss" include { phase: TRAIN } }')
    solver = solver_with_tests(tmp_path, digits, 8, test_interval=8)
    (tmp_path / "run.net.prototxt").write_text(net)
    result = train(solver, test_draws=5, progress=False)
    error, loss = mean_score(tmp_path, digits, result.snapshot, 5, 100)
    assert result.mean_test_error == pytest.approx(error, rel=1e-5)
    assert result.mean_test_loss == pytest.approx(loss, rel=1e-4)


def test_net_without_predictions_refuses_test_draws(tmp_path, digits):
    net = small_net(digits, BAYES).replace(
        'top: "loss" }', 'top: "loss" include { phase: TRAIN } }'
    )
    start = net.index('layer {\n          name: "accuracy"')
    net = net[:start] + net[net.index('layer { name: "loss"') :]
    solver = solver_with_tests(tmp_path, digits, 8)
    (tmp_path / "run.net.prototxt").write_text(net)
    with pytest.raises(BayesCaffeError, match="neither a SoftmaxWithLoss nor an Accuracy layer"):
        train(solver, test_draws=2, progress=False)


def test_interrupt_during_a_long_test_is_heard(tmp_path, digits):
    solver = solver_with_tests(tmp_path, digits, 20, test_iter=500, test_draws=10_000)
    process = start(solver)
    log = tmp_path / "train.log"
    wait_for(lambda: log.exists() and "Test net output #1" in log.read_text())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Mean of" not in log.read_text()
    assert (tmp_path / "run_iter_0.solverstate").is_file()


# ---- Several seeds


@pytest.mark.engine
def test_a_seed_is_the_training_with_that_random_seed(tmp_path, digits, solver):
    before = {path.name for path in tmp_path.iterdir()}
    results = train_seeds(solver, [1, 3], progress=False)
    assert list(results) == [1, 3]
    for seed, result in results.items():
        alone = solver_with_tests(tmp_path, digits, 40, f"alone{seed}", random_seed=seed)
        expected = train(alone, out=tmp_path / f"alone{seed}", progress=False)
        assert result.snapshot == tmp_path / f"seed-{seed}" / "run_iter_40.caffemodel"
        assert result.snapshot.read_bytes() == expected.snapshot.read_bytes()
        assert (result.loss, result.tau) == (expected.loss, expected.tau)
        assert result.curve == tmp_path / f"seed-{seed}" / "curve.csv"
    assert results[1].snapshot.read_bytes() != results[3].snapshot.read_bytes()
    # Nothing of the solver's own place was touched.
    made = {path.name for path in tmp_path.iterdir() if not path.name.startswith("alone")}
    assert made == before | {"seed-1", "seed-3"}


@pytest.mark.engine
def test_seeds_resume_where_they_stopped(tmp_path, caplog, solver):
    whole = train_seeds(solver, range(1, 4), progress=False)
    weights = {seed: result.snapshot.read_bytes() for seed, result in whole.items()}
    # As if it had been interrupted within seed 2.
    for path in (tmp_path / "seed-2").glob("run_iter_40.*"):
        path.unlink()
    for path in (tmp_path / "seed-3").iterdir():
        path.unlink()
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "seed-1").glob("run_iter*")}
    caplog.clear()
    resumed = train_seeds(solver, range(1, 4), resume=True, progress=False)
    assert {seed: result.snapshot.read_bytes() for seed, result in resumed.items()} == weights
    starts = [one.log.read_text().count("Starting Optimization") for one in resumed.values()]
    assert starts == [1, 2, 1]
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert "at iteration 20" in resumed[2].log.read_text()
    # That a seed has not begun is no news.
    assert "no good snapshot" not in caplog.text


def test_interrupted_seeds_leave_a_snapshot_and_start_no_other(tmp_path, digits):
    solver = solver_with_tests(tmp_path, digits, 1_000_000)
    process = start(solver, "--seeds", "4,2")
    wait_for(has_rows(tmp_path / "seed-4" / "curve.csv"))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    (state,) = (tmp_path / "seed-4").glob("run_iter_*.solverstate")
    assert f"Snapshot: {state}; --resume continues" in err
    assert not (tmp_path / "seed-2").exists()


def test_seeds_of_another_training_are_not_resumed(tmp_path, digits, solver):
    train_seeds(solver, [1], progress=False)
    solver = solver_with_tests(tmp_path, digits, 40, snapshot=20, base_lr=0.02)
    with pytest.raises(BayesCaffeError, match="seed-1/run_iter_40.solverstate: of another trai"):
        train_seeds(solver, [1, 2], resume=True, progress=False)
    assert not (tmp_path / "seed-2").exists()


def test_a_seed_that_fails_ends_the_others(tmp_path, monkeypatch, solver):
    fake_caffe(monkeypatch, tmp_path, "exit 3")
    message = "seed-5/run.solver.prototxt: caffe train failed: exit code 3"
    with pytest.raises(BayesCaffeError, match=message):
        train_seeds(solver, [5, 6], progress=False)
    assert not (tmp_path / "seed-6").exists()


def test_a_solver_in_the_place_of_a_seeds_is_kept(tmp_path, solver):
    mine = tmp_path / "seed-1" / solver.name
    mine.parent.mkdir()
    mine.write_text("# mine\n")
    with pytest.raises(
        BayesCaffeError, match=f"{mine}: is not written by .*another snapshot_prefi"
    ):
        train_seeds(solver, [1], progress=False)
    assert mine.read_text() == "# mine\n"


def test_options_are_those_of_each_seed(tmp_path, monkeypatch, solver):
    (tmp_path / "start.caffemodel").touch()
    fake_caffe(monkeypatch, tmp_path, 'echo "caffe: error: $*" >&2; exit 1')
    options = {"weights": tmp_path / "start.caffemodel", "test_draws": 7, "cpu": True}
    said = f"-weights {tmp_path}/start.caffemodel -test_draws 7 -cpu"
    with pytest.raises(BayesCaffeError, match=said):
        train_seeds(solver, [2], out=tmp_path / "logs", progress=False, **options)
    assert (tmp_path / "logs" / "seed-2" / "train.log").is_file()
    assert not (tmp_path / "seed-2" / "train.log").exists()


def test_command_prints_what_samples_all_seeds(tmp_path, capsys, monkeypatch, solver):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", str(solver), "--seeds", "1,7-8", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[-1].strip() == "mean of draws"
    assert [line.split()[0] for line in lines[1:4]] == ["1", "7", "8"]
    models = [str(tmp_path / f"seed-{seed}" / "run_iter_40.caffemodel") for seed in (1, 7, 8)]
    assert [line.removeprefix("weights  ") for line in lines[4:7]] == models
    assert lines[-2] == "to draw from all of them:"
    command = shlex.split(lines[-1])
    assert command == ["bayescaffe", "sample", *models]
    assert cli.main(command[1:]) == 0
    assert "mixture.draws.npz: 102 draws from 3 models of 100 images" in capsys.readouterr().out
    assert cli.main(["train", str(solver), "--seeds", "8", "--resume", "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["seed"] for one in found["trainings"]] == [8]
    assert found["models"] == models[2:]
    assert found["sample"] == shlex.join(["bayescaffe", "sample", *models[2:]])


def test_no_command_is_shown_that_would_fail(tmp_path, digits, capsys):
    solver = solver_with_tests(tmp_path, digits, 1, snapshot_format="HDF5")
    assert cli.main(["train", str(solver), "--seeds", "1-2", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "seed-2/run_iter_1.caffemodel.h5" in out and "bayescaffe sample" not in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((bad, f"{bad!r} is not seeds, such as 1-5 or 1,3,7-9") for bad in ("5-1", "a", "", "1,")),
        *((bad, f"{bad!r} is not seeds, such as 1-5 or 1,3,7-9") for bad in ("-1", "1-", "1--3")),
        ("1-4294967296", "4294967296 is not within 0..4294967295"),
        ("1-2000", "'1-2000' is more than 1,000 seeds"),
    ],
)
def test_bad_lists_of_seeds_are_named(capsys, text, message):
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "solver.prototxt", f"--seeds={text}"])
    assert stop.value.code == 2
    assert f"argument --seeds: {message}" in capsys.readouterr().err


def test_bad_seeds_are_named(tmp_path, capsys, solver):
    for seeds, message in (
        ([], "seeds: at least one seed is needed"),
        ([1, 2, 1], "seeds: 1 is given twice"),
        ([0, -1], "seeds: -1 is not within 0..4294967295"),
        ([2**32], "seeds: 4294967296 is not within"),
    ):
        with pytest.raises(BayesCaffeError, match=message):
            train_seeds(solver, seeds)
    assert cli.main(["train", str(solver), "--seeds", "1-3,2"]) == 1
    assert "--seeds: 2 is given twice" in capsys.readouterr().err
    assert not list(tmp_path.glob("seed-*"))


def test_time_left_is_that_of_all_seeds(monkeypatch, caplog):
    caplog.set_level("INFO")
    now = 100.0
    monkeypatch.setattr("bayescaffe.training.view.time.monotonic", lambda: now)
    parser = training.LogParser()
    # The second of three seeds, which goes on at iteration 10; the first is done.
    view = TrainingView(10, 40, True, Share("seed 2", 40, 120))
    parser.rows.append({"iteration": 20})
    now = 130.0
    view.show(parser)
    view.close()
    # 10 iterations in 30 s, and 60 of 120 are left.
    assert "seed 2, iteration 20 of 40: , 03:00 left for all" in caplog.text


def test_iterations_that_other_seeds_have_done_are_counted(tmp_path, monkeypatch, solver):
    train_seeds(solver, [1, 3], progress=False)
    for path in (tmp_path / "seed-3").glob("run_iter_40.*"):
        path.unlink()
    shares = []

    def spy(solver, share, **options):
        shares.append((share.name, share.others, share.total))
        return training.train_share(solver, share, **options)

    monkeypatch.setattr("bayescaffe.training.seeds.train_share", spy)
    train_seeds(solver, [1, 2, 3], resume=True, progress=False)
    assert shares == [("seed 1", 20, 120), ("seed 2", 60, 120), ("seed 3", 80, 120)]
