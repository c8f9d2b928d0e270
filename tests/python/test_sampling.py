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
from pathlib import Path

import numpy as np
import pytest
from conftest import PLAIN_ENVIRONMENT, save_weights, small_net

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe import __version__, cli  # noqa: E402
from bayescaffe.common.errors import BayesCaffeError  # noqa: E402
from bayescaffe.data.images import LmdbImages  # noqa: E402
from bayescaffe.infer import sampling  # noqa: E402
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
    draws = sample(*trained, digits / "test_lmdb", passes=3, seed=9, out=out)
    assert np.array_equal(draws.probabilities, Model(*trained, seed=9).sample(images, 3))
    labels = [label for _, chunk in LmdbImages(digits / "test_lmdb").chunks(7) for label in chunk]
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
    found = sample(*trained, passes=2, out=out).probabilities
    other = out.with_name("y.npz")
    expected = sample(*trained, digits / "test_lmdb", passes=2, out=other).probabilities
    assert np.array_equal(found, expected)


def test_neither_chunks_nor_passes_change_a_draw(trained, out, monkeypatch):
    whole = sample(*trained, passes=4, out=out).probabilities
    monkeypatch.setattr(sampling, "CHUNK_BYTES", 33 * 4 * 144)
    parts = sample(*trained, passes=2, out=out.with_name("y.npz"))
    if os.environ.get("BAYESCAFFE_ENGINE", "").lower() == "caffe":  # BLAS sums in its own order
        assert np.allclose(parts.probabilities, whole[:2], rtol=1e-4, atol=1e-6)
    else:
        assert np.array_equal(parts.probabilities, whole[:2])
    assert np.array_equal(parts.labels, load_draws(out).labels)


def test_no_chunk_is_larger_than_it_may_be(trained, out, monkeypatch):
    counts = []
    original = Model.sample

    def counting(self, images, *args, **kwargs):
        counts.append(len(images))
        return original(self, images, *args, **kwargs)

    monkeypatch.setattr(Model, "sample", counting)
    monkeypatch.setattr(sampling, "CHUNK_BYTES", 40 * 4 * 144)
    sample(*trained, passes=1, out=out)
    assert counts == [40, 40, 20]


def test_arrays_with_and_without_labels(trained, images, out, tmp_path):
    np.save(tmp_path / "x.npy", images[:7, 0])
    np.save(tmp_path / "y.npy", np.arange(7) % 4)
    draws = sample(*trained, tmp_path / "x.npy", 1, labels=tmp_path / "y.npy", out=out)
    assert np.array_equal(draws.labels, np.arange(7) % 4)
    assert np.array_equal(draws.probabilities, Model(*trained).sample(images[:7], 1))
    assert sample(*trained, images[:7], 1, out=out).labels is None


def test_a_net_whose_data_is_elsewhere_takes_the_shape_of_what_it_is_given(
    trained, digits, images, out
):
    trained[0].write_text(trained[0].read_text().replace(str(digits), "/nowhere"))
    assert sample(*trained, images, 1, out=out).probabilities.shape == (1, 100, 4)
    with pytest.raises(BayesCaffeError, match="size of its images is not known"):
        sample(*trained, passes=1, out=out)


def test_a_net_that_is_not_random_says_so(tmp_path, digits, out, caplog):
    caplog.set_level("INFO", "bayescaffe")
    trained = save_weights(tmp_path, small_net(digits, None, DROPOUT))
    draws = sample(*trained, passes=2, out=out)
    assert "no layer is random, so all passes are equal" in caplog.text
    assert np.array_equal(draws.probabilities[0], draws.probabilities[1])
    assert draws.meta["is_random"] is False
    draws = sample(*trained, passes=2, out=out, mc_dropout=True)
    assert not np.array_equal(draws.probabilities[0], draws.probabilities[1])


@pytest.mark.parametrize("passes", [0, -3])
def test_no_passes_are_refused(trained, out, passes, capsys):
    with pytest.raises(BayesCaffeError, match=f"{passes} passes: at least one is needed"):
        sample(*trained, passes=passes, out=out)
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
        sample(*trained, passes=1, out=out)
    with pytest.raises(BayesCaffeError, match="array: image 1: label -1 is not within 0..2"):
        sample(*trained, images[:2], 1, labels=np.array([2, -1]), out=out)
    assert files(out.parent) == []


def test_what_is_no_number_is_refused(tmp_path, digits, trained, images, out):
    pixels = images[:5].astype(np.float32)
    pixels[3, 0, 0, 0] = np.nan
    with pytest.raises(BayesCaffeError, match="array: image 3: has pixels that are no numbers"):
        sample(*trained, pixels, 2, out=out)

    def enlarge(net):
        for name in ("conv", "hidden", "out"):
            net.params[name][0].data[...] = 1e30

    large = save_weights(tmp_path, small_net(digits, BAYES), enlarge)
    with pytest.raises(BayesCaffeError, match="test_lmdb: record 0: the net gives a .* in draw 0"):
        sample(*large, passes=2, out=out)
    assert files(out.parent) == []


def test_images_of_another_shape_are_refused(trained, images, out):
    with pytest.raises(BayesCaffeError, match="images are 1x11x12, but the net takes 1x12x12"):
        sample(*trained, images[:, :, 1:], 1, out=out)
    with pytest.raises(BayesCaffeError, match="put the channels before height and width"):
        sample(*trained, images.transpose(0, 2, 3, 1), 1, out=out)


def test_class_names_must_be_as_many_as_classes(trained, out):
    with pytest.raises(BayesCaffeError, match="3 class names for 4 classes"):
        sample(*trained, passes=1, out=out, class_names=list("abc"))
    assert sample(*trained, passes=1, out=out, class_names=list("abcd")).meta["class_names"] == [
        "a",
        "b",
        "c",
        "d",
    ]


def test_a_folder_that_is_not_there(trained, tmp_path):
    with pytest.raises(BayesCaffeError, match="there is no directory .*none"):
        sample(*trained, passes=1, out=tmp_path / "none" / "x.npz")


def test_a_full_disk_is_said_before_the_work(trained, out, monkeypatch):
    asked = []

    def refuse(descriptor, offset, length):
        asked.append((offset, length))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    monkeypatch.setattr(Model, "sample", None)
    with pytest.raises(OSError, match="No space left"):
        sample(*trained, passes=3, out=out)
    assert asked == [(0, 3 * 100 * 4 * 4)]
    assert files(out.parent) == []


def test_a_failure_leaves_the_old_file_alone(trained, out, monkeypatch):
    sample(*trained, passes=1, out=out)
    before = out.read_bytes()

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(Model, "sample", interrupt)
    with pytest.raises(KeyboardInterrupt):
        sample(*trained, passes=1, out=out)
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
    # Its scratch file has no name, but is open as soon as it samples.
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
    assert first == f"{out}: 3 passes of 100 images, 4 classes"
    assert second == f"error of the mean prediction: {wrong}.00% ({wrong} of 100)"
    assert third.startswith("time: ") and third.endswith(" µs for an image and a pass")
    assert draws.meta["seed"] == 2


def test_the_command_prints_json(trained, images, out, tmp_path, capsys, monkeypatch):
    np.save(tmp_path / "x.npy", images)
    (tmp_path / "names").write_text("null\none\ntwo\nthree\n")
    monkeypatch.chdir(out.parent)
    more = ("--data", tmp_path / "x.npy", "--classes", tmp_path / "names", "--json", "--quiet")
    result = json.loads(run(capsys, *trained, *more))
    assert result.pop("seconds") > 0
    assert result == {
        "out": "net.draws.npz",
        "passes": 100,
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
