"""Draws files: what is saved is loaded, what is large is mapped, what is damaged is refused."""

import json
import tracemalloc
import zipfile

import numpy as np
import pytest
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.npz import NpzFile
from bayescaffe.stats.draws import Draws, load_draws, save_draws

RANDOM = np.random.default_rng(0)
PROBABILITIES = RANDOM.dirichlet(np.ones(3), (4, 5)).astype(np.float32)
LABELS = np.array([2, 0, 1, 1, 0])
META = {"seed": 7, "names": ["ä.png", "b.png"]}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "x.draws.npz"
    save_draws(path, PROBABILITIES, LABELS, META)
    return path


def test_what_is_saved_is_loaded(path):
    draws = load_draws(path)
    assert np.array_equal(draws.probabilities, PROBABILITIES)
    assert np.array_equal(draws.labels, LABELS)
    assert draws.meta == {**META, "path": str(path)}
    assert draws.labels.dtype == np.int64
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_without_labels(tmp_path):
    save_draws(tmp_path / "x.npz", PROBABILITIES, None, META)
    assert load_draws(tmp_path / "x.npz").labels is None


def test_repr_is_a_few_lines_without_arrays(path):
    text = repr(load_draws(path))
    shape = "Draws: 4 x 5 x 3 (draws x images x classes)"
    assert text == f"{shape}, with labels\n  path: {path}\n  seed: 7"
    assert repr(Draws(PROBABILITIES)) == f"{shape}, no labels"


def test_plain_numpy_reads_it(path):
    with np.load(path) as file:
        assert np.array_equal(file["probabilities"], PROBABILITIES)
        assert np.array_equal(file["labels"], LABELS)
        assert json.loads(str(file["meta"])) == META
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["probabilities.npy", "labels.npy", "meta.npy"]


def test_what_numpy_writes_is_loaded(tmp_path):
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "x.npz", probabilities=PROBABILITIES, meta=np.array(json.dumps(META)))
        assert np.array_equal(load_draws(tmp_path / "x.npz").probabilities, PROBABILITIES)


@pytest.fixture
def mapped(monkeypatch):
    """Every array is taken for a large one."""
    monkeypatch.setattr("bayescaffe.common.npz.IN_MEMORY", 0)


def test_probabilities_are_read_and_read_only(path):
    probabilities = load_draws(path).probabilities
    assert not isinstance(probabilities.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        probabilities[0] = 0


def test_many_probabilities_are_mapped_read_only_and_aligned(path, mapped):
    probabilities = load_draws(path).probabilities
    assert isinstance(probabilities.base, np.memmap)
    assert probabilities.flags.aligned
    assert probabilities.ctypes.data % 64 == 0
    with pytest.raises(ValueError, match="read-only"):
        probabilities[0] = 0


def test_a_large_array_is_written_and_loaded_without_a_copy_in_memory(tmp_path, mapped):
    array = np.memmap(tmp_path / "scratch", np.float32, "w+", shape=(50, 20_000, 10))  # 40 MB
    array[-1, -1] = 7
    tracemalloc.start()
    save_draws(tmp_path / "x.npz", array, None, META)
    assert load_draws(tmp_path / "x.npz").probabilities[-1, -1, -1] == 7
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e6


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("in_memory", [0, 2**30])
def test_images_of_draws_are_those_of_the_array(tmp_path, monkeypatch, order, in_memory):
    monkeypatch.setattr("bayescaffe.common.npz.IN_MEMORY", in_memory)
    monkeypatch.setattr("bayescaffe.stats.draws.PART_NUMBERS", 2 * 4 * 3)  # two images
    np.savez(
        tmp_path / "x.npz",
        probabilities=np.asarray(PROBABILITIES, order=order),
        meta=np.array("{}"),
    )
    draws = load_draws(tmp_path / "x.npz")
    assert np.array_equal(draws.of_images(1, 4), PROBABILITIES[:, 1:4])
    assert np.array_equal(draws.of_images(4, 5), PROBABILITIES[:, 4:])
    images, parts = zip(*draws.parts(), strict=True)
    assert [rows.tolist() for rows in images] == [[0, 1], [2, 3], [4]]
    assert np.array_equal(np.concatenate(parts, axis=1), PROBABILITIES)


def test_damaged_and_foreign_files_are_refused(path, tmp_path):
    content = path.read_bytes()
    bad = tmp_path / "bad.npz"
    for length in (0, 100, len(content) // 2, len(content) - 1):
        bad.write_bytes(content[:length])
        with pytest.raises(BayesCaffeError, match="bad.npz: truncated, or not an .npz"):
            load_draws(bad)
    bad.write_bytes(content.replace(b"NUMPY", b"nUMPY", 1))
    with pytest.raises(BayesCaffeError, match="bad.npz: the array 'probabilities' is damaged"):
        load_draws(bad)
    np.savez(bad, a=LABELS)
    with pytest.raises(BayesCaffeError, match=r"bad.npz: has no array 'probabilities', but"):
        load_draws(bad)
    with pytest.raises(FileNotFoundError, match="none.npz"):
        load_draws(tmp_path / "none.npz")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"probabilities": PROBABILITIES[0]}, r"float32 of shape \(5, 3\), expected float32"),
        ({"probabilities": PROBABILITIES.astype(float)}, "probabilities are float64"),
        ({"labels": LABELS[:4]}, r"labels are int64 of shape \(4,\)"),
        ({"labels": LABELS / 2}, "labels are float64"),
        ({"meta": np.array("{")}, "its meta is not JSON"),
        ({"meta": np.array("[1]")}, r"its meta is \[1\], expected an object"),
    ],
)
def test_wrong_members_are_refused(tmp_path, change, message):
    good = {"probabilities": PROBABILITIES, "labels": LABELS, "meta": np.array("{}")}
    np.savez(tmp_path / "x.npz", **{**good, **change})
    with pytest.raises(BayesCaffeError, match=message):
        load_draws(tmp_path / "x.npz")


def test_python_objects_are_not_unpickled(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.array([{}], object))
    with (
        NpzFile(tmp_path / "x.npz") as file,
        pytest.raises(BayesCaffeError, match="objects are not read"),
    ):
        file.array("a")


def test_a_file_stays_when_its_successor_fails(path):
    with pytest.raises(TypeError, match="JSON"):
        save_draws(path, PROBABILITIES, LABELS, {"bad": object()})
    with pytest.raises(TypeError, match="NoneType"):
        save_draws(path, PROBABILITIES, [None], META)
    assert load_draws(path).meta["seed"] == META["seed"]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no directory .*none"):
        save_draws(tmp_path / "none" / "x.npz", PROBABILITIES, LABELS, META)
