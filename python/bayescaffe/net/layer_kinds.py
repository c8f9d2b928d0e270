"""What the type of a layer tells: whether it is Bayesian, and what its stock type is.

A Bayesian layer is a stock layer with a posterior: BayesConvolution of Convolution, and so on. In
place of each parameter blob of the stock layer it has three: the means m of all of them, then the
delta of each, then the noise epsilon of each.
"""

from collections.abc import Sequence

import numpy as np

from bayescaffe.common.pycaffe import import_pycaffe
from bayescaffe.net.messages import LayerBlobs

_PREFIX = "Bayes"
_BLOBS_PER_PARAMETER = 3  # m, delta, epsilon

_PARAM_FIELDS = {
    "Convolution": "convolution_param",
    "Deconvolution": "convolution_param",
    "Embed": "embed_param",
    "InnerProduct": "inner_product_param",
    "Scale": "scale_param",
}
"""The stock layers that have Bayesian forms, and the field of a layer with their options."""


def is_bayesian(layer) -> bool:
    """Whether a layer, of a net or of a caffemodel, has a posterior."""
    return layer.type.startswith(_PREFIX)


def stock_type(layer) -> str:
    """The type of the layer without a posterior."""
    return layer.type.removeprefix(_PREFIX)


def bayesian_type(layer) -> str:
    """The type of a stock layer once it has a posterior."""
    return _PREFIX + layer.type


def has_bayesian_form(layer) -> bool:
    """Whether a layer of a net is a stock layer that Caffe can make Bayesian."""
    if bayesian_type(layer) not in import_pycaffe("caffe").layer_type_list():
        return False
    # The second bottom of Scale takes the place of its weights.
    return layer.type != "Scale" or len(layer.bottom) == 1


def options(layer):
    """What the prototxt says of a layer in the field of its stock type."""
    return getattr(layer, _PARAM_FIELDS[stock_type(layer)])


def means(layer: LayerBlobs) -> list[np.ndarray]:
    """The weights and biases of a layer; of a Bayesian layer, their means. Of a layer of a
    caffemodel, they are its blobs."""
    if not is_bayesian(layer):
        return layer.blobs
    return layer.blobs[: len(layer.blobs) // _BLOBS_PER_PARAMETER]


def deltas(layer: LayerBlobs) -> list[np.ndarray]:
    """The delta of each blob of weights or biases of a Bayesian layer."""
    count = len(means(layer))
    return layer.blobs[count : 2 * count]


def stock_blobs(layer) -> int:
    """How many blobs a layer of a prototxt has, or has in its stock form: weights, and biases."""
    return 1 + options(layer).bias_term


def delta_rates(layer) -> list[float]:
    """The lr_mult of the delta of each blob of a Bayesian layer of a prototxt."""
    count = stock_blobs(layer)
    rates = [param.lr_mult for param in layer.param[count : 2 * count]]
    return rates + [1.0] * (count - len(rates))


def expected_blobs(layer) -> int:
    """How many blobs a Bayesian layer of a prototxt has in its caffemodel."""
    return _BLOBS_PER_PARAMETER * stock_blobs(layer)


def without_posterior(layers: Sequence, stored: dict[str, LayerBlobs]) -> list[str]:
    """The Bayesian layers of a net for which a caffemodel has the weights of a stock layer."""
    return [
        layer.name
        for layer in layers
        if is_bayesian(layer)
        and layer.name in stored
        and len(stored[layer.name].blobs) == stock_blobs(layer)
    ]


def data_tops(layer) -> Sequence[str]:
    """The tops of a layer, without the KL that a Bayesian layer may have behind its others."""
    return layer.top[: len(layer.bottom)] if is_bayesian(layer) else layer.top
