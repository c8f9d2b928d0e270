"""Caffemodels that carry their net: they work from any directory, without any other file."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import PLAIN_ENVIRONMENT, caffe, input_net, save_weights, small_net, write_solver
from PIL import Image

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
import bayescaffe  # noqa: E402
from bayescaffe import BayesCaffeError, Model, cli, pack, predict  # noqa: E402
from bayescaffe.common.pycaffe import read_binary, write_caffemodel  # noqa: E402
from bayescaffe.net.packing import is_packed  # noqa: E402

BAYES = "kl_weight: 0.01 dataset_size: 330"
NAMES = ["circle", "ring", "square", "a cross"]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The current directory, with nothing in it."""
    folder = tmp_path / "else where"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    """Colour pictures of 12 x 12 as LMDBs with a description and a mean image."""
    random = np.random.default_rng(1)
    labels = np.arange(40) % 4
    images = random.integers(0, 60, (40, 12, 12, 3)) + 60 * (labels[:, None, None, None] % 3)
    images[..., 0] += 70
    folder = tmp_path_factory.mktemp("colours")
    bayescaffe.data.from_arrays(
        images.astype(np.uint8), labels, folder, channels="rgb", class_names=NAMES, progress=False
    )
    return folder


def colour_net(folder):
    """The small net, with a mean image, paths relative to the LMDBs' folder."""
    mean = 'transform_param { mean_file: "mean.binaryproto" crop_size: 10 scale: 0.0039'
    text = small_net(folder, BAYES).replace("transform_param { scale: 0.0039", mean)
    return text.replace("test_lmdb", "val_lmdb").replace(f"{folder}/", "")


@pytest.fixture
def colour_files(colours, tmp_path, monkeypatch):
    monkeypatch.chdir(colours)
    return save_weights(tmp_path, colour_net(colours))


def draws_of(model, images):
    return model.sample(images, 3)


def test_one_file_is_enough(colour_files, colours, elsewhere, monkeypatch):
    monkeypatch.chdir(colours)
    before = Model(*colour_files, seed=4)
    images = before.test_images.read(range(5))
    picture = elsewhere / "a picture.png"
    Image.fromarray(images[0].transpose(1, 2, 0)[..., ::-1]).resize((30, 20)).save(picture)
    expected = predict(before, picture, passes=5)
    packed = pack(before, elsewhere / "my net.caffemodel")
    monkeypatch.chdir(elsewhere)
    with pytest.raises(OSError, match=r"mean\.binaryproto"):
        Model(*colour_files)
    shutil.copy(packed, "copy")
    after = Model("copy", seed=4)
    assert np.array_equal(draws_of(after, images), draws_of(before, images))
    assert predict(after, picture, passes=5) == expected
    assert after.class_names == tuple(NAMES)
    assert (after.channels, after.image_shape, after.input_shape) == (
        "bgr",
        (3, 12, 12),
        (3, 10, 10),
    )
    # Its own LMDB has an absolute path.
    found = bayescaffe.sample(after, passes=2, progress=False)
    assert found.probabilities.shape == (2, 8, 4) and found.labels is not None


def test_it_needs_no_lmdb(colour_files, colours, tmp_path, elsewhere, monkeypatch):
    copy = tmp_path / "copy"
    shutil.copytree(colours, copy)
    monkeypatch.chdir(copy)
    packed = pack(Model(*colour_files), tmp_path / "packed.caffemodel")
    monkeypatch.chdir(elsewhere)
    (copy / "val_lmdb" / "data.mdb").write_bytes(b"damaged")
    assert Model(packed).class_names == tuple(NAMES)
    shutil.rmtree(copy)
    model = Model(packed)
    assert model.test_images is None
    with pytest.raises(BayesCaffeError, match="val_lmdb is not there; name the images"):
        bayescaffe.sample(model)


def test_an_array_in_the_wrong_order_is_converted(colour_files, colours, elsewhere, monkeypatch):
    monkeypatch.chdir(colours)
    pack(Model(*colour_files))
    monkeypatch.chdir(elsewhere)
    model = Model(colour_files[1])
    images = np.random.default_rng(0).integers(0, 255, (2, 3, 12, 12), np.uint8)
    with pytest.raises(BayesCaffeError, match="the order of its colours is not known"):
        predict(model, images, passes=2)
    bgr = predict(model, images, passes=2, channels="bgr")
    rgb = predict(model, images[:, ::-1], passes=2, channels="rgb")
    assert bgr == rgb


