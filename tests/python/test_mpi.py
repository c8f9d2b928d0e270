"""Training on several ranks: `mpirun caffe train` and `bayescaffe train --ranks`."""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import lmdb
import numpy as np
import pytest
from bayescaffe import cli
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.training import ranks as ranks_module
from bayescaffe.training.log import read_curve
from bayescaffe.training.ranks import Ranks, killed_rank
from bayescaffe.training.train import train
from conftest import CAFFE, PLAIN_ENVIRONMENT, REPO, caffe, small_net, why_no_mpi, write_solver

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe.training.snapshots import newest_snapshot  # noqa: E402
from caffe.proto import caffe_pb2  # noqa: E402

BATCH = 24
# Strong enough that twice the KL would be noticed.
BAYES = "kl_weight: 0.1 dataset_size: 330"
LOCAL = BAYES + " local_reparametrization: true"
DROPOUT = """layer { name: "drop" type: "Dropout" bottom: "hidden" top: "hidden"
                     dropout_param { dropout_ratio: 0.3 } }"""
# The second layer uses the parameters of the first.
SHARED = """
    layer { name: "again" type: "InnerProduct" bottom: "hidden" top: "hidden_1"
            param { name: "w" } param { name: "b" }
            inner_product_param { num_output: 16 weight_filler { type: "xavier" } } }
    layer { name: "more" type: "InnerProduct" bottom: "hidden_1" top: "hidden_2"
            param { name: "w" } param { name: "b" }
            inner_product_param { num_output: 16 weight_filler { type: "xavier" } } }
    layer { name: "sum" type: "Eltwise" bottom: "hidden_2" bottom: "hidden" top: "sum" }"""
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


needs_mpi = pytest.mark.skipif(why_no_mpi() is not None, reason=str(why_no_mpi()))
SIMULATED = REPO / "build/caffe_simulated_tool"
needs_simulated = pytest.mark.skipif(
    not SIMULATED.exists(), reason="build/caffe_simulated_tool is not built: make test-cpp does it"
)


def mpirun_command(ranks, *arguments, tool=CAFFE):
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    mpirun = ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none", *root]
    return [*mpirun, str(tool), *map(str, arguments)]


def mpirun(ranks, *arguments, tool=CAFFE, **environment):
    """Run the `caffe` tool on so many ranks; its output is the log."""
    return subprocess.run(
        mpirun_command(ranks, *arguments, tool=tool),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**PLAIN_ENVIRONMENT, **ONE_THREAD, **environment},
        timeout=120,
    )


def solver(folder, digits, name, bayes=None, more="", batch=BATCH, iterations=20, **options):
    return write_solver(
        folder, small_net(digits, bayes, more, batch), iterations, name=name, **options
    )


def train_alone(path, *more):
    done = caffe("train", "-solver", path, *more, **ONE_THREAD)
    assert done.returncode == 0, done.stdout
    return done.stdout


def train_together(ranks, path, *more):
    done = mpirun(ranks, "train", "-solver", path, *more)
    assert done.returncode == 0, done.stdout
    return done.stdout


def weights(folder, name, iteration=20):
    net = caffe_pb2.NetParameter.FromString(
        (folder / f"{name}_iter_{iteration}.caffemodel").read_bytes()
    )
    return {
        (layer.name, i): np.array(blob.data, float)
        for layer in net.layer
        for i, blob in enumerate(layer.blobs)
        if len(blob.data)
    }


def difference(found, expected):
    """The largest difference, as a multiple of the largest number of its blob."""
    assert found.keys() == expected.keys() and found
    return max(
        np.abs(found[key] - expected[key]).max() / np.abs(expected[key]).max()
        for key in found
        if np.abs(expected[key]).max() > 0
    )


def losses(log):
    return [float(x) for x in re.findall(r"Iteration \d+(?: \(.*?\))?, loss = (\S+)", log)]


# ---- What N ranks compute


