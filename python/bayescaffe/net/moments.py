"""Mean and covariance of the class scores in one pass, without draws.

A second net is written, whose blobs come in pairs: the mean and the variance of each number of the
first one. Layers that add and multiply keep their type and get other weights. With independent
weights of mean m and variance u,

    E y = sum m E x        Var y = sum (m^2 + u) Var x + u (E x)^2

so a layer is two or three of its kind. The inputs of a layer are taken to be independent of each
other, which they are not in convolutions, where neighbours share weights.

docs/metrics.md tells how each layer is treated, and how far the result is from that of draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.net.building import caffe_errors, make_net
from bayescaffe.net.stock import StockLayer, stock_layers

if TYPE_CHECKING:
    from bayescaffe.net.model import Model


@dataclass(frozen=True)
class Moments:
    """The blobs with the means and the variances of a blob."""

    mean: str
    variance: str | None
    """None where draws do not differ."""


class MomentNet:
    """The net of the moments of a model."""

    def __init__(self, model: Model) -> None:
        """Write and build it.

        Raises:
            BayesCaffeError: a layer has no such form.
        """
        layers, scores = _until_scores(stock_layers(model, None))
        self.scores_blob = scores
        """Of the net itself."""
        last = layers[-1]
        # The scores of an image share what goes into the last layer, so they depend on each other.
        self._last = last if _is_dense(last) and scores in last.param.top else None
        writer = _Writer(type(model.message)())
        try:
            for layer in layers[:-1] if self._last else layers:
                writer.write(layer)
        except BayesCaffeError as error:
            raise BayesCaffeError(f"{model.path}: {error}") from error
        wanted = self._last.param.bottom[0] if self._last else scores
        self._found = writer.current[wanted]
        with caffe_errors(model.path):
            self._net = make_net(writer.net, None)
        for name, blobs in writer.blobs.items():
            for blob, values in zip(self._net.params[name], blobs, strict=True):
                blob.data[...] = values

    def scores(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Images x classes, the means of the scores; and images x classes x classes, their
        covariance. `images` are transformed already."""
        data = self._net.blobs[self._net.inputs[0]]
        if data.data.shape != images.shape:
            data.reshape(*images.shape)
        data.data[...] = images
        self._net.forward()

        def values(blob: str | None) -> np.ndarray | None:
            return None if blob is None else self._net.blobs[blob].data.reshape(len(images), -1)

        mean, variance = values(self._found.mean), values(self._found.variance)
        if self._last:
            return _dense_scores(self._last, mean, variance)
        covariance = np.zeros((*mean.shape, mean.shape[1]))
        if variance is not None:
            np.einsum("ijj->ij", covariance)[...] = variance
        return mean.astype(np.float64), covariance


def _until_scores(layers: list[StockLayer]) -> tuple[list[StockLayer], str]:
    """The layers before the last Softmax, and the blob that it takes."""
    place = max(n for n, layer in enumerate(layers) if layer.param.type == "Softmax")
    return layers[:place], layers[place].param.bottom[0]


def _is_dense(layer: StockLayer) -> bool:
    options = layer.param.inner_product_param
    return layer.param.type == "InnerProduct" and options.axis == 1 and not options.transpose


