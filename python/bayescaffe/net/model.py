"""A net with trained weights, ready for inference."""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bayescaffe.common.checks import check_class_names, check_passes, check_seed
from bayescaffe.common.errors import BayesCaffeError, times
from bayescaffe.data.interface import Images, Shape
from bayescaffe.data.lmdb import LmdbImages
from bayescaffe.data.transform import Transform
from bayescaffe.net.building import caffe_errors, make_net, on_gpu
from bayescaffe.net.inference_net import InferenceNet, inference_net
from bayescaffe.net.layer_kinds import without_posterior
from bayescaffe.net.messages import LayerBlobs, read_mean, read_message, read_weights
from bayescaffe.net.own_data import lmdb_images, lmdb_source

log = logging.getLogger(__name__)


class Model:
    """A net with trained weights: images go in, class probabilities come out.

        model = Model("train_test.prototxt", "lenet.caffemodel", seed=1)
        model.sample(images, 100)    # an array of 100 draws x images x classes

    The prototxt may be the one that the net was trained with, or one for deployment; draw k of a
    seed is the same network for both.
    """

    path: Path
    """The prototxt."""
    weights: Path
    """The caffemodel."""
    seed: int
    """Of the draws."""
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
    test_images: LmdbImages | None
    """The images in it, if it is there."""
    message: Any
    """The `NetParameter` of the net for inference."""
    caffe_net: Any
    """That net, of pycaffe."""
    output: str
    """Its blob of class probabilities."""
    channels: str | None
    """The order of the channels of its images: "bgr", "rgb" or "grey"; None if it is not known."""
    class_names: tuple[str, ...] | None
    """The names of the classes, if the LMDB tells them."""

    def __init__(
        self,
        net: str | os.PathLike,
        weights: str | os.PathLike,
        *,
        seed: int = 1,
        output: str | None = None,
        mc_dropout: bool = False,
        gpu: int | None = None,
        image_shape: Shape | None = None,
        scale: float | None = None,
        mean: np.ndarray | Sequence[float] | float | None = None,
        untrained: bool = False,
    ) -> None:
        """Read a net and its weights.

        Args:
            net: a prototxt, for training or for deployment.
            weights: a caffemodel; it must have weights for every layer that needs them.
            seed: of the draws.
            output: the blob of class scores or probabilities, if the net has several candidates.
            mc_dropout: let Dropout layers drop, as in training, with a mask for each draw.
            gpu: the number of the GPU to compute on. Without it Caffe's current mode stays.
            image_shape: channels, height, width of the images, if the net does not tell.
            scale: what pixels are multiplied by, in place of the scale in the net's data layer.
            mean: what is subtracted before: a number, one for each channel, or a mean image.
            untrained: take stock weights for Bayesian layers. They are the means; tau stays as
                the prototxt starts it, so the spread of the draws says nothing.
        """
        check_seed(seed)
        self.path, self.weights = Path(net), Path(weights)
        self.seed, self.mc_dropout = seed, mc_dropout
        message = read_message(net, "NetParameter")
        layers = {layer.name: layer for layer in read_weights(weights)}
        try:
            inference = inference_net(message, output, mc_dropout)
            self._prepare_input(inference, image_shape, scale, mean)
        except BayesCaffeError as error:
            raise BayesCaffeError(f"{net}: {error}") from error
        stock = without_posterior(inference.net.layer, layers)
        if stock and not untrained:
            raise BayesCaffeError(
                f"{weights}: is no posterior: it has stock weights for the Bayesian layers "
                f"{', '.join(stock)} of {net}. Train the net from them (bayescaffe train SOLVER "
                "--weights), or take them as they are by --untrained or untrained=True"
            )
        self.untrained = bool(stock)
        self.is_random, self.message = inference.is_random, inference.net
        self.output = inference.output
        self._gpu = gpu
        with caffe_errors(f"{net} with {weights}"), on_gpu(gpu):
            self.caffe_net = make_net(inference.net, weights, seed)
        self._check_weights(weights, layers)
        shape = self.caffe_net.blobs[self.output].data.shape[1:]
        if int(np.prod(shape)) != max(shape, default=1) or not shape:
            raise BayesCaffeError(
                f"{net}: {self.output!r} is of shape {shape} for an image, expected one number "
                "for each class"
            )
        self.classes = max(shape)
        self.class_names = self._class_names()

    def __repr__(self) -> str:
        kind = "random" if self.is_random else "not random"
        return (
            f"<Model {self.path} with {self.weights}:\n"
            f"  {times(self.image_shape)} images, {self.classes} classes, seed {self.seed}, {kind}>"
        )

    def names_for(self, class_names: Sequence[str] | None) -> Sequence[str] | None:
        """These names of the classes if they fit the net, its own if there are none."""
        check_class_names(class_names, self.classes)
        return class_names or self.class_names

    def fit(self, images: Images) -> None:
        """Bring images to the size and the order of channels that this net takes."""
        described = self.test_images and self.test_images.description
        images.fit(self.image_shape, self.channels, described.resize if described else None)

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
        count = draws if isinstance(draws, int) else len(draws)
        check_passes(count)
        if out is None:
            out = np.empty((count, images, self.classes), np.float32)
        shape = self.caffe_net.blobs[self.output].data.shape[1:]
        with caffe_errors(self.path), on_gpu(self._gpu):
            self.caffe_net.sample(
                draws,
                lambda first, count: self._input(read(first, count)),
                images,
                output=self.output,
                out=out.reshape(*out.shape[:2], *shape),
                progress=progress,
            )
        return out

    def _input(self, images: np.ndarray) -> np.ndarray:
        if images.shape[1:] != self.image_shape:
            raise BayesCaffeError(
                f"{self.path}: takes images of {times(self.image_shape)}, "
                f"not {times(images.shape[1:])}"
            )
        return self.transform(images)

    def _prepare_input(
        self,
        inference: InferenceNet,
        image_shape: Shape | None,
        scale: float | None,
        mean: np.ndarray | Sequence[float] | float | None,
    ) -> None:
        source, param = inference.source, inference.source.transform_param
        self.data, self.test_images = lmdb_source(source), lmdb_images(source)
        self.channels = self.test_images.channels if self.test_images else None
        if mean is None:
            mean = read_mean(param.mean_file) if param.mean_file else param.mean_value or None
        self.transform = Transform(
            scale=param.scale if scale is None else scale,
            mean=None if mean is None else np.atleast_1d(np.asarray(mean, np.float32)),
            crop_size=param.crop_size,
        )
        shape = inference.declared_shape
        if shape is None and self.test_images:
            shape = self.test_images.shape
        shape = shape or image_shape
        if shape is None:
            where = f"its data, {self.data}, is not here" if self.data else "it has no input shape"
            raise BayesCaffeError(
                f"the size of its images is not known: {where}; give it as --shape or image_shape"
            )
        if len(shape) != 3 or min(shape) < 1:
            raise BayesCaffeError(
                f"its input is of shape {times(shape)}, expected channels x height x width"
            )
        self.image_shape = tuple(map(int, shape))
        self.input_shape = self.transform.input_shape(self.image_shape)
        inference.set_shape(self.input_shape)

    def _class_names(self) -> tuple[str, ...] | None:
        described = self.test_images and self.test_images.description
        names = described.class_names if described else None
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


def as_model(
    model: Model | str | os.PathLike,
    weights: str | os.PathLike | None,
    image_shape: Shape | None = None,
) -> Model:
    """A loaded model: the one given, or that of a prototxt and its weights."""
    if isinstance(model, Model):
        if weights is not None:
            raise BayesCaffeError(f"weights {weights}: the model has its weights already")
        return model
    if weights is None:
        raise BayesCaffeError(f"{model}: give the caffemodel too, as weights=…, or a loaded Model")
    return Model(model, weights, image_shape=image_shape)
