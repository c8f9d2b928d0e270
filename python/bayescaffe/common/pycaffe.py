"""pycaffe and its messages. The only module of this package that imports Caffe.

The imports are inside of the functions, so that what needs no net works without a build.
"""

import contextlib
import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_file
from bayescaffe.common.reading import read_bytes

_HDF5 = b"\x89HDF\r\n\x1a\n"
"""What such files begin with."""


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
    if path.is_file():
        return path
    # A wheel brings both; pip knows where it put the program.
    for file in importlib.metadata.files("bayescaffe") or ():
        if file.match("bin/caffe"):
            return Path(file.locate()).resolve()
    raise BayesCaffeError(f"{path} is not there; `make build` builds it")


def read_binary(path: str | os.PathLike, kind: str, what: str):
    """The message of that kind in a binary file, which people call `what`."""
    complaint = f"{path}: damaged, or no {what}"
    content = read_bytes(path)
    if not content:  # which protobuf takes for a message without fields
        raise BayesCaffeError(f"{complaint}: the file is empty")
    if _HDF5 in content[:4096]:  # it may have a head of ours before it
        raise BayesCaffeError(
            f"{path}: is an HDF5 file, which only `caffe` itself reads. Train with the default "
            "snapshot_format, BINARYPROTO, or go on from this file with `caffe train -weights`"
        )
    with caffe_says():
        import_pycaffe("caffe").check_head(os.fspath(path))
    message = decode(content, kind, complaint)
    if kind == "NetParameter":
        message.ClearField("head")
        _check_names(message, complaint)
    return message


def write_caffemodel(net, path: Path) -> None:
    """Write a `NetParameter` with a checksum, as Caffe does."""
    content = net.SerializeToString()
    with scratch_file(path) as scratch:
        scratch.write_bytes(import_pycaffe("caffe").make_head(content) + content)


@contextlib.contextmanager
def caffe_says() -> Iterator[None]:
    """Raises Caffe's errors as those of this package."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # caffe.Error is a RuntimeError
        raise BayesCaffeError(str(error)) from error


def _check_names(net, complaint: str) -> None:
    for layer in (*net.layer, *net.layers):
        if isinstance(layer.name, bytes):  # which protobuf gives for what is not UTF-8
            raise BayesCaffeError(f"{complaint}: the name of a layer is {layer.name}")


def decode(content: bytes, kind: str, complaint: str):
    caffe_pb2 = import_pycaffe("caffe.proto.caffe_pb2")
    from google.protobuf.message import DecodeError

    try:
        return getattr(caffe_pb2, kind).FromString(content)
    except DecodeError as error:
        raise BayesCaffeError(f"{complaint}: {error}") from error
