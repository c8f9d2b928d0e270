"""What a trained caffemodel knows of its own uncertainty.

The only module of this package that imports Caffe.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bayescaffe.errors import BayesCaffeError


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
    return list(_layers(Path(caffemodel)))


def softplus(delta: float) -> float:
    """tau = ln(1 + exp(delta)), as the layers compute it."""
    return float(np.logaddexp(0, delta))


def _layers(path: Path) -> Iterator[LayerPosterior]:
    from caffe.proto import caffe_pb2
    from google.protobuf.message import DecodeError

    net = caffe_pb2.NetParameter()
    try:
        net.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise BayesCaffeError(f"{path}: damaged, or no caffemodel: {error}") from error
    for layer in net.layer:
        if not layer.type.startswith("Bayes"):
            continue
        # m, m_b, delta, delta_b, epsilon, epsilon_b; without a bias term m, delta, epsilon.
        stock = len(layer.blobs) // 3
        means, deltas = layer.blobs[:stock], layer.blobs[stock : 2 * stock]
        taus = [softplus(delta.data[0]) for delta in deltas]
        yield LayerPosterior(
            name=layer.name,
            weights=len(means[0].data),
            tau=taus[0],
            biases=len(means[1].data) if stock == 2 else 0,
            tau_bias=taus[1] if stock == 2 else None,
        )
