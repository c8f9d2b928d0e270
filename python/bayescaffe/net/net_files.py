"""The files of a net: a prototxt for training or deployment, or a solver and the nets it names."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.pycaffe import import_pycaffe
from bayescaffe.net.building import caffe_errors
from bayescaffe.net.inference_net import TRAIN, layers_of_phase
from bayescaffe.net.messages import parse_message
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


def read_net_files(path: str | os.PathLike) -> NetFiles:
    """Read a net, or a solver and its nets. Nets of an old format are upgraded by Caffe."""
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
        if not Path(name).is_file():
            raise BayesCaffeError(
                f"{path}: its net {name} is not here; Caffe takes paths relative to the current "
                f"directory, {Path.cwd()}"
            )
        nets.append(_read_net(Path(name), read_text(Path(name))))
    return NetFiles(nets, Prototxt(path, text, solver))


def train_records(net) -> dict[str, int]:
    """The number of records of each LMDB that a net reads in phase TRAIN, as far as it is here."""
    images = {lmdb_source(layer): lmdb_images(layer) for layer in layers_of_phase(net, TRAIN)}
    return {source: len(one) for source, one in images.items() if one is not None}


def is_trained(net) -> bool:
    """Whether the net has a loss in phase TRAIN; one for deployment has none."""
    return any(
        layer.type.endswith("Loss") or any(layer.loss_weight)
        for layer in layers_of_phase(net, TRAIN)
    )


def read_text(path: Path) -> str:
    """The text of a prototxt."""
    try:
        return path.read_text()
    except UnicodeDecodeError as error:
        raise BayesCaffeError(f"{path}: not a prototxt: {error}") from error


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

    with caffe_errors(path):
        upgraded = import_pycaffe("caffe").upgrade_net(message.SerializeToString())
    message = type(message).FromString(upgraded)
    log.info("%s: upgraded from an old format (`layers { … }`); its comments are lost", path)
    return Prototxt(path, text_format.MessageToString(message), message)
