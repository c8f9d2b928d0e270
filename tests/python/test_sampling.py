"""`bayescaffe sample`: the passes of a net, bit for bit, in one file or none at all."""

import contextlib
import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from conftest import PLAIN_ENVIRONMENT, engine_is_chosen, save_weights, small_net

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe import __version__, cli  # noqa: E402
from bayescaffe.common.errors import BayesCaffeError  # noqa: E402
from bayescaffe.data.images import open_images  # noqa: E402
from bayescaffe.data.lmdb import LmdbImages  # noqa: E402
from bayescaffe.infer.sampling import sample  # noqa: E402
from bayescaffe.net.model import Model  # noqa: E402
from bayescaffe.stats.draws import load_draws  # noqa: E402

pytestmark = pytest.mark.engine
BAYES = "kl_weight: 0.01 dataset_size: 330"
DROPOUT = """layer { name: "drop" type: "Dropout" bottom: "hidden" top: "hidden"
                     dropout_param { dropout_ratio: 0.5 } }"""


@pytest.fixture
def trained(tmp_path, digits):
    return save_weights(tmp_path, small_net(digits, BAYES))


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "x.draws.npz"


@pytest.fixture
def images(digits):
    return LmdbImages(digits / "test_lmdb").read(range(100))


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_draws_file_holds_what_the_model_gives(trained, digits, images, out):
    draws = sample(Model(*trained, seed=9), digits / "test_lmdb", passes=3, out=out)
    assert np.array_equal(draws.probabilities, Model(*trained, seed=9).sample(images, 3))
    labels = LmdbImages(digits / "test_lmdb").in_order()(100)[1]
    assert np.array_equal(draws.labels, labels)
    assert draws.meta["seed"] == 9
    assert draws.meta["passes"] == 3
    assert draws.meta["net"] == str(trained[0])
    assert draws.meta["net_sha256"] == sha256(trained[0])
    assert draws.meta["weights_sha256"] == sha256(trained[1])
    assert draws.meta["data"] == str(digits / "test_lmdb")
    assert draws.meta["version"] == __version__
    assert files(out.parent) == [out.name]


def test_the_nets_own_test_images_are_the_default(trained, digits, out):
    found = sample(Model(*trained), passes=2, out=out).probabilities
    other = out.with_name("y.npz")
    expected = sample(Model(*trained), digits / "test_lmdb", passes=2, out=other).probabilities
    assert np.array_equal(found, expected)


def test_the_path_of_the_data_is_absolute(trained, digits, monkeypatch):
    trained[0].write_text(trained[0].read_text().replace(f"{digits}/", ""))
    monkeypatch.chdir(digits)
    for data in (None, "test_lmdb"):
        assert sample(Model(*trained), data, 1).meta["data"] == str(digits / "test_lmdb")


PART = 2**26 // (4 * 144)
"""Images of 1 x 12 x 12 that Caffe takes at a time: 64 MB."""


