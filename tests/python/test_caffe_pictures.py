"""Caffe's own ways to read pictures: ImageData, encoded records and two tools."""

import numpy as np
import pytest
from bayescaffe.data import from_folder
from bayescaffe.data.image_files import decode
from bayescaffe.data.lmdb import LmdbImages
from bayescaffe.net.messages import parse_message, read_mean
from bayescaffe.net.net_files import train_records
from conftest import REPO, caffe, make_net, write_solver
from PIL import Image

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")

WIDTH, HEIGHT = 14, 10
TOOLS = REPO / "build/caffe/tools"


def save_all(folder):
    """Pictures of many kinds, all of one size once they are upright."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    colour = Image.fromarray(random.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8))
    opacity = Image.fromarray(random.integers(0, 256, (HEIGHT, WIDTH), np.uint8))
    deep = Image.fromarray(random.integers(0, 65536, (HEIGHT, WIDTH), np.uint16))
    transparent = colour.copy()
    transparent.putalpha(opacity)
    for name, image in {
        "colour": colour,
        "grey": opacity,
        "16 bits": deep,
        "black and white": opacity.convert("1"),
        "palette": colour.quantize(9),
        "transparent": transparent,
        "grey and transparent": transparent.convert("LA"),
    }.items():
        image.save(folder / f"{name}.png")
    colour.save(folder / "palette and transparent.png", transparency=(1, 2, 3))
    colour.save(folder / "colour.jpg")
    colour.save(folder / "progressive.JPEG", progressive=True, subsampling=0)
    opacity.save(folder / "grey.jpeg")
    colour.convert("CMYK").save(folder / "cmyk.jpg")
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        turned = colour.transpose(Image.Transpose.ROTATE_90) if orientation > 4 else colour
        turned.save(folder / f"orientation {orientation}.jpg", exif=exif)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder with two classes, a list of their pictures, and those pictures by bayescaffe."""
    folder = tmp_path_factory.mktemp("old scripts") / "my pictures"
    save_all(folder / "a")
    save_all(folder / "b b")
    files = sorted(path.relative_to(folder) for path in folder.rglob("*.*"))
    (folder.parent / "list.txt").write_text(
        "".join(f"{path} {int(path.parts[0] == 'b b')}\n" for path in files)
    )
    return folder, files


def decoded(pictures, channels=3):
    return np.array([decode((pictures[0] / path).read_bytes(), channels) for path in pictures[1]])


def tool(name, *arguments):
    return caffe(*arguments, tool=TOOLS / name)


def convert_imageset(pictures, out, *options):
    done = tool(
        "convert_imageset", *options, f"{pictures[0]}/", pictures[0].parent / "list.txt", out
    )
    assert done.returncode == 0, done.stdout
    return out


def image_data(pictures, options="", batch=None):
    folder, files = pictures
    return f"""
        layer {{ name: "data" type: "ImageData" top: "data" top: "label"
          image_data_param {{ source: "{folder.parent}/list.txt" root_folder: "{folder}/"
                              batch_size: {batch or len(files)} {options} }} }}"""


def images_of(folder, text):
    net = make_net(folder, text)
    net.forward()
    return net.blobs["data"].data.copy(), net.blobs["label"].data.copy()


def test_image_data_reads_what_bayescaffe_reads(pictures, tmp_path):
    images, labels = images_of(tmp_path, image_data(pictures))
    assert np.array_equal(images, decoded(pictures))
    assert np.array_equal(labels, [path.parts[0] == "b b" for path in pictures[1]])
    grey, _ = images_of(tmp_path, image_data(pictures, "is_color: false"))
    assert np.array_equal(grey, decoded(pictures, channels=1))


def test_a_net_trains_on_image_data(pictures, tmp_path):
    data = image_data(pictures, "shuffle: true new_height: 9 new_width: 9", batch=7)
    net = data.replace(
        "image_data_param", "transform_param { crop_size: 8 mirror: true } image_data_param"
    )
    net += """
        layer { name: "ip" type: "BayesInnerProduct" bottom: "data" top: "ip"
                inner_product_param { num_output: 2 weight_filler { type: "xavier" } }
                bayes_param { dataset_size: 40 kl_weight: 0.001 } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }"""
    done = caffe("train", "-solver", write_solver(tmp_path, net, 8, base_lr=1e-5))
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "run_iter_8.caffemodel").is_file()


def test_the_list_tells_the_number_of_examples(pictures):
    net = parse_message(image_data(pictures), "NetParameter")
    assert train_records(net) == {f"{pictures[0].parent}/list.txt": len(pictures[1])}


def test_convert_imageset_and_the_mean_agree_with_bayescaffe(pictures, tmp_path):
    found = LmdbImages(convert_imageset(pictures, tmp_path / "my lmdb"))
    assert found.names == [str(path) for path in pictures[1]]
    found.fit(found.shape)
    images = found.read(range(len(found)))
    assert np.array_equal(images, decoded(pictures))

    from_folder(pictures[0], tmp_path / "ours", size=(WIDTH, HEIGHT), val=0, progress=False)
    ours = LmdbImages(tmp_path / "ours/train_lmdb")
    order = [ours.names.index(name) for name in found.names]
    assert np.array_equal(ours.read(order), images)

    mean = tmp_path / "mean.binaryproto"
    done = tool("compute_image_mean", tmp_path / "my lmdb", mean)
    assert done.returncode == 0, done.stdout
    assert np.allclose(read_mean(mean), images.mean(axis=0), rtol=1e-6)
    assert np.allclose(read_mean(mean), read_mean(tmp_path / "ours/mean.binaryproto"), rtol=1e-6)


@pytest.mark.parametrize(("force", "channels"), [("force_color", 3), ("force_gray", 1)])
def test_encoded_records_are_decoded(pictures, tmp_path, force, channels):
    path = convert_imageset(pictures, tmp_path / "lmdb", "-encoded")
    found, labels = images_of(
        tmp_path,
        f"""layer {{ name: "data" type: "Data" top: "data" top: "label"
              transform_param {{ {force}: true scale: 0.5 }}
              data_param {{ source: "{path}" batch_size: {len(pictures[1])} backend: LMDB }} }}""",
    )
    assert np.array_equal(found, decoded(pictures, channels) * np.float32(0.5))
    assert labels.sum() == len(labels) / 2


@pytest.mark.parametrize("size", [(7, 33), (HEIGHT // 2, WIDTH // 2), (1, 1), (25, 28)])
def test_pictures_are_resized_as_opencv_does(pictures, tmp_path, size):
    cv2 = pytest.importorskip("cv2")
    options = f"new_height: {size[0]} new_width: {size[1]}"
    found, _ = images_of(tmp_path, image_data(pictures, options))
    wanted = np.array([cv2.resize(one.transpose(1, 2, 0), size[::-1]) for one in decoded(pictures)])
    assert np.abs(found - wanted.transpose(0, 3, 1, 2)).max() <= 1


FAULTS = {
    "x.png": (lambda good: good[:-30], "x.png: the file ends too early"),
    "x.jpg": (lambda good: b"", "x.jpg: The file is empty"),
    "x.bmp": (lambda good: b"BM", "x.bmp: Neither a JPEG nor a PNG.*bayescaffe data folder"),
    "none.png": (None, "none.png: No such file or directory"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_picture_that_cannot_be_read_is_named(pictures, tmp_path, name):
    change, message = FAULTS[name]
    if change:
        (tmp_path / name).write_bytes(change((pictures[0] / "a/colour.png").read_bytes()))
    (tmp_path / "list.txt").write_text(f"{name} 0\n")
    with pytest.raises(pycaffe.Error, match=f"layer 'data'.*{message}"):
        make_net(tmp_path, image_data((tmp_path / "root", [name])).replace("/root/", "/"))
    done = tool("convert_imageset", f"{tmp_path}/", tmp_path / "list.txt", tmp_path / "lmdb")
    assert done.returncode == 0 and name in done.stdout


def test_tools_end_with_one_line(pictures, tmp_path):
    folder, listed = f"{pictures[0]}/", pictures[0].parent / "list.txt"
    done = tool(
        "convert_imageset",
        "-encoded",
        "-resize_height=4",
        "-resize_width=4",
        folder,
        listed,
        tmp_path / "x",
    )
    assert done.returncode == 1
    assert "convert_imageset: error: " in done.stdout and "-encoded stores files" in done.stdout
    done = tool("convert_imageset", folder, tmp_path / "none.txt", tmp_path / "y")
    assert done.returncode == 1 and f"Cannot open {tmp_path}/none.txt" in done.stdout
    done = tool("compute_image_mean", tmp_path / "z")
    assert done.returncode == 1 and "compute_image_mean: error: " in done.stdout
