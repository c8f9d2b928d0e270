"""A net with trained weights, ready for inference."""

import contextlib
import functools
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bayescaffe.common.checks import (
    DEFAULT_PASSES,
    check_bytes,
    check_class_names,
    check_passes,
    check_seed,
)
from bayescaffe.common.errors import BayesCaffeError, argument, times
from bayescaffe.data.interface import Images, Shape
from bayescaffe.data.lmdb import LmdbImages
from bayescaffe.data.transform import Transform
from bayescaffe.net.building import caffe_errors, make_net, on_gpu
from bayescaffe.net.image_input import read_input, to_carry
from bayescaffe.net.inference_net import InferenceNet, inference_net
from bayescaffe.net.layer_kinds import without_posterior
from bayescaffe.net.messages import (
    LayerBlobs,
    is_caffemodel,
    needs_weights,
    read_carried,
    read_weights,
)
from bayescaffe.net.net_files import read_net
from bayescaffe.net.own_data import lmdb_images, lmdb_source

log = logging.getLogger(__name__)

DRAW_MEMORY = 2**28
"""By default a model keeps so many bytes of drawn weights: 154 draws of LeNet."""

_NOT_FINITE = re.compile(
    r"of image (?P<image>\d+) in draw (?P<draw>\d+)(?P<mirrored> \(mirrored\))? is .*; "
    r"the first layer .* is '(?P<layer>.*)'$"
)
"""How Caffe says that an output is NaN or infinite."""


class NotFiniteError(BayesCaffeError):
    """A net gives what is no number."""

    def __init__(self, message: str, image: int, draw: str, layer: str) -> None:
        """Tell of the image, the name of the draw, and the first layer that gives such numbers."""
        super().__init__(message)
        self.image, self.draw, self.layer = image, draw, layer


