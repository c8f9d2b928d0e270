"""What is to be done, how long it takes, and the processes that do it."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
from families import FAMILIES, SWAG_SHARE, Place, Settings, Training
from methods import METHODS, Fit, Method, Result, predicted, prediction_file, result
from scores import Scores, score
from side_by_side import side_by_side
from tasks import TASKS
from trained import is_trained
from tuning import Tuned, fit, tune


@dataclass(frozen=True)
class Job:
    """One call of a function in a process of its own."""

    name: str
    run: Callable
    arguments: tuple
    seconds: float
    """What it takes on one core, roughly."""
    done: Callable[[object], None] = lambda found: None
    """What to do with the outcome."""


@dataclass(frozen=True)
class Plan:
    """What the command line asks for."""

    place: Place
    tuned: Tuned
    rows: Sequence[str]
    methods: Sequence[str]
    seeds: int = 5
    ensembles: int = 1
    draws: int = 20
    jobs: int = 1
    dask: str | None = None
    """The address of a scheduler, whose workers run the jobs then."""

    def run(self, quiet: bool = False) -> None:
        """Tune what is not tuned, then train, predict and measure what is not there."""
        stages = (self.tuning, self.tuning_after, self.fitting, self.predicting, self.measuring)
        for stage in stages:
            run_jobs(list(stage()), self.jobs, quiet, self.dask)

    def estimate(self) -> str:
        """In words, how long everything takes that is not done."""
        untuned = {
            (row, family) for row in self.rows for family in self._families(row)
            if self.tuned.settings(row, family) is None
        }  # fmt: skip
        trials = sum(FAMILIES[family].trials for _, family in untuned)
        seconds = sum(self._tuning_seconds(row, family) for row, family in untuned)
        seconds += sum(job.seconds for job in self.fitting(guess=True))
        final = list(self.predicting(guess=True))
        seconds += sum(job.seconds for job in final)
        return (
            f"To do: {trials} trials of tuning, {len(final)} nets to train or to predict with; "
            f"about {_time(seconds / self.jobs)} with {self.jobs} side by side"
        )

    # ---- Stages ---------------------------------------------------------------------------------

    def tuning(self, later: bool = False) -> Iterator[Job]:
        for row in self.rows:
            for name in self._families(row):
                family = FAMILIES[name]
                if self.tuned.settings(row, name) is not None or bool(family.after) != later:
                    continue
                start = family.start
                if family.after:
                    base = self.tuned.settings(row, family.after)  # tuned a stage before
                    start = replace(base, constant_rate=start.constant_rate)
                yield Job(
                    f"tune {row} {name}",
                    tune,
                    (row, name, start, self.draws, self.place),
                    self._tuning_seconds(row, name),
                    lambda found, row=row, name=name: self.tuned.keep(row, "families", name, found),
                )

    def tuning_after(self) -> Iterator[Job]:
        """The families that start from what another has chosen."""
        return self.tuning(later=True)

    def fitting(self, guess: bool = False) -> Iterator[Job]:
        for row in self.rows:
            for name in self._methods(row):
                if self.tuned.fit(row, name) is not None:
                    continue
                method = METHODS[name]
                settings = self._settings(row, method, guess)
                yield Job(
                    f"fit {row} {name}",
                    fit,
                    (row, name, settings, self.draws, self.place),
                    self._fitting_seconds(row, method, settings),
                    lambda found, row=row, name=name: self.tuned.keep(row, "methods", name, found),
                )

    def predicting(self, guess: bool = False) -> Iterator[Job]:
        """A job for each net: train it, then predict by every method that uses it."""
        wanted: dict[Training, dict[str, tuple[Method, Fit]]] = {}
        for row, name, chosen in self._chosen(guess):
            if self.is_measured(row, name):
                continue
            method = METHODS[name]
            settings = self._settings(row, method, guess)
            for group in range(1, self.groups(method) + 1):
                for seed in method.seeds(group):
                    training = Training.of(row, method.family, settings, seed)
                    path = prediction_file(training, method, self.draws, chosen, self.place)
                    if not path.exists() or not is_trained(training, self.place):
                        uses = wanted.setdefault(training, {})
                        uses.setdefault(path.name, (method, chosen))
        for training, uses in wanted.items():
            seconds = self._prediction_seconds(training, uses)
            if not is_trained(training, self.place):
                seconds += self._training_seconds(training.row, training.family)
            arguments = (training, list(uses.values()), self.draws, self.place)
            yield Job(str(training), predict_all, arguments, seconds)

    def measuring(self) -> Iterator[Job]:
        for row in self.rows:
            for name in self._methods(row):
                if not self.is_measured(row, name):
                    yield Job(f"measure {row} {name}", self.measure, (row, name), 5)

    def measure(self, row: str, name: str) -> None:
        """Write the scores of a method, whose predictions are there."""
        found, method = self.tuned.fit(row, name), METHODS[name]
        # What is tempered already stays as it is.
        temperature = 1.0 if method.is_tempered else found.temperature
        results = self.results(row, name)
        scores = score([one.found for one in results], temperature)
        origins = sorted(set().union(*(one.origins for one in results)))
        facts = {"made of": self._made_of(row, name), "origins": origins}
        scores.save(self.score_file(row, name), facts)

    # ---- Scores ---------------------------------------------------------------------------------

    def score_file(self, row: str, name: str) -> Path:
        return self.place.scores / row / f"{name}.npz"

    def is_measured(self, row: str, name: str) -> bool:
        """Whether the scores of a method are there, of the settings that it has today."""
        facts = Scores.facts(self.score_file(row, name))
        if facts is None:
            return False
        made_of = facts["made of"]
        # Fields that are new since then have their defaults.
        settings, fit = asdict(Settings(**made_of["settings"])), asdict(Fit(**made_of["fit"]))
        return made_of | {"settings": settings, "fit": fit} == self._made_of(row, name)

    def scores(self, row: str, name: str) -> Scores | None:
        """What a method scores; None if it is not measured."""
        if name not in TASKS[row].methods or not self.is_measured(row, name):
            return None
        return Scores.read(self.score_file(row, name))

    def origins(self, row: str, name: str) -> list[str]:
        """The commits and machines of the nets that were measured."""
        return Scores.facts(self.score_file(row, name))["origins"]

    def _made_of(self, row: str, name: str) -> dict | None:
        """What decides the scores of a method; other options of its nets are not noticed."""
        method, task, chosen = METHODS[name], TASKS[row], self.tuned.fit(row, name)
        settings = self.tuned.settings(row, method.family)
        if chosen is None or settings is None:
            return None
        budget = ("images", "iterations", "base_lr", "decay")
        return {
            "settings": asdict(settings),
            "fit": asdict(chosen),
            "draws": self.draws,
            "results": self.groups(method),
            "row": {field: getattr(task, field) for field in budget},
        }

    # ---- What belongs together ------------------------------------------------------------------

    def groups(self, method: Method) -> int:
        """How many results a method has: one for each seed, or for each ensemble."""
        return self.seeds if method.members == 1 else self.ensembles

    def results(self, row: str, name: str) -> list[Result] | None:
        """What a method has predicted for a row; None if something is missing."""
        method, chosen = METHODS[name], self.tuned.fit(row, name)
        settings = self.tuned.settings(row, method.family)
        if chosen is None or settings is None or name not in TASKS[row].methods:
            return None
        groups = range(1, self.groups(method) + 1)
        found = [
            result(row, method, settings, chosen, group, self.draws, self.place) for group in groups
        ]
        return None if any(one is None for one in found) else found

    def _methods(self, row: str) -> list[str]:
        return [name for name in self.methods if name in TASKS[row].methods]

    def _families(self, row: str) -> list[str]:
        """The families of the methods, and those that they start from."""
        direct = {METHODS[name].family for name in self._methods(row)}
        needed = direct | {FAMILIES[name].after for name in direct}
        return [name for name in FAMILIES if name in needed]

    def _chosen(self, guess: bool) -> Iterator[tuple[str, str, Fit]]:
        for row in self.rows:
            for name in self._methods(row):
                found = self.tuned.fit(row, name)
                yield row, name, Fit() if found is None and guess else found

    def _settings(self, row: str, method: Method, guess: bool) -> Settings:
        found = self.tuned.settings(row, method.family)
        return FAMILIES[method.family].start if found is None and guess else found

    # ---- Seconds --------------------------------------------------------------------------------

    def _tuning_seconds(self, row: str, family: str) -> float:
        found, task = FAMILIES[family], TASKS[row]
        share = 1 if found.after else task.trial_share
        return found.trials * self._training_seconds(row, family) / share

    def _fitting_seconds(self, row: str, method: Method, settings: Settings) -> float:
        trainings = [Training.of(row, method.family, settings, n) for n in method.seeds(group=1)]
        new = sum(not is_trained(training, self.place) for training in trainings)
        return new * self._training_seconds(row, method.family) + 2

    def _training_seconds(self, row: str, family: str) -> float:
        """Of a net that is no trial."""
        folder = self.place.out / "nets" / row / str(TASKS[row].iterations)
        done = folder.glob(f"{family}_*/seed-*/done.json")
        known = [json.loads(path.read_text())["seconds"] for path in done]
        if known:
            return fmean(known)
        task = TASKS[row]
        return task.iterations * task.step / (SWAG_SHARE if family == "swag" else 1)

    def _prediction_seconds(self, training: Training, uses: dict) -> float:
        folder = self.place.out / "nets" / training.row / str(training.iterations)
        seconds = 0.0
        for name in uses:
            known = []
            for path in folder.glob(f"{training.family}_*/seed-*/{name}"):
                with np.load(path) as file:
                    known.append(float(file["seconds"]))
            task, draws = training.task, self.draws if "draws" in name else 1
            seconds += fmean(known) if known else task.measured * task.look * draws
        return seconds


def predict_all(
    training: Training, uses: Sequence[tuple[Method, Fit]], draws: int, place: Place
) -> None:
    """Train a net and predict by several methods."""
    for method, chosen in uses:
        predicted(training, method, draws, chosen, place)


def run_jobs(
    jobs: Sequence[Job], processes: int, quiet: bool = False, dask: str | None = None
) -> None:
    """Run jobs, the longest first, and say after each how long the others take."""
    if not jobs:
        return
    ordered = sorted(jobs, key=lambda job: -job.seconds)
    left, spent, started = sum(job.seconds for job in jobs), 0.0, time.monotonic()
    with side_by_side(processes, dask) as submit:
        waiting = {submit(job.run, *job.arguments): job for job in ordered}
        for number, future in enumerate(as_completed(waiting), 1):
            job = waiting[future]
            job.done(future.result())
            left, spent = left - job.seconds, spent + job.seconds
            rate = (time.monotonic() - started) / spent
            if not quiet:
                words = f"{number} of {len(jobs)}: {job.name}; {_time(left * rate)} left"
                print(words, file=sys.stderr, flush=True)


def _time(seconds: float) -> str:
    """Such as 3 h 20 min, or 40 s."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
