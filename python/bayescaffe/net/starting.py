"""How a layer starts to be Bayesian: the weight of its KL, its tau, and how fast tau learns."""

KL_STRENGTH = 0.017
"""kl_weight / dataset_size times the number of Bayesian weights of the net; docs/kl.md tells how it
was measured."""
KL_SCALE_MAX = 1e-6
"""The highest kl_weight / dataset_size, for nets with fewer weights than were measured: KL pushes
each weight away from 0 with a force that grows with it."""
LENET_WEIGHTS = 431_080
"""Of models/lenet; stands for a net whose weights cannot be counted."""
DELTA_LR_MULT = 10
"""The rate of delta by that of the means; at 1, tau is far from its end when training ends."""
TAU_INIT = 0.1
"""At 0.4, the default of `bayes_param`, short trainings end before the noise has died down."""


def kl_weight(dataset_size: int, weights: int) -> float:
    """The kl_weight for so many training examples and Bayesian weights, with three digits."""
    scale = min(KL_STRENGTH / weights, KL_SCALE_MAX)
    return float(f"{scale * dataset_size:.3g}")