@needs_mpi
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_have_the_draws_of_parts_of_a_batch(tmp_path, digits, ranks):
    parts = f"{BAYES} draws_per_batch: {ranks}"
    alone = train_alone(solver(tmp_path, digits, "alone", parts, display=1))
    together = train_together(ranks, solver(tmp_path, digits, "together", BAYES, display=1))
    expected = weights(tmp_path, "alone")
    assert difference(weights(tmp_path, "together"), expected) <= 1e-6
    # KL that counts twice is not so close, nor are the draws of a batch that is not divided.
    for other in (parts.replace("kl_weight: 0.1", "kl_weight: 0.2"), BAYES):
        train_alone(solver(tmp_path, digits, "other", other))
        assert difference(weights(tmp_path, "other"), expected) > 1e-3
    # What is logged is of all ranks, and KL of one.
    assert len(losses(alone)) == 21
    assert losses(together) == pytest.approx(losses(alone), rel=1e-4)
    kls = [[float(x) for x in re.findall(r"KL = (\S+),", log)] for log in (together, alone)]
    assert len(kls[0]) == 21 and kls[0] == pytest.approx(kls[1], rel=1e-4)


@needs_mpi
@pytest.mark.parametrize("bayes", [LOCAL, None], ids=["Bayesian", "stock"])
def test_ranks_have_the_noise_of_one_process(tmp_path, digits, bayes):
    """Masks of dropout and noise of outputs are those of the images."""
    net = small_net(digits, bayes, DROPOUT, BATCH)
    if bayes:
        # Convolutions draw weights, of which a part of the batch has its own.
        net = net.replace('"BayesConvolution"', '"Convolution"').replace(
            f"bayes_param {{ {bayes} }}\n          convolution", "convolution"
        )
    for name in ("alone", "together"):
        write_solver(tmp_path, net, 20, name=name)
    train_alone(tmp_path / "alone.solver.prototxt")
    train_together(3, tmp_path / "together.solver.prototxt")
    assert difference(weights(tmp_path, "together"), weights(tmp_path, "alone")) <= 1e-6


@needs_mpi
def test_each_rank_has_as_many_draws_as_the_layer_asks_for(tmp_path, digits):
    train_alone(solver(tmp_path, digits, "alone", BAYES + " draws_per_batch: 6"))
    train_together(2, solver(tmp_path, digits, "together", BAYES + " draws_per_batch: 3"))
    assert difference(weights(tmp_path, "together"), weights(tmp_path, "alone")) <= 1e-6


@needs_mpi
def test_gradients_of_several_passes_and_shared_parameters(tmp_path, digits):
    net = small_net(digits, None, SHARED, BATCH).replace('"hidden" top: "out"', '"sum" top: "out"')
    options = {"iter_size": 2, "weight_decay": 0.001, "clip_gradients": 1}
    for name in ("alone", "together"):
        write_solver(tmp_path, net, 20, name=name, **options)
    train_alone(tmp_path / "alone.solver.prototxt")
    train_together(2, tmp_path / "together.solver.prototxt")
    assert difference(weights(tmp_path, "together"), weights(tmp_path, "alone")) <= 1e-6


