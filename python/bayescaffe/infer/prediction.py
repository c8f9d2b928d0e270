"""Single images: class, credible interval and decision.

model = bayescaffe.Model("net.prototxt", "net.caffemodel")
(one,) = bayescaffe.predict(model, "digit.png", invert=True)
one.label, one.lower, one.upper, one.decision
"""

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument, span
from bayescaffe.common.files import sha256
from bayescaffe.common.progress import ProgressBar
from bayescaffe.data.frames import is_table
from bayescaffe.data.image_files import find_images, is_pillow
from bayescaffe.data.images import Images, ImageSource, open_images
from bayescaffe.infer.stages import as_rule, sample_in_stages
from bayescaffe.infer.workers import (
    TASK_IMAGES,
    TASKS_PER_WORKER,
    Job,
    crew,
    inside,
    opened,
    recipes,
    silent,
    split,
)
from bayescaffe.net.analytic import ANALYTIC, as_analytic
from bayescaffe.net.mixture import Mixture, as_mixture
from bayescaffe.net.model import Model
from bayescaffe.stats import intervals
from bayescaffe.stats.analysis import analyze
from bayescaffe.stats.decisions import DecisionRule, as_decision_rule
from bayescaffe.stats.draws import Draws
from bayescaffe.stats.rule_files import digest
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
        return self.otherwise(probability)

    def otherwise(self, probability: float) -> str:
        """The decision for what is not accepted."""
        return "escalate" if probability < self.escalate_below else "repeat"

    def check_calibrated(self, decisions: DecisionRule) -> None:
        """Raise if it has a threshold of its own beside that of a calibration."""
        if decisions.threshold is not None and self.accept_above != Rule.accept_above:
            raise BayesCaffeError(
                f"{argument('accept_above', self.accept_above)}: does not work with "
                f"{argument('calibration')}, which has the threshold that keeps its error"
            )


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
    intervals: tuple[tuple[float, float], ...]
    """The credible interval of every class's probability."""
    class_set: tuple[int, ...] | None = None
    """With a calibration: the classes of its set; none is possible."""
    set_names: tuple[str, ...] | None = None
    """Their names."""


