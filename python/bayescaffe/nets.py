"""Nets and trained weights, as Caffe reads them.

The only module of this package that imports Caffe; the imports are inside of the functions, so that
what needs no net works without a build.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bayescaffe.errors import BayesCaffeError


@dataclass(frozen=True)
class LayerBlobs:
    """The parameters of one layer of a caffemodel."""

    name: str
    type: str
    blobs: list[np.ndarray]


def caffe_tool() -> Path:
    """The program `caffe` that was built with the pycaffe of this Python."""
    import caffe

    # pycaffe is build/caffe-src/python/caffe, the program build/caffe/tools/caffe.
    path = Path(caffe.__file__).resolve().parents[3] / "caffe/tools/caffe"
    if not path.is_file():
        raise BayesCaffeError(f"{path} is not there; `make build` builds it")
    return path


def read_message(path: str | os.PathLike, kind: str):
    """The text message (`NetParameter`, `SolverParameter`, …) in a prototxt."""
    from caffe.proto import caffe_pb2
    from google.protobuf import text_format

    message = getattr(caffe_pb2, kind)()
    try:
        text_format.Parse(Path(path).read_text(), message)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise BayesCaffeError(f"{path}: not a {kind} in text format: {error}") from error
    return message


def read_weights(caffemodel: str | os.PathLike) -> list[LayerBlobs]:
    """The layers with parameters in a caffemodel, in the order of the net."""
    from caffe.proto import caffe_pb2
    from google.protobuf.message import DecodeError

    net = caffe_pb2.NetParameter()
    try:
        net.ParseFromString(Path(caffemodel).read_bytes())
    except DecodeError as error:
        raise BayesCaffeError(f"{caffemodel}: damaged, or no caffemodel: {error}") from error
    return [
        LayerBlobs(layer.name, layer.type, [_array(blob) for blob in layer.blobs])
        for layer in net.layer
        if layer.blobs
    ]


def read_state(path: str | os.PathLike):
    """The `SolverState` in a snapshot."""
    from caffe.proto import caffe_pb2
    from google.protobuf.message import DecodeError

    state = caffe_pb2.SolverState()
    try:
        state.ParseFromString(Path(path).read_bytes())
    except DecodeError as error:
        raise BayesCaffeError(f"{path}: damaged, or no solver state: {error}") from error
    # Written last, so that a file without it is not complete.
    if not state.HasField("current_step"):
        raise BayesCaffeError(f"{path}: not complete")
    return state


def _array(blob) -> np.ndarray:
    return np.array(blob.data, np.float32).reshape(tuple(blob.shape.dim))
