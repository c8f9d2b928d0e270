"""Watches a training by its log, and says what to change where something goes wrong."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.net import starting
from bayescaffe.net.checking import Finding, check_training
from bayescaffe.net.inference_net import TRAIN, layers_of_phase
from bayescaffe.net.layer_kinds import delta_rates, is_bayesian
from bayescaffe.net.net_files import epoch_iterations, read_net_files
from bayescaffe.net.objective import objective_of

FIRST_LOOK = 100
"""Iterations. Some nets are no better than a guess after an epoch of few images, which is a dozen
iterations, and learn well nevertheless."""
LEARNED_NOTHING = 0.99
"""Share of the loss of a constant guess. A net that has learned nothing stays within 0.2 % of it in
the mean of an epoch, on either side."""
LEARNED_LITTLE = 0.5
"""Share of the loss of a constant guess. A tau that has run away does no harm below it: the layer
is larger than the task demands. Losses were 0.07 of the guess there, and 0.4 to 1 where it did."""
MOVED = 0.01
"""Share of tau. LeNet's taus move by more than half within 100 iterations; with a rate of delta of
1 instead of 10, by a tenth of that."""
EXPLODED = 10
"""Times the loss at the start."""

_HIGHEST_LOSS = -math.log(2.0**-126)
"""SoftmaxWithLoss raises probabilities to the least normal float, so its loss ends at 87.34."""

Row = dict[str, float]
"""What the log tells of one iteration, as `training.log` names it."""


class Watch:
    """The findings of one training: those before its start, and those that its log gives rise to.

    Each rule looks at the rows of the log and returns what to say, or None.
    """

    def __init__(self, solver: Path, message, weights: Path | None = None) -> None:
        """Read the nets of a solver, whose `SolverParameter` is `message`.

        Args:
            weights: the caffemodel that the training starts from.
        """
        self._solver, self._base_lr = solver, message.base_lr
        self.before: list[Finding] = []
        self._layers: list = []
        self._objective, self._kl_term = objective_of([]), None
        self._epoch = 1
        # Caffe tells what is wrong with a net that cannot be read.
        with contextlib.suppress(BayesCaffeError, OSError):
            files = read_net_files(solver)
            net = files.nets[0].message
            layers = layers_of_phase(net, TRAIN)
            self._layers = [layer for layer in layers if is_bayesian(layer)]
            found = check_training(files, weights)
            self.before = found.findings
            self._objective, self._kl_term = found.objective, found.kl_term
            self._epoch = math.ceil(epoch_iterations(net) / max(1, message.iter_size))
        self._next_look = self._first_look = max(self._epoch, FIRST_LOOK)
        self._told: set[str] = set()

    def news(self, rows: Sequence[Row]) -> list[Finding]:
        """What the log gives rise to for the first time. Call it at each row."""
        texts = self._at_each_row(rows)
        if rows[-1]["iteration"] >= self._next_look:
            self._next_look = rows[-1]["iteration"] + self._first_look
            texts |= self._at_each_epoch(rows)
        new = {rule: text for rule, text in texts.items() if rule not in self._told}
        self._told |= new.keys()
        return self._findings(new)

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """All findings that hold at the end of a training."""
        if not rows:
            return self.before
        texts = self._at_each_row(rows)
        if rows[-1]["iteration"] >= self._first_look:
            texts |= self._at_each_epoch(rows)
        return [*self.before, *self._findings(texts)]

    def remedy(self, rows: Sequence[Row]) -> str:
        """What to change in a training that diverges."""
        if self._has_strong_kl(rows):
            return f"KL outweighs the data: {self._objective.advice}."
        if not self._layers:
            return f"Try a base_lr below {self._base_lr:g}."
        return (
            f"Try a base_lr below {self._base_lr:g} (Bayesian nets often need a smaller one than "
            "stock nets) or a smaller tau_init."
        )

    def _findings(self, texts: dict[str, str]) -> list[Finding]:
        return [Finding("warning", str(self._solver), text) for text in texts.values()]

    def _at_each_row(self, rows: Sequence[Row]) -> dict[str, str]:
        return _said(strong_kl=self._strong_kl(rows), exploded=self._exploded(rows))

    def _at_each_epoch(self, rows: Sequence[Row]) -> dict[str, str]:
        return _said(
            no_better_than_a_guess=self._no_better_than_a_guess(rows),
            noisy=self._noisy(rows),
            at_floor=self._at_floor(rows),
            at_start=self._at_start(rows),
        )

    # ---- Rules

    def _strong_kl(self, rows: Sequence[Row]) -> str | None:
        if self._kl_term is not None and self._objective.guess:
            return None  # is among those before
        if not self._has_strong_kl(rows):
            return None
        return self._objective.strong_kl(*_start(rows))

    def _has_strong_kl(self, rows: Sequence[Row]) -> bool:
        # At the start: a rate that is too high makes KL explode as well, later.
        kl_term, loss = _start(rows)
        kl_term = self._kl_term if self._kl_term is not None else kl_term
        return kl_term is not None and self._objective.is_strong(kl_term, loss)

    def _exploded(self, rows: Sequence[Row]) -> str | None:
        first, loss = _start(rows)[1] or 0.0, rows[-1].get("loss", 0.0)
        if not loss > EXPLODED * max(first, 1.0):
            return None
        text = f"the loss was {first:.4g} at the start and is {loss:.4g} at iteration "
        text += f"{rows[-1]['iteration']}"
        if abs(loss - _HIGHEST_LOSS) < 0.01:
            text += ", which means a probability of 0 for the true label of every image"
        return f"{text}. {self.remedy(rows)}"

    def _no_better_than_a_guess(self, rows: Sequence[Row]) -> str | None:
        loss, guess = self._recent_loss(rows), self._objective.guess
        if loss is None or guess is None or loss < LEARNED_NOTHING * guess:
            return None
        remedy = (
            self.remedy(rows)
            if self._has_strong_kl(rows)
            else f"Change base_lr, {self._base_lr:g}: raise it if the loss has hardly moved, lower "
            "it if the loss has jumped; and look whether the labels are right."
        )
        return (
            f"the loss is {loss:.3g} after {rows[-1]['iteration']} iterations, and that of a "
            f"constant guess is {guess:.3g}: the net has learned nothing. {remedy}"
        )

    def _noisy(self, rows: Sequence[Row]) -> str | None:
        if self._has_strong_kl(rows):  # which says what to change
            return None
        loss, reference = self._recent_loss(rows), self._objective.guess or _start(rows)[1]
        if loss is None or reference is None or loss < LEARNED_LITTLE * reference:
            return None
        return self._objective.noisy(next(_taus(rows), {}))

    def _at_floor(self, rows: Sequence[Row]) -> str | None:
        if self._has_strong_kl(rows):  # which drives tau up and down without end
            return None
        # Twice in a row: a step may take tau to its floor, and the next one away from it.
        taus = _taus(rows)
        last, before = next(taus, {}), next(taus, {})
        return self._objective.at_floor(
            {name: max(tau, before.get(name, math.inf)) for name, tau in last.items()}, self._layers
        )

    def _at_start(self, rows: Sequence[Row]) -> str | None:
        # Of all layers: one may come back to where it started.
        last, first = next(_taus(rows), {}), next(_taus(rows[::-1]), {})
        if not last or any(
            abs(tau / first.get(name, math.inf) - 1) > MOVED for name, tau in last.items()
        ):
            return None
        rate = starting.DELTA_LR_MULT
        rates = [rate for layer in self._layers for rate in delta_rates(layer)]
        remedy = (
            f"set lr_mult: {rate} in the params of delta, which come after those of the means"
            if min(rates, default=1) < rate
            else f"raise base_lr, {self._base_lr:g}"
        )
        return (
            f"tau of every layer is within {MOVED:.0%} of its start after {rows[-1]['iteration']} "
            f"iterations, so the posterior is not learned; {remedy}"
        )

    def _recent_loss(self, rows: Sequence[Row]) -> float | None:
        """The mean loss of the latest epoch, without KL."""
        counts_kl = any(any(layer.loss_weight) for layer in self._layers)
        losses = []
        for row in reversed(rows):
            if losses and row["iteration"] <= rows[-1]["iteration"] - self._epoch:
                break
            if "loss" in row:
                losses.append(row["loss"] - counts_kl * row.get("kl_term", 0.0))
        return sum(losses) / len(losses) if losses else None


def _said(**texts: str | None) -> dict[str, str]:
    return {rule: text for rule, text in texts.items() if text}


def _start(rows: Sequence[Row]) -> tuple[float | None, float | None]:
    """What KL adds to the loss, and the loss, as they were logged first."""
    return tuple(
        next((row[name] for row in rows if name in row), None) for name in ("kl_term", "loss")
    )


def _taus(rows: Sequence[Row]) -> Iterator[Row]:
    """tau of the weights by layer, of the latest row and of those before."""
    for row in reversed(rows):
        taus = {
            name.removeprefix("tau:"): tau for name, tau in row.items() if name.startswith("tau:")
        }
        if taus:
            yield taus
