"""Prototxts, caffemodels and solver states: Caffe's messages as it reads and writes them."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.pycaffe import import_pycaffe, read_binary


@dataclass(frozen=True)
class LayerBlobs:
    """The parameters of one layer of a caffemodel."""

    name: str
    type: str
    blobs: list[np.ndarray]


def read_message(path: str | os.PathLike, kind: str):
    """The text message (`NetParameter`, `SolverParameter`, …) in a prototxt."""
    try:
        text = Path(path).read_text()
    except UnicodeDecodeError as error:
        raise BayesCaffeError(f"{path}: not a {kind} in text format: {error}") from error
    return parse_message(text, kind, path)


def parse_message(text: str, kind: str, source: str | os.PathLike = "the text"):
    """The message of that kind in `text`; errors name the `source`."""
    caffe_pb2 = import_pycaffe("caffe.proto.caffe_pb2")
    from google.protobuf import text_format

    try:
        return text_format.Parse(text, getattr(caffe_pb2, kind)())
    except text_format.ParseError as error:
        raise BayesCaffeError(f"{source}: not a {kind} in text format: {error}") from error


def read_weights(caffemodel: str | os.PathLike) -> list[LayerBlobs]:
    """The layers with parameters in a caffemodel, in the order of the net."""
    net = read_binary(caffemodel, "NetParameter", "caffemodel")
    # Files of old have `layers`, and numbers for their types.
    old_type = import_pycaffe("caffe.proto.caffe_pb2").V1LayerParameter.LayerType.Name
    layers = [(layer, layer.type) for layer in net.layer]
    layers += [(layer, old_type(layer.type)) for layer in net.layers]
    return [
        LayerBlobs(layer.name, kind, [_array(blob) for blob in layer.blobs])
        for layer, kind in layers
        if layer.blobs
    ]


def read_mean(path: str | os.PathLike) -> np.ndarray:
    """The mean image (channels x height x width) that compute_image_mean wrote."""
    blob = read_binary(path, "BlobProto", "mean image")
    try:
        mean = _array(blob)
    except ValueError as error:
        raise BayesCaffeError(f"{path}: damaged, or no mean image: {error}") from error
    if mean.ndim == 4 and len(mean) == 1:
        mean = mean[0]
    if mean.ndim != 3:
        raise BayesCaffeError(f"{path}: holds an array of shape {mean.shape}, not one image")
    return mean


def read_state(path: str | os.PathLike):
    """The `SolverState` in a snapshot."""
    state = read_binary(path, "SolverState", "solver state")
    # Written last, so that a file without it is not complete.
    if not state.HasField("current_step"):
        raise BayesCaffeError(f"{path}: not complete")
    return state


def _array(blob) -> np.ndarray:
    # Caffe's old files have four fields instead of a shape.
    old = (blob.num, blob.channels, blob.height, blob.width)
    shape = tuple(blob.shape.dim) if blob.HasField("shape") else old
    return np.array(blob.data, np.float32).reshape(shape)
