"""Images from LMDBs, files and arrays: the same pixels by every way, and errors with names."""

import io

import lmdb
import numpy as np
import pytest
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.data.datasets import prepare_idx
from conftest import write_digits
from PIL import Image

pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe.data.arrays import ArrayImages  # noqa: E402
from bayescaffe.data.image_files import ImageFiles, decode  # noqa: E402
from bayescaffe.data.images import open_images  # noqa: E402
from bayescaffe.data.lmdb import LmdbImages  # noqa: E402
from caffe.proto import caffe_pb2  # noqa: E402

RANDOM = np.random.default_rng(0)
GREY = RANDOM.integers(0, 256, (5, 1, 6, 4), np.uint8)
COLOR = RANDOM.integers(0, 256, (3, 6, 4), np.uint8)  # blue, green, red


def datum(image=None, label=None, **fields):
    if image is not None:
        channels, height, width = image.shape
        fields = {"channels": channels, "height": height, "width": width, **fields}
        if image.dtype == np.uint8:
            fields["data"] = image.tobytes()
        else:
            fields["float_data"] = image.ravel()
    message = caffe_pb2.Datum(**fields)
    if label is not None:
        message.label = label
    return message.SerializeToString()


def write_lmdb(path, records):
    path.mkdir()
    with lmdb.open(str(path), map_size=2**22) as env, env.begin(write=True) as transaction:
        for number, record in enumerate(records):
            transaction.put(b"%04d" % number, record)
    return path


def encoded(image, format="PNG", **options):
    """An image (channels x height x width, blue, green, red) as the content of a file."""
    pixels = image[0] if len(image) == 1 else image[::-1].transpose(1, 2, 0)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, format, **options)
    return content.getvalue()


def all_of(source, size=2):
    take = source.in_order()
    sizes = [min(size, len(source) - start) for start in range(0, len(source), size)]
    chunks = [take(count) for count in sizes]
    assert [len(images) for images, _ in chunks] == sizes
    images = np.concatenate([images for images, _ in chunks])
    labels = [labels for _, labels in chunks]
    return images, None if labels[0] is None else np.concatenate(labels)


# LMDBs


def test_an_lmdb_is_read_in_order_and_by_index(tmp_path):
    source = open_images(write_lmdb(tmp_path / "x", [datum(im, i) for i, im in enumerate(GREY)]))
    assert isinstance(source, LmdbImages)
    assert (len(source), source.shape, source.path) == (5, (1, 6, 4), tmp_path / "x")
    images, labels = all_of(source)
    assert np.array_equal(images, GREY) and images.dtype == np.uint8
    assert np.array_equal(labels, range(5))
    assert np.array_equal(source.read([4, 0, 4]), GREY[[4, 0, 4]])
    assert np.array_equal(open_images(tmp_path / "x" / "data.mdb").read(range(5)), GREY)


def test_an_lmdb_may_be_open_several_times_and_be_replaced(tmp_path):
    path = write_lmdb(tmp_path / "x", [datum(image) for image in GREY])
    first, second = LmdbImages(path), LmdbImages(path)
    take = first.in_order()
    take(1)
    assert np.array_equal(second.read([3]), GREY[[3]])
    assert np.array_equal(take(1)[0], GREY[[1]])
    path.rename(tmp_path / "old")
    write_lmdb(tmp_path / "x", [datum(GREY[4])])
    assert np.array_equal(LmdbImages(path).read([0]), GREY[[4]])


def test_an_lmdb_of_floats_without_labels(tmp_path):
    source = LmdbImages(write_lmdb(tmp_path / "x", [datum(image / 7) for image in GREY]))
    images, labels = all_of(source, 3)
    assert np.array_equal(images, (GREY / 7).astype(np.float32)) and labels is None


