"""Hyperparameters, chosen on held-out training images, and the file that keeps them.

Each family gets the same number of trials, one training each: one hyperparameter after the other
takes its other values, and the one with the lowest NLL stays. If that is the largest or the
smallest, still larger or smaller ones are tried, so that no method is held back by a list. Then
each method has its temperature, and what else it needs, fitted on the same images, with nets that
have not seen them.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_file
from bayescaffe.stats.draws import Draws
from bayescaffe.stats.metrics import nll
from bayescaffe.stats.temperature import best_temperature
from families import FAMILIES, Place, Settings, Training
from methods import HELD_OUT, METHODS, Fit, Use, mixture, predicted
from tasks import TASKS, Measured, load
from trained import train

SEED = 1
COMMAND = "make suite"
MOST_BEYOND = 2
"""Trials of a hyperparameter beyond its list."""
MOST_TRIALS = 10
"""Of a family, with those beyond its lists."""


@dataclass
class Tuned:
    """What tuning has chosen, by row."""

    path: Path
    rows: dict[str, dict] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Tuned":
        return cls(path, json.loads(path.read_text())["rows"] if path.exists() else {})

    def settings(self, row: str, family: str) -> Settings | None:
        found = self.rows.get(row, {}).get("families", {}).get(family)
        return found and Settings(**found["settings"])

    def fit(self, row: str, method: str) -> Fit | None:
        found = self.rows.get(row, {}).get("methods", {}).get(method)
        return found and Fit(**found)

    def keep(self, row: str, kind: str, name: str, found: dict) -> None:
        """Add what was found for a family or a method, and write the file."""
        self.rows.setdefault(row, {}).setdefault(kind, {})[name] = found
        order = {name: self.rows[name] for name in TASKS if name in self.rows}
        text = json.dumps({"command": COMMAND, "seed": SEED, "rows": order | self.rows}, indent=1)
        with scratch_file(self.path) as scratch:
            scratch.write_text(text + "\n")


def beyond(best: float, tried: Sequence[float]) -> float | None:
    """The next value behind the best, as far from it as the one before; None if it has neighbours
    on both sides, or is 0."""
    ordered = sorted(tried)
    if not best or best not in (ordered[0], ordered[-1]):
        return None
    next_to_it = ordered[1] if best == ordered[0] else ordered[-2]
    return best * best / next_to_it if next_to_it else None


def tune(row: str, family: str, start: Settings, draws: int, place: Place) -> dict:
    """The settings with the lowest NLL on held-out images, and that of every trial."""
    method = next(one for one in METHODS.values() if one.family == family)
    trials: dict[Settings, float] = {}

    def trial(settings: Settings) -> Settings:
        training = Training.of(row, family, settings, SEED, is_trial=True)
        try:
            found = Measured.read(predicted(training, method, draws, Fit(), place, HELD_OUT))
            trials[settings] = nll(found.test, found.labels)
        except BayesCaffeError as error:
            if "diverged" not in str(error):
                raise
            trials[settings] = math.inf
        return settings

    best = trial(start) if FAMILIES[family].choices else start
    left = FAMILIES[family].trials - 1  # of the lists
    for name, values in FAMILIES[family].choices:
        tried = [getattr(best, name), *values]
        for value in values:
            trial(replace(best, **{name: value}))
        best = min(trials, key=trials.get)
        left -= len(values)
        for _ in range(MOST_BEYOND):
            value = beyond(getattr(best, name), tried)
            if name == "dropout" or value is None or len(trials) + left >= MOST_TRIALS:
                break
            tried.append(value)
            trial(replace(best, **{name: value}))
            best = min(trials, key=trials.get)
    return {
        "settings": asdict(best),
        # JSON has no infinity.
        "trials": [
            asdict(settings) | {"nll": round(found, 5) if math.isfinite(found) else None}
            for settings, found in trials.items()
        ],
    }


def fit(row: str, name: str, settings: Settings, draws: int, place: Place) -> dict:
    """The temperature of a method, and what else it needs before it can predict."""
    method = METHODS[name]
    trainings = [Training.of(row, method.family, settings, seed) for seed in method.seeds(group=1)]
    found = Fit()
    if method.fit:
        use = Use(train(trainings[0], place), draws, found)
        images = load(TASKS[row], place.known, trainings[0].seed).held_out
        fitted = method.fit(use, *images)
        found = replace(found, **{name: float(f"{value:.3g}") for name, value in fitted.items()})
    paths = [predicted(training, method, draws, found, place, HELD_OUT) for training in trainings]
    given = mixture([Measured.read(path) for path in paths])
    temperature = best_temperature(Draws(given.test[np.newaxis], given.labels))
    return asdict(replace(found, temperature=round(temperature, 4)))
