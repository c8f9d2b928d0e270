"""pycaffe and its messages. The only module of this package that imports Caffe.

The imports are inside of the functions, so that what needs no net works without a build.
"""

import importlib
import os
from pathlib import Path

from bayescaffe.common.errors import BayesCaffeError
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
    return decode(read_bytes(path), kind, f"{path}: damaged, or no {what}")


def decode(content: bytes, kind: str, complaint: str):
    caffe_pb2 = import_pycaffe("caffe.proto.caffe_pb2")
    from google.protobuf.message import DecodeError

    try:
        return getattr(caffe_pb2, kind).FromString(content)
    except DecodeError as error:
        raise BayesCaffeError(f"{complaint}: {error}") from error
