"""Net.posteriors: how uncertain each Bayesian layer is of its parameters."""

from typing import NamedTuple


class Posterior(NamedTuple):
    """The posterior of one Bayesian layer, as the net has it now."""

    taus: tuple[float, ...]
    """tau of each parameter blob, weights first: the standard deviation as a multiple of |m|."""
    kl: float
    """KL(q || p) of all its parameters in nats, without those that another layer owns."""
    kl_term: float
    """What that adds to the objective: KL times kl_weight / dataset_size."""


def posteriors(net):
    """The Posterior of each Bayesian layer by the layer's name, in the order of the net.

    Layer `name` has n = len(posteriors[name].taus) parameter blobs: net.params[name][:n] are their
    means m, net.params[name][n : 2 * n] their delta, net.params[name][2 * n :] the noise epsilon.
    """
    return {
        name: Posterior(tuple(taus), kl, kl_term) for name, taus, kl, kl_term in net._posteriors()
    }
