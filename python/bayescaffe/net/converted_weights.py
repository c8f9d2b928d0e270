"""Caffemodels of nets that `convert` changes."""

import os
from collections.abc import Sequence
from pathlib import Path

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.pycaffe import import_pycaffe, write_caffemodel
from bayescaffe.common.reading import read_bytes
from bayescaffe.net.building import caffe_errors, make_net
from bayescaffe.net.layer_kinds import is_bayesian, stock_blobs, stock_type
from bayescaffe.net.messages import parse_message, read_weights
from bayescaffe.net.posterior import net_of_layers


def bayesian_weights(
    net: str,
    names: Sequence[str],
    weights: str | os.PathLike,
    out: Path,
    new: Sequence[str],
    notes: list[str],
) -> None:
    """Write the weights of a stock net, which its Bayesian form takes as means.

    They stay stock, so that nobody takes them for a posterior before they are trained; tau starts
    as the prototxt says.

    Args:
        net: the text of the Bayesian net.
        names: the layers that are to change.
        new: layers whose weights do not fit any more, and are left out.
    """
    stored = {layer.name: layer for layer in read_weights(weights) if layer.name not in new}
    if missing := [name for name in names if name not in stored]:
        notes.append(f"{weights} has no weights for {', '.join(missing)}: they start from fillers")
    layers = {layer.name: layer for layer in parse_message(net, "NetParameter").layer}
    layers = [layers[name] for name in names if name in stored]
    if not layers and not new:
        raise BayesCaffeError(f"{weights}: has weights for none of {', '.join(names)}")
    if layers:
        with caffe_errors(weights):
            make_net(net_of_layers(layers, stored), weights)  # fails if they do not fit
    _write(upgraded(weights, new), out)


def stock_weights(
    net: str,
    names: Sequence[str],
    weights: str | os.PathLike,
    out: Path,
    new: Sequence[str],
    notes: list[str],
) -> None:
    """Write the means of a Bayesian net as the weights of its stock form.

    Args:
        net: the text of the stock net.
        names: the layers that are to change.
        new: layers whose weights do not fit any more, and are left out.
    """
    layers = {layer.name: layer for layer in parse_message(net, "NetParameter").layer}
    model = upgraded(weights, new)
    for layer in model.layer:
        if layer.name in names and is_bayesian(layer):
            del layer.blobs[stock_blobs(layers[layer.name]) :]
            layer.type = stock_type(layer)
    _write(model, out)


def upgraded(weights: str | os.PathLike, without: Sequence[str] = ()):
    """The message of a caffemodel, in today's format, without these layers."""
    with caffe_errors(weights):
        content = import_pycaffe("caffe").upgrade_net(read_bytes(weights))
    model = import_pycaffe("caffe.proto.caffe_pb2").NetParameter.FromString(content)
    for number in reversed(range(len(model.layer))):
        if model.layer[number].name in without:
            del model.layer[number]
    return model


def _write(model, out: Path) -> None:
    model.ClearField("inference")  # the net that it carries is the one before
    write_caffemodel(model, out)
