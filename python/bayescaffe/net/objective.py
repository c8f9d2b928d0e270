"""The two parts of what a training minimizes, the loss of the data and KL, and their balance."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bayescaffe.net import starting
from bayescaffe.net.layer_kinds import data_tops, is_bayesian
from bayescaffe.net.shapes import layer_shapes

STRONG_KL = 2
"""KL is too strong if it starts above so many times the loss of a constant guess. Learning can gain
one such loss at most. A net of four layers, on 480 drawn pictures of four classes, was at its best
where KL started at 0.35 and 1.06 times the guess. At 3.5 times it, the error was 39 % in place of
2 %; at 11 times, the net learned nothing; at 35 times, its loss became NaN."""
ABOVE_RULE = 2
"""And kl_weight must be above so many times the default. A large net has a large KL: with the
default, that of AlexNet starts at 2.7 times the guess."""
NOISY_TAU = 10
"""The mean of 100 draws, the default of `sample`, of a weight with this tau is as uncertain as the
weight is large. Where KL was too strong, tau of a layer ended above 25; LeNet's highest is 1."""
FLOOR_MARGIN = 1.01
"""A tau below so many times tau_min is at its floor: the log has six digits of it."""


@dataclass(frozen=True)
class Objective:
    """What is known of the loss and of KL before the training."""

    guess: float | None
    """The loss of a constant guess, ln C for C classes; None if it is not known."""
    kl_weight: float
    """The largest of the net; 0 without Bayesian layers."""
    proposed_kl_weight: float | None
    """The default of the net; None if its weights or dataset_size are not known."""

    @property
    def is_above_rule(self) -> bool:
        """Whether kl_weight is clearly above the default, or not known to be near it."""
        return self.kl_weight > ABOVE_RULE * (self.proposed_kl_weight or 0)

    @property
    def advice(self) -> str:
        """The smaller kl_weight to try."""
        if self.is_above_rule and self.proposed_kl_weight is None:
            return f"kl_weight is {self.kl_weight:g}, leave it out: the net then chooses it"
        value = self.proposed_kl_weight if self.is_above_rule else self.kl_weight / 10
        return f"kl_weight is {self.kl_weight:.3g}, try kl_weight: {value:.3g}"

    def is_strong(self, kl_term: float, loss: float | None = None) -> bool:
        """Whether KL is too strong at the start of a training.

        Args:
            kl_term: what it adds to the loss.
            loss: the loss at the start, for nets whose guess is not known.
        """
        reference = self.guess or loss
        return self.is_above_rule and bool(reference) and kl_term > STRONG_KL * reference

    def strong_kl(self, kl_term: float, loss: float | None = None) -> str:
        """What to say of a KL that is too strong."""
        return (
            f"KL adds {kl_term:.3g} to a loss that starts near {self.guess or loss:.3g}, so the "
            f"data will hardly be learned; {self.advice}"
        )

    def noisy(self, taus: Mapping[str, float]) -> str | None:
        """What to say of layers whose tau has run away, by their taus; None if there are none."""
        noisy = [f"{name} ({tau:.3g})" for name, tau in taus.items() if tau > NOISY_TAU]
        if not noisy or not self.kl_weight:
            return None
        return (
            f"tau has run away in {', '.join(noisy)}: these weights are mostly noise, as KL "
            f"outweighs the data there; if the net's error is high, {self.advice}"
        )

    def at_floor(self, taus: Mapping[str, float], layers: Iterable) -> str | None:
        """What to say of layers whose tau is at its floor; None if there are none."""
        floors = {layer.name: layer.bayes_param.tau_min for layer in layers}
        low = [name for name, tau in taus.items() if tau < FLOOR_MARGIN * floors.get(name, 0)]
        if not low:
            return None
        text = (
            f"tau is at its floor, tau_min, in {', '.join(low)}, so these weights have lost their "
            "uncertainty; "
        )
        proposed = self.proposed_kl_weight
        if proposed is not None and self.kl_weight < proposed / ABOVE_RULE:
            return text + f"kl_weight is {self.kl_weight:g}, try kl_weight: {proposed:.3g}"
        rate = starting.DELTA_LR_MULT
        return text + (
            f"lower the lr_mult of their delta, which comes after those of the means ({rate} "
            "suits most nets)"
        )


def objective_of(layers: Sequence, net=None, weights: int | None = None) -> Objective:
    """The objective of the layers of phase TRAIN.

    Args:
        net: that of pycaffe, which tells the numbers of classes and of weights.
        weights: the number of Bayesian weights, if there is no such net.
    """
    bayesian = {layer.name: layer.bayes_param for layer in layers if is_bayesian(layer)}
    if net is not None:
        shapes = layer_shapes(net, layers)
        weights = sum(layer.parameters for layer in shapes if layer.name in bayesian)
    size = max((param.dataset_size for param in bayesian.values()), default=0)
    proposed = starting.kl_weight(size, weights) if size and weights else None
    kl_weights = [
        param.kl_weight if param.HasField("kl_weight") else proposed or 0
        for param in bayesian.values()
    ]
    return Objective(_guess(layers, net), max(kl_weights, default=0), proposed)


def _guess(layers: Sequence, net) -> float | None:
    """The loss of a constant guess, if the net has no other loss than SoftmaxWithLoss."""
    total = 0.0
    for layer in layers:
        if layer.type != "SoftmaxWithLoss":
            if layer.type.endswith("Loss") or any(layer.loss_weight[: len(data_tops(layer))]):
                return None
            continue
        if net is None:
            return None
        shape = net.blobs[layer.bottom[0]].data.shape
        axis = layer.softmax_param.axis % len(shape)
        if not _is_mean(layer.loss_param, math.prod(shape[axis + 1 :])):
            return None
        total += math.log(shape[axis]) * (layer.loss_weight[0] if layer.loss_weight else 1)
    return total or None


def _is_mean(param, places: int) -> bool:
    """Whether a loss is a mean over images and over their places, of which there may be one."""
    if not param.HasField("normalization") and param.HasField("normalize"):
        return param.normalize or places == 1
    return param.normalization in (param.FULL, param.VALID) or (
        param.normalization == param.BATCH_SIZE and places == 1
    )
