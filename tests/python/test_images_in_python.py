"""What Python users have of images: Pillow's, arrays with the channels last, tables of paths."""

import numpy as np
import pytest
from bayescaffe import BayesCaffeError, open_images
from conftest import save_weights, small_net
from PIL import Image

SHAPE = (3, 9, 12)
RANDOM = np.random.default_rng(2)
RGB = RANDOM.integers(0, 255, (9, 12, 3), np.uint8)


def read(data, channels="bgr", shape=SHAPE, said=None, invert=False):
    """The images as a net takes them."""
    images = open_images(data, channels=said, invert=invert)
    images.name_classes(["cat", "dog"])
    images.fit(shape, channels)
    return images.read(range(len(images)))


# ---- Pillow ------------------------------------------------------------------------------------


def test_a_pillow_image_is_what_its_file_is(tmp_path):
    photo = Image.fromarray(RANDOM.integers(0, 255, (40, 30, 4), np.uint8), "RGBA")
    exif = photo.getexif()
    exif[0x0112] = 6  # lies on its side
    photo.save(tmp_path / "photo.png", exif=exif)
    with Image.open(tmp_path / "photo.png") as image:
        for channels in ("bgr", "rgb"):
            expected = read(tmp_path / "photo.png", channels)
            assert np.array_equal(read(image, channels), expected)
            assert np.array_equal(read([image, tmp_path / "photo.png"], channels)[1:], expected)
        assert open_images(image).describe(0) == str(tmp_path / "photo.png")
        image.load()  # it is still open
    assert open_images(photo).describe(0) == "image"


def test_pillow_images_have_the_order_of_the_net():
    image = Image.fromarray(RGB)
    assert np.array_equal(read(image, "rgb")[0], RGB.transpose(2, 0, 1))
    assert np.array_equal(read(image, "bgr")[0], RGB.transpose(2, 0, 1)[::-1])
    assert np.array_equal(read(image, None)[0], RGB.transpose(2, 0, 1)[::-1])
    assert np.array_equal(read(image, "bgr", invert=True)[0], 255 - RGB.transpose(2, 0, 1)[::-1])


# ---- arrays ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [
        RGB,
        RGB[np.newaxis],
        [RGB],
        RGB.transpose(2, 0, 1)[np.newaxis],
        [RGB.transpose(2, 0, 1)],
    ],
    ids=["hwc", "nhwc", "list of hwc", "nchw", "list of chw"],
)
def test_channels_may_come_last(array):
    expected = RGB.transpose(2, 0, 1)
    assert np.array_equal(read(array, "rgb", said="rgb"), expected[np.newaxis])
    assert np.array_equal(read(array, "bgr", said="rgb"), expected[np.newaxis, ::-1])
    assert np.array_equal(read(array, "bgr", said="bgr"), expected[np.newaxis])
    with pytest.raises(BayesCaffeError, match="the order of its colours is not known"):
        read(array, "bgr")


def test_several_images_with_channels_last():
    array = RANDOM.integers(0, 255, (5, 9, 12, 3), np.uint8)
    assert np.array_equal(read(array, "rgb", said="rgb"), array.transpose(0, 3, 1, 2))
    assert np.array_equal(read(list(array), "rgb", said="rgb"), array.transpose(0, 3, 1, 2))


def test_grey_images():
    grey = RGB[..., 0]
    for array in (grey, grey[..., np.newaxis], grey[np.newaxis], grey[np.newaxis, np.newaxis]):
        assert np.array_equal(read(array, "grey", (1, 9, 12)), grey[np.newaxis, np.newaxis])
    stack = RANDOM.integers(0, 255, (5, 9, 12), np.uint8)
    assert np.array_equal(read(stack, "grey", (1, 9, 12)), stack[:, np.newaxis])