@needs_mpi
def test_a_batch_for_each_rank(tmp_path, digits):
    train_alone(solver(tmp_path, digits, "alone"))
    path = solver(tmp_path, digits, "together", batch=BATCH // 2)
    train_together(2, path, "-batch", "per-rank")
    assert difference(weights(tmp_path, "together"), weights(tmp_path, "alone")) <= 1e-6


def image_data(folder):
    """A layer that reads 50 pictures of two classes."""
    from PIL import Image

    random = np.random.default_rng(0)
    lines = []
    for i in range(50):
        pixels = random.integers(0, 256, (12, 12), np.uint8)
        pixels[: 6 * (i % 2)] = 255
        Image.fromarray(pixels).save(folder / f"{i}.png")
        lines.append(f"{folder / str(i)}.png {i % 2}\n")
    (folder / "list.txt").write_text("".join(lines))
    return f"""layer {{ name: "data" type: "ImageData" top: "data" top: "label"
               transform_param {{ scale: 0.00390625 }}
               image_data_param {{ source: "{folder / "list.txt"}" batch_size: {BATCH}
                                   is_color: false shuffle: true }} }}"""


def hdf5_data(folder):
    """A layer that reads 50 arrays of two classes from two files."""
    h5py = pytest.importorskip("h5py")
    random = np.random.default_rng(0)
    for name in ("a", "b"):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            labels = random.integers(0, 2, 25)
            file["label"] = labels.astype(np.float32)
            images = random.random((25, 1, 12, 12)) + labels[:, None, None, None]
            file["data"] = images.astype(np.float32)
    (folder / "list.txt").write_text(f"{folder}/a.h5\n{folder}/b.h5\n")
    return f"""layer {{ name: "data" type: "HDF5Data" top: "data" top: "label"
               hdf5_data_param {{ source: "{folder / "list.txt"}" batch_size: {BATCH}
                                  shuffle: true }} }}"""


@needs_mpi
@pytest.mark.parametrize("data", [image_data, hdf5_data])
def test_other_data_layers_share_out_their_records(tmp_path, data):
    net = small_net(tmp_path, None)
    net = net[net.index('layer {\n          name: "conv"') :]
    for name in ("alone", "together"):
        write_solver(tmp_path, data(tmp_path) + net, 20, name=name)
    train_alone(tmp_path / "alone.solver.prototxt")
    train_together(2, tmp_path / "together.solver.prototxt")
    assert difference(weights(tmp_path, "together"), weights(tmp_path, "alone")) <= 1e-6


@needs_mpi
def test_a_training_resumes_on_another_number_of_ranks(tmp_path, digits):
    train_alone(solver(tmp_path, digits, "whole", more=DROPOUT))
    path = solver(tmp_path, digits, "run", more=DROPOUT, snapshot=8)
    first = solver(tmp_path, digits, "run", more=DROPOUT, snapshot=8, iterations=8)
    train_together(2, first)
    path = solver(tmp_path, digits, "run", more=DROPOUT, snapshot=8)
    train_together(3, path, "-snapshot", tmp_path / "run_iter_8.solverstate")
    assert difference(weights(tmp_path, "run"), weights(tmp_path, "whole")) <= 1e-6
    # And one process goes on where three were.
    train_alone(path, "-snapshot", tmp_path / "run_iter_16.solverstate")
    assert difference(weights(tmp_path, "run"), weights(tmp_path, "whole")) <= 1e-6


@needs_mpi
def test_draws_go_on_where_they_were(tmp_path, digits):
    train_together(2, solver(tmp_path, digits, "whole", BAYES))
    train_alone(solver(tmp_path, digits, "run", BAYES + " draws_per_batch: 2", iterations=8))
    path = solver(tmp_path, digits, "run", BAYES)
    train_together(2, path, "-snapshot", tmp_path / "run_iter_8.solverstate")
    assert difference(weights(tmp_path, "run"), weights(tmp_path, "whole")) <= 1e-6


# ---- Tests are shared out


def scores(log):
    """What each test says: the outputs of the net, and error and loss of the mean of draws."""
    tests = log.split(", Testing net (#0)")[1:]
    number = r"(?:Test net output #\d+: \w+|error|, loss) = ([\d.e+-]+)"
    return [[float(x) for x in re.findall(number, test.split("Iteration")[0])] for test in tests]


def local_net(digits, more, batch):
    """A net whose inner products draw outputs. Convolutions, which come first, draw weights."""
    return small_net(digits, LOCAL, more, batch).replace(LOCAL, BAYES, 1)


def with_tests(folder, digits, name, test_iter=5, more="", **options):
    """A solver whose weights stay as they are, and whose tests do not go through all images."""
    options |= {"base_lr": 0, "test_iter": test_iter, "test_interval": 5, "test_draws": 3}
    options["test_net"] = f'"{folder / name}.net.prototxt"'
    return write_solver(folder, local_net(digits, more, 6), 20, name=name, **options)


@needs_mpi
@pytest.mark.parametrize(("ranks", "test_iter"), [(2, 5), (3, 5), (3, 1)])
def test_ranks_share_out_tests(tmp_path, digits, ranks, test_iter):
    """Each batch is tested once, with the draw that it has in one process."""
    drops = DROPOUT.replace("dropout_ratio: 0.3", "dropout_ratio: 0.3 sample_weights_test: true")
    options = {"test_iter": test_iter, "more": drops, "snapshot": 10}
    alone = scores(train_alone(with_tests(tmp_path, digits, "alone", **options)))
    path = with_tests(tmp_path, digits, "together", **options)
    log = train_together(ranks, path)
    assert len(alone) == 5 and all(len(numbers) == 4 for numbers in alone)
    assert len({tuple(numbers) for numbers in alone}) == 5  # of other images and draws each
    assert np.array(scores(log)) == pytest.approx(np.array(alone), rel=1e-5)
    assert log.count("Snapshotting solver state") == 2
    assert log.count("Optimization Done.") == 2  # the solver says so, and the tool
    # Tests go on where they were, also on another number of ranks.
    state = tmp_path / "together_iter_10.solverstate"
    resumed = scores(train_together(5 - ranks, path, "-snapshot", state))
    assert np.array(resumed) == pytest.approx(np.array(alone[2:]), rel=1e-5)


@needs_mpi
def test_ranks_test_with_the_averages_of_rank_0(tmp_path, digits):
    norm = 'layer { name: "norm" type: "BatchNorm" bottom: "hidden" top: "hidden" }'
    # With a display, one more forward pass changes the averages between snapshot and test.
    options = {"test_iter": 4, "test_interval": 20, "test_initialization": "false", "display": 7}
    options["test_net"] = f'"{tmp_path}/run.net.prototxt"'
    log = train_together(2, solver(tmp_path, digits, "run", None, norm, **options))
    (found,) = scores(log)
    # Those of the snapshot.
    net, model = tmp_path / "run.net.prototxt", tmp_path / "run_iter_20.caffemodel"
    files = ("-model", net, "-weights", model)
    alone = caffe("test", *files, "-iterations", "4", **ONE_THREAD).stdout
    expected = [float(x) for x in re.findall(r"\] (?:accuracy|loss) = (\S+)", alone)]
    assert found == pytest.approx(expected, rel=1e-5)


@needs_mpi
def test_a_test_net_whose_batches_cannot_be_shared_is_refused(tmp_path, digits):
    path = with_tests(tmp_path, digits, "run")
    net = tmp_path / "run.net.prototxt"
    source = """layer { name: "more" type: "MemoryData" top: "x" top: "y" include { phase: TEST }
                memory_data_param { batch_size: 1 channels: 1 height: 1 width: 1 } }"""
    net.write_text(net.read_text() + source)
    done = mpirun(2, "train", "-solver", path)
    (line,) = error_lines(done.stdout)
    assert line == (
        "caffe: error: layer 'more': ranks share out the batches of a test, which a layer of type "
        "MemoryData cannot do"
    )


@needs_mpi
@pytest.mark.parametrize("wanted", [None, "3"])
def test_ranks_share_the_cores(tmp_path, digits, wanted):
    path = solver(tmp_path, digits, "run", iterations=1)
    environment = {k: v for k, v in PLAIN_ENVIRONMENT.items() if k != "OMP_NUM_THREADS"}
    if wanted:
        environment["OMP_NUM_THREADS"] = wanted
    log = subprocess.run(
        mpirun_command(2, "train", "-solver", path), capture_output=True, text=True, env=environment
    ).stderr
    cores = len(os.sched_getaffinity(0))
    found = int(re.search(r"Ranks: 2; threads of each: (\d+)", log)[1])
    # A quota of CPU time may leave less.
    assert found == int(wanted) if wanted else 1 <= found <= max(1, cores // 2)


@needs_mpi
def test_one_rank_is_one_process(tmp_path, digits):
    train_alone(solver(tmp_path, digits, "alone", BAYES))
    train_together(1, solver(tmp_path, digits, "together", BAYES))
    assert difference(weights(tmp_path, "together"), weights(tmp_path, "alone")) == 0


# ---- What goes wrong


def error_lines(log):
    return [line for line in log.splitlines() if line.startswith("caffe: error: ")]


@needs_mpi
def test_a_batch_that_cannot_be_divided_is_refused_by_name(tmp_path, digits):
    done = mpirun(3, "train", "-solver", solver(tmp_path, digits, "run", batch=20))
    assert done.returncode != 0
    (line,) = error_lines(done.stdout)
    assert line == (
        "caffe: error: layer 'data': data_param.batch_size is 20, but must be a multiple of 3, the "
        "number of ranks that share it (-batch per-rank gives it to each)"
    )


@needs_mpi
def test_a_source_without_a_batch_is_refused_by_name(tmp_path, digits):
    more = """layer { name: "noise" type: "DummyData" top: "noise"
                      dummy_data_param { shape { dim: 20 dim: 16 } } }"""
    done = mpirun(2, "train", "-solver", solver(tmp_path, digits, "run", more=more))
    assert done.returncode != 0
    (line,) = error_lines(done.stdout)
    assert "layer 'noise': the batch of a layer of type DummyData cannot be divided" in line


@needs_mpi
def test_without_gpus_ranks_say_so(tmp_path, digits):
    done = mpirun(2, "train", "-solver", solver(tmp_path, digits, "run", solver_mode="GPU"))
    assert done.returncode != 0
    (line,) = error_lines(done.stdout)
    assert "this Caffe was built without CUDA" in line


# ---- A GPU for each rank, which is simulated: see test_simulated_gpu.py


def on_gpus(ranks, path, *options, **environment):
    return mpirun(ranks, "train", "-solver", path, *options, tool=SIMULATED, **environment)


@needs_mpi
@needs_simulated
def test_ranks_on_gpus_are_those_on_the_cpu(tmp_path, digits):
    # The noise of rank 1 begins inside of a block of four numbers.
    net = local_net(digits, DROPOUT, 6).replace("num_output: 16", "num_output: 15")
    for name in ("cpu", "gpu"):
        write_solver(tmp_path, net, 10, name=name, solver_mode=name.upper(), display=1)
    on_cpu = train_together(2, tmp_path / "cpu.solver.prototxt")
    done = on_gpus(2, tmp_path / "gpu.solver.prototxt", "-gpu", "all", SIMULATED_CUDA_COUNTERS="1")
    assert done.returncode == 0, done.stdout
    # One process on a GPU is no closer to one on the CPU.
    assert difference(weights(tmp_path, "gpu", 10), weights(tmp_path, "cpu", 10)) <= 1e-6
    assert losses(done.stdout) == pytest.approx(losses(on_cpu), rel=1e-4)
    assert re.findall(r"^ncclAllReduce +(\d+)$", done.stdout, re.M) == ["10", "10"]


@needs_mpi
@needs_simulated
def test_bayescaffe_trains_on_a_gpu_for_each_rank(tmp_path, digits, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("bayescaffe.training.train.caffe_tool", lambda: SIMULATED)
    path = solver(tmp_path, digits, "run", BAYES)
    assert train(path, ranks=2, gpu="all", progress=False).iterations == 20
    assert "Using GPUs 0" in (tmp_path / "train.log").read_text()


@needs_mpi
@needs_simulated
@pytest.mark.parametrize(
    ("ranks", "options", "error"),
    [
        (3, ("-gpu", "all"), "-gpu all: this host has 3 ranks and 2 GPUs for them, but each rank"),
        (2, ("-gpu", "1"), "-gpu 1: this host has 2 ranks and 1 GPU for them, but each rank"),
        (2, ("-gpu", "0,7"), "the machine has 2, numbers 0 to 1"),
        (3, (), "-gpu all: this host has 3 ranks and 2 GPUs"),
    ],
)
def test_each_rank_needs_a_gpu(tmp_path, digits, ranks, options, error):
    path = solver(tmp_path, digits, "run", solver_mode="GPU")
    done = on_gpus(ranks, path, *options)
    assert done.returncode != 0
    (line,) = error_lines(done.stdout)
    assert error in line


@needs_mpi
def test_an_error_of_one_rank_names_it_and_ends_all(tmp_path, digits):
    """Record 17 of 24 is one of rank 1 of 2, and its label is no class."""
    folder = tmp_path / "data"
    shutil.copytree(digits / "train_lmdb", folder / "train_lmdb")
    shutil.copytree(digits / "test_lmdb", folder / "test_lmdb")
    with lmdb.open(str(folder / "train_lmdb")) as env, env.begin(write=True) as txn:
        key, value = list(txn.cursor())[BATCH * 3 + 17]
        datum = caffe_pb2.Datum.FromString(value)
        datum.label = 77
        txn.put(key, datum.SerializeToString())
    path = solver(tmp_path, folder, "run", snapshot=1, iterations=10**6)
    done = mpirun(2, "train", "-solver", path)
    assert done.returncode != 0
    (line,) = error_lines(done.stdout)
    assert line.startswith("caffe: error: rank 1 of 2: ") and "77" in line
    # Rank 0 may have been at its third snapshot.
    assert newest_snapshot(tmp_path / "run", pytest.fail).iteration in (2, 3)


def children(pid):
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def ranks_of(pid):
    """The processes of the ranks below a process, by rank."""
    found = {}
    for child in children(pid):
        environ = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        rank = [e for e in environ if e.startswith(b"OMPI_COMM_WORLD_RANK=")]
        if rank:
            found[int(rank[0].split(b"=")[1])] = child
        else:
            found |= ranks_of(child)
    return found


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def kill_rank(pid, rank):
    wait_for(lambda: rank in ranks_of(pid))
    os.kill(ranks_of(pid)[rank], signal.SIGKILL)


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


@needs_mpi
def test_a_rank_that_is_killed_ends_the_others(tmp_path, digits):
    path = solver(tmp_path, digits, "run", BAYES, snapshot=10, iterations=10**6)
    process = subprocess.Popen(
        mpirun_command(3, "train", "-solver", path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**PLAIN_ENVIRONMENT, **ONE_THREAD, "GLOG_minloglevel": "1"},
    )
    wait_for(lambda: (tmp_path / "run_iter_10.solverstate").exists())
    pids = ranks_of(process.pid)
    assert sorted(pids) == [0, 1, 2]
    start = time.monotonic()
    kill_rank(process.pid, 1)
    log, _ = process.communicate(timeout=30)
    assert process.returncode != 0
    assert time.monotonic() - start < 15
    said = [line for line in map(killed_rank, log.splitlines()) if line]
    assert len(said) == 1 and said[0].startswith("rank 1 on ") and "signal 9" in said[0]
    assert "Traceback" not in log and "*** SIG" not in log
    wait_for(lambda: all(map(is_gone, pids.values())), 10)
    newest = newest_snapshot(tmp_path / "run", pytest.fail)
    again = solver(tmp_path, digits, "run", BAYES, snapshot=10, iterations=newest.iteration + 5)
    train_together(2, again, "-snapshot", newest.state)


# ---- bayescaffe train --ranks


@needs_mpi
@pytest.mark.parametrize("hosts", [None, "localhost"])
def test_bayescaffe_trains_on_ranks(tmp_path, digits, monkeypatch, hosts):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    train_alone(solver(tmp_path, digits, "alone", BAYES + " draws_per_batch: 2"))
    path = solver(tmp_path, digits, "together", BAYES)
    result = train(path, ranks=2, hosts=hosts, progress=False)
    assert result.iterations == 20
    assert read_curve(result.curve)["iteration"].tolist() == [0, 10, 20]
    assert difference(weights(tmp_path, "together"), weights(tmp_path, "alone")) <= 1e-6


@needs_mpi
def test_bayescaffe_tells_the_error_of_a_rank_in_one_line(tmp_path, digits, capsys):
    path = solver(tmp_path, digits, "run", batch=20)
    assert cli.main(["train", str(path), "--ranks", "3", "--quiet", "--retries", "2"]) == 1
    errors = capsys.readouterr().err
    assert errors.count("data_param.batch_size is 20") == 1  # and is not tried again
    assert "-----" not in errors and "mpirun" not in errors


def start_bayescaffe(path, *options):
    import sys

    return subprocess.Popen(
        [sys.executable, "-m", "bayescaffe", "train", str(path), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**PLAIN_ENVIRONMENT, **ONE_THREAD},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


@needs_mpi
def test_ctrl_c_writes_a_snapshot(tmp_path, digits):
    path = solver(tmp_path, digits, "run", BAYES, iterations=10**6, display=50)
    process = start_bayescaffe(path, "--ranks", "2")
    curve = tmp_path / "curve.csv"
    wait_for(lambda: curve.exists() and len(curve.read_text().splitlines()) > 2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Interrupted. Snapshot: " in output
    assert newest_snapshot(tmp_path / "run", pytest.fail).iteration > 0


@needs_mpi
def test_a_failure_is_resumed_from_the_newest_snapshot(tmp_path, digits):
    # A snapshot of an earlier training, which must not be taken for one of this.
    train_alone(solver(tmp_path, digits, "run", BAYES, iterations=600))
    # Long enough that the rank is killed before it ends, also on a busy machine.
    path = solver(tmp_path, digits, "run", BAYES, iterations=2000, snapshot=20)
    (tmp_path / "run_iter_20.solverstate").unlink(missing_ok=True)
    process = start_bayescaffe(path, "--ranks", "2", "--retries", "1")
    wait_for(lambda: (tmp_path / "run_iter_20.solverstate").exists())
    kill_rank(process.pid, 1)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "Trying again: 1 of 1" in output
    assert "rank 1 on " in output and "signal 9" in output
    resumed = re.search(r"resumed from \S+_iter_(\d+)", (tmp_path / "train.log").read_text())
    assert 20 <= int(resumed[1]) < 2000
    train_together(2, solver(tmp_path, digits, "whole", BAYES, iterations=2000))
    assert difference(weights(tmp_path, "run", 2000), weights(tmp_path, "whole", 2000)) == 0


def test_the_command_of_mpirun(monkeypatch):
    monkeypatch.setattr(ranks_module, "find_mpirun", lambda: "mpirun")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    start = ["mpirun", "-n", "5", "--bind-to", "none"]
    assert Ranks(5).command(["caffe"], {"PATH": ""}) == [*start, "--oversubscribe", "caffe"]
    environment = {"OMP_NUM_THREADS": "2", "HOME": ""}
    assert Ranks(5, "a,b:1").command(["caffe"], environment) == [
        *(*start, "--host", "a:3,b:1", "-x", "OMP_NUM_THREADS", "caffe")
    ]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "--allow-run-as-root" in Ranks(5).command(["caffe"], {})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"ranks": 0}, "ranks=0: must be 1 or more"),
        ({"hosts": "a,b"}, "hosts='a,b' needs ranks"),
        ({"ranks": 2, "hosts": "a,"}, "hosts='a,': '' is no name of a host"),
        ({"ranks": 2, "hosts": "a;reboot"}, "'a;reboot' is no name of a host"),
        ({"retries": -1}, "retries=-1: must be 0 or more"),
    ],
    ids=str,
)
def test_wrong_arguments(tmp_path, digits, options, error):
    with pytest.raises(BayesCaffeError, match=re.escape(error)):
        train(solver(tmp_path, digits, "run"), progress=False, **options)


def test_without_mpirun_it_says_how_to_get_it(tmp_path, digits, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BayesCaffeError, match="there is no mpirun; install Open MPI"):
        train(solver(tmp_path, digits, "run"), ranks=2, progress=False)


def test_a_caffe_without_mpi_says_so_once(tmp_path, digits, monkeypatch):
    """Each rank says it, and mpirun adds a paragraph."""
    fake = tmp_path / "mpirun"
    said = 'echo "caffe: error: this caffe was built without MPI" >&2'
    fake.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo Open MPI && exit\n{said}\n{said}\n')
    with fake.open("a") as file:
        file.write("echo -----------\necho Primary job terminated normally, but\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(BayesCaffeError) as caught:
        train(solver(tmp_path, digits, "run"), ranks=2, progress=False)
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("caffe train failed: this caffe was built without MPI")
    assert lines[1:] == [f"log: {tmp_path / 'train.log'}"]
