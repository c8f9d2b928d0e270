"""`bayescaffe data folder`: pictures that the tests draw become LMDBs. Needs no Caffe."""

import json
import os

import lmdb
import numpy as np
import pytest
from bayescaffe import cli
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.data import from_folder, image_files
from PIL import Image
from test_data import parse_datum, snapshot

COLOURS = {"blue sky": (10, 20, 250), "rose": (240, 30, 20), "Ähre": (200, 180, 40)}
KINDS = ("png", "jpg", "webp", "bmp", "tiff")


def draw(path, colour, size=(12, 9)):
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"lossless": True} if path.suffix == ".webp" else {}
    Image.new("RGB", size, colour).save(path, **options)
    return path


def draw_classes(folder, count=10, classes=COLOURS):
    """Pictures in a folder for each class; each has a shade of its own."""
    for name, colour in classes.items():
        for number in range(count):
            shade = tuple(min(255, value + number) for value in colour)
            draw(folder / name / f"{number}.{KINDS[number % 5]}", shade)
    return folder


def read(path):
    """Keys, images and labels."""
    with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as transaction:
        records = [(bytes(key), parse_datum(value)) for key, value in transaction.cursor()]
    images = [np.frombuffer(one[4], np.uint8).reshape(one[1], one[2], one[3]) for _, one in records]
    return [key for key, _ in records], np.array(images), [one[5] for _, one in records]


def names(path):
    """The names of the pictures in an LMDB, in order."""
    keys = read(path)[0]
    assert [key[:8] for key in keys] == [b"%08d" % number for number in range(len(keys))]
    return [os.fsdecode(key[9:]) for key in keys]


@pytest.fixture
def pictures(tmp_path):
    return draw_classes(tmp_path / "my pictures")


def test_classes_pixels_and_mean(tmp_path, pictures):
    result = from_folder(pictures, tmp_path / "out", size=(6, 4), progress=False)
    assert (result.train_images, result.val_images, result.test) == (24, 6, None)
    found = result.description
    assert found.class_names == ("blue sky", "rose", "Ähre")
    assert (found.shape, found.channels, found.resize) == ((3, 4, 6), "bgr", "squash")
    assert found.images_per_class == (8, 8, 8)
    keys, images, labels = read(result.train)
    for key, image, label in zip(keys, images, labels, strict=True):
        folder, _, name = os.fsdecode(key[9:]).partition("/")
        assert folder == found.class_names[label]
        red, green, blue = (min(255, value + int(name[0])) for value in COLOURS[folder])
        assert np.abs(image.astype(int) - np.reshape([blue, green, red], (3, 1, 1))).max() <= 3
    assert found.mean == pytest.approx(images.mean(axis=(0, 2, 3)), abs=1e-3)
    assert len(set(labels[:8])) > 1, "the order is shuffled"


def test_channels(tmp_path, pictures):
    shapes = {}
    for channels in ("rgb", "bgr", "grey"):
        out = tmp_path / channels
        result = from_folder(pictures, out, size=4, channels=channels, progress=False)
        assert result.description.channels == channels
        shapes[channels] = read(result.val)[1]
    assert np.array_equal(shapes["rgb"], shapes["bgr"][:, ::-1])
    assert not np.array_equal(shapes["rgb"], shapes["bgr"])
    assert shapes["grey"].shape == (6, 1, 4, 4)


def test_aspect(tmp_path):
    """A picture of three squares: red, green, blue. Of a square image, "keep" shows the middle."""
    pixels = np.zeros((8, 24, 3), np.uint8)
    for number in range(3):
        pixels[:, 8 * number : 8 * number + 8, number] = 255
    for number, name in enumerate(("a", "a", "b", "b")):
        (tmp_path / "in" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "in" / name / f"{number}.png")
    for aspect, colours in (("keep", {1}), ("squash", {0, 1, 2})):
        out = tmp_path / aspect
        result = from_folder(
            tmp_path / "in", out, size=8, aspect=aspect, channels="rgb", progress=False
        )
        assert set(read(result.train)[1][0].argmax(axis=0).ravel()) == colours
        assert result.description.resize == aspect


def test_splits_are_stratified_and_disjoint(tmp_path):
    draw_classes(tmp_path / "in", 20, {"a": (1, 2, 3)})
    draw_classes(tmp_path / "in", 5, {"b": (1, 2, 3)})
    out = tmp_path / "out"
    result = from_folder(tmp_path / "in", out, size=4, val=0.2, test=0.3, progress=False)
    counts = {
        name: np.bincount(read(path)[2]).tolist() for name, (path, _) in result.splits.items()
    }
    assert counts == {"train": [10, 2], "val": [4, 1], "test": [6, 2]}
    parts = [names(path) for path, _ in result.splits.values()]
    assert len(set().union(*parts)) == sum(map(len, parts)) == 25


