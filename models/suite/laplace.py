"""A Laplace approximation of the last layer of a stock net, by hand.

The posterior of the last layer's weights is a Gaussian around the trained ones. Its precision is
the generalised Gauss-Newton matrix of the training loss, Kronecker-factored, plus that of the
prior: n A x G + prior_precision I, with A the mean of (features, 1) (features, 1)^T and G the mean
of diag(p) - p p^T over the n training images.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bayescaffe import Model, open_images
from scipy.special import softmax

DRAWS = 100
"""Of the class scores; these need no pass through the net."""
PRECISIONS = tuple(np.geomspace(0.01, 10_000, 25))
BATCH = 500


@dataclass(frozen=True)
class LastLayer:
    """The eigenvectors of A and G, and the eigenvalues of A and of n G."""

    feature_basis: np.ndarray
    feature_values: np.ndarray
    class_basis: np.ndarray
    class_values: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray, probabilities: np.ndarray) -> "LastLayer":
        """From the features and the class probabilities of the training images."""
        wide = _with_one(features)
        count = len(wide)
        feature_values, feature_basis = np.linalg.eigh(wide.T @ wide / count)
        curvature = np.diag(probabilities.sum(axis=0)) - probabilities.T @ probabilities
        class_values, class_basis = np.linalg.eigh(curvature)
        return cls(
            feature_basis, np.maximum(feature_values, 0), class_basis, np.maximum(class_values, 0)
        )

    def variances(self, features: np.ndarray, prior_precision: float) -> np.ndarray:
        """Of the class scores of images, images x classes, along the class basis."""
        along = np.square(_with_one(features) @ self.feature_basis)
        precision = np.outer(self.feature_values, self.class_values) + prior_precision
        return along @ (1 / precision)

    def predict(
        self, features: np.ndarray, scores: np.ndarray, prior_precision: float, seed: int
    ) -> np.ndarray:
        """The mean class probabilities of images with these features and trained scores."""
        spread = np.sqrt(self.variances(features, prior_precision))
        rng = np.random.default_rng(seed)
        total = np.zeros_like(scores)
        for _ in range(DRAWS):
            noise = spread * rng.standard_normal(scores.shape)
            total += softmax(scores + noise @ self.class_basis.T, axis=1)
        return total / DRAWS


def _with_one(features: np.ndarray) -> np.ndarray:
    """With a 1 beside the features, for the bias."""
    return np.hstack([features, np.ones((len(features), 1))])


def features_and_scores(model: Model, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What enters and what leaves the last inner product of a net."""
    net = model.caffe_net
    last = [layer for layer in model.message.layer if layer.type == "InnerProduct"][-1]
    (entry,) = [layer.top[0] for layer in model.message.layer if layer.type == "Input"]
    found: tuple[list, list] = ([], [])
    for start in range(0, len(images), BATCH):
        part = model.transform(images[start : start + BATCH])
        net.blobs[entry].reshape(*part.shape)
        net.blobs[entry].data[...] = part
        net.forward()
        for values, blob in zip(found, (last.bottom[0], last.top[0]), strict=True):
            values.append(net.blobs[blob].data.reshape(len(part), -1).astype(np.float64))
    return np.concatenate(found[0]), np.concatenate(found[1])


def of_training(model: Model, data: Path) -> LastLayer:
    """From the images that the net was trained on."""
    images = open_images(data / "train_lmdb")
    model.fit(images)
    pixels, _ = images.in_order()(len(images))
    features, scores = features_and_scores(model, pixels)
    return LastLayer.of(features, softmax(scores, axis=1))
