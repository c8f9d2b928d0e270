"""Images through many draws of a net: `sample`.

model = bayescaffe.Model("net.prototxt", "net.caffemodel")
draws = bayescaffe.sample(model, images, passes=100)
"""

import logging
import os
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from bayescaffe import __version__
from bayescaffe.common.errors import BayesCaffeError, argument
from bayescaffe.common.files import sha256
from bayescaffe.common.progress import ProgressBar
from bayescaffe.data.digests import images_sha256
from bayescaffe.data.images import Images, ImageSource, open_images
from bayescaffe.infer.stages import Stages, as_rule, part_size
from bayescaffe.net.analytic import ANALYTIC, as_analytic
from bayescaffe.net.mixture import Mixture, as_mixture
from bayescaffe.net.model import Model, NotFiniteError
from bayescaffe.stats.draws import Block, Draws, load_draws, write_draws
from bayescaffe.stats.stopping import StoppingRule

log = logging.getLogger(__name__)


def sample(
    model: Model | Mixture | str | os.PathLike,
    images: ImageSource | None = None,
    passes: int | str | None = None,
    *,
    weights: str | os.PathLike | Sequence[str | os.PathLike] | None = None,
    out: str | os.PathLike | None = None,
    adaptive: StoppingRule | str | os.PathLike | None = None,
    labels: str | os.PathLike | np.ndarray | None = None,
    class_names: Sequence[str] | None = None,
    channels: str | None = None,
    invert: bool = False,
    progress: bool = True,
) -> Draws:
    """Compute the class probabilities of images in many draws of a net.

    Draw k of a seed is the same network for every image, for any number of draws, on every machine.

    Args:
        model: a loaded `Model`, a `Mixture` of several, or a prototxt; a `Model` takes a seed and
            other options.
        images: see `open_images`; without it, the LMDB that the net reads in phase TEST.
        passes: the number of draws; by default 100, or one of each model for a `Mixture` in which
            no model is random. Or "analytic": means and variances go through the net once, at the
            price of about three draws, and 256 draws are taken of the scores alone.
        weights: the caffemodel, if `model` is a prototxt; several are a `Mixture`.
        out: the draws file to write; one that is there is replaced when the new one is complete.
            The probabilities are written in place, so they may be larger than memory. Without
            `out` they stay in memory. With `adaptive`, the draws after the first stage stay in
            memory until the file is complete.
        adaptive: a `StoppingRule` or its file: images whose answer is settled get no more draws.
        labels, channels, invert: see `open_images`.
        class_names: a name for each class, to be kept with the draws; by default those of the
            net's LMDB.
        progress: show a progress bar if this runs on a terminal or in a notebook.
    """
    if out is not None and not Path(out).parent.is_dir():
        raise BayesCaffeError(f"{out}: cannot be written, there is no directory {Path(out).parent}")

    def open_source(data: ImageSource) -> Images:
        return open_images(data, labels=labels, channels=channels, invert=invert)

    source = None if images is None else open_source(images)
    model = as_mixture(model, weights, source.shape if source else None)
    is_analytic = passes == ANALYTIC
    if is_analytic:
        model, passes = as_analytic(model, adaptive)
    rule = None if adaptive is None else as_rule(adaptive, model, passes)
    passes = model.passes_for(rule.passes if rule else passes)
    if (enough := model.distinct_draws) and passes > enough:
        equal = (
            "all draws are equal and one is" if enough == 1 else f"draws repeat and {enough} are"
        )
        log.info("%s: no layer is random, so %s enough", model.path, equal)
    class_names = model.names_for(class_names)
    if source is None:
        if model.test_images is None:
            lmdb = f"the LMDB {model.data} is not there" if model.data else "the net reads no LMDB"
            raise BayesCaffeError(f"{model.path}: {lmdb}; name the images as {argument('images')}")
        source = open_source(model.test_images)
    source.name_classes(class_names or ())
    model.fit(source)
    meta = _meta(model, source, passes, class_names)
    if is_analytic:
        meta["analytic"] = True
    if rule is not None:
        meta["stopping_rule"] = rule.as_dict()
    run = _Run(model, source, passes, progress)
    shape = (rule.stages[0] if rule else passes, len(source), model.classes)

    def fill(probabilities: np.ndarray) -> Draws:
        later, seconds = run.fill(probabilities, rule)
        return Draws(probabilities, run.labels, {**meta, "seconds": seconds}, later)

    if out is None:
        return fill(np.empty(shape, np.float32))
    write_draws(out, shape, fill)
    return load_draws(out)


