"""How a layer starts to be Bayesian: the weight of its KL, its tau, and how fast tau learns."""

KL_SCALE = 4e-8
"""kl_weight / dataset_size, as models/lenet/README.md found it for data sets of two sizes."""
DELTA_LR_MULT = 10
"""The rate of delta by that of the means; at 1, tau is far from its end when training ends."""
TAU_INIT = 0.4
"""Of weights that are not trained yet; the default of `bayes_param`."""
TAU_INIT_TRAINED = 0.1
"""Of weights that are: the net must still know what it has learned."""


def kl_weight(dataset_size: int) -> float:
    """The kl_weight for a training set of that size, with three digits."""
    return float(f"{KL_SCALE * dataset_size:.3g}")
