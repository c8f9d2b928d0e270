"""A net that is as sure as it is right: `calibrate`.

found = bayescaffe.calibrate("net.caffemodel", "held-out_lmdb", out="calibrated.caffemodel")
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_file
from bayescaffe.data.images import ImageSource
from bayescaffe.infer.sampling import sample
from bayescaffe.net.model import Model, as_model
from bayescaffe.net.tempering import divide_scores, scoring_layer
from bayescaffe.stats.temperature import TemperatureFit, fit_temperature, tempered

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
    """The layer whose weights it divided."""
    fit: TemperatureFit


def calibrate(
    model: Model | str | os.PathLike,
    images: ImageSource,
    passes: int | str | None = None,
    *,
    out: str | os.PathLike,
    weights: str | os.PathLike | None = None,
    labels: str | os.PathLike | np.ndarray | None = None,
    class_names: Sequence[str] | None = None,
    channels: str | None = None,
    invert: bool = False,
    progress: bool = True,
) -> Calibration:
    """Fit a temperature on held-out images, and write a caffemodel with it.

    The weights of the last layer are divided by the temperature, so the new file is used as any
    other. It carries its net.

    Args:
        model: a loaded `Model`, or a prototxt, or a caffemodel that carries its net.
        images: see `open_images`; with labels. The net should not have been trained with them, and
            what it is measured with later should be others.
        passes, labels, class_names, channels, invert, progress: those of `sample`.
        out: the caffemodel to write.
        weights: the caffemodel, if `model` is a prototxt.
    """
    model, out = as_model(model, weights), Path(out)
    layer = scoring_layer(model)  # before the long part
    draws = sample(
        model,
        images,
        passes,
        labels=labels,
        class_names=class_names,
        channels=channels,
        invert=invert,
        progress=progress,
    )
    fit = fit_temperature(draws)
    with scratch_file(out) as scratch:
        divide_scores(model, fit.temperature, scratch, class_names)
        _try(model, scratch, fit.temperature)
    return Calibration(out, layer, fit)


def _try(before: Model, weights: Path, temperature: float) -> None:
    """Raise if the new weights do not give the tempered probabilities of the old ones."""
    same = {"seed": before.seed, "mc_dropout": before.mc_dropout, "untrained": before.untrained}
    after = Model(weights, draw_memory=0, **same)
    noise = np.random.default_rng(0).integers(0, 256, (TRIAL_IMAGES, *before.image_shape))
    noise = noise.astype(np.float32)
    expected = tempered(before.sample(noise, TRIAL_DRAWS), temperature)
    if not np.allclose(after.sample(noise, TRIAL_DRAWS), expected, rtol=0, atol=TOLERANCE):
        raise BayesCaffeError(
            f"{before.path}: with the last weights divided by {temperature:.4g}, the net does not "
            "give its own probabilities at that temperature; nothing is written"
        )