def _dense_scores(
    layer: StockLayer, mean: np.ndarray, variance: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """What an inner product makes of the moments of its input; the covariance has all terms."""
    mean = mean.astype(np.float64)
    weights, *bias = (blob.astype(np.float64) for blob in layer.blobs)
    own, *own_bias = _variances(layer)
    given = np.zeros_like(mean) if variance is None else variance.astype(np.float64)
    covariance = (weights * given[:, np.newaxis]) @ weights.T
    np.einsum("ijj->ij", covariance)[...] += (mean**2 + given) @ own.T + sum(own_bias)
    return mean @ weights.T + sum(bias), covariance


def _variances(layer: StockLayer) -> list[np.ndarray]:
    """Of each weight: (tau m)^2, and 0 in a layer that is not random."""
    if not layer.taus:
        return [np.zeros(blob.shape) for blob in layer.blobs]
    pairs = zip(layer.blobs, layer.taus, strict=True)
    return [np.square(tau * blob.astype(np.float64)) for blob, tau in pairs]


# ---- Writing ------------------------------------------------------------------------------------


class _Writer:
    """Writes the net of moments, layer by layer."""

    def __init__(self, net: Any) -> None:
        self.net = net
        self.current: dict[str, Moments] = {}
        """By the blob of the net itself."""
        self.blobs: dict[str, list[np.ndarray]] = {}
        """By the layer of this one."""

    def write(self, layer: StockLayer) -> None:
        """Write what a layer becomes."""
        param = layer.param
        bottoms = [self.current[name] for name in param.bottom]
        is_random = bool(layer.taus or layer.drop_ratio or any(one.variance for one in bottoms))
        if not is_random:
            means = self.add(param, [one.mean for one in bottoms], layer.blobs, len(param.top))
            found = [Moments(mean, None) for mean in means]
        elif rule := _RULES.get(param.type):
            found = rule(self, layer, bottoms)
        else:
            raise _refused(layer)
        self.current.update(zip(param.top, found, strict=True))

    def add(
        self,
        like: Any,
        bottoms: Sequence[str],
        blobs: Sequence[np.ndarray] = (),
        tops: int = 1,
        kind: str = "",
    ) -> list[str]:
        """A layer with the options of another; returns its tops, which are new blobs."""
        layer = self.net.layer.add()
        layer.CopyFrom(like)
        layer.name, layer.type = f"{len(self.net.layer)} {like.name}", kind or like.type
        names = [f"{layer.name} {n}" for n in range(tops)]
        for field, values in (("bottom", bottoms), ("top", names)):
            layer.ClearField(field)
            getattr(layer, field).extend(values)
        if blobs:
            self.blobs[layer.name] = list(blobs)
        return names

    def new(self, kind: str, bottoms: Sequence[str], **options: dict[str, object]) -> str:
        """A layer of a type with one top; options are those of the fields of its parameters."""
        like = type(self.net).FromString(b"").layer.add(name=kind, type=kind)
        for field, values in options.items():
            for name, value in values.items():
                target = getattr(like, field)
                if isinstance(value, (list, tuple)):
                    getattr(target, name).extend(value)
                else:
                    setattr(target, name, value)
        return self.add(like, bottoms)[0]

    def times(self, blob: str, factor: float, shift: float = 0) -> str:
        """A blob, multiplied and shifted."""
        return self.new("Power", [blob], power_param={"scale": factor, "shift": shift})

    def product(self, *blobs: str) -> str:
        """Number by number."""
        return self.new("Eltwise", blobs, eltwise_param={"operation": 0})

    def sum(self, blobs: Sequence[str], factors: Sequence[float] = ()) -> str:
        """Of several blobs, each times its factor."""
        if len(blobs) == 1:
            return self.times(blobs[0], factors[0]) if factors else blobs[0]
        return self.new("Eltwise", blobs, eltwise_param={"operation": 1, "coeff": list(factors)})


Rule = Callable[[_Writer, StockLayer, Sequence[Moments]], list[Moments]]


def _refused(layer: StockLayer, why: str = "") -> BayesCaffeError:
    return BayesCaffeError(
        f"layer {layer.param.name!r}: {layer.param.type} {why or 'has no analytic form'}; take "
        "draws instead, such as 100 passes"
    )


def _linear(writer: _Writer, layer: StockLayer, bottoms: Sequence[Moments]) -> list[Moments]:
    """Convolution, Deconvolution, InnerProduct and Scale: sums of products with weights."""
    if len(bottoms) != 1:
        raise _refused(layer, f"of {len(bottoms)} bottoms has no analytic form")
    (x,) = bottoms
    weights, *biases = layer.blobs
    own, *own_biases = _variances(layer)
    parts = []
    if x.variance:
        blobs = [weights.astype(np.float64) ** 2 + own, *(np.zeros_like(one) for one in biases)]
        parts += writer.add(layer.param, [x.variance], blobs)
    if layer.taus:
        squares = writer.product(x.mean, x.mean)
        parts += writer.add(layer.param, [squares], [own, *own_biases])
    (mean,) = writer.add(layer.param, [x.mean], layer.blobs)
    return [Moments(mean, writer.sum(parts))]


def _batch_norm(writer: _Writer, layer: StockLayer, bottoms: Sequence[Moments]) -> list[Moments]:
    options = layer.param.batch_norm_param
    if options.HasField("use_global_stats") and not options.use_global_stats:
        raise _refused(layer, "with use_global_stats: false has no analytic form")
    _, variance, count = layer.blobs
    spread = variance / count if count else np.zeros_like(variance)
    like = type(layer.param)(name=layer.param.name)
    found = writer.add(like, [bottoms[0].variance], [1 / (spread + options.eps)], kind="Scale")
    return [Moments(*writer.add(layer.param, [bottoms[0].mean], layer.blobs), *found)]


def _moments_layer(writer: _Writer, layer: StockLayer, bottoms: Sequence[Moments]) -> list[Moments]:
    """A layer of ours, whose type has Moments in its name."""
    (x,) = bottoms
    kind = f"{layer.param.type}Moments"
    return [Moments(*writer.add(layer.param, [x.mean, x.variance], tops=2, kind=kind))]


def _pooling(writer: _Writer, layer: StockLayer, bottoms: Sequence[Moments]) -> list[Moments]:
    options = layer.param.pooling_param
    if len(layer.param.top) > 1 or options.pool == options.STOCHASTIC:
        raise _refused(layer, "that gives a mask, or is stochastic, has no analytic form")
    if options.pool == options.MAX:
        return _moments_layer(writer, layer, bottoms)
    return _moved(writer, layer, bottoms)


def _moved(writer: _Writer, layer: StockLayer, bottoms: Sequence[Moments]) -> list[Moments]:
    """Layers that only move numbers, and so do the same to variances."""
    tops = len(layer.param.top)
    means = writer.add(layer.param, [one.mean for one in bottoms], tops=tops)
    # Numbers that are the same in each draw have no variance yet.
    given = [one.variance or writer.times(one.mean, 0) for one in bottoms]
    variances = writer.add(layer.param, given, tops=tops)
    return [Moments(*pair) for pair in zip(means, variances, strict=True)]


def _eltwise(writer: _Writer, layer: StockLayer, bottoms: Sequence[Moments]) -> list[Moments]:
    options = layer.param.eltwise_param
    if options.operation != options.SUM:
        raise _refused(layer, "that does not add has no analytic form")
    (mean,) = writer.add(layer.param, [one.mean for one in bottoms])
    factors = list(options.coeff) or [1.0] * len(bottoms)
    parts = [(x.variance, c * c) for x, c in zip(bottoms, factors, strict=True) if x.variance]
    return [Moments(mean, writer.sum(*zip(*parts, strict=True)))]


def _dropout(writer: _Writer, layer: StockLayer, bottoms: Sequence[Moments]) -> list[Moments]:
    (x,) = bottoms
    if not layer.drop_ratio:
        return [x]
    kept = 1 - layer.drop_ratio
    parts = [(writer.product(x.mean, x.mean), layer.drop_ratio / kept)]
    if x.variance:
        parts.append((x.variance, 1 / kept))
    return [Moments(x.mean, writer.sum(*zip(*parts, strict=True)))]


def _power(writer: _Writer, layer: StockLayer, bottoms: Sequence[Moments]) -> list[Moments]:
    options = layer.param.power_param
    if options.power != 1:
        raise _refused(layer, f"with power: {options.power:g} has no analytic form")
    (x,) = bottoms
    (mean,) = writer.add(layer.param, [x.mean])
    return [Moments(mean, writer.times(x.variance, options.scale**2))]


def _bias(writer: _Writer, layer: StockLayer, bottoms: Sequence[Moments]) -> list[Moments]:
    if len(bottoms) != 1:
        raise _refused(layer, "of two bottoms has no analytic form")
    (mean,) = writer.add(layer.param, [bottoms[0].mean], layer.blobs)
    return [Moments(mean, bottoms[0].variance)]


def _sigmoid(writer: _Writer, layer: StockLayer, bottoms: Sequence[Moments]) -> list[Moments]:
    (mean,) = writer.add(layer.param, [bottoms[0].mean])
    slope = writer.product(mean, writer.times(mean, -1, shift=1))
    return [Moments(mean, writer.product(bottoms[0].variance, slope, slope))]


def _tanh(writer: _Writer, layer: StockLayer, bottoms: Sequence[Moments]) -> list[Moments]:
    (mean,) = writer.add(layer.param, [bottoms[0].mean])
    slope = writer.times(writer.product(mean, mean), -1, shift=1)
    return [Moments(mean, writer.product(bottoms[0].variance, slope, slope))]


_RULES: dict[str, Rule] = {
    "BatchNorm": _batch_norm,
    "Bias": _bias,
    "Concat": _moved,
    "Convolution": _linear,
    "Crop": _moved,
    "Deconvolution": _linear,
    "Dropout": _dropout,
    "Eltwise": _eltwise,
    "Flatten": _moved,
    "InnerProduct": _linear,
    "LRN": _moments_layer,
    "Pooling": _pooling,
    "Power": _power,
    "ReLU": _moments_layer,
    "Reshape": _moved,
    "Scale": _linear,
    "Sigmoid": _sigmoid,
    "Slice": _moved,
    "Split": _moved,
    "TanH": _tanh,
}
"""By the type of a layer with a random input or random weights."""
