"""Net.posteriors: how uncertain each Bayesian layer is of its parameters."""

from typing import NamedTuple


class Posterior(NamedTuple):
    """The posterior of one Bayesian layer, as the net has it now."""

    taus: tuple[float, ...]
    """tau of each parameter blob, weights first: the standard deviation as a multiple of |m|."""
    kl: float
    """KL(q || p) of all its parameters in nats, without those that another layer owns."""
    kl_scale: float
    """What KL is multiplied by in the objective: kl_weight / dataset_size, or the default. During a
    ramp of KL, what it rises to."""

    @property
    def kl_term(self):
        """What KL adds to the objective."""
        return self.kl * self.kl_scale


def posteriors(net):
    """The Posterior of each Bayesian layer by the layer's name, in the order of the net.

    Layer `name` has n = len(posteriors[name].taus) parameter blobs: net.params[name][:n] are their
    means m, net.params[name][n : 2 * n] their delta, net.params[name][2 * n :] the noise epsilon.
    """
    return {
        name: Posterior(tuple(taus), kl, kl_scale) for name, taus, kl, kl_scale in net._posteriors()
    }
