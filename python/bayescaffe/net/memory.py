"""The memory that training a net takes on the CPU, counted without training it."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields

from bayescaffe.net.layer_kinds import is_bayesian, stock_blobs

_FLOAT = 4  # bytes, and those of an index
# Solvers that remember two numbers for each parameter; the others remember one.
_TWO_HISTORIES = ("Adam", "AdaDelta")
# Layers that keep as much as they take, always or in place.
_KEEP = ("Dropout", "LRN", "BatchNorm", "SoftmaxWithLoss", "Swish")
_KEEP_IN_PLACE = ("Scale", "BayesScale", "PReLU")
# Weights of so many bytes have no blob for the gradient of a draw.
_LARGE = 1 << 22
# Layers whose tops are their bottom under another name.
_VIEWS = ("Reshape", "Flatten")


@dataclass(frozen=True)
class Memory:
    """What one train net and its solver take with the CPU engine, in bytes.

    Test nets, the batches that data layers read ahead, and a snapshot while it is written are not
    counted.
    """

    weights: int
    """What is learned: weights and biases, their means for a Bayesian layer, and delta."""
    gradients: int
    """Of these."""
    history: int
    """What the solver remembers of them."""
    draws: int
    """The noise of Bayesian layers, the weights that are drawn, and their gradients."""
    activations: int
    """What the layers give, for one batch."""
    activation_gradients: int
    """Of these."""
    workspace: int
    """What layers keep for the backward pass, and what the engine computes in."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))


def memory(net, layers: Sequence, solver: str = "SGD") -> tuple[Memory, Memory]:
    """What training takes, and what its stock twin takes: the net with stock layers.

    Args:
        net: built by pycaffe in phase TRAIN.
        layers: its layers in the prototxt.
        solver: the type of the solver.
    """
    bayesian = {layer.name: layer for layer in layers if is_bayesian(layer)}
    parameters, deltas, draws, local = _parameters(net, layers, bayesian)
    activations, gradients = _activations(net)
    workspace = _layer_workspace(net) + _engine_workspace(net, layers)
    histories = 2 if solver in _TWO_HISTORIES else 1

    def in_bytes(learned: int, drawn: int, work: int) -> Memory:
        numbers = learned, learned, histories * learned, drawn, activations, gradients, work
        return Memory(*(_FLOAT * number for number in numbers))

    own = in_bytes(parameters + deltas, draws, workspace + local)
    return own, in_bytes(parameters, 0, workspace)


def _parameters(net, layers: Sequence, bayesian: dict) -> tuple[int, int, int, int]:
    """How many parameters a stock net has, how many deltas, how many numbers draws have, and what
    local reparametrisation keeps."""
    seen: set[str] = set()
    parameters = deltas = draws = local = 0
    for layer in layers:
        if layer.name not in net.params:
            continue
        blobs = list(net.params[layer.name])
        size = stock_blobs(layer) if layer.name in bayesian else len(blobs)
        names = [param.name for param in layer.param] + [""] * len(blobs)
        own = [name not in seen for name in names]
        seen.update(name for name in names if name)
        parameters += sum(blob.count for blob, new in zip(blobs[:size], own, strict=False) if new)
        if layer.name not in bayesian:
            continue
        pairs = zip(blobs[size : 2 * size], own[size:], strict=False)
        deltas += sum(blob.count for blob, new in pairs if new)
        count = sum(blob.count for blob in blobs[:size])
        # Noise, drawn weights and their gradients, for each part of a batch.
        kept = 3 * count - (blobs[0].count if _has_strips(layer, blobs[0].count) else 0)
        draws += kept * layer.bayes_param.draws_per_batch
        if layer.bayes_param.local_reparametrization:
            bottom, top = (net.blobs[name[0]].count for name in (layer.bottom, layer.top))
            local += 2 * bottom + 3 * top
    return parameters, deltas, draws, local


def _has_strips(layer, weights: int) -> bool:
    """Whether the gradient of the drawn weights is used while it is in the cache, and not kept: as
    HasStrips of bayes_layer.cpp decides."""
    bayes = layer.bayes_param
    return (
        layer.type == "BayesInnerProduct"
        and _FLOAT * weights >= _LARGE
        and bayes.posterior == bayes.SHARED
        and not bayes.local_reparametrization
        and not layer.inner_product_param.transpose
    )


def _activations(net) -> tuple[int, int]:
    """How many numbers the layers give, and how many of them have a gradient."""
    values = gradients = 0
    seen: set[str] = set()
    learned: set[str] = set()
    for name, layer in zip(net._layer_names, net.layers, strict=True):
        learns = len(layer.blobs) > 0 or any(b in learned for b in net.bottom_names[name])
        for top in net.top_names[name]:
            count = net.blobs[top].count
            if learns and top not in learned and layer.type not in _VIEWS:
                gradients += count
            # The copies of a blob that several layers read have gradients of their own only.
            if top not in seen and layer.type not in ("Split", *_VIEWS):
                values += count
            seen.add(top)
            if learns:
                learned.add(top)
    return values, gradients


def _layer_workspace(net) -> int:
    """How many numbers layers keep for the backward pass."""
    total = 0
    for name, layer in zip(net._layer_names, net.layers, strict=True):
        bottoms, tops = net.bottom_names[name], net.top_names[name]
        in_place = bool(bottoms) and list(bottoms[:1]) == list(tops[:1])
        if layer.type in _KEEP or (layer.type in _KEEP_IN_PLACE and in_place):
            total += net.blobs[bottoms[0]].count
        elif layer.type == "Pooling":
            # The places of maxima.
            total += net.blobs[tops[0]].count
    return total


def _engine_workspace(net, layers: Sequence) -> int:
    """How many numbers the engine computes convolutions in: the largest layer counts."""
    by_weights = by_image = 0
    for layer in layers:
        if not layer.type.endswith("Convolution") or layer.name not in net.params:
            continue
        weights = net.params[layer.name][0].count
        shape = net.blobs[layer.bottom[0]].shape
        # Partial sums of the gradient, and the weights as Winograd's method transforms them.
        sums = max(1, min(shape[0], 16, 2**20 // weights))
        by_weights = max(by_weights, weights * sums + weights * 16 // 9)
        by_image = max(by_image, math.prod(shape[1:]))
    # Two forms of an image for each thread.
    return by_weights + 2 * by_image * len(os.sched_getaffinity(0))
