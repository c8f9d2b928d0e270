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
from bayescaffe.net.mixture import Mixture, as_mixture
from bayescaffe.net.model import Model, NotFiniteError
from bayescaffe.stats.draws import Draws, load_draws, write_draws

log = logging.getLogger(__name__)


def sample(
    model: Model | Mixture | str | os.PathLike,
    images: ImageSource | None = None,
    passes: int | None = None,
    *,
    weights: str | os.PathLike | Sequence[str | os.PathLike] | None = None,
    out: str | os.PathLike | None = None,
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
            no model is random.
        weights: the caffemodel, if `model` is a prototxt; several are a `Mixture`.
        out: the draws file to write; one that is there is replaced when the new one is complete.
            The probabilities are written in place, so they may be larger than memory. Without
            `out` they stay in memory.
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
    passes = model.passes_for(passes)
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
    run = _Run(model, source, passes, progress)
    shape = (passes, len(source), model.classes)
    if out is None:
        probabilities = np.empty(shape, np.float32)
        found_labels, seconds = run.fill(probabilities)
        return Draws(probabilities, found_labels, {**meta, "seconds": seconds})

    def fill(probabilities: np.ndarray) -> tuple[np.ndarray | None, dict]:
        found_labels, seconds = run.fill(probabilities)
        return found_labels, {**meta, "seconds": seconds}

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
        self._labels: list[np.ndarray] = []
        self._start, self._images = 0, np.empty(0)  # the part that the net works on
        self._reading = 0.0  # seconds

    def fill(self, probabilities: np.ndarray) -> tuple[np.ndarray | None, float]:
        """Fill draws x images x classes; return the labels, and the seconds that the net took."""
        count = len(self._source)

        def read(first: int, size: int) -> np.ndarray:
            began = time.perf_counter()
            images = self._next(first, size)
            self._reading += time.perf_counter() - began
            return images

        with ProgressBar(self._passes * count, "sampling", show=self._progress, scale=True) as bar:

            def show(share: float) -> None:
                bar.move_to(round(share * self._passes * count))

            began = time.perf_counter()
            try:
                self._model.sample_parts(read, count, self._passes, probabilities, show)
            except NotFiniteError as error:
                raise BayesCaffeError(self._explain(error)) from error
            seconds = time.perf_counter() - began - self._reading
        return np.concatenate(self._labels) if self._labels else None, seconds

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
        if not np.isfinite(self._images[error.image - self._start]).all():
            return f"{name}: has pixels that are no numbers (NaN or infinite)"
        return (
            f"{name}: the net gives a probability that is no number (NaN), in draw {error.draw}, "
            f"from layer '{error.layer}' on; its weights may be too large"
        )