class Sampler:
    """What `sample` and `predict` draw from. It has `sample_parts`, as `Model` has it."""

    def sample(
        self,
        images: np.ndarray,
        draws: int | Sequence[int],
        out: np.ndarray | None = None,
        progress: Callable[[float], object] | None = None,
    ) -> np.ndarray:
        """Class probabilities of images in each draw, an array of draws x images x classes.

        Args:
            images: images x channels x height x width, before the transform (mostly 0 to 255), in
                the order of `channels`.
            draws: how many (draws 0, 1, 2, …), or their indices.
            out: where to write, contiguous float32, such as a memory map.
            progress: is told the share that is done, 0 to 1; what it raises ends the call.
        """

        def read(first: int, count: int) -> np.ndarray:
            return images[first : first + count]

        return self.sample_parts(read, len(images), draws, out, progress)

    def _begin(
        self, draws: int | Sequence[int], images: int, out: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The indices of the draws, and where to write their probabilities."""
        count = draws if isinstance(draws, int) else len(draws)
        check_passes(count)
        if out is None:
            out = np.empty((count, images, self.classes), np.float32)
        return np.arange(count) if isinstance(draws, int) else np.asarray(draws), out


MIRRORED = 1 << 63
"""Added to the index of a draw, it names the mirror image: Caffe's noise with the other sign."""


class Model(Sampler):
    """A net with trained weights: images go in, class probabilities come out.

        model = Model("train_test.prototxt", "lenet.caffemodel", seed=1)
        model.sample(images, 100)    # an array of 100 draws x images x classes

    The prototxt may be the one that the net was trained with, or one for deployment; draw k of a
    seed is the same network for both. A caffemodel that `train` or `pack` wrote carries its net,
    so it needs no prototxt.
    """

    path: Path
    """The prototxt, or the caffemodel that carries the net."""
    weights: Path
    """The caffemodel."""
    seed: int
    """Of the draws."""
    antithetic: bool
    """Whether each odd draw is the mirror image of the one before it."""
    image_shape: Shape
    """Channels, height, width of the images that `sample` takes."""
    input_shape: Shape
    """Channels, height, width of what enters the net, after `transform`."""
    transform: Transform
    classes: int
    mc_dropout: bool
    is_random: bool
    """Whether draws differ. Those of a net without Bayesian layers, and without dropout in phase
    TEST, are all the same."""
    untrained: bool
    """Whether Bayesian layers have stock weights, so that tau was never learned."""
    data: str | None
    """The LMDB that the net itself reads in phase TEST."""
    message: Any
    """The `NetParameter` of the net for inference."""
    caffe_net: Any
    """That net, of pycaffe."""
    output: str
    """Its blob of class probabilities."""
    channels: str | None
    """The order of the channels of its images: "bgr", "rgb" or "grey"; None if it is not known."""
    class_names: tuple[str, ...] | None
    """The names of the classes, if the LMDB or the caffemodel tells them."""

    def __init__(
        self,
        net: str | os.PathLike,
        weights: str | os.PathLike | None = None,
        *,
        seed: int = 1,
        antithetic: bool = False,
        output: str | None = None,
        mc_dropout: bool = False,
        gpu: int | None = None,
        image_shape: Shape | None = None,
        scale: float | None = None,
        mean: np.ndarray | Sequence[float] | float | None = None,
        untrained: bool = False,
        draw_memory: int = DRAW_MEMORY,
    ) -> None:
        """Read a net and its weights.

        Args:
            net: a prototxt, for training or for deployment; or a caffemodel that carries its net.
            weights: a caffemodel; it must have weights for every layer that needs them. By default
                `net`, if that is one.
            seed: of the draws.
            antithetic: take draws in pairs. Draw 1 is the mirror image of draw 0, draw 3 of draw 2,
                and so on: its noise has the other sign. Far fewer of such draws give the same mean
                prediction.
            output: the blob of class scores or probabilities, if the net has several candidates.
            mc_dropout: let Dropout layers drop, as in training, with a mask for each draw.
            gpu: the number of the GPU to compute on. Without it Caffe's current mode stays.
            image_shape: channels, height, width of the images, if the net does not tell.
            scale: what pixels are multiplied by, in place of the scale in the net's data layer.
            mean: what is subtracted before: a number, one for each channel, or a mean image.
            untrained: take stock weights for Bayesian layers. They are the means; tau stays as
                the prototxt starts it, so the spread of the draws says nothing.
            draw_memory: how many bytes of drawn weights to keep from one call to the next, which
                then need not draw them again; 0 keeps none. A draw takes four bytes for each
                Bayesian weight. The numbers are the same.
        """
        check_seed(seed)
        check_bytes("draw_memory", draw_memory)
        weights = needs_weights(net, weights)
        self.path, self.weights = Path(net), Path(weights)
        self.seed, self.antithetic, self.mc_dropout = seed, antithetic, mc_dropout
        self._gpu, self._draw_memory = gpu, draw_memory
        self._given = {"output": output, "image_shape": image_shape, "scale": scale, "mean": mean}
        inference = self._read(output, image_shape, scale, mean)
        layers = {layer.name: layer for layer in read_weights(weights)}
        stock = without_posterior(inference.net.layer, layers)
        if stock and not untrained:
            raise BayesCaffeError(
                f"{weights}: is no posterior: it has stock weights for the Bayesian layers "
                f"{', '.join(stock)} of {net}. Train the net from them, or take them as they are "
                f"with {argument('untrained', True)}"
            )
        self.untrained = bool(stock)
        self.is_random, self.message = inference.is_random, inference.net
        self.output = inference.output
        with caffe_errors(f"{net} with {weights}"), on_gpu(gpu):
            self.caffe_net = make_net(inference.net, weights, seed)
        self._check_weights(weights, layers)
        self.classes = self._count_classes()
        self.class_names = self._class_names()

    def __repr__(self) -> str:
        kind = "random" if self.is_random else "not random"
        return (
            f"<Model {self.path} with {self.weights}:\n"
            f"  {times(self.image_shape)} images, {self.classes} classes, seed {self.seed}, {kind}>"
        )

    @functools.cached_property
    def test_images(self) -> LmdbImages | None:
        """The images in `data`, if it is there."""
        return lmdb_images(self._source)

    @property
    def resize(self) -> str | None:
        """How pictures are brought to the size of its images; None if nothing tells."""
        return self._input.resize

    @property
    def batch(self) -> int:
        """How many images the net takes at a time."""
        return self.caffe_net.blobs[self.caffe_net.inputs[0]].data.shape[0]

    @property
    def distinct_draws(self) -> int | None:
        """How many draws differ before they repeat; None if they never do."""
        return None if self.is_random else 1

    def passes_for(self, passes: int | None) -> int:
        """This number of draws, by default 100."""
        if passes is None:
            return DEFAULT_PASSES
        check_passes(passes)
        return passes

    def names_for(self, class_names: Sequence[str] | None) -> Sequence[str] | None:
        """These names of the classes if they fit the net, its own if there are none."""
        check_class_names(class_names, self.classes)
        return class_names or self.class_names

    def fit(self, images: Images) -> None:
        """Bring images to the size and the order of channels that this net takes."""
        images.fit(self.image_shape, self.channels, self.resize)

    def with_weights(self, caffemodel: str | os.PathLike) -> "Model":
        """The model of a caffemodel that carries its net, with the same seed and options."""
        return Model(caffemodel, **self._options)

    @property
    def recipe(self) -> dict[str, Any]:
        """The arguments that make this model again, in another process."""
        return {"net": self.path, "weights": self.weights, **self._options, **self._given}

    @property
    def _options(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "antithetic": self.antithetic,
            "mc_dropout": self.mc_dropout,
            "gpu": self._gpu,
            "untrained": self.untrained,
            "draw_memory": self._draw_memory,
        }

    def to_carry(self):
        """What a caffemodel needs to work without other files: an `InferenceParameter`."""
        return to_carry(self._definition, self._chosen_output, self._input)

    def sample_parts(
        self,
        read: Callable[[int, int], np.ndarray],
        images: int,
        draws: int | Sequence[int],
        out: np.ndarray | None = None,
        progress: Callable[[float], object] | None = None,
    ) -> np.ndarray:
        """`sample` for images that need not be in memory all at once.

        Args:
            read: a function of (first, count) that returns the images first to first + count. It is
                asked in order, for each image once; Caffe decides how many fit into memory.
            images: how many there are.
        """
        indices, out = self._begin(draws, images, out)
        shape = self.caffe_net.blobs[self.output].data.shape[1:]
        with _not_finite(), caffe_errors(self.path), on_gpu(self._gpu):
            self.caffe_net.sample(
                [self.caffe_draw(draw) for draw in indices.tolist()],
                lambda first, count: self._transformed(read(first, count)),
                images,
                output=self.output,
                out=out.reshape(*out.shape[:2], *shape),
                progress=progress,
                draw_memory=self._draw_memory,
            )
        return out

    def caffe_draw(self, draw: int) -> int:
        """What Caffe calls a draw of this model."""
        return draw - 1 + MIRRORED if self.antithetic and draw % 2 else draw

    def _transformed(self, images: np.ndarray) -> np.ndarray:
        if images.shape[1:] != self.image_shape:
            raise BayesCaffeError(
                f"{self.path}: takes images of {times(self.image_shape)}, "
                f"not {times(images.shape[1:])}"
            )
        return self.transform(images)

    def _read(
        self,
        output: str | None,
        image_shape: Shape | None,
        scale: float | None,
        mean: np.ndarray | Sequence[float] | float | None,
    ) -> InferenceNet:
        """Read the net, and what it takes and gives."""
        carried = read_carried(self.path) if is_caffemodel(self.path) else None
        self._definition = carried.net if carried else read_net(self.path)
        self._chosen_output = output or (carried.output if carried else None) or None
        try:
            inference = inference_net(self._definition, self._chosen_output, self.mc_dropout)
            self._input = read_input(inference, carried, image_shape, scale, mean)
            self.image_shape, self.transform = self._input.image_shape, self._input.transform
            self.channels = self._input.channels
            self.input_shape = self.transform.input_shape(self.image_shape)
            inference.set_shape(self.input_shape)
        except BayesCaffeError as error:
            raise BayesCaffeError(f"{self.path}: {error}") from error
        self._source, self.data = inference.source, lmdb_source(inference.source)
        return inference

    def _count_classes(self) -> int:
        shape = self.caffe_net.blobs[self.output].data.shape[1:]
        count = int(np.prod(shape))
        if count != max(shape, default=0) or count < 2:
            chosen = f"{argument('output', self._chosen_output)}: " if self._chosen_output else ""
            raise BayesCaffeError(
                f"{self.path}: {chosen}{self.output!r} is of shape {shape} for an image, expected "
                "one number for each of two or more classes"
            )
        return count

    def _class_names(self) -> tuple[str, ...] | None:
        names = self._input.class_names
        if names and len(names) != self.classes:
            log.warning(
                "%s: has %d outputs, but its data, %s, has %d classes; labels are shown as numbers",
                *(self.path, self.classes, self.data, len(names)),
            )
            return None
        return names

    def _check_weights(self, path: str | os.PathLike, layers: dict[str, LayerBlobs]) -> None:
        for name in self.caffe_net.params:
            if name not in layers:
                raise BayesCaffeError(
                    f"{path}: has no weights for the layer {name!r} of {self.path}, only for "
                    f"{', '.join(layers) or 'none'}"
                )


@contextlib.contextmanager
def _not_finite() -> Iterator[None]:
    """Let an error about what is no number tell the image."""
    try:
        yield
    except BayesCaffeError as error:
        found = _NOT_FINITE.search(str(error))
        if found is None:
            raise
        image, draw = int(found["image"]), int(found["draw"])
        name = str(draw + 1 if found["mirrored"] else draw)
        raise NotFiniteError(str(error), image, name, found["layer"]) from error


def as_model(
    model: Model | str | os.PathLike,
    weights: str | os.PathLike | None,
    image_shape: Shape | None = None,
) -> Model:
    """A loaded model: the one given, or that of a prototxt, its weights or both."""
    if isinstance(model, Model):
        if weights is not None:
            raise BayesCaffeError(
                f"{argument('weights', str(weights))}: the model has its weights already"
            )
        return model
    return Model(model, weights, image_shape=image_shape)
