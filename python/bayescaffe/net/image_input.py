"""What a net takes and gives: shape and colours of its images, their transform, names of classes.

It is read from the net's prototxt and the files that this names: its LMDB and its mean image. Or it
is read from a caffemodel that carries all of it, as an `InferenceParameter`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument, times
from bayescaffe.common.pycaffe import import_pycaffe
from bayescaffe.data.interface import Shape
from bayescaffe.data.lmdb import LmdbImages
from bayescaffe.data.transform import Transform
from bayescaffe.net.inference_net import InferenceNet
from bayescaffe.net.messages import blob_array, read_mean
from bayescaffe.net.own_data import lmdb_images, lmdb_source


@dataclass(frozen=True)
class ImageInput:
    """What a net takes and gives."""

    image_shape: Shape
    """Channels, height, width of the images, before the transform."""
    transform: Transform
    channels: str | None
    """The order of the channels: "bgr", "rgb" or "grey"; None if it is not known."""
    resize: str | None
    """How pictures are brought to the shape: "squash" or "keep"; None if nothing tells."""
    class_names: tuple[str, ...] | None


def read_input(
    inference: InferenceNet,
    carried: Any | None = None,
    image_shape: Shape | None = None,
    scale: float | None = None,
    mean: np.ndarray | Sequence[float] | float | None = None,
) -> ImageInput:
    """What a net takes and gives; its LMDB is opened unless the caffemodel carries all of it.

    Args:
        carried: the `InferenceParameter` of the caffemodel; without it, the net's files tell.
        image_shape, scale, mean: those of `Model`.
    """
    param = inference.source.transform_param
    images = None if carried else lmdb_images(inference.source)
    if mean is None:
        mean = _carried_mean(carried) if carried else _mean_of(param)
    if scale is None:
        scale = carried.scale if carried else param.scale
    transform = Transform(
        scale=scale,
        mean=None if mean is None else np.atleast_1d(np.asarray(mean, np.float32)),
        crop_size=param.crop_size,
    )
    own = tuple(carried.image_shape.dim) if carried else images.shape if images else None
    shape = _checked_shape(inference.declared_shape or own or image_shape, inference)
    if carried:
        names = tuple(carried.class_names) or None
        return ImageInput(shape, transform, carried.channels or None, carried.resize or None, names)
    channels = images.channels if images else None
    return ImageInput(shape, transform, channels, *_described(images))


def to_carry(net, output: str | None, found: ImageInput):
    """The `InferenceParameter` of a net, for `read_input`.

    Args:
        net: the `NetParameter` of the prototxt.
        output: the blob of class scores, if it was chosen.
    """
    result = import_pycaffe("caffe.proto.caffe_pb2").InferenceParameter(
        net=net,
        output=output,
        scale=found.transform.scale,
        channels=found.channels,
        resize=found.resize,
        class_names=found.class_names or (),
    )
    for layer in result.net.layer:
        if lmdb_source(layer) is not None:
            layer.data_param.source = os.path.abspath(layer.data_param.source)
    result.image_shape.dim.extend(found.image_shape)
    mean = found.transform.mean
    if mean is not None:
        result.mean.shape.dim.extend(mean.shape)
        result.mean.data.extend(mean.ravel().tolist())
    return result


def _mean_of(param) -> np.ndarray | Sequence[float] | None:
    return read_mean(param.mean_file) if param.mean_file else param.mean_value or None


def _carried_mean(carried) -> np.ndarray | None:
    return blob_array(carried.mean) if carried.HasField("mean") else None


def _described(images: LmdbImages | None) -> tuple[str | None, tuple[str, ...] | None]:
    """How pictures were resized, and the names of the classes, if the LMDB tells."""
    description = images.description if images else None
    return (description.resize, description.class_names) if description else (None, None)


def _checked_shape(shape: tuple[int, ...] | None, inference: InferenceNet) -> Shape:
    if shape is None:
        data = lmdb_source(inference.source)
        where = f"its data, {data}, is not here" if data else "it has no input shape"
        raise BayesCaffeError(
            f"the size of its images is not known: {where}; give it as {argument('image_shape')}"
        )
    if len(shape) != 3 or min(shape) < 1:
        raise BayesCaffeError(
            f"its input is of shape {times(shape)}, expected channels x height x width"
        )
    channels, height, width = map(int, shape)
    return channels, height, width
