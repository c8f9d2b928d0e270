"""What the description of a net's LMDB does: colours in the right order, names for labels.

The net is not trained: output k is the sum of a channel, so it tells blue, green and red apart if,
and only if, the channels come in the order of its LMDB.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import save_weights
from PIL import Image

pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe import cli, predict, sample, train  # noqa: E402
from bayescaffe.cli.report import _images  # noqa: E402
from bayescaffe.common.errors import BayesCaffeError  # noqa: E402
from bayescaffe.data import from_folder, open_images  # noqa: E402
from bayescaffe.net.model import Model  # noqa: E402
from bayescaffe.stats.draws import load_draws  # noqa: E402

COLOURS = {"blue": (10, 20, 200), "green": (20, 250, 10), "red": (250, 10, 20)}
NAMES = list(COLOURS)
RGB = np.array([np.full((4, 4, 3), colour) for colour in COLOURS.values()], np.uint8)
RGB = RGB.transpose(0, 3, 1, 2)


def draw(folder, count=4):
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.new("RGB", (5, 7), colour).save(folder / name / f"{number}.png")
    return folder


def data_layer(phase, path, more=""):
    return f"""layer {{ name: "data" type: "Data" top: "data" top: "label"
        include {{ phase: {phase} }}
        transform_param {{ scale: 0.004 {more} }}
        data_param {{ source: "{path}" batch_size: 2 backend: LMDB }} }}"""


def net_text(train_lmdb, test_lmdb, outputs=3, more=""):
    return f"""{data_layer("TRAIN", train_lmdb, more)} {data_layer("TEST", test_lmdb, more)}
        layer {{ name: "out" type: "InnerProduct" bottom: "data" top: "out"
          inner_product_param {{ num_output: {outputs} bias_term: false }} }}
        layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "out" bottom: "label" top: "loss" }}
        """


def write_net(folder, dataset, outputs=3):
    """A net for that data; its paths."""

    def change(net):
        weights = net.params["out"][0].data.reshape(outputs, 3, 16)
        weights[:] = 0
        for label in range(3):
            is_bgr = dataset.description.channels == "bgr"
            weights[label, label if is_bgr else 2 - label] = 1

    folder.mkdir(exist_ok=True)
    return save_weights(folder, net_text(dataset.train, dataset.val, outputs), change)


@pytest.fixture(params=["bgr", "rgb"])
def case(request, tmp_path):
    """A net for each order of colours."""
    pictures = draw(tmp_path / "pictures")
    options = {"size": 4, "val": 0.5, "progress": False}
    dataset = from_folder(pictures, tmp_path / "data", channels=request.param, **options)
    net = write_net(tmp_path / "net", dataset)
    other = "rgb" if request.param == "bgr" else "bgr"
    foreign = from_folder(pictures, tmp_path / "other", channels=other, **options)
    return SimpleNamespace(
        pictures=pictures, dataset=dataset, net=net, model=Model(*net), foreign=foreign
    )


def one(case, images, **options):
    """Draws of one pass."""
    return sample(case.model, images, passes=1, progress=False, **options)


def labels(draws):
    return draws.probabilities[0].argmax(axis=1).tolist()


def test_the_nets_own_lmdb(case):
    draws = one(case, None)
    assert labels(draws) == draws.labels.tolist() and set(labels(draws)) == {0, 1, 2}
    assert draws.meta["class_names"] == NAMES
    assert [name.split("/")[0] for name in draws.meta["names"]] == [
        NAMES[label] for label in labels(draws)
    ]
    assert case.model.channels == case.dataset.description.channels


def test_pictures_are_brought_to_the_nets_order(case):
    found = predict(case.model, case.pictures, passes=1, progress=False)
    assert len(found) == 12
    assert all(f"/{each.class_name}/" in each.image for each in found)
    named = predict(case.model, case.pictures, passes=1, class_names=list("xyz"), progress=False)
    assert {each.class_name for each in named} == set("xyz")


def test_arrays_are_converted_or_refused(case, tmp_path):
    np.save(tmp_path / "x.npy", RGB)
    for images in (RGB, tmp_path / "x.npy"):
        assert labels(one(case, images, channels="rgb")) == [0, 1, 2]
        with pytest.raises(BayesCaffeError, match="order of its colours is not .*channels='rgb'"):
            one(case, images)
    assert labels(one(case, RGB[:, ::-1], channels="bgr")) == [0, 1, 2]
    assert labels(one(case, RGB, channels="bgr")) == [2, 1, 0]
    found = predict(case.model, RGB, passes=1, channels="rgb", progress=False)
    assert [each.class_name for each in found] == NAMES
    with pytest.raises(BayesCaffeError, match="order of its colours is not known"):
        predict(case.model, RGB, passes=1, progress=False)
    with pytest.raises(BayesCaffeError, match=r"channels='gbr'"):
        one(case, RGB, channels="gbr")
    with pytest.raises(BayesCaffeError, match="image files tell the order themselves"):
        one(case, case.pictures, channels="rgb")


def test_another_lmdb_is_converted_or_refused(case):
    for lmdb in (case.foreign.val, case.dataset.train):
        draws = one(case, lmdb)
        assert labels(draws) == draws.labels.tolist()
    order = case.foreign.description.channels
    with pytest.raises(BayesCaffeError, match=f"but the LMDB has {order}"):
        one(case, case.foreign.val, channels=case.dataset.description.channels)
    (case.foreign.val / "dataset.json").unlink()
    with pytest.raises(BayesCaffeError, match="order of its colours is not known"):
        one(case, case.foreign.val)
    draws = one(case, case.foreign.val, channels=order)
    assert labels(draws) == draws.labels.tolist()


def test_images_may_be_used_for_several_nets(case, tmp_path):
    other = Model(*write_net(tmp_path / "other net", case.foreign))
    images = open_images(RGB, channels="rgb")
    for _ in range(2):
        assert labels(one(case, images)) == [0, 1, 2]
        assert labels(sample(other, images, passes=1, progress=False)) == [0, 1, 2]


def test_a_net_whose_order_is_not_known(case, caplog):
    """It takes Caffe's order: what is known as rgb is converted, what is not known stays."""
    (case.dataset.val / "dataset.json").unlink()
    case.model = Model(*case.net)
    assert (case.model.channels, case.model.class_names) == (None, None)
    is_bgr = case.dataset.description.channels == "bgr"
    expected = [0, 1, 2] if is_bgr else [2, 1, 0]
    assert labels(one(case, RGB, channels="rgb")) == expected
    assert "colours" not in caplog.text
    assert labels(one(case, RGB[:, ::-1])) == expected
    assert "order of its colours is not known, neither is the net's" in caplog.text