def test_the_same_seed_gives_the_same_bytes(tmp_path, pictures, monkeypatch):
    def content(out, seed):
        result = from_folder(pictures, tmp_path / out, size=8, seed=seed, progress=False)
        digests = {path: digest for path, (digest, _) in snapshot(tmp_path / out).items()}
        return digests, names(result.val)

    first = content("a", 1)
    for workers in (1, 7):
        monkeypatch.setattr(image_files, "cores", lambda workers=workers: workers)
        assert content(f"{workers}", 1) == first
    assert sorted(content("b", 2)[1]) != sorted(first[1])


def test_given_splits(tmp_path):
    for split, count in (("train", 6), ("val", 2), ("test", 3)):
        draw_classes(tmp_path / "in" / split, count)
    result = from_folder(tmp_path / "in", tmp_path / "out", size=4, progress=False)
    assert (result.train_images, result.val_images, result.test_images) == (18, 6, 9)
    assert all(name.startswith("val/") for name in names(result.val))
    with pytest.raises(BayesCaffeError, match="val=0.1 cannot .* there is a folder val"):
        from_folder(tmp_path / "in", tmp_path / "x", size=4, val=0.1, progress=False)
    (tmp_path / "in/val/rose").rename(tmp_path / "in/val/rosse")
    with pytest.raises(BayesCaffeError, match="in/val/rosse: 'rosse' is none .* 'rose'?"):
        from_folder(tmp_path / "in", tmp_path / "x", size=4, progress=False)


def test_a_class_may_be_called_train(tmp_path):
    draw_classes(tmp_path / "in", 4, {"train": (1, 2, 3), "bus": (4, 5, 6)})
    result = from_folder(tmp_path / "in", tmp_path / "out", size=4, progress=False)
    assert result.description.class_names == ("bus", "train")


def test_numbers_are_sorted_as_numbers(tmp_path):
    draw_classes(tmp_path / "in", 2, {str(number): (number, 0, 0) for number in range(12)})
    result = from_folder(tmp_path / "in", tmp_path / "out", size=4, val=0, progress=False)
    assert result.description.class_names == tuple(map(str, range(12)))
    assert result.val is None


LISTS = {
    "list.txt": "a b/1.png rose\n\na b/2.png\tblue sky\n3.png rose\n4.png\tblue sky\n",
    "list.csv": 'Path,Label\n"a b/1.png",rose\na b/2.png,blue sky\n3.png,rose\n4.png,blue sky\n',
    "semicolons.csv": "a b/1.png;rose\na b/2.png;blue sky\n3.png;rose\n4.png;blue sky\n",
    "bom.csv": "\ufefffile,class\na b/1.png,rose\na b/2.png,blue sky\n3.png,rose\n4.png,blue sky\n",
}


