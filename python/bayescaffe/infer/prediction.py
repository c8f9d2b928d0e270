"""Single images: class, credible interval and decision.

model = bayescaffe.Model("net.prototxt", "net.caffemodel")
(one,) = bayescaffe.predict(model, "digit.png", invert=True)
one.label, one.lower, one.upper, one.decision
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument
from bayescaffe.common.progress import ProgressBar
from bayescaffe.data.frames import is_table
from bayescaffe.data.image_files import find_images, is_pillow
from bayescaffe.data.images import Images, ImageSource, open_images
from bayescaffe.infer.stages import as_rule, sample_in_stages
from bayescaffe.net.analytic import ANALYTIC, as_analytic
from bayescaffe.net.mixture import Mixture, as_mixture
from bayescaffe.net.model import Model
from bayescaffe.stats import intervals
from bayescaffe.stats.analysis import Analysis, analyze
from bayescaffe.stats.draws import Draws
from bayescaffe.stats.stopping import StoppingRule

log = logging.getLogger(__name__)

# What is held in memory at a time: the images of a step as they enter the net, and as much of their
# probabilities.
CHUNK_BYTES = 2**26

File = str | os.PathLike | bytes
"""An image file or a folder of them, by name; or the content of an image file. Or an image of
Pillow."""


@dataclass(frozen=True)
class Rule:
    """When to accept a prediction, when to repeat it with another picture, when to ask a person.

    accept    the class's interval overlaps that of no other class, and its lower end is not below
              `accept_above`: the draws agree.
    escalate  otherwise, if the mean probability is below `escalate_below`: no class stands out,
              and another picture is not likely to help.
    repeat    otherwise: one class leads, but the draws differ; another picture may settle it.

    The default is 0.5 for both. So an accepted class is more probable than all others together,
    within the whole interval; a class that is not so even on average is escalated.
    """

    accept_above: float = 0.5
    escalate_below: float = 0.5

    def __post_init__(self) -> None:
        for name in ("accept_above", "escalate_below"):
            if not 0 <= getattr(self, name) <= 1:
                raise BayesCaffeError(f"{argument(name, getattr(self, name))} is not within 0..1")

    def decide(self, certain: bool, lower: float, probability: float) -> str:
        """The decision, from the overlap test, the interval's lower end and the mean."""
        if certain and lower >= self.accept_above:
            return "accept"
        return "escalate" if probability < self.escalate_below else "repeat"


@dataclass(frozen=True)
class Prediction:
    """The predicted class of one image, its uncertainty and a decision."""

    image: str
    """The name of the file."""
    label: int
    """The class of the largest mean probability."""
    class_name: str | None
    probability: float
    """Its mean probability over the draws."""
    lower: float
    """Lower end of the credible interval of its probability."""
    upper: float
    certain: bool
    """Whether this interval overlaps that of no other class."""
    entropy: float
    """Of the mean probabilities, in nats."""
    epistemic: float
    """The part of it that is the net's own uncertainty: what the draws disagree on."""
    decision: str
    """accept, repeat or escalate, by the `Rule`."""
    draws: int
    """How many draws all of this is from."""
    probabilities: tuple[float, ...]
    """The mean probability of every class."""


