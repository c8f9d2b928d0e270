"""What a trained caffemodel knows of its own uncertainty."""

import os
from dataclasses import dataclass

import numpy as np

from bayescaffe.nets import LayerBlobs, read_weights


@dataclass(frozen=True)
class LayerPosterior:
    """The posterior of one Bayesian layer, a weight w ~ N(m, (tau m)^2)."""

    name: str
    weights: int
    """Number of weights."""
    tau: float
    """Standard deviation of every weight, as a multiple of its |mean|."""
    biases: int
    """Number of biases, 0 without a bias term."""
    tau_bias: float | None
    """The same for the biases."""


def read_posterior(caffemodel: str | os.PathLike) -> list[LayerPosterior]:
    """The Bayesian layers in a caffemodel, in the order of the net."""
    layers = read_weights(caffemodel)
    return [_posterior(layer) for layer in layers if layer.type.startswith("Bayes")]


def softplus(delta: float) -> float:
    """tau = ln(1 + exp(delta)), as the layers compute it."""
    return float(np.logaddexp(0, delta))


def _posterior(layer: LayerBlobs) -> LayerPosterior:
    # m, m_b, delta, delta_b, epsilon, epsilon_b; without a bias term m, delta, epsilon.
    stock = len(layer.blobs) // 3
    means, deltas = layer.blobs[:stock], layer.blobs[stock : 2 * stock]
    taus = [softplus(delta.item()) for delta in deltas]
    return LayerPosterior(
        name=layer.name,
        weights=means[0].size,
        tau=taus[0],
        biases=means[1].size if stock == 2 else 0,
        tau_bias=taus[1] if stock == 2 else None,
    )
