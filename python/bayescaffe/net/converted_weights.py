"""Caffemodels of nets that `convert` changes."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_file
from bayescaffe.common.pycaffe import import_pycaffe, read_binary
from bayescaffe.net.building import caffe_errors, make_net
from bayescaffe.net.layer_kinds import is_bayesian, stock_blobs, stock_type
from bayescaffe.net.messages import parse_message, read_weights
from bayescaffe.net.posterior import net_of_layers


def bayesian_weights(
    net: str, names: Sequence[str], weights: str | os.PathLike, out: Path, notes: list[str]
) -> None:
    """Write the weights of a stock net as those of its Bayesian form, which Caffe initializes.

    Args:
        net: the text of the Bayesian net.
        names: the layers that are to change.
    """
    stored = {layer.name: layer for layer in read_weights(weights)}
    if missing := [name for name in names if name not in stored]:
        notes.append(f"{weights} has no weights for {', '.join(missing)}: they start from fillers")
    layers = {layer.name: layer for layer in parse_message(net, "NetParameter").layer}
    layers = [layers[name] for name in names if name in stored]
    if not layers:
        raise BayesCaffeError(f"{weights}: has weights for none of {', '.join(names)}")
    with caffe_errors(weights), tempfile.TemporaryDirectory() as folder:
        saved = os.path.join(folder, "layers.caffemodel")
        make_net(net_of_layers(layers, stored), weights).save(saved)
        started = read_binary(saved, "NetParameter", "caffemodel")
    started = {layer.name: layer for layer in started.layer}
    model = _upgraded(weights)
    for layer in model.layer:
        if layer.name in started and layer.name in names:
            layer.type = started[layer.name].type
            del layer.blobs[:]
            layer.blobs.extend(started[layer.name].blobs)
    _write(model, out)


def stock_weights(
    net: str, names: Sequence[str], weights: str | os.PathLike, out: Path, notes: list[str]
) -> None:
    """Write the means of a Bayesian net as the weights of its stock form.

    Args:
        net: the text of the stock net.
        names: the layers that are to change.
    """
    layers = {layer.name: layer for layer in parse_message(net, "NetParameter").layer}
    model = _upgraded(weights)
    for layer in model.layer:
        if layer.name in names and is_bayesian(layer):
            del layer.blobs[stock_blobs(layers[layer.name]) :]
            layer.type = stock_type(layer)
    _write(model, out)


def _upgraded(weights: str | os.PathLike):
    """The message of a caffemodel, in today's format."""
    with caffe_errors(weights):
        content = import_pycaffe("caffe").upgrade_net(Path(weights).read_bytes())
    return import_pycaffe("caffe.proto.caffe_pb2").NetParameter.FromString(content)


def _write(model, out: Path) -> None:
    with scratch_file(out) as scratch:
        scratch.write_bytes(model.SerializeToString())
