"""How a layer starts to be Bayesian: the weight of its KL, its tau, how fast tau learns, and which
images of a batch share their noise."""

from bayescaffe.common.pycaffe import import_pycaffe

DELTA_LR_MULT = 10
"""The rate of delta by that of the means; at 1, tau is far from its end when training ends."""
TAU_INIT = 0.1
"""At 0.4, the default of `bayes_param`, short trainings end before the noise has died down."""

DRAWS_PER_BATCH = 4
"""In convolutions. Inner products give each image noise of its own, which costs them less."""


def kl_weight(dataset_size: int, weights: int) -> float:
    """The kl_weight of a net with so many training examples and Bayesian weights, in three digits.

    It is what the net takes by default, so that the prototxt shows what can be changed.
    """
    scale = import_pycaffe("caffe").default_kl_scale(weights, dataset_size)
    return float(f"{scale * dataset_size:.3g}")
