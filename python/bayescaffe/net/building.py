"""Nets of pycaffe, and the errors that they raise."""

import contextlib
import os
import tempfile
from collections.abc import Iterator

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.pycaffe import import_pycaffe
from bayescaffe.net.inference_net import TEST


def make_net(message, weights: str | os.PathLike | None, seed: int = 1, phase: int = TEST):
    """The net of a `NetParameter`, with the weights of a caffemodel or those of its fillers."""
    caffe = import_pycaffe("caffe")
    from google.protobuf import text_format

    # pycaffe reads nets from files only.
    with tempfile.NamedTemporaryFile("w", suffix=".prototxt") as file:
        file.write(text_format.MessageToString(message))
        file.flush()
        caffe.set_random_seed(seed)
        stored = {} if weights is None else {"weights": str(weights)}
        return caffe.Net(file.name, phase, **stored)


@contextlib.contextmanager
def on_gpu(gpu: int | None) -> Iterator[None]:
    """Let Caffe compute on this GPU, and on the CPU again afterwards; on None, change nothing."""
    if gpu is None:
        yield
        return
    caffe = import_pycaffe("caffe")
    caffe.set_device(gpu)
    caffe.set_mode_gpu()
    try:
        yield
    finally:
        caffe.set_mode_cpu()


@contextlib.contextmanager
def caffe_errors(what: str | os.PathLike) -> Iterator[None]:
    """Say what Caffe was working on when it failed."""
    try:
        yield
    except RuntimeError as error:  # caffe.Error is one
        raise BayesCaffeError(f"{what}: {error}") from error
