"""Caffemodels that work on their own: they carry the net and what else its use needs.

model = bayescaffe.Model("net.prototxt", "net.caffemodel")
bayescaffe.pack(model)
bayescaffe.Model("net.caffemodel")

Stock Caffe and other readers of caffemodels skip what is added.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.pycaffe import read_binary, write_caffemodel
from bayescaffe.data.arrays import checked_order
from bayescaffe.net.image_input import read_input, to_carry
from bayescaffe.net.inference_net import inference_net
from bayescaffe.net.messages import read_message
from bayescaffe.net.model import Model, as_model


def pack(
    model: Model | str | os.PathLike,
    out: str | os.PathLike | None = None,
    *,
    weights: str | os.PathLike | None = None,
    class_names: Sequence[str] | None = None,
    channels: str | None = None,
) -> Path:
    """Write a caffemodel that needs no other file; return its path.

    It carries the net and all options of the `Model` that belong to it: the output, the shape of
    the images, scale and mean.

    Args:
        model: a loaded `Model`, or a prototxt.
        out: the file to write; by default the caffemodel itself is replaced.
        weights: the caffemodel, if `model` is a prototxt.
        class_names: a name for each class; by default those of the net's LMDB.
        channels: the order of colours that the net was trained with, "rgb" or "bgr"; by default
            that of the net's LMDB.
    """
    model = as_model(model, weights)
    found = carried(model, class_names)
    if channels is not None:
        found.channels = checked_order(channels, model.image_shape, str(model.path))
    return _write(model.weights, found, Path(out or model.weights))


def carried(model: Model, class_names: Sequence[str] | None = None):
    """The `InferenceParameter` of a model, with these names of the classes or its own."""
    found = model.to_carry()
    if names := model.names_for(class_names):
        found.class_names[:] = names
    return found


def pack_snapshots(net: str | os.PathLike, snapshots: Sequence[Path]) -> None:
    """Let the caffemodels of a training carry its net, as in `pack`.

    Raises:
        BayesCaffeError: the net is not of the kind that `Model` takes.
    """
    message = read_message(net, "NetParameter")
    inference = inference_net(message)
    found = to_carry(message, None, read_input(inference))
    for path in snapshots:
        if path.is_file() and path.suffix != ".h5":
            _write(path, found, path)


def is_packed(caffemodel: str | os.PathLike) -> bool:
    """Whether a caffemodel carries its net."""
    return read_binary(caffemodel, "NetParameter", "caffemodel").HasField("inference")


def _write(weights: Path, found, out: Path) -> Path:
    if weights.suffix == ".h5":
        raise BayesCaffeError(
            f"{weights}: an HDF5 file cannot carry its net; only a .caffemodel of Caffe's default "
            "snapshot_format, BINARYPROTO, can"
        )
    net = read_binary(weights, "NetParameter", "caffemodel")
    net.inference.CopyFrom(found)
    write_caffemodel(net, out)
    return out
