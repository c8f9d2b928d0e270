"""SWAG (Maddox and others, 2019) over caffemodels: a Gaussian from the snapshots of a training.

Its covariance is half diagonal and half of low rank, one column for each snapshot. Deviations are
those from the mean of all snapshots; the paper's are those from the running mean.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bayescaffe import Model
from bayescaffe.net.building import make_net
from bayescaffe.net.inference_net import TRAIN
from bayescaffe.net.messages import read_message, read_weights

SNAPSHOTS = 20
NORM_BATCHES = 20
"""Training batches that the statistics of BatchNorm are computed from, for each draw."""


@dataclass(frozen=True)
class Moments:
    """A Gaussian over the weights of a net, flat."""

    mean: np.ndarray
    variance: np.ndarray
    deviations: np.ndarray
    """Snapshots x weights."""

    @classmethod
    def of(cls, snapshots: Sequence[np.ndarray]) -> "Moments":
        """From two or more snapshots of the weights."""
        stacked = np.stack(snapshots)
        mean = stacked.mean(axis=0)
        return cls(mean, stacked.var(axis=0), stacked - mean)

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """mean + sqrt(variance / 2) z1 + deviations z2 / sqrt(2 (K - 1))."""
        rank = len(self.deviations)
        own = np.sqrt(self.variance / 2) * rng.standard_normal(self.mean.shape, np.float32)
        shared = rng.standard_normal(rank, np.float32) @ self.deviations
        return self.mean + own + shared / np.sqrt(2 * (rank - 1))


def predict(net: Path, folder: Path, images: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """The mean class probabilities of images.

    Args:
        net: the prototxt.
        folder: of the snapshots, PREFIX_iter_N.caffemodel.
    """
    paths = sorted(folder.glob("*_iter_*.caffemodel"), key=_iteration)[-SNAPSHOTS:]
    model = Model(net, paths[-1])
    moments = Moments.of([_flat(model, path) for path in paths])
    norms = _Norms(model, net) if _norm_layers(model) else None
    rng = np.random.default_rng(seed)
    total = np.zeros((len(images), model.classes))
    for _ in range(draws):
        _put(model.caffe_net, _weight_layers(model), moments.draw(rng))
        if norms:
            norms.renew()
        total += model.sample(images, 1)[0]
    return total / draws


def _iteration(path: Path) -> int:
    return int(re.search(r"_iter_(\d+)\.", path.name)[1])


def _norm_layers(model: Model) -> list[str]:
    return [layer.name for layer in model.message.layer if layer.type == "BatchNorm"]


def _weight_layers(model: Model) -> list[str]:
    """The layers with weights. Those of BatchNorm hold statistics, which each draw renews."""
    return [name for name in model.caffe_net.params if name not in _norm_layers(model)]


def _flat(model: Model, snapshot: Path) -> np.ndarray:
    blobs = {layer.name: layer.blobs for layer in read_weights(snapshot)}
    return np.concatenate([blob.ravel() for name in _weight_layers(model) for blob in blobs[name]])


def _put(net, layers: Sequence[str], weights: np.ndarray) -> None:
    start = 0
    for name in layers:
        for blob in net.params[name]:
            size = blob.data.size
            blob.data[...] = weights[start : start + size].reshape(blob.data.shape)
            start += size


class _Norms:
    """Computes the statistics of BatchNorm for the weights that a model has now."""

    def __init__(self, model: Model, net: Path) -> None:
        self._model = model
        self._net = make_net(read_message(net, "NetParameter"), model.weights, phase=TRAIN)

    def renew(self) -> None:
        source, target = self._model.caffe_net.params, self._net.params
        for name in _weight_layers(self._model):
            for blob, other in zip(target[name], source[name], strict=True):
                blob.data[...] = other.data
        for name in _norm_layers(self._model):
            for blob in target[name]:
                blob.data[...] = 0
        for _ in range(NORM_BATCHES):
            self._net.forward()
        for name in _norm_layers(self._model):
            for blob, other in zip(source[name], target[name], strict=True):
                blob.data[...] = other.data
