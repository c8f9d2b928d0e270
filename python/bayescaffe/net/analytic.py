"""A model whose draws come from the moments of its scores, at the price of about three passes."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument
from bayescaffe.net.building import caffe_errors, on_gpu
from bayescaffe.net.mixture import Mixture
from bayescaffe.net.model import Model
from bayescaffe.net.moments import MomentNet

ANALYTIC = "analytic"
"""What says so in place of a number of passes."""
POINTS = 256
"""How many draws of the scores there are. They are quasi-random, so that few are needed."""
TRIAL_IMAGES, TRIAL_DRAWS = 2, 256
"""Images of noise, and draws of the weights for each, that the factor is measured with."""


def as_analytic(model: Model | Mixture, adaptive: object = None) -> "tuple[Model | Mixture, int]":
    """A model, or each of several, that draws from the moments of its scores; and how often.

    Raises:
        BayesCaffeError: there is a stopping rule, or a layer that has no analytic form.
    """
    if adaptive is not None:
        given = argument("passes", ANALYTIC)
        raise BayesCaffeError(f"{argument('adaptive')}: {given} takes one pass, so none is saved")
    if isinstance(model, Mixture):
        return Mixture([_kept(one) for one in model.models]), POINTS * len(model.models)
    return _kept(model), POINTS


def _kept(model: Model) -> "Analytic":
    """That of a model, made once: its factor takes 512 passes."""
    if not hasattr(model, "_analytic"):
        model._analytic = Analytic(model)
    return model._analytic


class Analytic(Model):
    """A model that propagates means and variances once, instead of draws of its weights.

    The class scores of an image are then taken to be Gaussian. Draw k is point k of a quasi-random
    sequence from it: no network has these scores, but means, intervals and entropies are computed
    from the draws as from any others.
    """

    def __init__(self, model: Model) -> None:
        """The same net with the same weights."""
        vars(self).update(vars(model))
        with on_gpu(self._gpu):
            self._moments = MomentNet(model)
        self._points = np.empty((0, self.classes))
        self.factor = self._measured_factor()
        """What the variances are multiplied by. Numbers of a layer depend on each other, and the
        moments ignore it; what that does to the scores is much the same for all images."""

    def sample_parts(
        self,
        read: Callable[[int, int], np.ndarray],
        images: int,
        draws: int | Sequence[int],
        out: np.ndarray | None = None,
        progress: Callable[[float], object] | None = None,
    ) -> np.ndarray:
        """`Model.sample_parts`."""
        indices, out = self._begin(draws, images, out)
        points = self._first_points(int(indices.max()) + 1)[indices]
        for first in range(0, images, self.batch):
            count = min(self.batch, images - first)
            pixels = self._transformed(read(first, count))
            with caffe_errors(self.path), on_gpu(self._gpu):
                mean, covariance = self._moments.scores(pixels)
            covariance *= self.factor
            good = np.isfinite(mean).all(axis=1) & np.isfinite(covariance).all(axis=(1, 2))
            if not good.all():
                raise BayesCaffeError(
                    f"{self.path}: image {first + int(np.argmin(good))}: the mean or the variance "
                    "of a score is no number (NaN or infinite)"
                )
            out[:, first : first + count] = _probabilities(mean, covariance, points)
            if progress:
                progress((first + count) / images)
        return out

    def _measured_factor(self) -> float:
        """The variance of the scores in draws, by that of the moments. The images are always the
        same, so that the answer for an image depends on no other."""
        rng = np.random.default_rng(self.seed)
        shape = (TRIAL_IMAGES, *self.image_shape)
        pixels = self._transformed(rng.uniform(0, 255, shape).astype(np.float32))
        draws = np.empty((TRIAL_DRAWS, TRIAL_IMAGES, self.classes), np.float32)
        with caffe_errors(self.path), on_gpu(self._gpu):
            _, covariance = self._moments.scores(pixels)
            self.caffe_net.sample(
                TRIAL_DRAWS,
                lambda first, count: pixels[first : first + count],
                TRIAL_IMAGES,
                output=self._moments.scores_blob,
                out=draws.reshape(*draws.shape[:2], *self._shape_of(self._moments.scores_blob)),
            )
        expected = np.trace(_centred(covariance, (1, 2)), axis1=1, axis2=2)
        found = _centred(draws.astype(np.float64), (2,)).var(axis=0, ddof=1).sum(axis=1)
        known = (expected > 0) & np.isfinite(expected) & np.isfinite(found)
        return float(np.mean(found[known] / expected[known])) if known.any() else 1.0

    def _shape_of(self, blob: str) -> tuple[int, ...]:
        return self.caffe_net.blobs[blob].data.shape[1:]

    def _first_points(self, count: int) -> np.ndarray:
        """Points of a standard Gaussian, points x classes; more of them begin with the same."""
        if len(self._points) < count:
            from scipy.stats import norm, qmc

            sequence = qmc.Sobol(self.classes, seed=self.seed)
            self._points = norm.ppf(sequence.random_base2(math.ceil(math.log2(max(2, count)))))
        return self._points


def _centred(scores: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Without what all classes have in common, which Softmax ignores."""
    for axis in axes:
        scores = scores - scores.mean(axis=axis, keepdims=True)
    return scores


def _probabilities(mean: np.ndarray, covariance: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Points x images x classes: the softmax of scores with this mean and covariance."""
    values, vectors = np.linalg.eigh(covariance)
    roots = vectors * np.sqrt(np.maximum(values, 0))[:, np.newaxis]
    scores = mean + np.einsum("ncd,kd->knc", roots, points, optimize=True)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores
