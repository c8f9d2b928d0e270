"""Weights of a net with less noise, and with class scores that are divided by a temperature.

A layer of weights is linear, so its scores are divided if its weights and biases are. The noise of
a Bayesian weight, m (1 + tau epsilon), is divided with its mean m, and scaled by its tau. So the
new caffemodel needs no new layer and no option: every command, stock Caffe and other programs take
it as it is.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.pycaffe import write_caffemodel
from bayescaffe.net.converted_weights import upgraded
from bayescaffe.net.layer_kinds import deltas, has_bayesian_form, is_bayesian, means
from bayescaffe.net.messages import blob_array
from bayescaffe.net.model import Model
from bayescaffe.net.packing import carried

PASSES_ON = ("Dropout", "Flatten", "Pooling", "ReLU", "Reshape", "Split")
"""Layers that give half as much if they get half as much."""


def write_calibrated(
    model: Model,
    out: str | os.PathLike,
    temperature: float = 1,
    noise: float = 1,
    class_names: Sequence[str] | None = None,
) -> None:
    """Write a caffemodel whose class scores are those of `model`, divided by the temperature, and
    whose taus are those of `model` times `noise`. It carries its net, as that of `pack` does.

    Raises:
        BayesCaffeError: the scores come from a layer that this cannot be done to.
    """
    name = scoring_layer(model)
    message = upgraded(model.weights)
    for layer in message.layer:
        if layer.name == name and temperature != 1:
            for blob in means(layer):
                _set(blob, blob_array(blob) / np.float32(temperature))
        if is_bayesian(layer) and noise != 1:
            for blob in deltas(layer):
                _set(blob, _scaled(blob_array(blob).astype(np.float64), noise))
    message.inference.CopyFrom(carried(model, class_names))
    write_caffemodel(message, Path(out))


def _set(blob, numbers: np.ndarray) -> None:
    blob.ClearField("double_data")
    blob.data[:] = numbers.ravel().tolist()


def _scaled(delta: np.ndarray, factor: float) -> np.ndarray:
    """The delta whose tau, ln(1 + exp(delta)), is as many times as large."""
    tau = factor * np.logaddexp(0, delta)
    return tau + np.log(-np.expm1(-tau))


def scoring_layer(model: Model) -> str:
    """The name of the layer whose weights make the class scores, if they can be changed."""
    layers = list(model.message.layer)
    blob = model.output
    while layers:
        layer = layers.pop()
        if blob not in layer.top:
            continue
        if is_bayesian(layer) or has_bayesian_form(layer):
            return _not_shared(layer, model)
        if layer.type != "Softmax" and layer.type not in PASSES_ON:
            break
        blob = layer.bottom[0]
    raise BayesCaffeError(
        f"{model.path}: the scores of the classes come from the {layer.type} layer {layer.name!r}, "
        "whose weights cannot be divided by a temperature; a layer such as InnerProduct, "
        f"Convolution or Scale can, with nothing between it and the Softmax but "
        f"{', '.join(PASSES_ON)}"
    )


def _not_shared(layer, model: Model) -> str:
    names = {param.name for param in layer.param if param.name}
    for other in model.message.layer:
        if other.name != layer.name and names.intersection(param.name for param in other.param):
            raise BayesCaffeError(
                f"{model.path}: the layer {layer.name!r} gives the scores of the classes, and "
                f"shares its weights with {other.name!r}; they cannot be divided by a temperature"
            )
    return layer.name
