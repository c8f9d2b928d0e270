"""How uncertain a trained net is of its weights, layer by layer.

    for layer in bayescaffe.inspect("train_test.prototxt", "lenet.caffemodel"):
        print(layer.name, layer.tau, layer.sign_certainty)

A weight of a Bayesian layer has the posterior q = N(m, (tau m)^2) and the prior
p = N(prior_mean, prior_std^2). All weights of the layer have one tau, and all biases another;
or each output or weight has its own, and the median stands for them.
"""

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from scipy import special

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_file
from bayescaffe.common.pycaffe import import_pycaffe
from bayescaffe.net.building import caffe_errors, make_net
from bayescaffe.net.inference_net import TRAIN, layers_of_phase
from bayescaffe.net.layer_kinds import (
    deltas,
    expected_blobs,
    is_bayesian,
    means,
    options,
    stock_type,
)
from bayescaffe.net.messages import (
    LayerBlobs,
    needs_weights,
    net_text,
    parse_message,
    read_weights,
)
from bayescaffe.net.reducing import output_layers, size_field


@dataclass(frozen=True)
class LayerPosterior:
    """The posterior of one Bayesian layer."""

    name: str
    weights: int
    """Number of weights (K)."""
    tau: float
    """Standard deviation of a weight, as a multiple of its |mean|; the median."""
    tau_low: float
    tau_high: float
    """The lowest and the highest tau of the weights; both are `tau` if there is only one."""
    biases: int
    """Number of biases, 0 without a bias term."""
    tau_bias: float | None
    tau_bias_low: float | None
    tau_bias_high: float | None
    """The same for the biases."""
    sign_certainty: float
    """The probability that a weight drawn from the posterior has the sign of its mean."""
    type: str
    outputs: int | None
    """The layer's num_output; None for a layer whose size `reduce_net` cannot change."""
    is_output: bool
    """Whether the net's answer comes from this layer, so that its size is not free."""
    norm: float
    """Euclidean norm of the means of the weights."""
    kl: float
    """KL(q || p) of weights and biases in nats; 0 for what an earlier layer shares and counts."""
    kl_share: float
    """This layer's part of the whole net's KL."""
    kl_scale: float
    """What KL is multiplied by in the loss: kl_weight / dataset_size, or the default of the net."""

    @property
    def tau_text(self) -> str:
        """tau, or the median and the range of several."""
        return _range_text(self.tau, self.tau_low, self.tau_high)

    @property
    def tau_bias_text(self) -> str:
        """The same for the biases, if there are any."""
        return _range_text(self.tau_bias, self.tau_bias_low, self.tau_bias_high)

    @property
    def signal_to_noise(self) -> float:
        """|mean| of a weight by its standard deviation; the median."""
        return 1 / self.tau

    @property
    def penalty(self) -> float:
        """What the layer's KL adds to the loss, the number that its KL top shows."""
        return self.kl * self.kl_scale

    def as_dict(self) -> dict:
        """All of it by name, for JSON and CSV."""
        derived = ("signal_to_noise", "penalty")
        return asdict(self) | {name: getattr(self, name) for name in derived}


def inspect(
    net: str | os.PathLike, weights: str | os.PathLike | None = None
) -> list[LayerPosterior]:
    """The Bayesian layers of a net, in its order.

    Args:
        net: prototxt, or caffemodel that carries it; the priors come from it. Its TRAIN phase
            counts where the two differ.
        weights: caffemodel of that net; by default `net`, if that is one.
    """
    weights = needs_weights(net, weights)
    message = parse_message(net_text(net), "NetParameter", net)
    stored = {layer.name: layer for layer in read_weights(weights)}
    layers = layers_of_phase(message, TRAIN)
    if not any(map(is_bayesian, layers)):
        trained = [layer.name for layer in stored.values() if is_bayesian(layer)]
        hint = f"; {weights} has some: {', '.join(trained)}" if trained else ""
        raise BayesCaffeError(f"no Bayesian layer in {net}{hint}")
    layers = [
        layer
        for layer in layers
        if is_bayesian(layer) or is_bayesian(stored.get(layer.name, layer))
    ]
    for layer in layers:
        _check_blobs(layer, stored.get(layer.name), net, weights)
    with caffe_errors(f"{net} with {weights}"):
        caffe_net = make_net(net_of_layers(layers, stored), weights)
    found = caffe_net.posteriors()
    outputs = output_layers(message)
    posteriors = [
        _posterior(caffe_net, layer, found[layer.name], layer.name in outputs) for layer in layers
    ]
    total = sum(layer.kl for layer in posteriors)
    return [replace(layer, kl_share=layer.kl / total if total else 0.0) for layer in posteriors]


def write_csv(layers: Sequence[LayerPosterior], path: str | os.PathLike) -> None:
    """One line for each layer, under the names of the fields."""
    with scratch_file(Path(path)) as scratch, scratch.open("w", newline="") as file:
        writer = csv.DictWriter(file, layers[0].as_dict())
        writer.writeheader()
        writer.writerows(layer.as_dict() for layer in layers)


