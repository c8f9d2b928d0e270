"""`bayescaffe.data.from_arrays` and `bayescaffe data array`. Needs no Caffe."""

import json

import numpy as np
import pytest
from bayescaffe import cli
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.data import from_arrays
from test_own_pictures import read

RANDOM = np.random.default_rng(0)
RGB = RANDOM.integers(0, 256, (40, 6, 5, 3), np.uint8)  # nhwc
RGB[:, 0, 0, 0] = np.arange(40)  # tells an image from all others
Y = np.arange(40) % 4


def stored(result, split="train"):
    """Images as nhwc, red, green, blue, and labels, in the order of the first pixel."""
    _, images, labels = read(result.splits[split][0])
    images = images[:, ::-1].transpose(0, 2, 3, 1)
    order = np.argsort(images[:, 0, 0, 0])
    return images[order], np.array(labels)[order]


@pytest.mark.parametrize(
    "array, options",
    [
        (RGB, {"channels": "rgb"}),
        (RGB[..., ::-1], {"channels": "bgr"}),
        (RGB.transpose(0, 3, 1, 2), {"channels": "rgb"}),
        (RGB.transpose(0, 3, 1, 2), {"channels": "rgb", "layout": "nchw"}),
        (RGB / 255, {"channels": "rgb"}),
        ((RGB / 255).astype(np.float32), {"channels": "rgb"}),
        (RGB.astype(np.int64), {"channels": "rgb"}),
    ],
)
def test_layouts_and_types(tmp_path, array, options):
    result = from_arrays(array, Y, tmp_path / "out", val=0, progress=False, **options)
    images, labels = stored(result)
    assert np.array_equal(images, RGB) and np.array_equal(labels, Y)
    found = result.description
    assert (found.channels, found.class_names, found.resize) == ("bgr", None, None)
    assert found.mean == pytest.approx(RGB.mean(axis=(0, 1, 2))[::-1], abs=1e-3)


def test_grey(tmp_path):
    for name, array in {"nhw": RGB[..., 0], "nhwc": RGB[..., :1]}.items():
        result = from_arrays(array, Y, tmp_path / name, val=0, progress=False)
        images = read(result.train)[1]
        assert np.array_equal(images[np.argsort(images[:, 0, 0, 0]), 0], RGB[..., 0])
        assert result.description.channels == "grey"


def test_splits(tmp_path):
    result = from_arrays(RGB, Y, tmp_path / "a", channels="rgb", test=0.1, progress=False)
    assert [count for _, count in result.splits.values()] == [28, 8, 4]
    assert np.bincount(stored(result, "val")[1]).tolist() == [2] * 4
    other = (255 - RGB[:9], Y[:9])
    result = from_arrays(RGB, Y, tmp_path / "b", channels="rgb", val=0, test=other, progress=False)
    assert np.array_equal(stored(result)[0], RGB)
    _, images, labels = read(result.test)
    assert np.array_equal(images[:, ::-1].transpose(0, 2, 3, 1), other[0])
    assert np.array_equal(labels, Y[:9])


def test_names_of_classes(tmp_path):
    names = np.array(["cat", "dog", "ant", "bee"])
    result = from_arrays(RGB, names[Y], tmp_path / "a", channels="rgb", val=0, progress=False)
    assert result.description.class_names == ("ant", "bee", "cat", "dog")
    assert np.array_equal(stored(result)[1], np.array([2, 3, 0, 1])[Y])
    options = {"channels": "rgb", "val": 0, "progress": False}
    result = from_arrays(RGB, Y, tmp_path / "b", class_names=["3", "2", "1", "0"], **options)
    assert result.description.class_names == ("3", "2", "1", "0")
    assert np.array_equal(stored(result)[1], Y), "numbers are labels, whatever the names"
    with pytest.raises(BayesCaffeError, match=r"y\[2\]: 'ant' is none .* did you mean 'ants'"):
        from_arrays(
            RGB, names[Y], tmp_path / "c", class_names=["cat", "dog", "ants", "bee"], **options
        )


@pytest.mark.parametrize(
    "X, y, options, message",
    [
        (
            RGB,
            Y,
            {},
            r"X: has 3 channels, and channels says nothing; expected rgb or",
        ),
        (RGB[..., 0], Y, {"channels": "rgb"}, "X: has 1 channels, .* says rgb; expected grey"),
        (RGB[:, :3], Y, {"channels": "rgb"}, "X: is of shape 40x3x5x3, .*layout='nhwc' or nchw"),
        (RGB[..., [0, 1]], Y, {}, "X: is of shape 40x6x5x2, .*say layout"),
        (RGB, Y, {"layout": "hwc"}, "layout='hwc' is not one of nhw, nhwc, nchw"),
        (RGB, Y, {"layout": "nhw"}, "X: is of shape 40x6x5x3, expected images of the layout nhw"),
        (RGB * 1.0, Y, {"channels": "rgb"}, "X: is float64 from 0.0 to 255.0, expected whole"),
        (RGB - 1.0, Y, {"channels": "rgb"}, "X: is float64 from -1.0"),
        (RGB * np.nan, Y, {"channels": "rgb"}, "X: is float64 from nan"),
        (RGB, Y[:-1], {"channels": "rgb"}, "y: is int64 of shape 39, .* each of 40 images"),
        (RGB, Y / 1, {"channels": "rgb"}, "y: is float64"),
        (RGB, Y + 1, {"channels": "rgb"}, "y: the labels are 1, 2, 3, 4; expected all numbers"),
        (RGB, Y * 0, {"channels": "rgb"}, "y: there is only one class, 0"),
        (RGB, Y, {"channels": "rgb", "class_names": ["a", "b"]}, r"y\[2\]: label 2 is not within"),
        (RGB, Y, {"channels": "rgb", "class_names": list("abcde")}, "'e' has 0 images"),
        (
            *(RGB, Y, {"channels": "rgb", "test": (RGB[:, 1:], Y)}),
            r"test\[0\]: images are 3x5x5, but those of X are 3x6x5",
        ),
    ],
)
def test_what_is_refused(tmp_path, X, y, options, message):
    with pytest.raises(BayesCaffeError, match=message):
        from_arrays(X, y, tmp_path / "out", progress=False, **options)
    assert not (tmp_path / "out").exists()


def test_command_line(tmp_path, capsys):
    np.save(tmp_path / "x.npy", RGB)
    np.save(tmp_path / "y.npy", Y)
    command = ["data", "array", str(tmp_path / "x.npy"), str(tmp_path / "y.npy"), "--json"]
    command += ["--out", str(tmp_path / "out")]
    assert cli.main([*command, "--channels", "rgb", "--val", "0.1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["train_images"], found["channels"], found["shape"]) == (36, "bgr", [3, 6, 5])
    assert cli.main([*command, "--force"]) == 1
    assert "--channels" in capsys.readouterr().err