def test_encoded_images_in_an_lmdb_take_the_nets_shape(tmp_path):
    contents = [encoded(COLOR), encoded(GREY[0])]
    records = [datum(data=content, encoded=True, label=1) for content in contents]
    source = LmdbImages(write_lmdb(tmp_path / "x", records))
    assert np.array_equal(source.read([0])[0], COLOR)
    with pytest.raises(BayesCaffeError, match="record 1: is 1x6x4, but the first record is 3x6x4"):
        all_of(source)
    source.fit((3, 6, 4))
    assert np.array_equal(all_of(source)[0], [COLOR, GREY[0].repeat(3, 0)])
    source.fit((1, 3, 2))
    assert all_of(source)[0].shape == (2, 1, 3, 2)
    assert LmdbImages(tmp_path / "x", color=False).shape == (1, 6, 4)


BAD_RECORDS = {
    "foreign": (b"\xff\xff\xff", r"record 2 \(key 0002\): not a Datum"),
    "cut short": (datum(GREY[0], 1)[:-8], r"record 2 \(key 0002\): not a Datum"),
    "too few bytes": (
        datum(channels=1, height=6, width=4, data=b"123", label=1),
        "record 2: has 3 values, but its shape is 1x6x4",
    ),
    "other shape": (datum(GREY[0, :, 1:], 1), "record 2: is 1x5x4, but the first record is 1x6x4"),
    "no label": (datum(GREY[0]), "record 2: some records have bytes or a label and some have not"),
    "floats": (datum(GREY[0] / 1, 1), "record 2: some records have bytes or a label and some"),
    "no image": (datum(data=b"no image", encoded=True, label=1), "record 2: not an image"),
}


@pytest.mark.parametrize("kind", BAD_RECORDS)
def test_bad_records_are_named(tmp_path, kind):
    record, message = BAD_RECORDS[kind]
    good = datum(GREY[0], 1)
    path = write_lmdb(tmp_path / "bad", [good, good, record])
    with pytest.raises(BayesCaffeError, match=f"bad: {message}"):
        all_of(LmdbImages(path), 10)


