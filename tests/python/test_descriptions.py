"""The description in an LMDB's folder: what it says is true, and a damaged one is named."""

import hashlib
import json
import sys
from dataclasses import replace

import lmdb
import numpy as np
import pytest
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.data.datasets import prepare, prepare_idx
from bayescaffe.data.description import Description, read_description, write_description
from conftest import write_digits

DESCRIPTION = Description(
    shape=(3, 4, 5),
    channels="rgb",
    class_names=("Ähre", "b c"),
    mean=(1.5, 2, 3),
    split="val",
    images=7,
    images_per_class=(3, 4),
    seed=9,
    sha256="00",
    resize="keep",
)


@pytest.fixture
def idx_set(tmp_path):
    write_digits(tmp_path / "idx", train=40, test=20, size=12, classes=4)
    return prepare_idx(tmp_path / "idx", tmp_path / "out", seed=3, progress=False)


def records(path):
    with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as transaction:
        return list(transaction.cursor())


def idx_array(path, header):
    return np.frombuffer(path.read_bytes(), np.uint8, offset=header)


def test_a_set_describes_itself(tmp_path, idx_set):
    pixels = idx_array(tmp_path / "idx/train-images-idx3-ubyte", 16)
    for split, prefix, count in (("train", "train", 40), ("test", "t10k", 20)):
        path = tmp_path / "out" / f"{split}_lmdb"
        found = read_description(path)
        labels = idx_array(tmp_path / f"idx/{prefix}-labels-idx1-ubyte", 8)
        assert (found.shape, found.channels, found.class_names) == ((1, 12, 12), "grey", None)
        assert (found.split, found.images, found.seed) == (split, count, 3)
        assert found.images_per_class == tuple(np.bincount(labels, minlength=4))
        assert found.mean == pytest.approx([pixels.mean()], abs=1e-4)
        content = b"".join(key + record for key, record in records(path))
        assert found.sha256 == hashlib.sha256(content).hexdigest()
    assert idx_set.description == read_description(tmp_path / "out/train_lmdb")


def test_a_set_of_an_early_version_gets_descriptions(tmp_path, monkeypatch, caplog):
    pytest.importorskip("caffe", reason="pycaffe is not built")
    from bayescaffe.data import sources

    write_digits(tmp_path / "idx", train=40, test=20, size=12, classes=10)
    monkeypatch.setitem(sources.KNOWN, "mnist", replace(sources.KNOWN["mnist"], md5={}))
    first = prepare("mnist", tmp_path / "out", source=tmp_path / "idx", progress=False)
    added = ["mean.binaryproto", "train_lmdb/dataset.json", "test_lmdb/dataset.json"]
    kept = ["dataset.json", "train_lmdb/data.mdb", "test_lmdb/data.mdb"]
    before = {name: (tmp_path / "out" / name).read_bytes() for name in [*added, *kept]}
    for name in added:
        (tmp_path / "out" / name).unlink()
    # Without pycaffe, and without the files that it was made of.
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "caffe.proto.caffe_pb2", None)
        assert prepare("mnist", tmp_path / "out", source="gone", progress=False) == first
    assert "out: has no descriptions; force=True writes them (" in caplog.text
    assert prepare("mnist", tmp_path / "out", source="gone", progress=False) == first
    assert {name: (tmp_path / "out" / name).read_bytes() for name in before} == before


def test_the_mean_image_is_what_caffe_reads(tmp_path, idx_set):
    pytest.importorskip("caffe", reason="pycaffe is not built")
    from bayescaffe.net.messages import read_mean

    pixels = idx_array(tmp_path / "idx/train-images-idx3-ubyte", 16).reshape(40, 1, 12, 12)
    mean = read_mean(tmp_path / "out/mean.binaryproto")
    np.testing.assert_allclose(mean, pixels.mean(axis=0), rtol=1e-6)


def test_known_sets_have_class_names(tmp_path, monkeypatch):
    from bayescaffe.data import sources

    write_digits(tmp_path / "idx", train=40, test=20, size=12, classes=10)
    for name in ("mnist", "fashion-mnist"):
        known = replace(sources.KNOWN[name], md5={})
        monkeypatch.setitem(sources.KNOWN, name, known)
        found = prepare(name, tmp_path / name, source=tmp_path / "idx", progress=False).description
        assert found.class_names == known.class_names
        assert len(set(found.class_names)) == 10 == len(found.images_per_class)


def test_it_comes_back_as_it_was(tmp_path):
    write_description(tmp_path, DESCRIPTION)
    assert read_description(tmp_path) == DESCRIPTION
    assert read_description(tmp_path / "data.mdb") == DESCRIPTION
    assert read_description(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    "change, message",
    [
        ({"channels": "gbr"}, "channels is 'gbr', expected one of bgr, rgb, grey, null"),
        ({"channels": "grey"}, "channels is 'grey', but shape has 3 channels"),
        ({"shape": [3, 4]}, r"shape is \[3, 4\], expected channels, height, width"),
        ({"class_names": ["a", 1]}, "class_names is .*, expected a list of names"),
        ({"class_names": ["a"]}, "1 class_names, but 2 images_per_class"),
        ({"mean": [1, 2]}, "mean has 2 numbers for 3 channels"),
        ({"images": "7"}, "images is '7', expected a whole number"),
        ({"resize": "crop"}, "resize is 'crop', expected one of squash, keep, null"),
    ],
)
def test_a_wrong_field_is_named(tmp_path, change, message):
    write_description(tmp_path, DESCRIPTION)
    path = tmp_path / "dataset.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(BayesCaffeError, match=f"{path}: {message}"):
        read_description(tmp_path)


@pytest.mark.parametrize("content", ["", "[1]", '{"shape"', "{}", "\udcff"])
def test_a_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "dataset.json"
    path.write_text(content, errors="surrogateescape")
    with pytest.raises(BayesCaffeError, match=f"{path}: damaged"):
        read_description(tmp_path)


def test_a_description_of_another_lmdb_is_refused(tmp_path, idx_set):
    pytest.importorskip("caffe", reason="pycaffe is not built")
    from bayescaffe.data.images import open_images

    assert open_images(idx_set.test).description == read_description(idx_set.test)
    write_description(idx_set.test, replace(read_description(idx_set.test), images=21))
    with pytest.raises(BayesCaffeError, match="dataset.json: tells of 21 images .* has 20 of"):
        open_images(idx_set.test)
    (idx_set.test / "dataset.json").unlink()
    assert open_images(idx_set.test).description is None
