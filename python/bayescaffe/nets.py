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
    try:
        text = Path(path).read_text()
    except UnicodeDecodeError as error:
        raise BayesCaffeError(f"{path}: not a {kind} in text format: {error}") from error
    return parse_message(text, kind, path)


def parse_message(text: str, kind: str, source: str | os.PathLike = "the text"):
    """The message of that kind in `text`; errors name the `source`."""
    from caffe.proto import caffe_pb2
    from google.protobuf import text_format

    try:
        return text_format.Parse(text, getattr(caffe_pb2, kind)())
    except text_format.ParseError as error:
        raise BayesCaffeError(f"{source}: not a {kind} in text format: {error}") from error


def layers_of_phase(net, phase: str) -> list:
    """The layers of a NetParameter that are in its net of phase "TRAIN" or "TEST".

    These are the layers whose `include` and `exclude` rules allow it, as in Net::FilterNet.
    """
    from caffe.proto import caffe_pb2

    state, value = net.state, caffe_pb2.Phase.Value(phase)

    def meets(rule) -> bool:
        return (
            (not rule.HasField("phase") or rule.phase == value)
            and (not rule.HasField("min_level") or state.level >= rule.min_level)
            and (not rule.HasField("max_level") or state.level <= rule.max_level)
            and set(rule.stage) <= set(state.stage)
            and not set(rule.not_stage) & set(state.stage)
        )

    return [
        layer
        for layer in net.layer
        if (any(map(meets, layer.include)) if layer.include else not any(map(meets, layer.exclude)))
    ]


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


def _array(blob) -> np.ndarray:
    return np.array(blob.data, np.float32).reshape(tuple(blob.shape.dim))