@pytest.fixture
def listed(tmp_path):
    for number, name in enumerate(("a b/1.png", "a b/2.png", "3.png", "4.png", "5.png")):
        draw(tmp_path / name, (number, 0, 0))

    def write(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


@pytest.mark.parametrize("name", LISTS)
def test_lists(tmp_path, listed, name):
    path = listed(name, LISTS[name])
    result = from_folder(path, tmp_path / "out", size=4, val=0.5, progress=False)
    assert result.description.class_names == ("blue sky", "rose")
    found = {}
    for split, _ in result.splits.values():
        found |= dict(zip(names(split), read(split)[2], strict=True))
    assert found == {"a b/1.png": 1, "a b/2.png": 0, "3.png": 1, "4.png": 0}


def test_a_list_with_numbers_and_class_names(tmp_path, listed):
    path = listed("list.txt", "3.png 1\n4.png 0\n5.png 1\n")
    options = {"size": 4, "val": 0, "progress": False}
    result = from_folder(path, tmp_path / "a", class_names=["x", "y"], **options)
    assert dict(zip(names(result.train), read(result.train)[2], strict=True))["4.png"] == 0
    assert result.description.class_names == ("x", "y")
    path = listed("list.txt", "3.png 1\n4.png 0\n5.png 2\n")
    with pytest.raises(BayesCaffeError, match="line 3: '2' is none of the classes; these are x, y"):
        from_folder(path, tmp_path / "b", class_names=["x", "y"], **options)


@pytest.mark.parametrize(
    "text, options, message",
    [
        ("3.png rose\n4.png rosse\n", {"class_names": ["rose", "sky"]}, "line 2: 'rosse' .*'rose'"),
        ("3.png rose\n4.png rose\n5.png rosse", {}, "'rosse' has 1 images.* 'rose' has 2"),
        ("3.png a\n4.png A\n", {}, "classes 'A' and 'a' differ only in case"),
        ("3.png a\n4.png b\n./3.png b\n", {}, "line 3: ./3.png is already in line 1"),
        ("3.png a\n4.png a\n", {}, "only one class, a"),
        ("3.png\n", {}, "line 1: '3.png' is not a picture and its class"),
        ("\n", {}, "list.txt: names no pictures"),
    ],
)
def test_lists_that_are_refused(tmp_path, listed, text, options, message):
    path = listed("list.txt", text)
    with pytest.raises(BayesCaffeError, match=message):
        from_folder(path, tmp_path / "out", size=4, progress=False, **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("right", "wrong"), [("rose", "rosse"), ("rose", "roes"), ("rose", "rise")]
)
def test_two_classes_that_are_almost_the_same_are_told(tmp_path, listed, caplog, right, wrong):
    path = listed("list.csv", f"3.png,{right}\n4.png,{right}\n5.png,{wrong}\na b/1.png,{wrong}\n")
    options = {"size": 4, "progress": False}
    from_folder(path, tmp_path / "out", **options)
    one, two = sorted((right, wrong))
    assert f"{one!r} (2 images) and {two!r} (2) differ by one letter" in caplog.text
    caplog.clear()
    from_folder(path, tmp_path / "b", class_names=[right, wrong], **options)
    assert "differ by one letter" not in caplog.text


@pytest.mark.parametrize(
    ("one", "two"), [("cat", "rat"), ("cell1", "cell2"), ("rose", "nose ring")]
)
def test_classes_that_differ_on_purpose(tmp_path, listed, caplog, one, two):
    path = listed("list.csv", f"3.png,{one}\n4.png,{one}\n5.png,{two}\na b/1.png,{two}\n")
    from_folder(path, tmp_path / "out", size=4, progress=False)
    assert "differ by one letter" not in caplog.text


def test_pictures_that_cannot_be_read(tmp_path, pictures, caplog):
    bad = pictures / "rose" / "bad.jpg"
    bad.write_bytes(b"no picture")
    (pictures / "notes.heic").write_text("x")
    result = from_folder(pictures, tmp_path / "out", size=4, progress=False)
    assert result.train_images + result.val_images == 30
    assert [bad.name in reason for reason in result.skipped] == [True]
    assert "bad.jpg: not an image" in caplog.text and "notes.heic" in caplog.text
    with pytest.raises(BayesCaffeError, match="(?s)1 pictures could not be read:.*bad.jpg: not an"):
        from_folder(pictures, tmp_path / "strict", size=4, strict=True, progress=False)
    assert not (tmp_path / "strict").exists()


def test_a_class_of_broken_pictures(tmp_path, pictures):
    for path in (pictures / "rose").iterdir():
        path.write_bytes(b"x")
    with pytest.raises(BayesCaffeError, match="'rose' has no picture in train that can be read"):
        from_folder(pictures, tmp_path / "out", size=4, progress=False)


def test_folders_that_are_refused(tmp_path, pictures):
    def refused(message, path=pictures, out=tmp_path / "out", **options):
        with pytest.raises(BayesCaffeError, match=message):
            from_folder(path, out, **{"size": 4, "progress": False, **options})
        assert not (tmp_path / "out").exists()

    (pictures / "empty").mkdir()
    refused("pictures/empty: this class has no pictures")
    (pictures / "empty").rmdir()
    draw(pictures / "Rose" / "1.png", (1, 2, 3))
    refused("classes 'Rose' and 'rose' differ only in case")
    (pictures / "Rose" / "1.png").unlink()
    (pictures / "Rose").rmdir()
    refused("rose: has no sub-folders; expected a sub-folder of pictures for", pictures / "rose")
    refused("nowhere: no such folder", tmp_path / "nowhere")
    refused("lies inside of", out=pictures / "out")
    refused("channels='gbr' is not one of bgr, rgb, grey", channels="gbr")
    refused("aspect='crop' is not one of squash, keep", aspect="crop")
    refused("val=1.5 is not a share", val=1.5)
    refused(r"val \+ test: no images are left", val=0.5, test=0.5)
    refused("size: 0x3 is not 1 or more", size=(0, 3))


def test_what_is_there_is_replaced_only_by_force(tmp_path, pictures):
    out = tmp_path / "out"
    from_folder(pictures, out, size=4, test=0.2, progress=False)
    before = snapshot(out)
    with pytest.raises(BayesCaffeError, match="out/train_lmdb is there already; .*force=True"):
        from_folder(pictures, out, size=8, progress=False)
    assert snapshot(out) == before
    from_folder(pictures, out, size=8, progress=False, force=True)
    assert not (out / "test_lmdb").exists(), "a split of the old set must not stay"
    assert json.loads((out / "dataset.json").read_text())["shape"] == [3, 8, 8]


def test_command_line(tmp_path, pictures, capsys):
    command = ["data", "folder", str(pictures), "--out", str(tmp_path / "out"), "--size", "6x4"]
    assert cli.main([*command, "--val", "0.3", "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert f"{tmp_path}/out/train_lmdb: 21 images of 3x4x6, 3 classes\n" in printed
    assert "blue sky 7, rose 7, Ähre 7" in printed
    assert "bgr: blue, green, red" in printed and "mean.binaryproto" in printed
    assert cli.main([*command, "--json", "--force", "--channels", "grey"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["channels"], found["val_images"], len(found["mean"])) == ("grey", 6, 1)
    for size in ("0", "6x", "axb", "1x2x3"):
        with pytest.raises(SystemExit):
            cli.main([*command[:-1], size])
        assert "is not a size, such as 64 or 320x240" in capsys.readouterr().err