def test_channels_that_are_first_stay_first():
    """A cube fits both ways: the usual one counts."""
    cube = RANDOM.integers(0, 255, (2, 3, 3, 3), np.uint8)
    assert np.array_equal(read(cube, "rgb", (3, 3, 3), said="rgb"), cube)


def test_what_does_not_fit_is_refused():
    with pytest.raises(BayesCaffeError, match="images are 3x9x12, but the net takes 3x10x12"):
        read(RGB, "rgb", (3, 10, 12), said="rgb")
    with pytest.raises(BayesCaffeError, match=r"channels='rgb', but images are 5x9x12"):
        read(np.zeros((2, 5, 9, 12)), None, (5, 9, 12), said="rgb")
    with pytest.raises(BayesCaffeError, match="arrays of one shape, found 4x4x3 and 9x12x3"):
        read([RGB, RGB[:4, :4]])


# ---- tables ------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    names = []
    for number in range(3):
        names.append(str(tmp_path / f"{number}.png"))
        Image.fromarray(np.roll(RGB, number, 2)).save(names[-1])
    return names


def test_a_table_of_paths(files):
    pandas = pytest.importorskip("pandas")
    expected = read(files)
    for table in (
        pandas.DataFrame({"path": files, "size": [1, 2, 3]}),
        pandas.DataFrame({"any name": files}),
        pandas.Series(files, index=[7, 5, 6]),
    ):
        assert np.array_equal(read(table), expected)
    labelled = open_images(pandas.DataFrame({"path": files, "label": [2, 0, 1]}))
    assert labelled.labels.tolist() == [2, 0, 1] and labelled.names == files
    named = open_images(pandas.DataFrame({"path": files, "label": ["dog", "cat", "dog"]}))
    named.name_classes(["cat", "dog"])
    assert named.labels.tolist() == [1, 0, 1]


def test_tables_that_do_not_tell(files):
    pandas = pytest.importorskip("pandas")
    for table, says in (
        ({"file": files, "label": [1, 0, 1]}, "has the columns file, label; expected a column"),
        ({"path": [*files[:2], None]}, "no path in row 2"),
        ({"path": files, "label": [1.5, 0, 1]}, "'label' is float64, expected a whole number"),
        ({"path": files, "label": ["dog", "cat", "dgo"]}, "'dgo' is none of the classes"),
    ):
        with pytest.raises(BayesCaffeError, match=says):
            read(pandas.DataFrame(table))


# ---- predict and sample ------------------------------------------------------------------------


def test_predict_and_sample_take_all_of_them(tmp_path, digits):
    pytest.importorskip("caffe", reason="pycaffe is not built")
    from bayescaffe import Model, predict, sample
    from bayescaffe.data.lmdb import LmdbImages

    model = Model(*save_weights(tmp_path, small_net(digits, "kl_weight: 0.01 dataset_size: 330")))
    pixels = LmdbImages(digits / "test_lmdb").read(range(2))
    pictures = [Image.fromarray(image[0]) for image in pixels]
    pictures[0].save(tmp_path / "picture.png")
    expected = sample(model, pixels, 45, progress=False).probabilities
    means = expected.mean(axis=0)
    for images in (
        pictures,
        pixels.transpose(0, 2, 3, 1),
        list(pixels[:, 0]),
        [tmp_path / "picture.png", pictures[1]],
    ):
        assert np.array_equal(sample(model, images, 45, progress=False).probabilities, expected)
        found = [one.probabilities for one in predict(model, images, 45, progress=False)]
        assert np.allclose(found, means, atol=1e-6)
    for one in (pictures[0], pixels[0, 0], pixels[0].transpose(1, 2, 0)):
        (found,) = predict(model, one, 45, progress=False)
        assert np.allclose(found.probabilities, means[0], atol=1e-6)
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"path": [tmp_path / "picture.png"], "label": [3]})
    assert sample(model, table, 2, progress=False).labels.tolist() == [3]
    (found,) = predict(model, table, 45, progress=False)
    assert found.image == str(tmp_path / "picture.png")
