"""The shapes of a net's blobs, without its data."""

from collections.abc import Sequence
from dataclasses import dataclass

from bayescaffe.common.errors import BayesCaffeError, argument
from bayescaffe.data.interface import Shape
from bayescaffe.net.building import caffe_errors, make_net
from bayescaffe.net.inference_net import TRAIN, batch_size, declared_shape, layers_of_phase
from bayescaffe.net.layer_kinds import is_bayesian, stock_blobs
from bayescaffe.net.own_data import lmdb_images


class UnknownShape(BayesCaffeError):
    """The net does not tell the shape of its images, and its data is not here."""


@dataclass(frozen=True)
class LayerShape:
    """A layer of a net."""

    name: str
    type: str
    tops: dict[str, tuple[int, ...]]
    """The shape of each blob that it gives."""
    parameters: int
    """Its weights and biases, without those that an earlier layer shares."""


def with_inputs(net, phase: int, shape: Shape | None):
    """The layers of a phase, with Input layers in place of those that read images from files."""
    result = type(net)()
    result.CopyFrom(net)
    del result.layer[:]
    for layer in layers_of_phase(net, phase):
        one = result.layer.add()
        one.CopyFrom(layer)
        for rule in ("include", "exclude"):
            one.ClearField(rule)
        if layer.type in ("Data", "ImageData"):
            batch, images = batch_size(layer), image_shape(layer, shape)
            for field in ("data_param", "image_data_param", "transform_param"):
                one.ClearField(field)
            one.type = "Input"
            for dims in [(batch, *images), (batch,)][: len(layer.top)]:
                one.input_param.shape.add(dim=dims)
    return result


def image_shape(layer, shape: Shape | None) -> tuple[int, ...]:
    """Channels, height and width of what a data layer gives; `shape` if it cannot tell."""
    param = layer.transform_param
    own = lmdb_images(layer)
    images = declared_shape(layer, layer.top[0]) if own is None else own.shape
    images = images or shape
    if images is None:
        raise UnknownShape(
            f"its data, {layer.data_param.source or layer.name}, is not here; give the shape of "
            f"its images as {argument('shape')}"
        )
    return (images[0], param.crop_size, param.crop_size) if param.crop_size else images


def layer_shapes(net, layers: Sequence) -> list[LayerShape]:
    """The layers of a net that pycaffe has built."""
    counts = _parameters(net, layers)
    return [
        LayerShape(
            layer.name,
            layer.type,
            {top: tuple(net.blobs[top].data.shape) for top in layer.top},
            sum(counts.get(layer.name, ())),
        )
        for layer in layers
    ]


def count_parameters(net, names: Sequence[str], shape: Shape | None) -> int:
    """The weights and biases of some layers of a `NetParameter`, in phase TRAIN."""
    with caffe_errors("net"):
        built = make_net(with_inputs(net, TRAIN, shape), None, phase=TRAIN)
    layers = layers_of_phase(net, TRAIN)
    return sum(layer.parameters for layer in layer_shapes(built, layers) if layer.name in names)


def _parameters(net, layers: Sequence) -> dict[str, list[int]]:
    """How many weights and biases each layer has of its own."""
    seen: set[str] = set()
    counts = {}
    for layer in layers:
        if layer.name not in net.params:
            continue
        blobs = list(net.params[layer.name])
        if is_bayesian(layer):
            blobs = blobs[: stock_blobs(layer)]
        names = [param.name for param in layer.param] + [""] * len(blobs)
        counts[layer.name] = [
            blob.count for blob, name in zip(blobs, names, strict=False) if name not in seen
        ]
        seen.update(name for name in names if name)
    return counts