def test_truncated_and_foreign_lmdbs_are_refused(tmp_path):
    write_digits(tmp_path / "idx", train=100, test=50, size=12, classes=4)
    prepare_idx(tmp_path / "idx", tmp_path, progress=False)
    path = tmp_path / "test_lmdb" / "data.mdb"
    content = path.read_bytes()
    for size in (len(content) - 1, len(content) // 2, 100, 0):
        path.unlink()
        path.write_bytes(content[:size])
        with pytest.raises(BayesCaffeError, match="test_lmdb: truncated"):
            LmdbImages(tmp_path / "test_lmdb")
    with pytest.raises(BayesCaffeError, match="bad: the LMDB has no records"):
        LmdbImages(write_lmdb(tmp_path / "bad", []))
    with pytest.raises(BayesCaffeError, match="nowhere: no such file or folder of images"):
        open_images(tmp_path / "nowhere")


# Image files


def decoded(image, mode=None, **options):
    content = io.BytesIO()
    image.save(content, options.pop("format", "PNG"), **options)
    return decode(content.getvalue(), *([mode] if mode else []))


def test_colours_are_blue_green_red():
    assert np.array_equal(decode(encoded(COLOR)), COLOR)
    assert decode(encoded(COLOR), 1).shape == (1, 6, 4)
    red = decoded(Image.new("RGB", (1, 1), "red"))
    assert red.ravel().tolist() == [0, 0, 255]


def test_grey_and_colour_are_converted():
    assert np.array_equal(decode(encoded(GREY[0])), GREY[0])
    assert np.array_equal(decode(encoded(GREY[0]), 3), GREY[0].repeat(3, 0))
    weights = np.array([0.114, 0.587, 0.299]).reshape(3, 1, 1)
    assert np.abs(decode(encoded(COLOR), 1)[0] - (COLOR * weights).sum(0)).max() <= 1


def test_all_modes_of_pixels():
    values = np.array([[0, 128, 255]], np.uint8)
    sixteen = Image.fromarray(values.astype(np.uint16) * 257)
    assert sixteen.mode == "I;16"
    assert np.array_equal(decoded(sixteen, 1)[0], values)
    assert decoded(Image.new("1", (1, 1), 1), 1).item() == 255
    assert decoded(Image.new("P", (1, 1), 0), 3).shape == (3, 1, 1)
    assert decoded(Image.new("CMYK", (1, 1)), 1, format="TIFF").item() == 255
    with pytest.raises(BayesCaffeError, match="has floating-point pixels"):
        decoded(Image.new("F", (2, 2)), format="TIFF")


def test_what_is_transparent_is_white():
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    image.putpixel((0, 0), (0, 0, 0, 255))
    assert decoded(image, 1).tolist() == [[[0, 255]]]
    assert decoded(Image.new("LA", (1, 1), (0, 0)), 1).item() == 255
    palette = Image.new("P", (1, 1), 0)
    assert decoded(palette, 1, transparency=0).item() == 255


def test_photos_are_turned_upright():
    image = Image.fromarray(np.array([[0, 255]], np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees, clockwise
    assert decoded(image, 1, exif=exif).tolist() == [[[0], [255]]]


def test_images_are_stretched_without_aliasing():
    checks = np.indices((1, 240, 240)).sum(0) % 2 * 255
    small = decode(encoded(checks.astype(np.uint8)), 1, (12, 10))
    assert small.shape == (1, 12, 10)
    assert np.abs(small.astype(int) - 127).max() < 3


def save_images(folder, names):
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encoded(GREY[number]))


def test_a_folder_is_read_with_its_sub_folders_in_order(tmp_path):
    save_images(tmp_path, ["b.png", "a/z.PNG", "a/c.png"])
    (tmp_path / ".hidden.png").write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("x")
    source = open_images(tmp_path)
    assert source.shape is None
    source.fit((1, 6, 4))
    assert source.names == ["a/c.png", "a/z.PNG", "b.png"]
    images, labels = all_of(source)
    assert np.array_equal(images, GREY[[2, 1, 0]]) and labels is None
    assert np.array_equal(source.read([2]), GREY[[0]])
    inverted = open_images(tmp_path, invert=True)
    inverted.fit((1, 6, 4))
    assert np.array_equal(inverted.read([2]), 255 - GREY[[0]])
    with pytest.raises(
        BayesCaffeError, match="image files are grey or colour, but the net takes 2"
    ):
        source.fit((2, 6, 4))


def test_sub_folders_are_labels_if_they_are_numbers_or_classes(tmp_path):
    save_images(tmp_path, ["10/a.png", "2/a.png", "2/b.png"])
    assert open_images(tmp_path).labels.tolist() == [10, 2, 2]
    assert open_images(tmp_path, class_names=["2", "x", "10"]).labels.tolist() == [2, 0, 0]
    save_images(tmp_path, ["cat/a.png"])
    assert open_images(tmp_path).labels is None
    labels = open_images(tmp_path, class_names=["cat", "2", "10"]).labels
    assert labels.tolist() == [2, 1, 1, 0]


def test_a_list_of_files(tmp_path):
    save_images(tmp_path, ["a b.png", "sub/c.png"])
    (tmp_path / "list.txt").write_text("sub/c.png 3\n\na b.png   0\n")
    source = open_images(tmp_path / "list.txt")
    source.fit((1, 6, 4))
    images, labels = all_of(source)
    assert np.array_equal(images, GREY[[1, 0]])
    assert labels.tolist() == [3, 0]
    (tmp_path / "list.txt").write_text("sub/c.png\na b.png\n")
    source = open_images(tmp_path / "list.txt")
    assert (source.names, source.labels) == (["sub/c.png", "a b.png"], None)
    (tmp_path / "list.txt").write_text("\n")
    with pytest.raises(BayesCaffeError, match="list.txt: names no image files"):
        open_images(tmp_path / "list.txt")


def test_files_that_are_no_images_are_named(tmp_path):
    content = encoded(RANDOM.integers(0, 256, (1, 40, 40), np.uint8))
    bad = {
        "text.png": (b"hello", "not an image, or of a format that is not known"),
        "empty.png": (b"", "not an image, or of a format that is not known"),
        "cut.png": (content[: len(content) // 2], "cannot be read as an image"),
        "damaged.png": (content[:60] + b"xx" + content[62:], "cannot be read as an image"),
        "none.png": (None, "No such file or directory"),
    }
    for name, (data, message) in bad.items():
        if data is not None:
            (tmp_path / name).write_bytes(data)
        source = ImageFiles([tmp_path / name], shape=(1, 6, 4))
        with pytest.raises(BayesCaffeError, match=f"{name}: {message}"):
            source.read([0])
    (tmp_path / "folder").mkdir()
    with pytest.raises(BayesCaffeError, match="folder: no image files in this folder"):
        open_images(tmp_path / "folder")


# Arrays


@pytest.mark.parametrize("array", [GREY, GREY[:, 0], GREY / 3, GREY > 99, GREY.astype(np.int64)])
def test_arrays_in_memory_and_in_files(tmp_path, array):
    np.save(tmp_path / "x.npy", array)
    for data in (array, tmp_path / "x.npy"):
        source = open_images(data)
        assert (len(source), source.shape) == (5, (1, 6, 4))
        assert np.array_equal(all_of(source)[0], array.reshape(GREY.shape))
        assert np.array_equal(source.read([3, 1]), array.reshape(GREY.shape)[[3, 1]])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_with_labels(tmp_path, save):
    save(tmp_path / "x.npz", anything=GREY, labels=np.arange(5))
    source = open_images(tmp_path / "x.npz")
    assert np.array_equal(all_of(source)[0], GREY)
    assert np.array_equal(all_of(source)[1], range(5))
    save(tmp_path / "x.npz", x_train=GREY, x_test=GREY)
    with pytest.raises(BayesCaffeError, match=r"one array of images .* \['x_train', 'x_test'\]"):
        open_images(tmp_path / "x.npz")


def test_labels_come_from_files_too(tmp_path):
    np.save(tmp_path / "y.npy", np.arange(5, dtype=np.uint8))
    (tmp_path / "y.txt").write_text("0\n1\n2 3\n4\n")
    for labels in (tmp_path / "y.npy", tmp_path / "y.txt", np.arange(5)):
        assert np.array_equal(open_images(GREY, labels=labels).labels, range(5))
    (tmp_path / "y.txt").write_text("0 1 2 x 4")
    with pytest.raises(BayesCaffeError, match="y.txt: expected a whole number for each image"):
        open_images(GREY, labels=tmp_path / "y.txt")
    for bad in (np.arange(4), np.arange(5.0), np.ones((5, 1), int)):
        with pytest.raises(BayesCaffeError, match="expected one whole number for each of 5 images"):
            open_images(GREY, labels=bad)
    path = write_lmdb(tmp_path / "x", [datum(GREY[0], 1)])
    with pytest.raises(BayesCaffeError, match="an LMDB has its own labels"):
        open_images(path, labels=np.arange(1))


def test_arrays_that_are_no_images_are_named(tmp_path):
    np.save(tmp_path / "x.npy", GREY)
    content = (tmp_path / "x.npy").read_bytes()
    for length in (0, 5, 40, len(content) - 1):
        (tmp_path / "x.npy").write_bytes(content[:length])
        with pytest.raises(BayesCaffeError, match="x.npy: damaged, or not an array"):
            open_images(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.array([{}]))
    with pytest.raises(BayesCaffeError, match="x.npy: .*objects are not read"):
        open_images(tmp_path / "x.npy")
    for bad in (np.zeros(4), np.zeros((0, 3, 3)), np.zeros((2, 3, 3), complex)):
        with pytest.raises(BayesCaffeError, match="array: is .* expected numbers of images x hei"):
            ArrayImages(bad)
    with pytest.raises(BayesCaffeError, match="array: images are 1x6x4, but the net takes 1x6x5"):
        open_images(GREY).fit((1, 6, 5))