def _meta(
    model: Model | Mixture, source: Images, passes: int, class_names: Sequence[str] | None
) -> dict[str, object]:
    """Where draws come from, to be kept with them."""
    if isinstance(model, Mixture):
        origin = {
            "models": [
                {**_files(one), "is_random": one.is_random, "untrained": one.untrained}
                for one in model.models
            ],
            "model_of_draw": [model.model_of(draw) for draw in range(passes)],
        }
    else:
        origin = _files(model)
    return {
        "seed": model.seed,
        **origin,
        "data": str(source.path) if source.path else None,
        "data_sha256": images_sha256(source),
        "passes": passes,
        "version": __version__,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "class_names": None if class_names is None else list(class_names),
        "names": source.names,
        "channels": source.channels,
        "mc_dropout": model.mc_dropout,
        "is_random": model.is_random,
        "untrained": model.untrained,
    }


def _files(model: Model) -> dict[str, str]:
    return {
        "net": str(model.path),
        "weights": str(model.weights),
        "net_sha256": sha256(model.path),
        "weights_sha256": sha256(model.weights),
    }


class _Run:
    """One `sample`: feeds the net with the images, and checks what it gives."""

    def __init__(self, model: Model | Mixture, source: Images, passes: int, progress: bool) -> None:
        self._model, self._source = model, source
        self._passes, self._progress = passes, progress
        self._take = source.in_order()
        self._labels: list[np.ndarray] = []  # of each part
        self._start, self._images = 0, np.empty(0)  # the part that the net works on
        self._reading = 0.0  # seconds

    @property
    def labels(self) -> np.ndarray | None:
        """Of the images that were read."""
        return np.concatenate(self._labels) if self._labels else None

    def fill(
        self, probabilities: np.ndarray, rule: StoppingRule | None
    ) -> tuple[tuple[Block, ...], float]:
        """Fill draws x images x classes, those of the first stage if there is a rule; return the
        draws of later stages, and the seconds that the net took."""
        count = len(self._source)

        def read(first: int, size: int) -> np.ndarray:
            began = time.perf_counter()
            images = self._next(first, size)
            self._reading += time.perf_counter() - began
            return images

        with ProgressBar(self._passes * count, "sampling", show=self._progress, scale=True) as bar:

            def show(share: float) -> None:
                bar.move_to(round(share * self._passes * count))

            began, later = time.perf_counter(), ()
            try:
                if rule is None:
                    self._model.sample_parts(read, count, self._passes, probabilities, show)
                else:
                    stages = Stages(self._model, rule, probabilities, bar.move_to)
                    step = part_size(self._model, rule)
                    for first in range(0, count, step):
                        stages.add(read(first, min(step, count - first)))
                    later = stages.finish()
            except NotFiniteError as error:
                raise BayesCaffeError(self._explain(error)) from error
            seconds = time.perf_counter() - began - self._reading
        return later, seconds

    def _next(self, first: int, size: int) -> np.ndarray:
        images, labels = self._take(size)
        if labels is not None:
            self._check_labels(labels, first)
            self._labels.append(labels)
        if first == 0:
            self._warn_of_small_numbers(images)
        self._start, self._images = first, images
        return images

    def _check_labels(self, labels: np.ndarray, first: int) -> None:
        wrong = np.flatnonzero((labels < 0) | (labels >= self._model.classes))
        if len(wrong):
            raise BayesCaffeError(
                f"{self._source.describe(first + wrong[0])}: label {labels[wrong[0]]} is not "
                f"within 0..{self._model.classes - 1}, the classes of the net"
            )

    def _warn_of_small_numbers(self, images: np.ndarray) -> None:
        scale = self._model.transform.scale
        if images.dtype.kind == "f" and images.max() <= 1 and scale < 0.1:
            log.warning(
                "%s: pixels are at most 1, and the net multiplies them by %g; are they meant to be "
                "0 to 255? (%s leaves them as they are)",
                *(self._source.path or "array", scale, argument("scale", 1)),
            )

    def _explain(self, error: NotFiniteError) -> str:
        """Say of which image the net gave what is no number, and why."""
        name = self._source.describe(error.image)
        # Before a later stage, the image is of an earlier part, and its pixels were numbers.
        place = error.image - self._start
        if place >= 0 and not np.isfinite(self._images[place]).all():
            return f"{name}: has pixels that are no numbers (NaN or infinite)"
        return (
            f"{name}: the net gives a probability that is no number (NaN), in draw {error.draw}, "
            f"from layer '{error.layer}' on; its weights may be too large"
        )
