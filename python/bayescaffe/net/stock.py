"""The layers of a net as stock Caffe knows them, with the weights of one network.

That is the net of the means, or a frozen draw: its weights m (1 + tau epsilon) and its dropout
masks, which become `Scale` layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bayescaffe.net.inference_net import is_random
from bayescaffe.net.layer_kinds import data_tops, is_bayesian, stock_type

if TYPE_CHECKING:
    from bayescaffe.net.model import Model

# What concerns training and phases only, or is not in stock Caffe.
_REMOVED = ("bayes_param", "exclude", "include", "loss_weight", "param", "phase", "propagate_down")


@dataclass(frozen=True)
class StockLayer:
    """A layer without a posterior."""

    param: Any
    """Its `LayerParameter`, without blobs."""
    blobs: list[np.ndarray]
    taus: tuple[np.ndarray, ...] = ()
    """The tau of each blob of a layer that is random, which broadcasts to the blob; empty
    if it is not."""
    drop_ratio: float = 0
    """The share that a Dropout layer drops, also in phase TEST; 0 if it drops nothing there."""


def stock_layers(model: Model, draw: int | None) -> list[StockLayer]:
    """The layers of a model: of the draw with this index, or of the means if it is None."""
    net = model.caffe_net
    if draw is not None:
        net.set_draw(model.caffe_draw(draw))
    layers = []
    for layer in model.message.layer:
        param = _stock_param(layer)
        taus = _taus(net, layer.name) if is_bayesian(layer) else ()
        blobs = [blob.data.copy() for blob in net.params.get(layer.name, ())]
        random = is_random(layer)
        if taus:
            blobs = blobs[: len(taus)]
        if random and draw is None:
            ratio = 0 if taus else layer.dropout_param.dropout_ratio
            layers.append(StockLayer(param, blobs, taus, ratio))
        elif random and taus:
            layers.append(StockLayer(param, _drawn(net, layer.name, blobs, taus)))
        elif random:
            layers.append(_frozen_dropout(net, param))
        else:
            layers.append(StockLayer(param, blobs))
    return layers


def _stock_param(layer):
    param = type(layer)()
    param.CopyFrom(layer)
    for field in _REMOVED:
        param.ClearField(field)
    param.type = stock_type(layer)
    del param.top[:]
    param.top.extend(data_tops(layer))
    # Both fields are this fork's.
    if param.HasField("dropout_param"):
        param.dropout_param.ClearField("sample_weights_test")
    if param.HasField("inner_product_param"):
        param.inner_product_param.ClearField("engine")
    return param


def _taus(net, name: str) -> tuple[np.ndarray, ...]:
    # One number is for a blob of any shape, also for one without axes.
    taus = (tau.astype(np.float32) for tau in net.taus(name))
    return tuple(tau.reshape(()) if tau.size == 1 else tau for tau in taus)


def _drawn(
    net, name: str, means: list[np.ndarray], taus: tuple[np.ndarray, ...]
) -> list[np.ndarray]:
    """The weights and biases of a layer in the draw that is set."""
    net.forward(start=name, end=name)
    noise = (blob.data for blob in net.params[name][2 * len(means) :])
    one = np.float32(1)
    return [m * (one + tau * epsilon) for m, tau, epsilon in zip(means, taus, noise, strict=True)]


def _frozen_dropout(net, param) -> StockLayer:
    """A `Scale` layer that multiplies by the mask of the draw that is set."""
    name = param.name
    bottom, top = net.bottom_names[name][0], net.top_names[name][0]
    net.blobs[bottom].data[...] = 1
    net.forward(start=name, end=name)
    mask = net.blobs[top].data[0].copy()
    scale = type(param)(name=name, type="Scale", bottom=param.bottom, top=param.top)
    scale.scale_param.axis = 1
    scale.scale_param.num_axes = mask.ndim
    return StockLayer(scale, [mask])