def test_sub_folders_are_labels_by_their_names(case):
    draws = one(case, case.pictures)
    assert draws.labels.tolist() == labels(draws) == [0] * 4 + [1] * 4 + [2] * 4
    assert one(case, case.pictures, labels=np.arange(12) % 2).labels.tolist() == [0, 1] * 6
    named = open_images(case.pictures, class_names=["red", "green", "blue"])
    assert one(case, named).labels.tolist() == [2] * 4 + [1] * 4 + [0] * 4
    (case.pictures / "green").rename(case.pictures / "gren")
    with pytest.raises(
        BayesCaffeError, match="pictures/gren: 'gren' is none .*'green'.*give labels"
    ):
        one(case, case.pictures)
    (case.pictures / "gren").rename(case.pictures / "monday")
    with pytest.raises(BayesCaffeError, match="'monday' is none of the .* are blue, green, red"):
        one(case, case.pictures)


def test_sub_folders_that_are_no_classes_are_no_labels(case):
    for number, name in enumerate(NAMES):
        (case.pictures / name).rename(case.pictures / f"camera {number}")
    assert one(case, case.pictures).labels is None
    for number in range(3):
        (case.pictures / f"camera {number}").rename(case.pictures / f"{number}")
    assert one(case, case.pictures).labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_pictures_are_resized_as_those_of_the_lmdb(tmp_path):
    pictures = draw(tmp_path / "pictures")
    wide = Image.new("RGB", (30, 6), "red")
    wide.paste(Image.new("RGB", (6, 6), (0, 250, 0)), (12, 0))
    wide.save(tmp_path / "wide.png")
    for aspect, expected in (("keep", "green"), ("squash", "red")):
        dataset = from_folder(
            pictures, tmp_path / aspect, size=4, aspect=aspect, val=0.5, progress=False
        )
        model = Model(*write_net(tmp_path / f"net {aspect}", dataset))
        (found,) = predict(model, tmp_path / "wide.png", passes=1, progress=False)
        assert found.class_name == expected