def test_options_are_carried(tmp_path, digits, elsewhere):
    deploy = input_net(small_net(digits, BAYES), 3)
    net, weights = save_weights(tmp_path, deploy)
    chosen = Model(net, weights, output="hidden", scale=0.5, mean=[3])
    names = [f"class {i}" for i in range(16)]
    images = np.random.default_rng(0).integers(0, 255, (2, 1, 12, 12), np.uint8)
    after = Model(pack(chosen, "packed.caffemodel", class_names=names))
    assert np.array_equal(draws_of(after, images), draws_of(chosen, images))
    assert after.class_names == tuple(names)
    # Packed again, with another option.
    again = Model(pack(Model("packed.caffemodel", scale=2), "again.caffemodel"))
    assert again.transform.scale == 2 and again.transform.mean == 3
    assert again.class_names == tuple(names)
    # Without what was chosen, the net's own output.
    assert Model(pack(Model(net, weights), "plain.caffemodel")).classes == 4


def test_the_order_of_colours_can_be_told(colour_files, colours, elsewhere, monkeypatch, capsys):
    monkeypatch.chdir(colours)
    deploy = input_net(small_net(colours, BAYES), 1).replace("dim: 1 dim: 12", "dim: 3 dim: 10")
    Path("deploy.prototxt").write_text(deploy.replace("dim: 12", "dim: 10"))
    assert Model("deploy.prototxt", colour_files[1]).channels is None
    out = str(elsewhere / "told.caffemodel")
    options = ["--channels", "rgb", "--out", out, "--json"]
    assert cli.main(["pack", "deploy.prototxt", str(colour_files[1]), *options]) == 0
    assert json.loads(capsys.readouterr().out)["channels"] == "rgb"
    model = Model(out)
    images = np.random.default_rng(0).integers(0, 255, (2, 3, 10, 10), np.uint8)
    taken = predict(model, images, passes=2, channels="rgb")
    assert taken == predict(model, images[:, ::-1], passes=2, channels="bgr")
    assert [one.probabilities for one in taken] == [
        pytest.approx(row) for row in model.sample(images, 2).mean(axis=0).tolist()
    ]
    grey = save_weights(elsewhere, input_net(small_net(colours, BAYES), 1))
    with pytest.raises(BayesCaffeError, match="channels='rgb', but images are 1x12x12"):
        pack(Model(*grey), channels="rgb")


def test_a_file_that_is_not_there_is_named(elsewhere, capsys):
    for command in (["sample"], ["predict", "lost.caffemodel", "x.png"], ["inspect"], ["pack"]):
        words = command if len(command) > 1 else [*command, "lost.caffemodel"]
        assert cli.main(words) == 1
        assert capsys.readouterr().err == "bayescaffe: error: lost.caffemodel: no such file\n"


def test_other_programs_read_it_as_before(tmp_path, digits):
    net, weights = save_weights(tmp_path, small_net(digits, None))
    packed = pack(Model(net, weights), tmp_path / "packed.caffemodel")
    results = []
    for path in (weights, packed):
        log = caffe("test", "-model", net, "-weights", path, "-iterations", 2, GLOG_logtostderr="1")
        lines = [line.split("] ")[1] for line in log.stdout.splitlines() if "accuracy = " in line]
        results.append(lines)
    assert results[0] == results[1] and len(results[0]) == 3
    cv2 = pytest.importorskip("cv2")
    deploy = tmp_path / "deploy.prototxt"
    deploy.write_text(input_net(small_net(digits, None), 1))
    image = np.random.default_rng(0).random((1, 1, 12, 12), np.float32)
    outputs = []
    for path in (weights, packed):
        reader = cv2.dnn.readNetFromCaffe(str(deploy), str(path))
        reader.setInput(image)
        outputs.append(reader.forward())
    assert np.array_equal(*outputs) and outputs[0].any()


def test_train_writes_such_files(tmp_path, digits, elsewhere):
    solver = write_solver(tmp_path, small_net(digits, BAYES), 4, snapshot=2)
    result = bayescaffe.train(solver, progress=False)
    for path in (result.snapshot, tmp_path / "run_iter_2.caffemodel"):
        model = Model(path)
        assert model.is_random and model.image_shape == (1, 12, 12)
        assert model.transform.scale == 0.00390625
    found = bayescaffe.sample(result.snapshot, passes=2, progress=False)
    assert found.probabilities.shape == (2, 100, 4)
    resumed = bayescaffe.train(
        write_solver(tmp_path, small_net(digits, BAYES), 6), resume=True, progress=False
    )
    assert resumed.iterations == 6 and Model(resumed.snapshot).classes == 4


