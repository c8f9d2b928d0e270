"""What a trained net knows of its own uncertainty, layer by layer.

A weight of a Bayesian layer has the posterior q = N(m, (tau m)^2), with one tau for all weights of
the layer and one for its biases, and the prior p = N(prior_mean, prior_std^2).
"""

import csv
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_file
from bayescaffe.net.inference_net import TRAIN, layers_of_phase
from bayescaffe.net.messages import LayerBlobs, read_message, read_weights
from bayescaffe.net.reducing import output_layers, size_field

# kSmallMean of caffe_bayes/include/caffe/bayes/formulas.hpp: where |m| is smaller, -ln|m| is
# continued by a parabola.
SMALL_MEAN = 1e-3


@dataclass(frozen=True)
class LayerPosterior:
    """The posterior of one Bayesian layer."""

    name: str
    weights: int
    """Number of weights (K)."""
    tau: float
    """Standard deviation of every weight, as a multiple of its |mean|."""
    biases: int
    """Number of biases, 0 without a bias term."""
    tau_bias: float | None
    """The same for the biases."""
    type: str
    outputs: int
    """The layer's num_output."""
    is_output: bool
    """Whether the net's answer comes from this layer, so that its size is not free."""
    norm: float
    """Euclidean norm of the means of the weights."""
    kl: float
    """KL(q || p) of weights and biases in nats; 0 for what an earlier layer shares and counts."""
    kl_share: float
    """This layer's part of the whole net's KL."""
    kl_weight: float
    dataset_size: int | None
    """Both as in the prototxt: KL enters the loss times kl_weight / dataset_size."""

    @property
    def signal_to_noise(self) -> float:
        """|mean| of a weight by its standard deviation."""
        return 1 / self.tau

    @property
    def sign_certainty(self) -> float:
        """The probability that a weight drawn from the posterior has the sign of its mean."""
        return 0.5 * math.erfc(-self.signal_to_noise / math.sqrt(2))

    @property
    def penalty(self) -> float:
        """What the layer's KL adds to the loss, the number that its KL top shows."""
        return self.kl * self.kl_weight / self.dataset_size if self.kl_weight else 0.0

    def as_dict(self) -> dict:
        """All of it by name, for JSON and CSV."""
        derived = ("signal_to_noise", "sign_certainty", "penalty")
        return asdict(self) | {name: getattr(self, name) for name in derived}


