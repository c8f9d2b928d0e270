"""A net with trained weights, ready for inference."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from bayescaffe.common.checks import check_passes, check_seed
from bayescaffe.common.errors import BayesCaffeError, times
from bayescaffe.common.pycaffe import import_pycaffe
from bayescaffe.data.transform import Transform
from bayescaffe.net.inference_net import InferenceNet, inference_net
from bayescaffe.net.messages import LayerBlobs, read_mean, read_message, read_weights


class Model:
    """A net with trained weights, ready for inference: images go in, class probabilities come out.

    The net may be the one it was trained with or one for deployment (`inference.inference_net`
    tells what becomes of it). Draw k of a seed is the same network for both.
    """

    image_shape: tuple[int, int, int]
    """Channels, height, width of the images that `sample` takes."""
    input_shape: tuple[int, int, int]
    """The same of what enters the net, after `transform`."""
    transform: Transform
    classes: int
    is_random: bool
    """Whether passes differ: a net without Bayesian layers, and without dropout in phase TEST,
    gives the same in each."""
    data: str | None
    """The LMDB that the net itself reads in phase TEST."""
    color: bool | None
    """Whether the net's data layer forces encoded images to be colour or grey, None if neither."""

    def __init__(
        self,
        net: str | os.PathLike,
        weights: str | os.PathLike,
        *,
        seed: int = 1,
        output: str | None = None,
        mc_dropout: bool = False,
        gpu: int | None = None,
        image_shape: tuple[int, int, int] | None = None,
        scale: float | None = None,
        mean: np.ndarray | Sequence[float] | float | None = None,
    ) -> None:
        """Read a net and its weights.

        Args:
            net: a prototxt, train_test or deploy.
            weights: a caffemodel; every layer with weights must be in it.
            seed: of the draws.
            output: the blob of class scores or probabilities, where it is not clear.
            mc_dropout: let Dropout layers drop, as in training, with a mask for each draw.
            gpu: the number of the GPU to compute on; without, in the mode that Caffe is in.
            image_shape: channels, height, width of the images, for a net that does not tell.
            scale, mean: of the transform, instead of those in the net's data layer.
        """
        check_seed(seed)
        self.path = Path(net)
        message = read_message(net, "NetParameter")
        layers = {layer.name: layer for layer in read_weights(weights)}
        try:
            inference = inference_net(message, output, mc_dropout)
            self._prepare_input(inference, image_shape, scale, mean)
        except BayesCaffeError as error:
            raise BayesCaffeError(f"{net}: {error}") from error
        self.is_random = inference.is_random
        self._output = inference.output
        self._gpu = gpu
        with _caffe_errors(f"{net} with {weights}"), _on_gpu(gpu):
            self._net = _make_net(inference.net, weights, seed)
        self._check_weights(weights, layers)
        shape = self._net.blobs[self._output].data.shape[1:]
        if int(np.prod(shape)) != max(shape, default=1) or not shape:
            raise BayesCaffeError(
                f"{net}: {self._output!r} is of shape {shape} for an image, expected one number "
                "for each class"
            )
        self.classes = max(shape)

    def sample(
        self,
        images: np.ndarray,
        draws: int | Sequence[int],
        out: np.ndarray | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> np.ndarray:
        """Class probabilities of images in each draw, an array of draws x images x classes.

        Args:
            images: images x channels x height x width, before the transform (0 to 255, mostly).
            draws: how many (0, 1, 2, …), or their indices.
            out: where to write, contiguous float32, such as a memory map.
            progress: is told the share that is done, 0 to 1; what it raises ends the call.
        """
        count = draws if isinstance(draws, int) else len(draws)
        check_passes(count)
        if images.shape[1:] != self.image_shape:
            raise BayesCaffeError(
                f"{self.path}: takes images of {times(self.image_shape)}, "
                f"not {times(images.shape[1:])}"
            )
        if out is None:
            out = np.empty((count, len(images), self.classes), np.float32)
        shape = self._net.blobs[self._output].data.shape[1:]
        with _caffe_errors(self.path), _on_gpu(self._gpu):
            self._net.sample(
                draws,
                self.transform(images),
                output=self._output,
                out=out.reshape(*out.shape[:2], *shape),
                progress=progress,
            )
        return out

    def _prepare_input(
        self,
        inference: InferenceNet,
        image_shape: tuple[int, int, int] | None,
        scale: float | None,
        mean: np.ndarray | Sequence[float] | float | None,
    ) -> None:
        source, param = inference.source, inference.source.transform_param
        self.color = True if param.force_color else False if param.force_gray else None
        self.data = None
        if source.type == "Data" and source.data_param.backend == source.data_param.LMDB:
            self.data = source.data_param.source
        if mean is None:
            mean = read_mean(param.mean_file) if param.mean_file else param.mean_value or None
        self.transform = Transform(
            scale=param.scale if scale is None else scale,
            mean=None if mean is None else np.atleast_1d(np.asarray(mean, np.float32)),
            crop_size=param.crop_size,
        )
        shape = inference.declared_shape
        if shape is None and self.data and os.path.exists(self.data):
            from bayescaffe.data.images import LmdbImages

            shape = LmdbImages(self.data, self.color).shape
        shape = shape or image_shape
        if shape is None:
            where = f"its data, {self.data}, is not here" if self.data else "it has no input shape"
            raise BayesCaffeError(f"the size of its images is not known: {where}; give their shape")
        if len(shape) != 3 or min(shape) < 1:
            raise BayesCaffeError(
                f"its input is of shape {times(shape)}, expected channels x height x width"
            )
        self.image_shape = tuple(map(int, shape))
        self.input_shape = self.transform.input_shape(self.image_shape)
        inference.set_shape(self.input_shape)

    def _check_weights(self, path: str | os.PathLike, layers: dict[str, LayerBlobs]) -> None:
        for name in self._net.params:
            if name not in layers:
                raise BayesCaffeError(
                    f"{path}: has no weights for the layer {name!r} of {self.path}, only for "
                    f"{', '.join(layers) or 'none'}"
                )


def _make_net(message, weights: str | os.PathLike, seed: int):
    caffe = import_pycaffe("caffe")
    from google.protobuf import text_format

    # pycaffe reads nets from files only.
    with tempfile.NamedTemporaryFile("w", suffix=".prototxt") as file:
        file.write(text_format.MessageToString(message))
        file.flush()
        caffe.set_random_seed(seed)
        return caffe.Net(file.name, caffe.TEST, weights=str(weights))


@contextlib.contextmanager
def _on_gpu(gpu: int | None) -> Iterator[None]:
    """Let Caffe compute on this GPU, and on the CPU again afterwards; on None, change nothing."""
    if gpu is None:
        yield
        return
    caffe = import_pycaffe("caffe")
    caffe.set_device(gpu)
    caffe.set_mode_gpu()
    try:
        yield
    finally:
        caffe.set_mode_cpu()


@contextlib.contextmanager
def _caffe_errors(what: str | os.PathLike) -> Iterator[None]:
    """Say what Caffe was working on when it failed."""
    try:
        yield
    except RuntimeError as error:  # caffe.Error is one
        raise BayesCaffeError(f"{what}: {error}") from error