@pytest.mark.parametrize("is_left", [False, True], ids=["all done", "some left"])
def test_a_run_that_was_killed_while_it_packed_is_made_good(tmp_path, digits, is_left):
    """Its snapshots did not carry their net, and what it was writing stayed."""
    solver = write_solver(tmp_path, small_net(digits, BAYES), 8, snapshot=2)
    bayescaffe.train(solver, progress=False)
    models = sorted(tmp_path.glob("*.caffemodel"))
    assert len(models) == 4 and all(map(is_packed, models))
    for path in models[1:]:
        net = read_binary(path, "NetParameter", "caffemodel")
        net.ClearField("inference")
        write_caffemodel(net, path)
    (tmp_path / ".run_iter_4.caffemodel.0123456789abcdef.tmp").write_text("half")
    before = models[0].stat().st_mtime_ns
    if is_left:
        (tmp_path / "run_iter_8.solverstate").unlink()
    bayescaffe.train(solver, resume=True, progress=False)
    assert all(map(is_packed, models))
    assert not list(tmp_path.glob(".*"))
    assert models[0].stat().st_mtime_ns == before


def test_training_of_another_kind_of_net_works_as_before(tmp_path, digits):
    net = small_net(digits, BAYES).replace("SoftmaxWithLoss", "HingeLoss")
    result = bayescaffe.train(write_solver(tmp_path, net, 2), progress=False)
    with pytest.raises(BayesCaffeError, match=r"does not carry its net.*bayescaffe pack NET"):
        Model(result.snapshot)


def test_commands_take_one_file(tmp_path, digits, elsewhere, capsys):
    net, weights = map(str, save_weights(tmp_path, small_net(digits, BAYES)))
    assert cli.main(["pack", net, weights, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["out"] == weights and facts["image_shape"] == [1, 12, 12]
    Image.fromarray(np.zeros((12, 12), np.uint8)).save("black.png")
    Image.fromarray(np.full((12, 12), 255, np.uint8)).save("white.png")
    found = []
    for files in ([weights], [net, weights]):
        for order in (
            [*files, "black.png", "white.png", "--seed", "3"],
            [*files, "--seed", "3", "black.png", "white.png"],
            [*files, "black.png", "--seed", "3", "white.png"],
        ):
            assert cli.main(["predict", *order, "--passes", "45", "--json"]) == 0
            found.append(json.loads(capsys.readouterr().out)["images"])
    assert found[0][0]["image"] == "black.png" and all(one == found[0] for one in found)
    assert cli.main(["sample", weights, "--passes", "3", "--quiet"]) == 0
    assert os.path.exists("net.draws.npz")
    assert cli.main(["report", "net.draws.npz", "--quiet"]) == 0
    assert "hidden" in Path("report.html").read_text()
    assert cli.main(["export", weights, "--means", "--to", "caffe", "--out", "out"]) == 0
    capsys.readouterr()
    assert cli.main(["inspect", weights, "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert cli.main(["inspect", net, weights, "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert alone["layers"] == both["layers"] and alone["advice"] == both["advice"]


@pytest.mark.parametrize("command", [["sample"], ["predict"], ["inspect"], ["pack"]])
def test_a_prototxt_alone_is_refused(tmp_path, digits, capsys, command):
    net, weights = map(str, save_weights(tmp_path, small_net(digits, BAYES)))
    more = ["x.png", "y.png"] if command == ["predict"] else []
    if command != ["predict"]:
        assert cli.main([*command, net, *more]) == 1
        assert f"{net}: a prototxt has no weights" in capsys.readouterr().err
    assert cli.main([*command, weights, *more]) == 1
    assert f"{weights}: does not carry its net" in capsys.readouterr().err


def test_predict_needs_an_image(tmp_path, digits, capsys):
    net, weights = map(str, save_weights(tmp_path, small_net(digits, BAYES)))
    for files in ([net, weights], [weights]):
        with pytest.raises(SystemExit):
            cli.main(["predict", *files])
        assert "required: IMAGE" in capsys.readouterr().err


def test_a_converted_caffemodel_does_not_carry_the_net_before(tmp_path, digits, elsewhere):
    net, weights = save_weights(tmp_path, small_net(digits, None))
    pack(Model(net, weights))
    assert Model(weights).classes == 4
    bayescaffe.convert(net, weights, out="bayes")
    with pytest.raises(BayesCaffeError, match="does not carry its net"):
        Model("bayes/net.caffemodel")


def test_hdf5_is_refused(tmp_path, digits):
    solver = write_solver(tmp_path, small_net(digits, BAYES), 1, snapshot_format="HDF5")
    result = bayescaffe.train(solver, progress=False)
    with pytest.raises(BayesCaffeError, match="does not carry its net"):
        Model(result.snapshot)


def test_a_full_disk_leaves_the_caffemodel(tmp_path, digits):
    """The caffemodel is replaced when the new one is complete, and not before."""
    net, weights = save_weights(tmp_path, small_net(digits, BAYES))
    before = weights.read_bytes()
    program = f"""
import resource
import bayescaffe
model = bayescaffe.Model({str(net)!r}, {str(weights)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
bayescaffe.pack(model)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=PLAIN_ENVIRONMENT
    )
    assert done.returncode == 1 and "File too large" in done.stderr
    assert weights.read_bytes() == before and len(list(tmp_path.glob(".*"))) == 0
