"""pycaffe and its messages. The only module of this package that imports Caffe.

The imports are inside of the functions, so that what needs no net works without a build.
"""

import importlib
import os
from pathlib import Path

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_file
from bayescaffe.common.reading import read_bytes


def import_pycaffe(name: str):
    """The module `name` of pycaffe."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BayesCaffeError(
            f"pycaffe cannot be imported ({error}); `make build` builds it, and .venv/bin/python "
            "finds it"
        ) from error


def caffe_tool() -> Path:
    """The program `caffe` that was built with the pycaffe of this Python."""
    caffe = import_pycaffe("caffe")

    # pycaffe is build/caffe-src/python/caffe, the program build/caffe/tools/caffe.
    path = Path(caffe.__file__).resolve().parents[3] / "caffe/tools/caffe"
    if not path.is_file():
        raise BayesCaffeError(f"{path} is not there; `make build` builds it")
    return path


def read_binary(path: str | os.PathLike, kind: str, what: str):
    """The message of that kind in a binary file, which people call `what`."""
    complaint = f"{path}: damaged, or no {what}"
    content = read_bytes(path)
    if not content:  # which protobuf takes for a message without fields
        raise BayesCaffeError(f"{complaint}: the file is empty")
    message = decode(content, kind, complaint)
    if kind == "NetParameter":
        _check_net(message, path, complaint)
    return message


def write_caffemodel(net, path: Path) -> None:
    """Write a `NetParameter` with how much it holds, so that one that is cut off is noticed."""
    head = type(net)(extent=_extent(net))
    net.ClearField("extent")
    with scratch_file(path) as scratch:
        # First in the file. The parts of a message can come in any order.
        scratch.write_bytes(head.SerializeToString() + net.SerializeToString())


def _extent(net):
    layers = [*net.layer, *net.layers]
    return import_pycaffe("caffe.proto.caffe_pb2").NetExtent(
        layers=len(layers),
        blobs=sum(len(layer.blobs) for layer in layers),
    )


def _check_net(net, path: str | os.PathLike, complaint: str) -> None:
    """Raise if a caffemodel is cut off, as caffe/util/snapshot.hpp does, or has names that are no
    text; then forget how much it was written with."""
    for layer in (*net.layer, *net.layers):
        if isinstance(layer.name, bytes):  # which protobuf gives for what is not UTF-8
            raise BayesCaffeError(f"{complaint}: the name of a layer is {layer.name}")
    found, written = _extent(net), net.extent
    if net.HasField("extent") and found != written:
        raise BayesCaffeError(
            f"{path}: it lacks layers or was changed: it holds {_told(found)}, but was written "
            f"with {_told(written)}"
        )
    net.ClearField("extent")


def _told(extent) -> str:
    return f"{extent.layers} layers with {extent.blobs} blobs"


def decode(content: bytes, kind: str, complaint: str):
    caffe_pb2 = import_pycaffe("caffe.proto.caffe_pb2")
    from google.protobuf.message import DecodeError

    try:
        return getattr(caffe_pb2, kind).FromString(content)
    except DecodeError as error:
        raise BayesCaffeError(f"{complaint}: {error}") from error