def predict(
    model: Model | Mixture | str | os.PathLike,
    images: File | Sequence[File] | ImageSource,
    passes: int | str | None = None,
    *,
    weights: str | os.PathLike | Sequence[str | os.PathLike] | None = None,
    adaptive: StoppingRule | str | os.PathLike | None = None,
    level: float = 0.95,
    interval: str = "equal-tailed",
    rule: Rule | None = None,
    class_names: Sequence[str] | None = None,
    channels: str | None = None,
    invert: bool = False,
    on_error: Callable[[str, BayesCaffeError], object] | None = None,
    progress: bool = True,
) -> list[Prediction]:
    """Predict the class of images with many draws of a net.

    Args:
        model: a loaded `Model`, a `Mixture` of several, or a prototxt; a `Model` takes a seed and
            other options.
        images: image files, folders of them, the content of image files, images of Pillow, a
            DataFrame with a column `path`, or an array of one image or several (see `open_images`).
        passes: the number of draws; by default 100, or one of each model for a `Mixture` in which
            no model is random. Or "analytic": means and variances go through the net once, at the
            price of about three draws, and 256 draws are taken of the scores alone.
        weights: the caffemodel, if `model` is a prototxt; several are a `Mixture`.
        adaptive: a `StoppingRule` or its file: images whose answer is settled get no more draws.
        level, interval: of the credible intervals; "equal-tailed" or "hdi" (highest density).
        rule: what decides; without it, `Rule()`.
        class_names: a name for each class; by default those of the net's LMDB.
        channels: the order of colours in an array, "rgb" or "bgr".
        invert: turn image files from black on white to white on black, as MNIST's nets expect.
        on_error: is told the name and the error of an image that cannot be read; the others are
            still predicted. Without it, the error is raised.
        progress: show a progress bar if this takes long and runs on a terminal or in a notebook.
    """
    model = as_mixture(model, weights)
    if passes == ANALYTIC:
        model, passes = as_analytic(model, adaptive)
    stopping = None if adaptive is None else as_rule(adaptive, model, passes)
    if stopping and (stopping.level, stopping.interval) != (level, interval):
        raise BayesCaffeError(
            f"{argument('adaptive')}: the stopping rule is for {stopping.interval} intervals at "
            f"level {stopping.level:g}, not for {argument('interval', interval)} and "
            f"{argument('level', level)}"
        )
    passes = model.passes_for(stopping.passes if stopping else passes)
    passes = model.distinct_draws or passes
    class_names = model.names_for(class_names)
    if passes == 1 and not model.is_random:
        log.info("%s: no layer is random, so intervals have no width", model.path)
    elif few := intervals.too_few_draws(passes, level):
        log.warning("%s", few)

    def fail(name: str, error: BayesCaffeError) -> None:
        if on_error is None:
            raise error
        on_error(name, error)

    source = _source(images, channels, invert, fail)
    if not len(source):
        return []
    model.fit(source)
    rule = rule or Rule()
    predictions: list[Prediction] = []
    values = max(int(np.prod(model.image_shape)), passes * model.classes)
    with ProgressBar(len(source), "predicting", show=progress, delay=1) as bar:
        for indices, pixels in _chunks(source, max(1, CHUNK_BYTES // (4 * values)), fail):
            if stopping:
                draws = sample_in_stages(model, pixels, stopping)
            else:
                draws = Draws(model.sample(pixels, passes))
            found = analyze(draws, level, interval, progress=False)
            names = [source.describe(index) for index in indices]
            predictions += _predictions(found, names, class_names, rule)
            bar.move_to(indices[-1] + 1)
    return predictions


def _predictions(
    found: Analysis, names: Sequence[str], class_names: Sequence[str] | None, rule: Rule
) -> Iterator[Prediction]:
    counts = np.full(found.images, found.draws)
    counts = counts if found.draw_counts is None else found.draw_counts
    for row, name in enumerate(names):
        label = int(found.predicted[row])
        certain, lower = bool(found.certain[row]), float(found.lower[row, label])
        yield Prediction(
            image=name,
            label=label,
            class_name=None if class_names is None else class_names[label],
            probability=float(found.confidence[row]),
            lower=lower,
            upper=float(found.upper[row, label]),
            certain=certain,
            entropy=float(found.entropy[row]),
            epistemic=float(found.epistemic[row]),
            decision=rule.decide(certain, lower, float(found.confidence[row])),
            draws=int(counts[row]),
            probabilities=tuple(found.mean[row].tolist()),
        )


def _source(
    images: File | Sequence[File] | ImageSource,
    channels: str | None,
    invert: bool,
    fail: Callable[[str, BayesCaffeError], object],
) -> Images:
    names = (str, os.PathLike)
    if isinstance(images, (np.ndarray, Images)) or is_table(images) or is_pillow(images):
        return open_images(images, channels=channels, invert=invert)
    files: list[File] = []
    for item in [images] if isinstance(images, (*names, bytes)) else images:
        if isinstance(item, names) and Path(item).is_dir():
            try:
                files += find_images(Path(item))
            except BayesCaffeError as error:
                fail(str(item), error)
        else:
            files.append(item)
    return open_images(files, channels=channels, invert=invert)


def _chunks(
    source: Images, size: int, fail: Callable[[str, BayesCaffeError], object]
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Indices and pixels of the images that can be read, up to `size` at a time."""
    for start in range(0, len(source), size):
        rows = range(start, min(start + size, len(source)))
        good, pixels = [], []
        for index, result in zip(rows, source.read_each(rows), strict=True):
            if isinstance(result, BayesCaffeError):
                fail(source.describe(index), result)
            else:
                good.append(index)
                pixels.append(result)
        if good:
            yield good, np.stack(pixels)
