"""The files of a net: a prototxt for training or deployment, or a solver and the nets it names."""

import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.pycaffe import import_pycaffe
from bayescaffe.common.reading import read_bytes
from bayescaffe.net.building import caffe_errors
from bayescaffe.net.inference_net import TRAIN, batch_size, layers_of_phase
from bayescaffe.net.layer_kinds import is_bayesian
from bayescaffe.net.messages import parse_message, read_message, read_text
from bayescaffe.net.own_data import lmdb_images, lmdb_source
from bayescaffe.net.prototext import field_names

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prototxt:
    """A text and its message."""

    path: Path
    text: str
    message: Any


@dataclass(frozen=True)
class NetFiles:
    """The nets, and the solver if it was named."""

    nets: list[Prototxt]
    """The net that is trained comes first."""
    solver: Prototxt | None


def read_net_files(path: str | os.PathLike, notes: list[str] | None = None) -> NetFiles:
    """Read a net, or a solver and its nets. Nets of an old format are upgraded by Caffe.

    Args:
        notes: if given, a net that is not where Caffe looks for it may lie beside the solver, as in
            a folder that came from elsewhere; a note tells so.
    """
    path = Path(path)
    text = read_text(path)
    if not is_solver(text):
        return NetFiles([_read_net(path, text)], None)
    solver = parse_message(text, "SolverParameter", path)
    inline = [name for name in ("net_param", "train_net_param") if solver.HasField(name)]
    if inline or solver.test_net_param:
        field = inline[0] if inline else "test_net_param"
        raise BayesCaffeError(f"{path}: {field}: write the net to a file, and name it as net")
    names = [name for name in (solver.net, solver.train_net, *solver.test_net) if name]
    if not names:
        raise BayesCaffeError(f"{path}: the solver names no net; set net or train_net")
    nets = []
    for name in dict.fromkeys(names):
        net = Path(name)
        beside = path.parent / net.name
        if notes is not None and not net.is_file() and beside.is_file():
            notes.append(f"{beside}, beside the solver, in place of {net}, which is not here")
            net = beside
        if not net.is_file():
            raise BayesCaffeError(
                f"{path}: its net {name} is not here; Caffe takes paths relative to the current "
                f"directory, {Path.cwd()}"
            )
        nets.append(_read_net(net, read_text(net)))
    return NetFiles(nets, Prototxt(path, text, solver))


def read_net(path: str | os.PathLike):
    """The `NetParameter` of a prototxt, upgraded by Caffe if it is of an old format."""
    message = read_message(path, "NetParameter")
    return _upgraded(message, path) if message.layers else message


def train_records(net) -> dict[str, int]:
    """The number of records of each LMDB, and of pictures of each list, that a net reads in phase
    TRAIN, as far as it is here."""
    layers = layers_of_phase(net, TRAIN)
    images = {lmdb_source(layer): lmdb_images(layer) for layer in layers}
    lists = [layer.image_data_param.source for layer in layers if layer.type == "ImageData"]
    return {source: len(one) for source, one in images.items() if one is not None} | {
        path: len(read_bytes(path).splitlines()) for path in lists if Path(path).is_file()
    }


def epoch_iterations(net, dataset_size: int | None = None) -> int:
    """How many batches of phase TRAIN have as many images as the training set, at least 1.

    Without `dataset_size`, the LMDB tells, or else what the Bayesian layers say.
    """
    layers = layers_of_phase(net, TRAIN)
    if dataset_size is None:
        told = [layer.bayes_param.dataset_size for layer in layers if is_bayesian(layer)]
        dataset_size = max(train_records(net).values() or told, default=0)
    batch = max((batch_size(layer) for layer in layers if not layer.bottom), default=1)
    return max(1, math.ceil(dataset_size / batch))


def is_trained(net) -> bool:
    """Whether the net has a loss in phase TRAIN; one for deployment has none."""
    return any(
        layer.type.endswith("Loss") or any(layer.loss_weight)
        for layer in layers_of_phase(net, TRAIN)
    )


def is_solver(text: str) -> bool:
    """Whether a prototxt is that of a solver, and not of a net."""
    messages = import_pycaffe("caffe.proto.caffe_pb2")
    found = field_names(text)
    net, solver = (
        set(message.DESCRIPTOR.fields_by_name)
        for message in (messages.NetParameter, messages.SolverParameter)
    )
    return not found & {"layer", "layers"} and bool(found & (solver - net))


def _read_net(path: Path, text: str) -> Prototxt:
    message = parse_message(text, "NetParameter", path)
    if not message.layers:
        return Prototxt(path, text, message)
    from google.protobuf import text_format

    message = _upgraded(message, path)
    return Prototxt(path, text_format.MessageToString(message), message)


def _upgraded(message, path: str | os.PathLike):
    with caffe_errors(path):
        upgraded = import_pycaffe("caffe").upgrade_net(message.SerializeToString())
    log.info("%s: upgraded from an old format (`layers { … }`)", path)
    return type(message).FromString(upgraded)
