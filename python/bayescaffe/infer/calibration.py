"""A net that is as sure as it is right: `calibrate`.

found = bayescaffe.calibrate("net.caffemodel", "held-out_lmdb", out="calibrated.caffemodel")

Two numbers are chosen with held-out images: a temperature, which the class scores are divided by,
and a factor for the noise of the Bayesian weights. Each of the factors `NOISE` gets its best
temperature. Of those whose NLL is not shown to be above the lowest, the largest is taken: the
learned noise is reduced only as far as the images ask for it.
"""

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument
from bayescaffe.common.files import scratch_file
from bayescaffe.data.images import ImageSource, open_images
from bayescaffe.infer.sampling import sample
from bayescaffe.net.calibrated_weights import scoring_layer, write_calibrated
from bayescaffe.net.layer_kinds import is_bayesian
from bayescaffe.net.mixture import Mixture
from bayescaffe.net.model import Model, as_model
from bayescaffe.stats.temperature import NORMAL_95, TemperatureFit, fit_temperature, tempered

NOISE = (1, 0.7, 0.5, 0.35, 0.25)
"""The factors that are tried."""
TOLERANCE = 1e-3
"""How far a probability of the new net may be from what it should be: float32 rounds otherwise."""
TRIAL_IMAGES, TRIAL_DRAWS = 4, 2
"""What the new net is tried with."""


@dataclass(frozen=True)
class Calibration:
    """What `calibrate` did."""

    out: Path
    """The caffemodel that it wrote."""
    layer: str
    """The layer whose weights it divided by the temperature."""
    noise: float
    """What it multiplied every tau by."""
    fits: dict[float, TemperatureFit]
    """The temperature of each factor of the noise that was tried."""

    @property
    def fit(self) -> TemperatureFit:
        """The temperature that it chose."""
        return self.fits[self.noise]


def calibrate(
    model: Model | str | os.PathLike,
    images: ImageSource,
    passes: int | str | None = None,
    *,
    out: str | os.PathLike,
    noise: float | None = None,
    weights: str | os.PathLike | None = None,
    labels: str | os.PathLike | np.ndarray | None = None,
    class_names: Sequence[str] | None = None,
    channels: str | None = None,
    invert: bool = False,
    progress: bool = True,
) -> Calibration:
    """Choose a temperature and a factor of the noise on held-out images, and write a caffemodel.

    Both are written into the weights, so the new file is used as any other. It carries its net.

    Args:
        model: a loaded `Model`, or a prototxt, or a caffemodel that carries its net.
        images: see `open_images`; with labels. The net should not have been trained with them, and
            what it is measured with later should be others.
        passes, labels, class_names, channels, invert, progress: those of `sample`.
        out: the caffemodel to write.
        noise: take this factor, and fit the temperature only; 1 keeps the learned noise.
        weights: the caffemodel, if `model` is a prototxt.
    """
    if noise is not None and not 0 < noise <= 1:
        raise BayesCaffeError(f"{argument('noise', noise)}: expected more than 0 and at most 1")
    if isinstance(model, Mixture):
        raise BayesCaffeError(f"{model.path}: is one of several models; calibrate each on its own")
    source = open_images(images, labels=labels, channels=channels, invert=invert)
    model, out = as_model(model, weights, source.shape), Path(out)
    # What cannot be written is an error before the long part.
    layer = scoring_layer(model)
    factors = (noise,) if noise is not None else NOISE if _has_noise(model) else (1,)
    fits = {}
    with scratch_file(out) as scratch:
        for factor in factors:
            with _noisy(model, factor) as one:
                draws = sample(one, source, passes, class_names=class_names, progress=progress)
                fits[factor] = fit_temperature(draws)
        best = min(fits.values(), key=lambda fit: fit.nll[1])
        noise = max(factor for factor, fit in fits.items() if not _is_above(fit, best))
        temperature = fits[noise].temperature
        write_calibrated(model, scratch, temperature, noise, class_names)
        with _noisy(model, noise) as before:
            _try(before, model.with_weights(scratch), temperature)
    return Calibration(out, layer, noise, fits)


def _has_noise(model: Model) -> bool:
    return model.is_random and any(map(is_bayesian, model.message.layer))


def _is_above(fit: TemperatureFit, best: TemperatureFit) -> bool:
    """Whether its NLL is shown to be higher, by the images that both have."""
    apart = fit.losses - best.losses
    return apart.mean() > NORMAL_95 * apart.std() / math.sqrt(len(apart))


@contextlib.contextmanager
def _noisy(model: Model, factor: float) -> Iterator[Model]:
    """The model with its noise times a factor."""
    if factor == 1:
        yield model
        return
    with TemporaryDirectory() as folder:
        path = Path(folder) / "noise.caffemodel"
        write_calibrated(model, path, noise=factor)
        yield model.with_weights(path)


def _try(before: Model, after: Model, temperature: float) -> None:
    """Raise if the new net does not give the tempered probabilities of the one before."""
    images = np.random.default_rng(0).integers(0, 256, (TRIAL_IMAGES, *before.image_shape))
    images = images.astype(np.float32)
    expected = tempered(before.sample(images, TRIAL_DRAWS), temperature)
    if not np.allclose(after.sample(images, TRIAL_DRAWS), expected, rtol=0, atol=TOLERANCE):
        raise BayesCaffeError(
            f"{before.path}: with the last weights divided by {temperature:.4g}, the net does not "
            "give its own probabilities at that temperature; nothing is written"
        )
