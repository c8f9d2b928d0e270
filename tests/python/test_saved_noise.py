"""Weights saved without the noise, and with it as all were before: both are the same model."""

import numpy as np
import pytest
from bayescaffe import Model, convert, export, inspect
from bayescaffe.net.messages import read_weights
from conftest import input_net, make_net, small_net
from export_nets import randomize

pytestmark = pytest.mark.engine
OPTIONS = "dataset_size: 330", "dataset_size: 330 save_noise: true"


@pytest.fixture(scope="module")
def saved(digits, tmp_path_factory):
    """The folder of a net, net.prototxt, and of its weights without and with the noise."""
    folder = tmp_path_factory.mktemp("two files")
    for name, options in zip(("noise", "none"), reversed(OPTIONS), strict=True):
        net = make_net(folder, input_net(small_net(digits, options), batch=3))
        randomize(net)
        net.save(str(folder / f"{name}.caffemodel"))
        net.save_hdf5(str(folder / f"{name}.h5"))
    return folder


def weights(folder):
    return folder / "none.caffemodel", folder / "noise.caffemodel"


def test_only_the_numbers_of_the_noise_are_left_out(saved):
    sizes = [path.stat().st_size for path in weights(saved)]
    assert sizes[0] < 0.6 * sizes[1]
    for one, other in zip(*map(read_weights, weights(saved)), strict=True):
        assert [blob.shape for blob in one.blobs] == [blob.shape for blob in other.blobs]
        for blob, same in zip(one.blobs[:4], other.blobs[:4], strict=True):
            assert np.array_equal(blob, same)


def test_pycaffe_loads_all_kinds_of_files(saved):
    text = (saved / "net.prototxt").read_text()
    images = np.random.default_rng(0).random((3, 1, 12, 12), np.float32)
    outputs = []
    for file in ("none.caffemodel", "noise.caffemodel", "none.h5", "noise.h5"):
        outputs.append(make_net(saved, text, weights=saved / file).sample(4, images))
        net = make_net(saved, text)
        net.copy_from(str(saved / file))
        outputs.append(net.sample(4, images))
    assert all(np.array_equal(output, outputs[0]) for output in outputs)
    assert np.abs(outputs[0][0] - outputs[0][1]).max() > 1e-3


def test_bayescaffe_takes_both(saved, tmp_path):
    net = saved / "net.prototxt"
    none, noise = (Model(net, path) for path in weights(saved))
    assert not none.untrained and not noise.untrained
    images = np.random.default_rng(0).random((5, *none.image_shape), np.float32)
    assert np.array_equal(none.sample(images, 3), noise.sample(images, 3))
    assert inspect(net, none.weights) == inspect(net, noise.weights)
    for name, model in (("none", none), ("noise", noise)):
        export(model, tmp_path / name, 2, to="caffe", progress=False)
        convert(net, model.weights, to_stock=True, out=tmp_path / name / "stock")
    written = [sorted((tmp_path / name).rglob("*.caffemodel")) for name in ("none", "noise")]
    assert len(written[0]) == 2
    for one, other in zip(*written, strict=True):
        one, other = (
            [blob for layer in read_weights(path) for blob in layer.blobs] for path in (one, other)
        )
        assert all(map(np.array_equal, one, other))
