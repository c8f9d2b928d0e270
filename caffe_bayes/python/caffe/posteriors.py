"""Net.posteriors and Net.taus: how uncertain each Bayesian layer is of its parameters."""

from typing import NamedTuple

import numpy as np


class Posterior(NamedTuple):
    """The posterior of one Bayesian layer, as the net has it now."""

    taus: tuple[float, ...]
    """tau of each parameter blob, weights first: the standard deviation as a multiple of |m|. The
    median, if outputs or weights have their own."""
    kl: float
    """KL(q || p) of all its parameters in nats, without those that another layer owns."""
    kl_scale: float
    """What KL is multiplied by in the objective: kl_weight / dataset_size, or the default. During a
    ramp of KL, what it rises to."""
    tau_ranges: tuple[tuple[float, float], ...]
    """The lowest and the highest tau of each parameter blob."""

    @property
    def kl_term(self):
        """What KL adds to the objective."""
        return self.kl * self.kl_scale


def posteriors(net):
    """The Posterior of each Bayesian layer by the layer's name, in the order of the net.

    Layer `name` has n = len(posteriors[name].taus) parameter blobs: net.params[name][:n] are their
    means m, net.params[name][n : 2 * n] their delta, net.params[name][2 * n :] the noise epsilon.
    """
    found = {}
    for name, taus, kl, kl_scale in net._posteriors():
        medians = tuple(median for median, _, _ in taus)
        ranges = tuple((lowest, highest) for _, lowest, highest in taus)
        found[name] = Posterior(medians, kl, kl_scale, ranges)
    return found


def taus(net, name):
    """All taus of the Bayesian layer `name`: an array for its weights, and one for its biases.

    An array has the shape of delta, so it broadcasts to the means: tau * abs(m) is the standard
    deviation of each weight.
    """
    blobs = net.params[name]
    count = len(blobs) // 3
    return [
        np.frombuffer(net._taus(name, i)).reshape(blobs[count + i].data.shape) for i in range(count)
    ]
