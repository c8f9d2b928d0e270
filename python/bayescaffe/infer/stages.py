"""Draws in stages: images that a stopping rule settles get no more of them.

Draw k of an image is the same as without a rule. The images of a stage that are not settled are
kept until there are enough for the next one, because a draw of few images takes nearly as long as
one of many: its weights have to be drawn, too.
"""

import math
import os
from collections.abc import Callable, Iterator

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument
from bayescaffe.common.files import sha256
from bayescaffe.net.mixture import Mixture
from bayescaffe.net.model import Model, NotFiniteError
from bayescaffe.stats.draws import Block, Draws
from bayescaffe.stats.stopping import StoppingRule

PART_BYTES = 2**26
"""What is kept at most before a stage: images, or their probabilities so far."""


def as_rule(
    adaptive: StoppingRule | str | os.PathLike, model: Model | Mixture, passes: int | None
) -> StoppingRule:
    """The rule, from its file if it is not loaded. Raise if it is for other draws than these."""
    name, rule = "stopping rule", adaptive
    if not isinstance(adaptive, StoppingRule):
        name, rule = str(adaptive), StoppingRule.load(adaptive)
    models = model.models if isinstance(model, Mixture) else (model,)
    if passes is not None and passes != rule.passes:
        raise BayesCaffeError(
            f"{name}: is for {rule.passes} draws, not for {argument('passes', passes)}"
        )
    if rule.seed is not None and rule.seed != model.seed:
        raise BayesCaffeError(
            f"{name}: is for the draws of seed {rule.seed}, not for {argument('seed', model.seed)}"
        )
    for option in ("mc_dropout", "antithetic"):
        if getattr(rule, option) != getattr(model, option):
            what = "with" if getattr(rule, option) else "without"
            raise BayesCaffeError(f"{name}: is for draws {what} {argument(option)}")
    if None not in rule.weights_sha256:
        found = tuple(sha256(one.weights) for one in models)
        if found != rule.weights_sha256:
            weights = ", ".join(str(one.weights) for one in models)
            raise BayesCaffeError(
                f"{name}: was calibrated with draws of other weights than {weights}; make a rule "
                "for these with `bayescaffe analyze --stopping-rule`"
            )
    return rule


def part_size(model: Model | Mixture, rule: StoppingRule) -> int:
    """How many images to give to `Stages.add` at a time."""
    numbers = max(math.prod(model.image_shape), rule.passes * model.classes)
    return max(1, PART_BYTES // (4 * numbers))


class Stages:
    """Images through a net, stage by stage."""

    def __init__(
        self,
        model: Model | Mixture,
        rule: StoppingRule,
        first: np.ndarray,
        progress: Callable[[float], object] | None = None,
    ) -> None:
        """Begin with no image.

        Args:
            first: where to write the draws of the first stage, draws x images x classes.
            progress: is told how many draws of images are done; those that are saved count, too.
        """
        self._model, self._rule, self._first = model, rule, first
        self._ends = [*rule.stages, rule.passes]
        self._progress, self._done, self._images = progress, 0, 0
        self._part = part_size(model, rule)
        # For each stage: the images that wait for it, and what it has drawn. An entry is the
        # indices, the pixels and the probabilities so far, or the indices and the probabilities.
        self._waiting: list[list[tuple]] = [[] for _ in self._ends]
        self._drawn: list[list[tuple]] = [[] for _ in self._ends]

    def add(self, pixels: np.ndarray) -> None:
        """Draw the next images, as `Model.sample` takes them."""
        rows = np.arange(self._images, self._images + len(pixels))
        self._images += len(pixels)
        self._run(0, rows, pixels, np.empty((0, len(rows), self._model.classes), np.float32))

    def finish(self) -> tuple[Block, ...]:
        """Draw what still waits; return the draws after the first stage."""
        for stage in range(1, len(self._ends)):
            self._run_waiting(stage)
        return tuple(
            Block(self._ends[stage - 1], *_together(drawn, (0, 1)))
            for stage, drawn in enumerate(self._drawn)
            if drawn
        )

    def _run_waiting(self, stage: int) -> None:
        if waiting := self._waiting[stage]:
            self._waiting[stage] = []
            self._run(stage, *_together(waiting, (0, 0, 1)))

    def _run(self, stage: int, rows: np.ndarray, pixels: np.ndarray, before: np.ndarray) -> None:
        """Draw a stage of some images, and keep those that are not settled for the next."""
        begin, end = len(before), self._ends[stage]
        work = len(rows) * (end - begin)

        def show(share: float) -> None:
            self._progress(self._done + share * work)

        try:
            found = self._model.sample(
                pixels, list(range(begin, end)), progress=show if self._progress else None
            )
        except NotFiniteError as error:
            image = int(rows[error.image])
            raise NotFiniteError(str(error), image, error.draw, error.layer) from error
        self._done += work
        if stage == 0:
            self._first[:, rows] = found
        else:
            self._drawn[stage].append((rows, found))
        if end == self._ends[-1]:
            return
        probabilities = np.concatenate([before, found])
        stays = ~self._rule.settles(probabilities)
        self._done += int((~stays).sum()) * (self._ends[-1] - end)
        if stays.any():
            kept = rows[stays], pixels[stays], probabilities[:, stays]
            self._waiting[stage + 1].append(kept)
        if sum(len(one[0]) for one in self._waiting[stage + 1]) >= self._part:
            self._run_waiting(stage + 1)


def _together(parts: list[tuple], axes: tuple[int, ...]) -> Iterator[np.ndarray]:
    """The arrays of several parts, each along its axis."""
    for arrays, axis in zip(zip(*parts, strict=True), axes, strict=True):
        yield arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis)


def sample_in_stages(model: Model | Mixture, pixels: np.ndarray, rule: StoppingRule) -> Draws:
    """The draws of images in memory, without labels."""
    first = np.empty((rule.stages[0], len(pixels), model.classes), np.float32)
    stages = Stages(model, rule, first)
    for start in range(0, len(pixels), step := part_size(model, rule)):
        stages.add(pixels[start : start + step])
    meta = {"passes": rule.passes, "stopping_rule": rule.as_dict()}
    return Draws(first, None, meta, stages.finish())