def net_of_layers(layers: Sequence, stored: dict[str, LayerBlobs]):
    """A `NetParameter` of these Bayesian layers, each with an input of its own.

    So a net can be asked for its posteriors where its data is not at hand.
    """
    net = import_pycaffe("caffe.proto.caffe_pb2").NetParameter()
    for layer in layers:
        one = type(layer)()
        one.CopyFrom(layer)
        for field in ("bottom", "top", "include", "exclude", "loss_weight"):
            one.ClearField(field)
        name = f"input of {layer.name}"
        shape = _input_shape(one, stored[layer.name].blobs[0].shape)
        net.layer.add(name=name, type="Input", top=[name]).input_param.shape.add(dim=shape)
        one.bottom.append(name)
        one.top.append(layer.name)
        net.layer.append(one)
    return net


def _range_text(middle: float, low: float, high: float) -> str:
    return f"{middle:.4g}" if low == high else f"{middle:.3g} ({low:.2g} to {high:.2g})"


def _posterior(net, layer, posterior, is_output: bool) -> LayerPosterior:
    """The posterior of one layer, from what the net says of it and what its prototxt says."""
    m, *m_b = (blob.data for blob in net.params[layer.name][: len(posterior.taus)])
    low, high = posterior.tau_ranges[0]
    bias_low, bias_high = posterior.tau_ranges[1] if m_b else (None, None)
    return LayerPosterior(
        name=layer.name,
        weights=m.size,
        tau=posterior.taus[0],
        tau_low=low,
        tau_high=high,
        biases=m_b[0].size if m_b else 0,
        tau_bias=posterior.taus[1] if m_b else None,
        tau_bias_low=bias_low,
        tau_bias_high=bias_high,
        # Each tau is that of as many weights.
        sign_certainty=float(np.mean(special.ndtr(1 / net.taus(layer.name)[0]))),
        type=layer.type,
        outputs=options(layer).num_output if size_field(layer) else None,
        is_output=is_output,
        norm=float(np.linalg.norm(m.astype(np.float64))),
        kl=posterior.kl,
        kl_share=0.0,
        kl_scale=posterior.kl_scale,
    )


def _input_shape(layer, weights: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an input for which a layer has weights of that shape; its axis is made 1."""
    kind, param = stock_type(layer), options(layer)
    if kind == "Embed":
        return (1,)
    param.axis = 1
    if kind == "Scale":
        param.num_axes = len(weights)
        return (1, *weights)
    if kind == "InnerProduct":
        # Old files have four axes.
        return (1, weights[-2 if param.transpose else -1])
    channels = weights[0] if kind == "Deconvolution" else weights[1] * param.group
    # Large enough for the kernel, however it is dilated, and for a padding that is cut off.
    sizes = [kernel * max(param.dilation or [1]) + 2 * _padding(param) for kernel in weights[2:]]
    return (1, channels, *sizes)


def _padding(param) -> int:
    return max([*param.pad, param.pad_h, param.pad_w])


def _check_blobs(layer, stored: LayerBlobs | None, net, weights) -> None:
    """Raise if the blobs of a layer are not those of the layer in the net."""
    where = f"{weights} does not fit {net}: layer {layer.name!r}"
    if stored is None:
        raise BayesCaffeError(f"{where} is in the net only")
    if stored.type != layer.type:
        raise BayesCaffeError(f"{where} is {layer.type} in the net, {stored.type} in the weights")
    if stored.blobs[0].ndim < 2 and stock_type(layer) != "Scale":
        raise BayesCaffeError(f"{where} has weights of shape {stored.blobs[0].shape}")
    if len(stored.blobs) != expected_blobs(layer):
        raise BayesCaffeError(
            f"{where} has {len(stored.blobs)} blobs in the weights; with bias_term: "
            f"{str(options(layer).bias_term).lower()} it must have {expected_blobs(layer)}"
        )
    for what, wanted, found in _sizes(layer, means(stored)):
        if wanted != found:
            raise BayesCaffeError(f"{where} has {what} {wanted} in the net, {found} in the weights")
    for blob in (*means(stored), *deltas(stored)):
        if bad := blob.size - np.count_nonzero(np.isfinite(blob)):
            raise BayesCaffeError(
                f"{weights}: layer {layer.name!r} has {bad:,} parameters that are NaN or infinite"
            )


def _sizes(layer, blobs: list[np.ndarray]) -> Iterator[tuple[str, object, object]]:
    """What the prototxt says of the shapes of the means: name, value wanted, value found."""
    kind, param = stock_type(layer), options(layer)
    m, *bias = blobs
    if kind == "Scale":
        return
    if kind == "Embed":
        yield "input_dim", param.input_dim, len(m)
        yield "num_output", param.num_output, m.shape[1]
    elif kind == "InnerProduct":
        yield "num_output", param.num_output, m.shape[1 if param.transpose else 0]
    else:
        transposed = kind == "Deconvolution"
        yield "num_output", param.num_output, m.shape[1] * param.group if transposed else len(m)
        kernel = tuple(param.kernel_size) or (param.kernel_h, param.kernel_w)
        yield "kernel", kernel * (m.ndim - 2) if len(kernel) == 1 else kernel, m.shape[2:]
    for blob in bias:
        yield "num_output", param.num_output, blob.size
