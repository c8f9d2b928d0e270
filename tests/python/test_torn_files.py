"""Nothing torn: a full disk, a kill and a planted link leave no half of a file, and what is
damaged all the same is refused, not taken for a smaller net or another training."""

import contextlib
import errno
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_dir, scratch_file
from bayescaffe.data.datasets import prepare_idx
from bayescaffe.net.messages import read_weights
from bayescaffe.training.snapshots import read_snapshot
from bayescaffe.training.train import train
from conftest import (
    CAFFE,
    PLAIN_ENVIRONMENT,
    caffe,
    make_net,
    save_weights,
    small_net,
    write_solver,
)

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")

from caffe.proto import caffe_pb2  # noqa: E402

BAYES = "kl_weight: 0.01 dataset_size: 330"
FORMATS = {"BINARYPROTO": "", "HDF5": ".h5"}


def contents(folder):
    """All files of a folder, hidden ones too, but not the log and the curve."""
    names = {"train.log", "curve.csv", "train.old.log", "curve.old.csv"}
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in names}


def hidden(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


# ---- Files that Python writes


def test_a_file_is_replaced_when_it_is_complete(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), scratch_file(path) as scratch:
        scratch.write_text("half")
        raise ZeroDivisionError
    assert contents(tmp_path) == {"file": b"old"}
    with scratch_file(path) as scratch:
        scratch.write_text("new")
        assert path.read_text() == "old"
    assert contents(tmp_path) == {"file": b"new"}


def test_content_and_name_are_on_the_disk(tmp_path, monkeypatch):
    """The file is synced before it is renamed, and its folder afterwards."""
    done = []
    rename, sync = os.rename, os.fsync
    monkeypatch.setattr(os, "rename", lambda *names: (done.append("rename"), rename(*names)))
    monkeypatch.setattr(
        os, "fsync", lambda file: (done.append(os.readlink(f"/proc/self/fd/{file}")), sync(file))
    )
    with scratch_file(tmp_path / "file") as scratch:
        scratch.write_text("text")
    assert done == [str(scratch), "rename", str(tmp_path)]


def test_temporary_names_cannot_be_guessed(tmp_path):
    names = []
    for _ in range(2):
        with scratch_file(tmp_path / "file") as scratch, scratch_dir(tmp_path / "out") as folder:
            assert scratch.stat().st_size == 0  # it is there, so nobody can plant a link
            names += [scratch.name, folder.name]
    assert len(set(names)) == 4
    assert all(re.search("[0-9a-f]{16}", name) for name in names)


def test_remains_go_and_files_that_are_being_written_stay(tmp_path):
    left = [".file.0123456789abcdef.tmp", ".file.4711.tmp"]
    kept = [".file.mine.tmp", ".other.4711.tmp", "file.tmp"]
    for name in (*left, *kept):
        (tmp_path / name).write_text("half")
    with scratch_file(tmp_path / "file") as first:
        first.write_text("first")
        with scratch_file(tmp_path / "file") as second:
            assert first.exists()
            second.write_text("second")
    assert contents(tmp_path).keys() == {"file", *kept}
    assert (tmp_path / "file").read_text() == "first"


def test_a_pipe_is_written_in_place():
    with scratch_file(Path("/dev/full")) as scratch, pytest.raises(OSError, match="No space left"):
        scratch.write_text("text")
    assert Path("/dev/full").is_char_device()


def test_a_full_disk_names_the_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    program = f"""
import resource
from pathlib import Path
from bayescaffe.common.files import scratch_file
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
with scratch_file(Path({str(path)!r})) as scratch:
    scratch.write_text("new" * 100)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1 and f"File too large: '{path}'" in done.stderr
    assert contents(tmp_path) == {"file": b"old"}


@pytest.mark.parametrize("call", ["rename", "fsync"])
def test_an_image_set_stays_when_its_successor_fails(tmp_path, digits, monkeypatch, call):
    """At whatever call: the LMDBs were moved away before the new ones were on the disk."""
    prepare_idx(digits / "idx", tmp_path, progress=False)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    works = getattr(os, call)
    for failing in range(1, 100):
        count = 0

        def fails_once(*arguments, failing=failing):
            nonlocal count
            count += 1
            if count == failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return works(*arguments)

        monkeypatch.setattr(os, call, fails_once)
        try:
            prepare_idx(digits / "idx", tmp_path, seed=7, force=True, progress=False)
        except OSError:
            after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
            assert after == before, f"{call} number {failing}"
        else:
            break
    assert failing > 5 and before != {path: path.read_bytes() for path in before}


# ---- Links


def test_train_writes_through_no_link(tmp_path, digits):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    folder = tmp_path / "run"
    folder.mkdir()
    solver = write_solver(folder, small_net(digits, BAYES), 2, snapshot=1)
    for name in ("curve.csv", "curve.csv.tmp", "curve.old.csv", "train.old.log"):
        (folder / name).symlink_to(precious)
    for suffix in ("caffemodel", "solverstate", "tempfile"):
        (folder / f"run_iter_0.{suffix}").symlink_to(precious)
        (folder / f"run_iter_1.{suffix}").symlink_to(precious)
    (folder / "train.log").write_text("an old log\n")
    result = train(solver, progress=False)
    assert precious.read_text() == "mine"
    assert result.snapshot.is_file() and not result.curve.is_symlink()
    assert not (folder / "curve.csv.tmp").is_symlink()
    assert not (folder / "run_iter_1.caffemodel").is_symlink()
    assert (folder / "train.old.log").read_text() == "an old log\n"
    result.log.unlink()
    result.log.symlink_to(precious)
    with pytest.raises(BayesCaffeError, match=f"train.log: a symbolic link; .* {precious}"):
        train(solver, progress=False)
    assert precious.read_text() == "mine"


# ---- A full disk


def small_solver(folder, digits, name="run", seed=1, **options):
    options = {"snapshot": 1, "random_seed": seed, **options}
    return write_solver(folder, small_net(digits, BAYES), 2, name, **options)


def limited(limit, solver):
    """`caffe train` that cannot write larger files."""
    return subprocess.run(
        [CAFFE, "train", "-solver", solver],
        capture_output=True,
        text=True,
        env={**PLAIN_ENVIRONMENT, "GLOG_logtostderr": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )


@pytest.mark.parametrize("snapshot_format", FORMATS)
def test_a_file_that_cannot_be_written_leaves_the_old_pair(tmp_path, digits, snapshot_format):
    suffix = FORMATS[snapshot_format]
    solver = small_solver(tmp_path, digits, snapshot_format=snapshot_format)
    assert caffe("train", "-solver", solver).returncode == 0
    sizes = {
        kind: (tmp_path / f"run_iter_1.{kind}{suffix}").stat().st_size
        for kind in ("caffemodel", "solverstate")
    }
    small_solver(tmp_path, digits, seed=2, snapshot_format=snapshot_format)
    before = contents(tmp_path)
    # The larger of the two is the one that fails, be it the first or the second.
    larger = max(sizes, key=sizes.get)
    for limit in (1000, max(sizes.values()) - 1):
        done = limited(limit, solver)
        named = "caffemodel" if limit < min(sizes.values()) else larger
        assert done.returncode == 1
        assert (
            f"caffe: error: {tmp_path}/run_iter_1.{named}{suffix}: File too large\n" in done.stderr
        )
        assert contents(tmp_path) == before


@contextlib.contextmanager
def small_disk(folder, size):
    """A file system of `size` bytes."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("fits, fails", [((), "caffemodel"), (("caffemodel",), "solverstate")])
def test_a_full_disk_leaves_the_old_pair(tmp_path, digits, fits, fails):
    """Be it full at the first file or at the second."""
    disk = tmp_path / "disk"
    with small_disk(disk, 2**20):
        solver = small_solver(disk, digits)
        assert caffe("train", "-solver", solver).returncode == 0
        small_solver(disk, digits, seed=2)
        page = os.statvfs(disk).f_frsize
        sizes = [(disk / f"run_iter_1.{kind}").stat().st_size for kind in fits]
        room = sum(-(-size // page) for size in sizes) + 1
        fill(disk, room)
        before = contents(disk)
        done = caffe("train", "-solver", solver)
        assert done.returncode == 1
        says = f"caffe: error: {disk}/run_iter_1.{fails}: No space left on device\n"
        assert says in done.stdout
        assert contents(disk) == before
        assert read_snapshot(disk / "run_iter_1.solverstate").iteration == 1


def test_pycaffe_saves_in_the_same_way(tmp_path, digits):
    net = make_net(tmp_path, small_net(digits, BAYES))
    for save in (net.save, net.save_hdf5):
        with pytest.raises(pycaffe.Error, match="^/dev/full: No space left on device$"):
            save("/dev/full")
        with pytest.raises(pycaffe.Error, match="^/nowhere/file: No such file or directory$"):
            save("/nowhere/file")
        save(str(tmp_path / "file"))
        assert hidden(tmp_path) == []
        net.copy_from(str(tmp_path / "file"))


def fill(disk, pages):
    """Leave so many pages of a small disk."""
    space = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(space.f_frsize * (space.f_bavail - pages)))


def test_train_leaves_the_old_weights_alone_when_the_disk_is_full(tmp_path, digits):
    """The weights of an earlier training do not get the net of this one."""
    disk = tmp_path / "disk"
    with small_disk(disk, 2**20):
        solver = small_solver(disk, digits)
        assert caffe("train", "-solver", solver).returncode == 0
        fill(disk, 1)
        before = contents(disk)
        with pytest.raises(BayesCaffeError, match="run_iter_1.caffemodel: No space left on device"):
            train(solver, out=tmp_path, progress=False)
        assert contents(disk) == before


def test_a_log_that_cannot_grow_is_named(tmp_path, digits):
    solver = small_solver(tmp_path, digits)
    program = f"""
import resource, sys
from bayescaffe import cli
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
sys.exit(cli.main(["train", {str(solver)!r}]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"File too large: '{tmp_path / 'train.log'}'" in done.stderr


# ---- A kill


def killed(folder, solver, seconds):
    """`caffe train`, killed so long after its first snapshot."""

    def first():
        states = [path.stat() for path in folder.glob("run_iter_1.solverstate*")]
        return [(state.st_ino, state.st_mtime_ns) for state in states]

    before = first()
    with subprocess.Popen(
        [CAFFE, "train", "-solver", solver], stderr=subprocess.DEVNULL, env=PLAIN_ENVIRONMENT
    ) as process:
        while first() == before:
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(seconds)
        process.kill()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("snapshot_format", FORMATS)
def test_a_kill_leaves_whole_snapshots(tmp_path, digits, snapshot_format):
    """At any moment, a name is a whole file; of an old and a new file, none is taken for a pair."""

    def solver(iterations, seed):
        options = {"snapshot": 1, "snapshot_format": snapshot_format, "random_seed": seed}
        return write_solver(tmp_path, small_net(digits, BAYES), iterations, **options)

    moments = random.Random(0)
    for kill in range(1, 9):
        killed(tmp_path, solver(2000, seed=kill), 0.1 * moments.random())
        refused = []
        for state in tmp_path.glob("run_iter_*.solverstate*"):
            try:
                read_snapshot(state)
            except BayesCaffeError as error:
                refused.append(str(error))
        # A kill between the two renames, of which the hash tells.
        assert len(refused) <= kill and all("does not belong to" in why for why in refused)
        assert len(hidden(tmp_path)) <= 2 * kill
    names = [path.name for path in tmp_path.iterdir()]
    last = max(int(found[1]) for name in names if (found := re.search(r"_iter_(\d+)\.", name)))
    assert caffe("train", "-solver", solver(last, seed=1)).returncode == 0
    assert hidden(tmp_path) == []
    for iteration in range(1, last + 1):
        assert read_snapshot(file(tmp_path, iteration, "solverstate")).iteration == iteration


# ---- Caffemodels that are cut off


def boundaries(content):
    """Where each field of a serialized message begins, and the end."""
    ends, at = [], 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = content[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(content):
        ends.append(at)
        assert varint() & 7 == 2  # texts and messages only
        length = varint()
        at += length
    return [*ends, at]


def refused_everywhere(net, text, weights, complaint):
    """Every reader of caffemodels refuses this one."""
    complaint = f"{weights.name}: {complaint}"
    with pytest.raises(pycaffe.Error, match=complaint):
        pycaffe.Net(str(net), 1, weights=str(weights))
    with pytest.raises(pycaffe.Error, match=complaint):
        make_net(net.parent, text).copy_from(str(weights))
    with pytest.raises(BayesCaffeError, match=complaint):
        read_weights(weights)


def test_a_caffemodel_cut_between_two_layers_is_refused_everywhere(tmp_path, digits):
    from bayescaffe import pack

    text = small_net(digits, BAYES)
    net, weights = save_weights(tmp_path, text)
    pack(net, weights=weights)  # which rewrites it
    whole = weights.read_bytes()
    places = boundaries(whole)
    assert places[-1] == len(whole) and len(places) > 9
    cut = tmp_path / "cut.caffemodel"
    for place in places[1:-1]:
        cut.write_bytes(whole[:place])
        caffe_pb2.NetParameter.FromString(whole[:place])  # a valid message
        refused_everywhere(net, text, cut, "cut off")
    done = caffe("test", "-model", net, "-weights", cut, "-iterations", 1)
    assert done.returncode == 1 and f"{cut}: cut off" in done.stdout


@pytest.mark.parametrize("writer", ["Caffe", "Python"])
def test_a_changed_number_of_a_caffemodel_is_refused_everywhere(tmp_path, digits, writer):
    from bayescaffe import pack

    text = small_net(digits, BAYES)
    net, weights = save_weights(tmp_path, text)
    if writer == "Python":
        pack(net, weights=weights)
    whole = bytearray(weights.read_bytes())
    numbers = next(blob for blob in read_weights(weights)[0].blobs).tobytes()
    at = whole.index(numbers) + 4  # the second weight
    whole[at] ^= 1  # its last bit
    weights.write_bytes(whole)
    refused_everywhere(net, text, weights, "damaged: its content does not have its checksum")


def test_a_changed_number_in_hdf5_is_refused(tmp_path, digits):
    net = make_net(tmp_path, small_net(digits, BAYES))
    weights = tmp_path / "net.caffemodel.h5"
    net.save_hdf5(str(weights))
    other = make_net(tmp_path, small_net(digits, BAYES))
    other.copy_from(str(weights))
    name = next(iter(net.params))
    numbers = net.params[name][0].data
    assert np.array_equal(other.params[name][0].data, numbers)
    whole = bytearray(weights.read_bytes())
    whole[whole.index(numbers.tobytes())] ^= 1
    weights.write_bytes(whole)
    with pytest.raises(pycaffe.Error, match="net.caffemodel.h5: damaged: its content does not"):
        other.copy_from(str(weights))
    weights.write_bytes(whole[:-1])
    with pytest.raises(pycaffe.Error, match="net.caffemodel.h5: cut off"):
        other.copy_from(str(weights))


def test_a_caffemodel_that_others_changed_is_read(tmp_path, digits):
    """They keep our checksum, but not as the first field."""
    net, weights = save_weights(tmp_path, small_net(digits, BAYES))
    message = caffe_pb2.NetParameter.FromString(weights.read_bytes())
    layer = next(one for one in message.layer if one.blobs)
    layer.blobs[0].data[0] = 12.5
    weights.write_bytes(message.SerializeToString())
    changed = pycaffe.Net(str(net), 1, weights=str(weights))
    assert changed.params[layer.name][0].data.flat[0] == 12.5
    assert read_weights(weights)[0].blobs[0].flat[0] == 12.5


def test_files_of_stock_caffe_load_and_stock_caffe_reads_ours(tmp_path, digits):
    net, weights = save_weights(tmp_path, small_net(digits, BAYES))
    message = caffe_pb2.NetParameter.FromString(weights.read_bytes())
    assert message.head.size == len(weights.read_bytes()) - message.head.ByteSize() - 3
    message.ClearField("head")
    stock = tmp_path / "stock.caffemodel"
    stock.write_bytes(message.SerializeToString())
    ours, theirs = (pycaffe.Net(str(net), 1, weights=str(path)) for path in (weights, stock))
    for name in ours.params:
        assert np.array_equal(ours.params[name][0].data, theirs.params[name][0].data)
    # Stock Caffe does not know the field: what is left is its message.
    assert weights.read_bytes().endswith(message.SerializeToString())
    head = weights.read_bytes()[: -stock.stat().st_size]
    assert caffe_pb2.NetParameter.FromString(head).ListFields()[0][0].number >= 1000


def test_an_empty_caffemodel_is_refused(tmp_path):
    """It was one without layers."""
    (tmp_path / "x.caffemodel").write_bytes(b"")
    with pytest.raises(BayesCaffeError, match="x.caffemodel: damaged.*: the file is empty"):
        read_weights(tmp_path / "x.caffemodel")


def test_a_layer_whose_name_is_no_text_is_refused(tmp_path, digits):
    _, weights = save_weights(tmp_path, small_net(digits, BAYES))
    weights.write_bytes(weights.read_bytes().replace(b"hidden", b"hid\xffen"))
    with pytest.raises(BayesCaffeError, match="net.caffemodel: damaged"):
        read_weights(weights)


# ---- Snapshots that are no pair


@pytest.fixture(scope="module", params=FORMATS)
def trained(request, tmp_path_factory, digits):
    """The folder of a training with snapshots at 10, 20, 30 and 40 iterations, to be kept."""
    folder = tmp_path_factory.mktemp("trained")
    options = {"snapshot": 10, "snapshot_format": request.param}
    train(write_solver(folder, small_net(digits, BAYES), 40, **options), progress=False)
    return folder


# For tests that change a message of protobuf.
binary_only = pytest.mark.parametrize("trained", ["BINARYPROTO"], indirect=True)


@pytest.fixture
def copy(trained, tmp_path):
    """A copy of that folder, under whose names all is found."""
    folder = tmp_path / "copy"
    shutil.copytree(trained, folder)
    original = tmp_path / "original"
    trained.rename(original)
    shutil.copytree(folder, trained)
    yield trained
    shutil.rmtree(trained)
    original.rename(trained)


def solver_of(folder):
    return folder / "run.solver.prototxt"


def file(folder, iteration, kind):
    return next(folder.glob(f"run_iter_{iteration}.{kind}*"))


def resumed_at(folder, caplog):
    """The iteration from which a training resumes to its end."""
    caplog.clear()
    result = train(solver_of(folder), resume=True, progress=False)
    assert result.iterations == 40 and result.snapshot.name.startswith("run_iter_40.")
    found = re.findall("resumed from .* at iteration (\\d+)", result.log.read_text())
    return int(found[-1])


def test_a_state_with_other_weights_is_refused(copy, caplog):
    whole = file(copy, 40, "caffemodel").read_bytes()
    shutil.copyfile(file(copy, 30, "caffemodel"), file(copy, 40, "caffemodel"))
    state = file(copy, 40, "solverstate")
    with pytest.raises(BayesCaffeError, match=f"{state}: does not belong to the weights in "):
        read_snapshot(state)
    done = caffe("train", "-solver", solver_of(copy), "-snapshot", state)
    assert done.returncode == 1 and f"{state}: does not belong to" in done.stdout
    assert resumed_at(copy, caplog) == 30
    assert "Snapshot skipped: " in caplog.text
    assert read_snapshot(state).iteration == 40
    if state.suffix != ".h5":  # which has the time in it
        assert file(copy, 40, "caffemodel").read_bytes() == whole


def test_hdf5_that_is_cut_anywhere_is_refused(copy):
    state, model = file(copy, 40, "solverstate"), file(copy, 40, "caffemodel")
    for path in (state, model):
        whole = path.read_bytes()
        for size in np.linspace(0, len(whole) - 1, 12).astype(int):
            path.write_bytes(whole[:size])
            with pytest.raises(BayesCaffeError):
                read_snapshot(state)
        path.write_bytes(whole)
    assert read_snapshot(state).iteration == 40


def negative_iteration(state, model):
    state.iter = -40


def nan_in_history(state, model):
    state.history[0].data[3] = float("nan")


def infinity_in_history(state, model):
    state.history[-1].data[0] = float("inf")


def changed_shape_of_history(state, model):
    state.history[0].shape.dim[0] += 1


def turned_history(state, model):
    blob = next(blob for blob in state.history if len(set(blob.shape.dim)) > 1)
    blob.shape.dim[:] = blob.shape.dim[::-1]


def changed_shape_of_weights(state, model):
    layer = next(layer for layer in model.layer if layer.name == "hidden")
    layer.blobs[0].shape.dim[:] = layer.blobs[0].shape.dim[::-1]


def missing_layer(state, model):
    number = [layer.name for layer in model.layer].index("hidden")
    del model.layer[number]


def missing_history(state, model):
    del state.history[1:]
    state.ClearField("current_step")


def nan_in_weights(state, model):
    next(layer for layer in model.layer if layer.blobs).blobs[0].data[0] = float("nan")


DEFECTS = (
    negative_iteration,
    nan_in_history,
    infinity_in_history,
    changed_shape_of_history,
    turned_history,
    changed_shape_of_weights,
    missing_layer,
    missing_history,
    nan_in_weights,
)


@binary_only
@pytest.mark.parametrize("hashes", [True, False], ids=["new", "old"])
@pytest.mark.parametrize("defect", DEFECTS)
def test_resume_falls_back_for_every_defect(copy, caplog, defect, hashes):
    """Also for files of earlier versions, which tell nothing of themselves.

    Written by protobuf, the checksum is not the first field, and so it is not heeded.
    """
    paths = file(copy, 40, "solverstate"), file(copy, 40, "caffemodel")
    state = caffe_pb2.SolverState.FromString(paths[0].read_bytes())
    model = caffe_pb2.NetParameter.FromString(paths[1].read_bytes())
    defect(state, model)
    if not hashes:
        state.ClearField("hash")
        state.ClearField("training")
    for path, message in zip(paths, (state, model), strict=True):
        path.write_bytes(message.SerializeToString())
    assert resumed_at(copy, caplog) == 30
    assert "Snapshot skipped: " in caplog.text and "run_iter_40" in caplog.text


@pytest.mark.parametrize("kind", ["solverstate", "caffemodel"])
def test_resume_falls_back_for_bytes_that_are_no_text(copy, caplog, kind):
    path = file(copy, 40, kind)
    whole = path.read_bytes()
    damaged = whole.replace(b"hidden", b"hid\xffen").replace(b"run_iter", b"run\xffiter")
    assert damaged != whole
    path.write_bytes(damaged)
    assert resumed_at(copy, caplog) == 30


@binary_only
def test_any_bit_of_the_numbers_counts(copy, caplog):
    path = file(copy, 40, "solverstate")
    state = caffe_pb2.SolverState.FromString(path.read_bytes())
    state.history[0].data[0] += 1e-3
    path.write_bytes(state.SerializeToString())
    with pytest.raises(BayesCaffeError, match="does not belong to"):
        read_snapshot(path)


@binary_only
def test_states_of_earlier_versions_resume(copy, caplog):
    whole = file(copy, 40, "caffemodel").read_bytes()
    for path in copy.glob("run_iter_40.*"):
        path.unlink()
    state, model = file(copy, 30, "solverstate"), file(copy, 30, "caffemodel")
    for path, kind, fields in (
        (model, "NetParameter", ["head"]),
        (state, "SolverState", ["head", "hash", "training"]),
    ):
        message = getattr(caffe_pb2, kind).FromString(path.read_bytes())
        for field in fields:
            message.ClearField(field)
        path.write_bytes(message.SerializeToString())
    assert resumed_at(copy, caplog) == 30
    assert file(copy, 40, "caffemodel").read_bytes() == whole


# ---- Another training


def change(folder, old, new, name="run.solver.prototxt"):
    path = folder / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    "old, new, name",
    [
        ("base_lr: 0.01", "base_lr: 0.02", "run.solver.prototxt"),
        ("random_seed: 1", "random_seed: 2", "run.solver.prototxt"),
        ("momentum: 0.9", "type: 'Nesterov' momentum: 0.9", "run.solver.prototxt"),
        ("num_output: 16", "num_output: 17", "run.net.prototxt"),
        ("kl_weight: 0.01", "kl_weight: 0.02", "run.net.prototxt"),
        ("batch_size: 20", "batch_size: 10", "run.net.prototxt"),
    ],
)
def test_another_training_is_not_taken_for_this_one(copy, old, new, name):
    before = {path.name: path.read_bytes() for path in copy.glob("run_iter_*")}
    change(copy, old, new, name)
    with pytest.raises(BayesCaffeError, match="run_iter_40.* of another training"):
        train(solver_of(copy), resume=True, progress=False)
    assert {path.name: path.read_bytes() for path in copy.glob("run_iter_*")} == before


def test_resume_takes_the_older_snapshot_that_is_of_this_training(copy, caplog):
    """Another training wrote the newest one under the same name."""
    change(copy, "base_lr: 0.01", "base_lr: 0.02")
    change(copy, "max_iter: 40", "max_iter: 10")
    train(solver_of(copy), progress=False)
    change(copy, "base_lr: 0.02", "base_lr: 0.01")
    change(copy, "max_iter: 10", "max_iter: 40")
    file(copy, 40, "solverstate").unlink()
    assert resumed_at(copy, caplog) == 30
    assert "run_iter_10" in caplog.text and "of another training" in caplog.text


def test_what_may_differ_on_a_resume_is_what_the_documentation_says(copy, tmp_path):
    """Every field of a solver changes the hash unless caffe_bayes/README.md lists it."""
    from google.protobuf import text_format

    readme = (Path(__file__).parents[2] / "caffe_bayes/README.md").read_text()
    table = re.search(r"these may differ:\n\n((?:\|.*\n)+)", readme)[1]
    listed = set(re.findall(r"`(\w+)`", table))
    text = solver_of(copy).read_text()
    before = pycaffe.training_hash(str(solver_of(copy)))
    path = tmp_path / "changed.prototxt"
    checked = set()
    for field in caffe_pb2.SolverParameter.DESCRIPTOR.fields:
        # Nets are told apart by their layers; solver_type is an old name of type.
        if field.cpp_type == field.CPPTYPE_MESSAGE or field.name.endswith(("net", "solver_type")):
            continue
        solver = text_format.Parse(text, caffe_pb2.SolverParameter())
        if field.cpp_type in (field.CPPTYPE_BOOL, field.CPPTYPE_ENUM):
            other = int(not getattr(solver, field.name))
        else:
            other = "other" if field.cpp_type == field.CPPTYPE_STRING else 7
        if field.label == field.LABEL_REPEATED:
            getattr(solver, field.name).append(other)
        else:
            setattr(solver, field.name, other)
        path.write_text(text_format.MessageToString(solver))
        assert (pycaffe.training_hash(str(path)) == before) == (field.name in listed), field.name
        checked.add(field.name)
    assert listed <= checked and len(checked) > 30


def test_data_may_move(copy, digits, tmp_path, caplog):
    shutil.copytree(digits, tmp_path / "moved")
    for path in copy.glob("run_iter_40.*"):
        path.unlink()
    change(copy, str(digits), str(tmp_path / "moved"), "run.net.prototxt")
    assert resumed_at(copy, caplog) == 30
