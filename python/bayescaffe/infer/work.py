"""A model and images that fit together, and draws of a part of them or of all."""

import logging
import os
import time
from collections.abc import Sequence
from datetime import datetime, timezone

import numpy as np

from bayescaffe import __version__
from bayescaffe.common.errors import BayesCaffeError, argument
from bayescaffe.common.files import sha256
from bayescaffe.common.progress import ProgressBar
from bayescaffe.data.digests import images_sha256
from bayescaffe.data.interface import Images
from bayescaffe.infer.stages import Stages, part_size
from bayescaffe.net.mixture import Mixture
from bayescaffe.net.model import Model, NotFiniteError
from bayescaffe.stats.draws import Block, Draws, write_draws
from bayescaffe.stats.stopping import StoppingRule

log = logging.getLogger(__name__)


class Work:
    """What `sample` computes, and what it writes about it."""

    def __init__(
        self,
        model: Model | Mixture,
        source: Images,
        passes: int,
        class_names: Sequence[str] | None,
        data_sha256: str | None = None,
        rule: StoppingRule | None = None,
        is_analytic: bool = False,
    ) -> None:
        """Fit the images to the model.

        Args:
            passes: the number of all draws.
            rule: which images get no more draws.
            is_analytic: whether the model draws from the moments of its scores.
            data_sha256: `images_sha256` of the images, if it is known.
        """
        source.name_classes(class_names or ())
        model.fit(source)
        self.model, self.source, self.passes = model, source, passes
        self.class_names, self.rule, self.is_analytic = class_names, rule, is_analytic
        self.data_sha256 = data_sha256 or images_sha256(source)
        self._names = source.names
        self._origin = _origin(model)

    @property
    def keeps_draws_together(self) -> bool:
        """Whether the draws of an image cannot be shared out: a stopping rule looks at the first
        before it asks for more, and analytic ones all come from one pass."""
        return self.is_analytic or self.rule is not None

    def draw(
        self,
        out: str | os.PathLike | None,
        images: range,
        draws: range,
        progress: bool = False,
    ) -> Draws | None:
        """Compute some draws of some images, and write them if there is a file for them."""
        rule = self.rule
        run = _Run(self.model, self.source, images, draws, progress)
        shape = (rule.stages[0] if rule else len(draws), len(images), self.model.classes)
        meta = self._meta(images, draws)

        def fill(probabilities: np.ndarray) -> Draws:
            later, seconds = run.fill(probabilities, rule)
            return Draws(probabilities, run.labels, {**meta, "seconds": seconds}, later)

        if out is None:
            return fill(np.empty(shape, np.float32))
        write_draws(out, shape, fill)
        return None

    def _meta(self, images: range, draws: range) -> dict[str, object]:
        """Where draws come from, to be kept with them."""
        model, source, names = self.model, self.source, self._names
        meta = {
            "seed": model.seed,
            **self._origin,
            "data": str(source.path) if source.path else None,
            "data_sha256": self.data_sha256,
            "passes": self.passes,
            "version": __version__,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "class_names": None if self.class_names is None else list(self.class_names),
            "names": None if names is None else names[images.start : images.stop],
            "channels": source.channels,
            "mc_dropout": model.mc_dropout,
            "is_random": model.is_random,
            "untrained": model.untrained,
        }
        if model.antithetic:
            meta["antithetic"] = True
        if self.is_analytic:
            meta["analytic"] = True
        if self.rule is not None:
            meta["stopping_rule"] = self.rule.as_dict()
        if isinstance(model, Mixture):
            meta["model_of_draw"] = [model.model_of(draw) for draw in draws]
        if (images, draws) != (range(len(source)), range(self.passes)):
            meta["part"] = {
                "first_draw": draws.start,
                "first_image": images.start,
                "all_images": len(source),
            }
        return meta


def _origin(model: Model | Mixture) -> dict[str, object]:
    """The files of a model, or of several."""
    if not isinstance(model, Mixture):
        return _files(model)
    models = [
        {**_files(one), "is_random": one.is_random, "untrained": one.untrained}
        for one in model.models
    ]
    return {"models": models}


def _files(model: Model) -> dict[str, str]:
    return {
        "net": str(model.path),
        "weights": str(model.weights),
        "net_sha256": sha256(model.path),
        "weights_sha256": sha256(model.weights),
    }


class _Run:
    """Feeds the net with the images, and checks what it gives."""

    def __init__(
        self, model: Model | Mixture, source: Images, images: range, draws: range, progress: bool
    ) -> None:
        self._model, self._source = model, source
        self._range, self._draws, self._progress = images, draws, progress
        self._take = source.in_order(images.start)
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
        count, work = len(self._range), len(self._range) * len(self._draws)

        def read(first: int, size: int) -> np.ndarray:
            began = time.perf_counter()
            images = self._next(first, size)
            self._reading += time.perf_counter() - began
            return images

        with ProgressBar(work, "sampling", show=self._progress, scale=True) as bar:

            def show(share: float) -> None:
                bar.move_to(round(share * work))

            began, later = time.perf_counter(), ()
            try:
                if rule is None:
                    draws = list(self._draws)
                    self._model.sample_parts(read, count, draws, probabilities, show)
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
        if (first, self._range.start, self._draws.start) == (0, 0, 0):
            self._warn_of_small_numbers(images)
        self._start, self._images = first, images
        return images

    def _describe(self, image: int) -> str:
        return self._source.describe(self._range.start + image)

    def _check_labels(self, labels: np.ndarray, first: int) -> None:
        wrong = np.flatnonzero((labels < 0) | (labels >= self._model.classes))
        if len(wrong):
            raise BayesCaffeError(
                f"{self._describe(first + wrong[0])}: label {labels[wrong[0]]} is not "
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
        name = self._describe(error.image)
        # Before a later stage, the image is of an earlier part, and its pixels were numbers.
        place = error.image - self._start
        if place >= 0 and not np.isfinite(self._images[place]).all():
            return f"{name}: has pixels that are no numbers (NaN or infinite)"
        return (
            f"{name}: the net gives a probability that is no number (NaN), in draw {error.draw}, "
            f"from layer '{error.layer}' on; its weights may be too large"
        )