def test_class_names_that_do_not_fit_the_net(case, tmp_path, caplog):
    model = Model(*write_net(tmp_path / "wide", case.dataset, outputs=5))
    assert model.class_names is None
    assert "has 5 outputs, but its data" in caplog.text and "has 3 classes" in caplog.text


def test_the_report_shows_true_colours_and_names(case, tmp_path, capsys):
    out = tmp_path / "x.npz"
    for images, options in ((None, {}), (case.foreign.val, {}), (case.pictures, {})):
        draws = one(case, images, out=out, **options)
        pixels = _images(SimpleNamespace(data=None), draws).read(range(len(draws.labels)))
        assert pixels.mean(axis=(2, 3)).argmax(axis=1).tolist() == draws.labels.tolist()
    np.save(tmp_path / "rgb.npy", RGB)
    draws = one(case, tmp_path / "rgb.npy", channels="rgb", labels=np.arange(3), out=out)
    pixels = _images(SimpleNamespace(data=None), draws).read(range(3))
    assert pixels.mean(axis=(2, 3)).argmax(axis=1).tolist() == [0, 1, 2]
    one(case, None, out=out)
    page = tmp_path / "report.html"
    assert cli.main(["report", str(out), "--out", str(page), "--quiet"]) == 0
    assert all(name in page.read_text() for name in NAMES)


def test_command_line(case, tmp_path, capsys):
    np.save(tmp_path / "x.npy", RGB)
    command = ["sample", *map(str, case.net), "--passes", "1", "--quiet"]
    command += ["--out", str(tmp_path / "out.npz")]
    data = ["--data", str(tmp_path / "x.npy")]
    assert cli.main([*command, *data]) == 1
    assert "--channels" in capsys.readouterr().err
    assert cli.main([*command, *data, "--channels", "rgb"]) == 0
    assert labels(load_draws(tmp_path / "out.npz")) == [0, 1, 2]
    assert cli.main([*command, "--channels", "rgb"]) == 1
    assert "--channels: needs --data" in capsys.readouterr().err
    assert cli.main([*command, "--data", str(case.pictures)]) == 0
    assert "error of the mean prediction: 0.00%" in capsys.readouterr().out


# Training


def solver(folder, text):
    (folder / "train.prototxt").write_text(text)
    path = folder / "solver.prototxt"
    path.write_text(
        f'net: "{folder}/train.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 2 display: 1 '
        f'snapshot_prefix: "{folder}/x" solver_mode: CPU test_iter: 1 test_interval: 1'
    )
    return path


def test_training_refuses_lmdbs_that_do_not_fit(case, tmp_path):
    path = solver(tmp_path, net_text(case.dataset.train, case.foreign.val))
    with pytest.raises(
        BayesCaffeError, match="do not fit together: channels is (bgr|rgb) in .*data/"
    ):
        train(path, progress=False)
    description = case.foreign.val / "dataset.json"
    content = json.loads(description.read_text())
    content["channels"] = case.dataset.description.channels
    description.write_text(json.dumps({**content, "class_names": ["blue", "gren", "red"]}))
    with pytest.raises(
        BayesCaffeError, match="class_names is blue, green, red in .* blue, gren, r"
    ):
        train(path, progress=False)
    description.write_text("{")
    with pytest.raises(BayesCaffeError, match="val_lmdb/dataset.json: damaged"):
        train(path, progress=False)
    description.unlink()
    assert train(path, progress=False).iterations == 2


def test_training_warns_of_a_mean_in_the_wrong_order(case, tmp_path, caplog):
    mean = case.dataset.description.mean
    for order, warned in ((mean, False), (mean[::-1], True)):
        caplog.clear()
        more = " ".join(f"mean_value: {value}" for value in order)
        text = net_text(case.dataset.train, case.dataset.val, more=more)
        train(solver(tmp_path, text), progress=False)
        assert ("in the wrong order" in caplog.text) == warned
    caplog.clear()
    more = f'mean_file: "{case.dataset.train.parent}/mean.binaryproto"'
    text = net_text(case.dataset.train, case.dataset.val, more=more)
    assert train(solver(tmp_path, text), progress=False).iterations == 2