def inspect(net: str | os.PathLike, weights: str | os.PathLike) -> list[LayerPosterior]:
    """The Bayesian layers of a net, in its order.

    Args:
        net: prototxt; the priors come from it. Its TRAIN phase counts where the two differ.
        weights: caffemodel of that net.
    """
    message = read_message(net, "NetParameter")
    stored = {layer.name: layer for layer in read_weights(weights)}
    layers = layers_of_phase(message, TRAIN)
    if not any(map(_is_bayesian, layers)):
        trained = [layer.name for layer in stored.values() if _is_bayesian(layer)]
        hint = f"; {weights} has some: {', '.join(trained)}" if trained else ""
        raise BayesCaffeError(f"no Bayesian layer in {net}{hint}")
    outputs = output_layers(message)
    posteriors, shared = [], set()
    for layer in layers:
        names = [param.name for param in layer.param]
        if _is_bayesian(layer) or _is_bayesian(stored.get(layer.name, layer)):
            blobs = _matching_blobs(layer, stored.get(layer.name), net, weights)
            counted = [i >= len(names) or names[i] not in shared for i in range(len(blobs) // 3)]
            posteriors.append(_posterior(layer, blobs, counted, layer.name in outputs))
        shared.update(filter(None, names))
    total = sum(layer.kl for layer in posteriors)
    return [replace(layer, kl_share=layer.kl / total if total else 0.0) for layer in posteriors]


def write_csv(layers: Sequence[LayerPosterior], path: str | os.PathLike) -> None:
    """One line for each layer, under the names of the fields."""
    with scratch_file(Path(path)) as scratch, scratch.open("w", newline="") as file:
        writer = csv.DictWriter(file, layers[0].as_dict())
        writer.writeheader()
        writer.writerows(layer.as_dict() for layer in layers)


def softplus(delta: float) -> float:
    """tau = ln(1 + exp(delta)), as the layers compute it."""
    return float(np.logaddexp(0, delta))


def kl_divergence(m: np.ndarray, tau: float, prior_mean: float, prior_std: float) -> float:
    """KL(q || p) of one blob of weights, as formulas.hpp has it: the sum over weights of

    ln prior_std - ln tau - ln|m| - 1/2 + (tau^2 m^2 + (m - prior_mean)^2) / (2 prior_std^2),
    where a parabola takes the place of ln|m| for |m| < SMALL_MEAN.
    """
    m = np.asarray(m, np.float64).ravel()
    size = np.abs(m)
    log_size = np.where(
        size < SMALL_MEAN,
        math.log(SMALL_MEAN) + ((m / SMALL_MEAN) ** 2 - 1) / 2,
        np.log(np.maximum(size, SMALL_MEAN)),
    )
    squares = ((tau * m) ** 2 + (m - prior_mean) ** 2) / prior_std**2
    return float(np.sum(math.log(prior_std / tau) - log_size + (squares - 1) / 2))


def _is_bayesian(layer) -> bool:
    return layer.type.startswith("Bayes")


def _posterior(layer, blobs: list[np.ndarray], counted: list[bool], is_output: bool):
    # m, m_b, delta, delta_b, epsilon, epsilon_b; without a bias term m, delta, epsilon.
    stock = len(blobs) // 3
    param = layer.bayes_param
    # The layer raises delta to its floor before each pass, so a file may hold less.
    taus = [max(softplus(delta.item()), param.tau_min) for delta in blobs[stock : 2 * stock]]
    priors = [
        (param.prior_mean, param.prior_std),
        (param.bias_prior_mean, param.bias_prior_std),
    ]
    has_bias = stock == 2
    return LayerPosterior(
        name=layer.name,
        weights=blobs[0].size,
        tau=taus[0],
        biases=blobs[1].size if has_bias else 0,
        tau_bias=taus[1] if has_bias else None,
        type=layer.type,
        outputs=getattr(layer, size_field(layer)).num_output,
        is_output=is_output,
        norm=float(np.linalg.norm(blobs[0].astype(np.float64))),
        kl=sum(kl_divergence(blobs[i], taus[i], *priors[i]) for i in range(stock) if counted[i]),
        kl_share=0.0,
        kl_weight=float(str(np.float32(param.kl_weight))),  # 0.0036, not 0.00359999993…
        dataset_size=param.dataset_size if param.HasField("dataset_size") else None,
    )


def _matching_blobs(layer, stored: LayerBlobs | None, net, weights) -> list[np.ndarray]:
    """The blobs of a layer, after checks that they are those of the layer in the net."""
    where = f"{weights} does not fit {net}: layer {layer.name!r}"
    if stored is None:
        raise BayesCaffeError(f"{where} is in the net only")
    if stored.type != layer.type:
        raise BayesCaffeError(f"{where} is {layer.type} in the net, {stored.type} in the weights")
    if stored.blobs[0].ndim < 2:
        raise BayesCaffeError(f"{where} has weights of shape {stored.blobs[0].shape}")
    param = getattr(layer, size_field(layer))
    blobs, stock = stored.blobs, 1 + param.bias_term
    if len(blobs) != 3 * stock:
        raise BayesCaffeError(
            f"{where} has {len(blobs)} blobs in the weights; with bias_term: "
            f"{str(param.bias_term).lower()} it must have {3 * stock}"
        )
    for what, wanted, found in _sizes(layer, param, blobs[:stock]):
        if wanted != found:
            raise BayesCaffeError(f"{where} has {what} {wanted} in the net, {found} in the weights")
    if any(delta.size != 1 for delta in blobs[stock : 2 * stock]):
        raise BayesCaffeError(f"{where} has a delta that is not one number")
    for blob in blobs[: 2 * stock]:
        if bad := blob.size - np.count_nonzero(np.isfinite(blob)):
            raise BayesCaffeError(
                f"{weights}: layer {layer.name!r} has {bad:,} parameters that are NaN or infinite"
            )
    return blobs


def _sizes(layer, param, means: list[np.ndarray]):
    """What the prototxt says of the shapes of the means: name, value wanted, value found."""
    m, *bias = means
    if layer.type.endswith("InnerProduct"):
        yield "num_output", param.num_output, m.shape[1 if param.transpose else 0]
    else:
        transposed = layer.type.endswith("Deconvolution")
        yield "num_output", param.num_output, m.shape[1] * param.group if transposed else len(m)
        kernel = tuple(param.kernel_size) or (param.kernel_h, param.kernel_w)
        yield "kernel", kernel * (m.ndim - 2) if len(kernel) == 1 else kernel, m.shape[2:]
    for blob in bias:
        yield "num_output", param.num_output, blob.size