def predict(
    model: Model | Mixture | str | os.PathLike,
    images: File | Sequence[File] | ImageSource,
    passes: int | str | None = None,
    *,
    weights: str | os.PathLike | Sequence[str | os.PathLike] | None = None,
    adaptive: StoppingRule | str | os.PathLike | None = None,
    calibration: DecisionRule | str | os.PathLike | None = None,
    level: float = 0.95,
    interval: str = "equal-tailed",
    rule: Rule | None = None,
    class_names: Sequence[str] | None = None,
    channels: str | None = None,
    invert: bool = False,
    on_error: Callable[[str, BayesCaffeError], object] | None = None,
    workers: int | None = None,
    dask: str | None = None,
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
        calibration: a `DecisionRule` of `calibrate_decisions`, or its file: what it accepts is
            accepted, in place of what `rule` would, and each image has a set of classes.
        level, interval: of the credible intervals; "equal-tailed" or "hdi" (highest density).
        rule: what decides; without it, `Rule()`.
        class_names: a name for each class; by default those of the net's LMDB.
        channels: the order of colours in an array, "rgb" or "bgr".
        invert: turn image files from black on white to white on black, as MNIST's nets expect.
        on_error: is told the name and the error of an image that cannot be read; the others are
            still predicted. Without it, the error is raised.
        workers, dask: as in `sample`; for image files and folders. The answers are those of one
            process, in the same order.
        progress: show a progress bar if this takes long and runs on a terminal or in a notebook.
    """
    model = as_mixture(model, weights)
    given, model_given = passes, model
    is_analytic = passes == ANALYTIC
    if is_analytic:
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
    rule = rule or Rule()
    decisions = None
    if calibration is not None:
        decisions = as_decisions(calibration, model, passes, stopping, is_analytic)
        rule.check_calibrated(decisions)
    class_names = model.names_for(class_names)
    if passes == 1 and not model.is_random:
        log.info("%s: no layer is random, so intervals have no width", model.path)
    elif few := intervals.too_few_draws(passes, level):
        log.warning("%s", few)

    def fail(name: str, error: BayesCaffeError) -> None:
        if on_error is None:
            raise error
        on_error(name, error)

    if workers is not None or dask is not None:
        arguments = {"passes": given, "adaptive": stopping, "level": level, "interval": interval}
        arguments |= {"rule": rule, "class_names": class_names, "invert": invert}
        arguments |= {"calibration": decisions}
        job = _Job(models=recipes(model_given), arguments=arguments)
        return _on_workers(job, _names(images, fail), workers, dask, fail, progress)
    source = _source(images, channels, invert, fail)
    if not len(source):
        return []
    model.fit(source)
    predictions: list[Prediction] = []
    values = max(int(np.prod(model.image_shape)), passes * model.classes)
    with ProgressBar(len(source), "predicting", show=progress, delay=1) as bar:
        for indices, pixels in _chunks(source, max(1, CHUNK_BYTES // (4 * values)), fail):
            draws = draw(model, pixels, passes, stopping)
            names = [source.describe(index) for index in indices]
            predictions += decide(draws, names, level, interval, rule, class_names, decisions)
            bar.move_to(indices[-1] + 1)
    return predictions


def as_decisions(
    calibration: DecisionRule | str | os.PathLike,
    model: Model | Mixture,
    passes: int,
    stopping: StoppingRule | None = None,
    is_analytic: bool = False,
) -> DecisionRule:
    """The calibration, from its file if it is not loaded. Raise if it is for other draws."""
    rule, name = as_decision_rule(calibration)
    models = model.models if isinstance(model, Mixture) else (model,)
    origin = {
        "classes": model.classes,
        "passes": passes,
        "seed": model.seed,
        "net_sha256": tuple(sha256(one.path) for one in models),
        "weights_sha256": tuple(sha256(one.weights) for one in models),
        "mc_dropout": model.mc_dropout,
        "antithetic": model.antithetic,
        "analytic": is_analytic,
        "stopping_rule_sha256": None if stopping is None else digest(stopping.as_dict()),
    }
    rule.check(name, origin, ", ".join(str(one.weights) for one in models))
    return rule


def draw(
    model: Model | Mixture, pixels: np.ndarray, passes: int, stopping: StoppingRule | None = None
) -> Draws:
    """The draws of images in memory, as many as the stopping rule wants if there is one."""
    if stopping:
        return sample_in_stages(model, pixels, stopping)
    return Draws(model.sample(pixels, passes))


def decide(
    draws: Draws,
    names: Sequence[str],
    level: float,
    interval: str,
    rule: Rule,
    class_names: Sequence[str] | None,
    decisions: DecisionRule | None = None,
) -> Iterator[Prediction]:
    """What draws say of each image. `predict` and the service decide by this."""
    found = analyze(draws, level, interval, progress=False)
    decided = None if decisions is None else decisions.decide(draws, found.predicted)
    counts = np.full(found.images, found.draws)
    counts = counts if found.draw_counts is None else found.draw_counts
    for row, name in enumerate(names):
        label = int(found.predicted[row])
        certain, lower = bool(found.certain[row]), float(found.lower[row, label])
        probability = float(found.confidence[row])
        if decided is None or decided.accepted is None:
            decision = rule.decide(certain, lower, probability)
        else:
            decision = "accept" if decided.accepted[row] else rule.otherwise(probability)
        in_set = None if decided is None else np.flatnonzero(decided.sets[row]).tolist()
        yield Prediction(
            image=name,
            label=label,
            class_name=None if class_names is None else class_names[label],
            probability=probability,
            lower=lower,
            upper=float(found.upper[row, label]),
            certain=certain,
            entropy=float(found.entropy[row]),
            epistemic=float(found.epistemic[row]),
            decision=decision,
            draws=int(counts[row]),
            probabilities=tuple(found.mean[row].tolist()),
            intervals=tuple(zip(found.lower[row].tolist(), found.upper[row].tolist(), strict=True)),
            class_set=None if in_set is None else tuple(in_set),
            set_names=(
                None
                if in_set is None or class_names is None
                else tuple(class_names[one] for one in in_set)
            ),
        )


def _source(
    images: File | Sequence[File] | ImageSource,
    channels: str | None,
    invert: bool,
    fail: Callable[[str, BayesCaffeError], object],
) -> Images:
    if isinstance(images, (np.ndarray, Images)) or is_table(images) or is_pillow(images):
        return open_images(images, channels=channels, invert=invert)
    return open_images(_files(images, fail), channels=channels, invert=invert)


def _files(
    images: File | Sequence[File], fail: Callable[[str, BayesCaffeError], object]
) -> list[File]:
    """With the files of a folder in its place."""
    names = (str, os.PathLike)
    files: list[File] = []
    for item in [images] if isinstance(images, (*names, bytes)) else images:
        if isinstance(item, names) and Path(item).is_dir():
            try:
                files += find_images(Path(item))
            except BayesCaffeError as error:
                fail(str(item), error)
        else:
            files.append(item)
    return files


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


# ---- On workers


@dataclass(frozen=True, kw_only=True)
class _Job(Job):
    """What all tasks have in common; a task is some image files."""

    arguments: dict[str, Any]
    """Of `predict`."""


def _names(
    images: File | Sequence[File] | ImageSource, fail: Callable[[str, BayesCaffeError], object]
) -> list[str | os.PathLike]:
    """The image files, which must have names."""
    is_other = isinstance(images, (np.ndarray, Images)) or is_table(images) or is_pillow(images)
    files = [None] if is_other else _files(images, fail)
    if not all(isinstance(file, (str, os.PathLike)) for file in files):
        raise BayesCaffeError(
            f"{argument('images')}: workers open images by name; give image files or folders"
        )
    return files


def _on_workers(
    job: _Job,
    files: Sequence[str | os.PathLike],
    workers: int | None,
    dask: str | None,
    fail: Callable[[str, BayesCaffeError], object],
    progress: bool,
) -> list[Prediction]:
    """The predictions of all files, in order; errors are told in order, too."""
    if workers is not None and (dask is not None or workers < 1):
        check = argument("dask") if dask is not None else argument("workers", workers)
        why = f"does not work with {argument('workers')}" if dask else "at least one is needed"
        raise BayesCaffeError(f"{check}: {why}")
    if not files:
        return []
    with (
        crew(workers, dask) as team,
        ProgressBar(len(files), "predicting", show=progress, delay=1) as bar,
    ):
        pieces = max(TASKS_PER_WORKER * team.workers, math.ceil(len(files) / TASK_IMAGES))
        ranges = split(len(files), min(len(files), pieces))
        tasks = [(files[one.start : one.stop],) for one in ranges]
        found: list = [None] * len(tasks)
        for number, result in team.run(
            predict_part, job, tasks, [f"images {span(one)}" for one in ranges]
        ):
            found[number] = result
            bar.advance(len(ranges[number]))
    for _, errors in found:
        for name, error in errors:
            fail(name, error)
    return [prediction for predictions, _ in found for prediction in predictions]


def predict_part(
    job: _Job, files: Sequence[str | os.PathLike]
) -> tuple[list[Prediction], list[tuple[str, BayesCaffeError]]]:
    """On a worker: predictions of some files, and errors of the others."""
    errors: list[tuple[str, BayesCaffeError]] = []
    with opened(job) as model, silent("bayescaffe"), inside(job.folder):
        found = predict(
            *(model, files),
            **job.arguments,
            on_error=lambda *both: errors.append(both),
            progress=False,
        )
    return found, errors
