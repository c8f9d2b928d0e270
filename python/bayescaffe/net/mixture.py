"""Several models as one: a mixture of posteriors, or an ensemble of stock nets.

models = [bayescaffe.Model(path) for path in ("seed-1/net.caffemodel", "seed-2/net.caffemodel")]
bayescaffe.sample(bayescaffe.Mixture(models), images)
"""

import logging
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bayescaffe.common.checks import DEFAULT_PASSES, check_passes
from bayescaffe.common.errors import BayesCaffeError, argument, times
from bayescaffe.data.interface import Images, Shape
from bayescaffe.data.lmdb import LmdbImages
from bayescaffe.data.transform import Transform
from bayescaffe.net.model import Model, NotFiniteError, Sampler, as_model

log = logging.getLogger(__name__)

PART_BYTES = 2**26
"""What is held in memory at a time: images as they enter a net, or what one model makes of them."""


class Mixture(Sampler):
    """Several trained models of the same classes, which predict together.

    Draw k is draw k of the model k mod M, where M is their number: the models take turns, and no
    two draws have the same noise. So the name of a draw is (model, k), and it is the same network
    for any number of draws.

    It has what `sample` and `predict` need of a `Model`. The models may be of different nets, but
    take the same images and give the same classes.
    """

    models: tuple[Model, ...]
    path: Path
    """The prototxt of the first model, or the caffemodel that carries its net."""
    seed: int
    """Of the draws of each model."""
    antithetic: bool
    image_shape: Shape
    transform: Transform
    """Of the first model."""
    data: str | None
    """The LMDB that the first model's net reads in phase TEST."""
    classes: int
    mc_dropout: bool
    is_random: bool
    """Whether draws differ; those of different models do."""
    untrained: bool
    """Whether one of the models has stock weights for Bayesian layers."""

    def __init__(self, models: Sequence[Model]) -> None:
        """Put models together.

        Args:
            models: two or more, with the same seed and other weights each.
        """
        self.models = tuple(models)
        _check(self.models)
        first = self.models[0]
        self.path, self.classes = first.path, first.classes
        self.seed, self.antithetic = first.seed, first.antithetic
        self.image_shape, self.transform = first.image_shape, first.transform
        self.data = first.data
        self.mc_dropout = any(model.mc_dropout for model in self.models)
        self.untrained = any(model.untrained for model in self.models)
        self.is_random = True

    def __repr__(self) -> str:
        return "\n".join([f"<Mixture of {len(self.models)} models>:", *map(repr, self.models)])

    @property
    def test_images(self) -> LmdbImages | None:
        """Those of the first model."""
        return self.models[0].test_images

    def model_of(self, draw: int) -> int:
        """The number of the model that a draw comes from, from 0 on. Pairs stay together."""
        return draw // self._in_a_row % len(self.models)

    @property
    def _in_a_row(self) -> int:
        """How many draws are of one model before the next has its turn."""
        return 2 if self.antithetic and self.distinct_draws is None else 1

    @property
    def distinct_draws(self) -> int | None:
        """How many draws differ before they repeat; None if they never do."""
        return None if any(model.is_random for model in self.models) else len(self.models)

    def passes_for(self, passes: int | None) -> int:
        """This number of draws.

        The default is as many of each model, 100 or a few more of all. If no model is random, it is
        one of each.
        """
        count = len(self.models) * self._in_a_row
        if passes is None:
            return self.distinct_draws or math.ceil(DEFAULT_PASSES / count) * count
        check_passes(passes)
        if passes < count:
            models = len(self.models)
            raise BayesCaffeError(
                f"{argument('passes', passes)}: {models} models need {count} draws or more"
            )
        if passes % count:
            log.info("%d draws of %d models: some have more than others", passes, len(self.models))
        return passes

    def names_for(self, class_names: Sequence[str] | None) -> Sequence[str] | None:
        """These names of the classes if they fit, those that a model knows if there are none."""
        return next(filter(None, (model.names_for(class_names) for model in self.models)), None)

    def fit(self, images: Images) -> None:
        """Bring images to the size and the order of channels that the models take."""
        self.models[0].fit(images)

    def sample_parts(
        self,
        read: Callable[[int, int], np.ndarray],
        images: int,
        draws: int | Sequence[int],
        out: np.ndarray | None = None,
        progress: Callable[[float], object] | None = None,
    ) -> np.ndarray:
        """`Model.sample_parts`: each image is read once, for all models."""
        indices, out = self._begin(draws, images, out)
        of_draw = self.model_of(indices)
        places = [np.flatnonzero(of_draw == n) for n in range(len(self.models))]
        step = self._part_size(max(map(len, places)))
        work, done = images * len(indices), 0
        for first in range(0, images, step):
            pixels = read(first, min(step, images - first))
            for model, rows in zip(self.models, places, strict=True):
                if not len(rows):
                    continue
                amount = len(rows) * len(pixels)

                def show(share: float, done: int = done, amount: int = amount) -> None:
                    progress((done + share * amount) / work)

                try:
                    found = model.sample(
                        pixels, indices[rows].tolist(), progress=show if progress else None
                    )
                except NotFiniteError as error:
                    name = f"{error.draw} of {model.weights}"
                    raise NotFiniteError(
                        str(error), first + error.image, name, error.layer
                    ) from error
                out[rows, first : first + len(pixels)] = found
                done += amount
        return out

    def _part_size(self, draws: int) -> int:
        """How many images are read at a time: whole batches of the first model."""
        numbers = max(
            *(math.prod(model.input_shape) for model in self.models), draws * self.classes
        )
        batch = self.models[0].batch
        return max(1, PART_BYTES // (4 * numbers) // batch) * batch


def mixture(models: Sequence[Model]) -> Model | Mixture:
    """The mixture of models; one alone stays as it is."""
    return models[0] if len(models) == 1 else Mixture(models)


def as_mixture(
    model: Model | Mixture | str | os.PathLike,
    weights: str | os.PathLike | Sequence[str | os.PathLike] | None,
    image_shape: Shape | None = None,
) -> Model | Mixture:
    """`as_model`, for one caffemodel or several."""
    if isinstance(model, Mixture):
        if weights is not None:
            raise BayesCaffeError(f"{argument('weights')}: the models have their weights already")
        return model
    if weights is None or isinstance(weights, (str, os.PathLike)):
        return as_model(model, weights, image_shape)
    if not weights:
        raise BayesCaffeError(f"{argument('weights')}: at least one caffemodel is needed")
    return mixture([as_model(model, one, image_shape) for one in weights])


def _check(models: Sequence[Model]) -> None:
    """Raise if models cannot predict together."""
    if len(models) < 2:
        raise BayesCaffeError(f"a mixture needs two models or more, not {len(models)}")
    first = models[0]
    known = next((model for model in models if model.class_names), first)
    seen = set()
    for model in models:
        where = f"{model.weights}: does not fit {first.weights}: it"
        if (weights := model.weights.resolve()) in seen:
            raise BayesCaffeError(f"{model.weights}: is given twice")
        seen.add(weights)
        if model.classes != first.classes:
            raise BayesCaffeError(f"{where} has {model.classes} classes, not {first.classes}")
        if model.image_shape != first.image_shape:
            raise BayesCaffeError(
                f"{where} takes images of {times(model.image_shape)}, not "
                f"{times(first.image_shape)}"
            )
        for name in ("channels", "resize", "seed", "antithetic"):
            if (found := getattr(model, name)) != (expected := getattr(first, name)):
                raise BayesCaffeError(f"{where} has {name} {found}, not {expected}")
        if model.class_names and model.class_names != known.class_names:
            raise BayesCaffeError(
                f"{model.weights}: does not fit {known.weights}: its classes are "
                f"{', '.join(model.class_names)}, not {', '.join(known.class_names)}"
            )
