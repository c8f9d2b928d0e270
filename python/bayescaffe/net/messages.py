"""Prototxts, caffemodels and solver states: Caffe's messages as it reads and writes them."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bayescaffe.common import reading
from bayescaffe.common.errors import BayesCaffeError, argument
from bayescaffe.common.pycaffe import import_pycaffe, read_binary


@dataclass(frozen=True)
class LayerBlobs:
    """The parameters of one layer of a caffemodel."""

    name: str
    type: str
    blobs: list[np.ndarray]


def read_message(path: str | os.PathLike, kind: str):
    """The text message (`NetParameter`, `SolverParameter`, …) in a prototxt."""
    return parse_message(read_text(path), kind, path)


def read_text(path: str | os.PathLike) -> str:
    """The text of a prototxt."""
    try:
        return reading.read_text(path)
    except UnicodeDecodeError as error:
        raise BayesCaffeError(f"{path}: not a prototxt: {error}") from error


def parse_message(text: str, kind: str, source: str | os.PathLike = "the text"):
    """The message of that kind in `text`; errors name the `source`."""
    caffe_pb2 = import_pycaffe("caffe.proto.caffe_pb2")
    from google.protobuf import text_format

    try:
        return text_format.Parse(text, getattr(caffe_pb2, kind)())
    except text_format.ParseError as error:
        raise BayesCaffeError(f"{source}: not a {kind} in text format: {error}") from error
    except RecursionError as error:
        raise BayesCaffeError(f"{source}: not a {kind}: it is nested too deeply") from error


def is_caffemodel(path: str | os.PathLike) -> bool:
    """Whether a file is a caffemodel and not a prototxt: it has characters that no text has."""
    try:
        with reading.open_regular(path) as file:
            return re.search(rb"[\0-\x08\x0e-\x1f]", file.read(2**16)) is not None
    except OSError:
        return False


def read_carried(caffemodel: str | os.PathLike):
    """The `InferenceParameter` that a caffemodel carries."""
    is_hdf5 = Path(caffemodel).suffix == ".h5"
    net = None if is_hdf5 else read_binary(caffemodel, "NetParameter", "caffemodel")
    if net is None or not net.HasField("inference"):
        raise BayesCaffeError(
            f"{caffemodel}: does not carry its net. Give the prototxt before it, or let it carry "
            "its net: bayescaffe pack NET WEIGHTS"
        )
    return net.inference


def net_text(path: str | os.PathLike) -> str:
    """The text of a prototxt, or of the net that a caffemodel carries."""
    from google.protobuf import text_format

    if is_caffemodel(path):
        return text_format.MessageToString(read_carried(path).net)
    return read_text(path)


def needs_weights(net: str | os.PathLike, weights: str | os.PathLike | None) -> str | os.PathLike:
    """The caffemodel of a net: `weights`, or `net` if it is one."""
    if not Path(net).is_file():
        raise BayesCaffeError(f"{net}: no such file")
    if weights is None and not is_caffemodel(net):
        raise BayesCaffeError(
            f"{net}: a prototxt has no weights; give the caffemodel, too, as {argument('weights')}"
        )
    return net if weights is None else weights


def read_weights(caffemodel: str | os.PathLike) -> list[LayerBlobs]:
    """The layers with parameters in a caffemodel, in the order of the net."""
    net = read_binary(caffemodel, "NetParameter", "caffemodel")
    # Files of old have `layers`, and numbers for their types.
    old_type = import_pycaffe("caffe.proto.caffe_pb2").V1LayerParameter.LayerType.Name
    layers = [(layer, layer.type) for layer in net.layer]
    layers += [(layer, old_type(layer.type)) for layer in net.layers]
    return [
        LayerBlobs(
            layer.name, kind, [_weights(blob, caffemodel, layer.name) for blob in layer.blobs]
        )
        for layer, kind in layers
        if layer.blobs
    ]


def read_mean(path: str | os.PathLike) -> np.ndarray:
    """The mean image (channels x height x width) that compute_image_mean wrote."""
    blob = read_binary(path, "BlobProto", "mean image")
    try:
        mean = blob_array(blob)
    except ValueError as error:
        raise BayesCaffeError(f"{path}: damaged, or no mean image: {error}") from error
    if mean.ndim == 4 and len(mean) == 1:
        mean = mean[0]
    if mean.ndim != 3:
        raise BayesCaffeError(f"{path}: holds an array of shape {mean.shape}, not one image")
    return mean


def _weights(blob, caffemodel: str | os.PathLike, layer: str) -> np.ndarray:
    # Caffe saves the noise of a Bayesian layer without its numbers, unless it is asked for them.
    has_numbers = blob.data or blob.double_data
    try:
        return blob_array(blob) if has_numbers else np.broadcast_to(np.float32(0), _shape(blob))
    except ValueError as error:
        raise BayesCaffeError(
            f"{caffemodel}: damaged: a blob of layer {layer!r} has {len(blob.data)} numbers, but "
            f"the shape {_shape(blob)}: {error}"
        ) from error


def blob_array(blob) -> np.ndarray:
    """The numbers of a `BlobProto`. Raises ValueError if they do not fit its shape."""
    shape = _shape(blob)
    if min(shape, default=0) < 0:  # NumPy would compute the size
        raise ValueError("a size is negative")
    return _floats(blob).reshape(shape)


def _shape(blob) -> tuple[int, ...]:
    # Caffe's old files have four fields instead of a shape.
    old = (blob.num, blob.channels, blob.height, blob.width)
    return tuple(blob.shape.dim) if blob.HasField("shape") else old


def _floats(blob) -> np.ndarray:
    """The numbers of a blob, from its bytes: they end with the floats, one behind the other.

    To ask protobuf for each number takes 10 seconds for AlexNet's.
    """
    count = len(blob.data)
    if not count:
        return np.array(blob.double_data, np.float32)
    alone = type(blob)()
    alone.CopyFrom(blob)
    for field, _ in blob.ListFields():
        if field.name != "data":
            alone.ClearField(field.name)
    content = alone.SerializeToString()
    return np.frombuffer(content, "<f4", count, len(content) - 4 * count).astype(np.float32)