def test_neither_parts_nor_passes_change_a_draw(trained, images, out, monkeypatch):
    """With more images than Caffe takes at a time."""
    asked = []
    original = Model.sample_parts

    def counting(self, read, *args, **kwargs):
        def spy(first, count):
            asked.append((first, count))
            return read(first, count)

        return original(self, spy, *args, **kwargs)

    monkeypatch.setattr(Model, "sample_parts", counting)
    model = Model(*trained)
    whole = sample(model, passes=4, out=out).probabilities
    assert asked == [(0, 100)]
    asked.clear()
    many = np.tile(images, (1 + PART // 100, 1, 1, 1))
    truth = np.arange(len(many)) % 4
    parts = sample(model, many, 2, labels=truth, out=out.with_name("y.npz"))
    first = PART // 20 * 20  # whole batches
    assert asked == [(0, first), (first, len(many) - first)]
    found = parts.probabilities.reshape(2, -1, 100, 4)
    if not engine_is_chosen():  # BLAS sums in its own order
        assert np.allclose(found, whole[:2, np.newaxis], rtol=1e-4, atol=1e-6)
    else:
        assert (found == whole[:2, np.newaxis]).all()
    assert np.array_equal(parts.labels, truth)


def test_bad_numbers_and_labels_are_found_in_every_part(trained, images, out):
    many = np.tile(images, (1 + PART // 100, 1, 1, 1)).astype(np.float32)
    for row in (3, len(many) - 1):
        pixels = many.copy()
        pixels[row, 0, 0, 0] = np.nan
        with pytest.raises(BayesCaffeError, match=f"array: image {row}: has pixels that are no nu"):
            sample(Model(*trained), pixels, 1, out=out)
    truth = np.zeros(len(many), int)
    truth[-2] = 4
    with pytest.raises(BayesCaffeError, match=f"image {len(many) - 2}: label 4 is not within 0..3"):
        sample(Model(*trained), many, 1, labels=truth, out=out)
    assert files(out.parent) == []


def test_draws_stay_in_memory_without_a_file(trained, out, tmp_path, monkeypatch):
    monkeypatch.chdir(out.parent)
    in_memory, in_file = (sample(Model(*trained), passes=3, out=where) for where in (None, out))
    assert np.array_equal(in_memory.probabilities, in_file.probabilities)
    assert np.array_equal(in_memory.labels, in_file.labels)
    changing = {"created", "seconds", "path"}
    assert in_memory.meta.keys() == in_file.meta.keys() - {"path"}
    for key in in_memory.meta.keys() - changing:
        assert in_memory.meta[key] == in_file.meta[key]
    assert in_memory.meta["seconds"] > 0
    assert files(out.parent) == [out.name]


def test_the_file_is_a_valid_npz_with_checksums(trained, out):
    draws = sample(Model(*trained), passes=2, out=out)
    with zipfile.ZipFile(out) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["probabilities.npy", "labels.npy", "meta.npy"]
        assert all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
    with np.load(out) as file:
        assert np.array_equal(file["probabilities"], draws.probabilities)


def test_a_prototxt_and_its_weights_are_a_model(trained, images):
    expected = sample(Model(*trained), images, 2).probabilities
    found = sample(trained[0], images, 2, weights=str(trained[1])).probabilities
    assert np.array_equal(found, expected)
    with pytest.raises(
        BayesCaffeError, match="net.prototxt: a prototxt has no weights; give the caffemodel, too"
    ):
        sample(trained[0], images, 2)
    with pytest.raises(BayesCaffeError, match="weights='x': the model has its weights already"):
        sample(Model(*trained), images, 2, weights="x")


def test_images_that_are_open_already(trained, digits, images):
    source = open_images(images, labels=np.arange(100) % 4)
    draws = sample(Model(*trained), source, 1)
    assert np.array_equal(draws.labels, np.arange(100) % 4)
    with pytest.raises(BayesCaffeError, match="invert: these images are open already"):
        sample(Model(*trained), source, 1, invert=True)


def test_arrays_with_and_without_labels(trained, images, out, tmp_path):
    np.save(tmp_path / "x.npy", images[:7, 0])
    np.save(tmp_path / "y.npy", np.arange(7) % 4)
    draws = sample(Model(*trained), tmp_path / "x.npy", 1, labels=tmp_path / "y.npy", out=out)
    assert np.array_equal(draws.labels, np.arange(7) % 4)
    assert np.array_equal(draws.probabilities, Model(*trained).sample(images[:7], 1))
    assert sample(Model(*trained), images[:7], 1, out=out).labels is None


def test_a_net_whose_data_is_elsewhere_takes_the_shape_of_what_it_is_given(
    trained, digits, images, out
):
    trained[0].write_text(trained[0].read_text().replace(str(digits), "/nowhere"))
    net, weights = trained
    assert sample(net, images, 1, weights=weights, out=out).probabilities.shape == (1, 100, 4)
    with pytest.raises(BayesCaffeError, match="size of its images is not known"):
        sample(net, passes=1, weights=weights, out=out)
    model = Model(net, weights, image_shape=(1, 12, 12))
    with pytest.raises(BayesCaffeError, match="the LMDB /nowhere/test_lmdb is not there; name the"):
        sample(model, passes=1, out=out)
    np.save(out.parent / "x.npy", images)
    command = ["sample", str(net), str(weights), "--data", str(out.parent / "x.npy")]
    assert cli.main([*command, "--passes", "1", "--out", str(out)]) == 0


def test_a_net_that_is_not_random_says_so(tmp_path, digits, out, caplog):
    caplog.set_level("INFO", "bayescaffe")
    trained = save_weights(tmp_path, small_net(digits, None, DROPOUT))
    draws = sample(Model(*trained), passes=2, out=out)
    assert "no layer is random, so all draws are equal" in caplog.text
    assert np.array_equal(draws.probabilities[0], draws.probabilities[1])
    assert draws.meta["is_random"] is False
    draws = sample(Model(*trained, mc_dropout=True), passes=2, out=out)
    assert not np.array_equal(draws.probabilities[0], draws.probabilities[1])


@pytest.mark.parametrize("passes", [0, -3])
def test_no_passes_are_refused(trained, out, passes, capsys):
    with pytest.raises(BayesCaffeError, match=f"passes={passes}: at least one draw is needed"):
        sample(Model(*trained), passes=passes, out=out)
    with pytest.raises(SystemExit):
        cli.main(["sample", *map(str, trained), "--passes", str(passes)])
    assert f"argument --passes: {passes} is not 1 or more" in capsys.readouterr().err


def test_labels_outside_of_the_classes_are_refused(tmp_path, digits, images, out):
    text = small_net(digits, BAYES).replace(
        "num_output: 4 weight_filler", "num_output: 3 weight_fi"
    )
    text = text.replace("weight_fi {", "weight_filler {")
    trained = save_weights(tmp_path, text)
    with pytest.raises(BayesCaffeError, match=r"test_lmdb: record \d+: label 3 is not within 0..2"):
        sample(Model(*trained), passes=1, out=out)
    with pytest.raises(BayesCaffeError, match="array: image 1: label -1 is not within 0..2"):
        sample(Model(*trained), images[:2], 1, labels=np.array([2, -1]), out=out)
    assert files(out.parent) == []


def test_what_is_no_number_is_refused(tmp_path, digits, trained, images, out):
    pixels = images[:5].astype(np.float32)
    pixels[3, 0, 0, 0] = np.nan
    with pytest.raises(BayesCaffeError, match="array: image 3: has pixels that are no numbers"):
        sample(Model(*trained), pixels, 2, out=out)

    def enlarge(net):
        for name in ("conv", "hidden", "out"):
            net.params[name][0].data[...] = 1e30

    # Which of the threads notices it first is not said.
    gives_nan = r"test_lmdb: record \d+: the net gives a .* in draw [01], from layer 'hidden' on"
    large = save_weights(tmp_path, small_net(digits, BAYES), enlarge)
    with pytest.raises(BayesCaffeError, match=gives_nan):
        sample(Model(*large), passes=2, out=out)
    assert files(out.parent) == []


def test_images_of_another_shape_are_refused(trained, images, out):
    with pytest.raises(BayesCaffeError, match="images are 1x11x12, but the net takes 1x12x12"):
        sample(Model(*trained), images[:, :, 1:], 1, out=out)


def test_class_names_must_be_as_many_as_classes(trained, out):
    with pytest.raises(BayesCaffeError, match="class_names: 3 names for 4 classes"):
        sample(Model(*trained), passes=1, out=out, class_names=list("abc"))
    draws = sample(Model(*trained), passes=1, out=out, class_names=list("abcd"))
    assert draws.meta["class_names"] == ["a", "b", "c", "d"]


def test_a_folder_that_is_not_there(trained, tmp_path):
    with pytest.raises(BayesCaffeError, match="there is no directory .*none"):
        sample(Model(*trained), passes=1, out=tmp_path / "none" / "x.npz")


def test_weights_of_the_other_format_are_named(trained, tmp_path):
    path = tmp_path / "net.caffemodel.h5"
    Model(*trained).caffe_net.save_hdf5(str(path))
    with pytest.raises(
        BayesCaffeError, match=r"net\.caffemodel\.h5: is an HDF5 file, .* BINARYPROTO"
    ):
        Model(trained[0], path)


def test_a_full_disk_is_said_before_the_work(trained, out, monkeypatch):
    asked = []

    def refuse(descriptor, offset, length):
        asked.append((offset, length))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    monkeypatch.setattr(Model, "sample_parts", None)
    with pytest.raises(OSError, match="No space left"):
        sample(Model(*trained), passes=3, out=out)
    ((offset, length),) = asked
    assert offset == 0 and 0 < length - 3 * 100 * 4 * 4 <= 512  # two headers
    assert files(out.parent) == []


def test_a_failure_leaves_the_old_file_alone(trained, out, monkeypatch):
    sample(Model(*trained), passes=1, out=out)
    before = out.read_bytes()

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(Model, "sample_parts", interrupt)
    with pytest.raises(KeyboardInterrupt):
        sample(Model(*trained), passes=1, out=out)
    assert out.read_bytes() == before
    assert files(out.parent) == [out.name]


def test_ctrl_c_ends_it_and_leaves_nothing(trained, images, out):
    np.save(trained[0].parent / "x.npy", images[:1])
    arguments = [*trained, "--data", trained[0].parent / "x.npy", "--out", out]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "bayescaffe",
            "sample",
            *map(str, arguments),
            "--passes",
            "10000000",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=PLAIN_ENVIRONMENT,
    )
    # Its scratch file is open as soon as it samples.
    deadline = time.monotonic() + 60
    while str(out.parent) not in " ".join(open_files(process.pid)):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "bayescaffe: interrupted\n")
    assert process.returncode == 130
    assert files(out.parent) == []


def open_files(pid):
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            yield os.readlink(link)


def run(capsys, *arguments):
    assert cli.main(["sample", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_the_command_prints_a_summary(trained, out, capsys):
    text = run(capsys, *trained, "--passes", 3, "--seed", 2, "--out", out)
    draws = load_draws(out)
    wrong = (draws.probabilities.mean(axis=0).argmax(axis=1) != draws.labels).sum()
    first, second, third = text.splitlines()
    assert first == f"{out}: 3 draws of 100 images, 4 classes"
    assert second == f"error of the mean prediction: {wrong}.00% ({wrong} of 100)"
    assert third.startswith("time: ") and third.endswith(" µs per image and draw")
    assert draws.meta["seed"] == 2


def test_a_folder_in_the_place_of_weights_is_told(trained, tmp_path, capsys):
    (tmp_path / "photos").mkdir()
    assert cli.main(["sample", *map(str, (*trained, tmp_path / "photos"))]) == 1
    told = capsys.readouterr().err
    assert f"photos: is a folder, not a caffemodel; images are named by --data {tmp_path}" in told


def test_the_command_prints_json(trained, images, out, tmp_path, capsys, monkeypatch):
    np.save(tmp_path / "x.npy", images)
    (tmp_path / "names").write_text("null\none\ntwo\nthree\n")
    monkeypatch.chdir(out.parent)
    more = ("--data", tmp_path / "x.npy", "--classes", tmp_path / "names", "--json", "--quiet")
    result = json.loads(run(capsys, *trained, *more))
    assert result.pop("seconds") > 0
    assert result == {
        "out": "net.draws.npz",
        "draws": 100,
        "mean_draws": 100,
        "models": 1,
        "images": 100,
        "classes": 4,
        "seed": 1,
        "wrong": None,
        "error": None,
    }
    draws = load_draws("net.draws.npz")
    assert draws.meta["class_names"] == ["null", "one", "two", "three"]
    assert draws.meta["data"] == str(tmp_path / "x.npy")


def test_the_command_sets_the_transform(trained, images, out, tmp_path, capsys):
    deploy = tmp_path / "deploy.prototxt"
    text = trained[0].read_text().replace("scale: 0.00390625", "")
    deploy.write_text(text)
    np.save(tmp_path / "x.npy", images)
    more = ("--data", tmp_path / "x.npy", "--scale", 0.5, "--mean", 7, "--passes", 1, "--out", out)
    run(capsys, deploy, trained[1], *more)
    expected = Model(*trained, scale=0.5, mean=7).sample(images, 1)
    assert np.array_equal(load_draws(out).probabilities, expected)


def test_the_command_fails_with_one_line(trained, capsys, tmp_path):
    assert cli.main(["sample", str(trained[0]), str(tmp_path / "none.caffemodel")]) == 1
    assert capsys.readouterr().err.startswith("bayescaffe: error: [Errno 2] No such file")
    assert cli.main(["sample", *map(str, trained), "--data", "/nowhere"]) == 1
    assert capsys.readouterr().err == (
        "bayescaffe: error: /nowhere: no such file or folder of images\n"
    )
    assert cli.main(["sample", *map(str, trained), "--labels", "y.npy"]) == 1
    assert "error: --labels: needs --data; the net's own LMDB" in capsys.readouterr().err
