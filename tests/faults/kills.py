"""Kills a command with SIGKILL at a random moment; the next run must end as if nothing had been."""

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from bayescaffe.net.packing import is_packed
from trial import BAYESCAFFE, CAFFE, Outcome, Trial, run
from world import ITERATIONS, World, numbers, remove

FULL, SAMPLE = 50, 4
"""Moments for each command."""


@dataclass(frozen=True)
class Command:
    """A command that writes into the folder of a trial, and how to run it once more."""

    name: str
    first: Sequence[str]
    again: Sequence[str]
    results: Sequence[str]
    """The files that it is run for. Logs tell times, so they differ."""
    packs: bool = False
    """Whether all caffemodels carry their net in the end."""


def commands(world: World, folder: Path) -> Iterator[Command]:
    solver, model = str(folder / "run.solver.prototxt"), f"run_iter_{ITERATIONS}.caffemodel"
    trained = (model, f"run_iter_{ITERATIONS}.solverstate")
    train = (*BAYESCAFFE, "train", solver, "--quiet")
    resume = (*train, "--resume")
    yield Command("caffe train", (CAFFE, "train", "-solver", solver), resume, trained)
    yield Command("bayescaffe train", train, resume, trained, packs=True)
    sample = (*BAYESCAFFE, "sample", world.net, world.model, "--passes", "400", "--quiet")
    sample = (*map(str, sample), "--out", str(folder / "draws.npz"))
    yield Command("bayescaffe sample", sample, sample, ("draws.npz",))
    data = (*BAYESCAFFE, "data", "idx", str(world.idx), "--quiet", "--out", str(folder / "data"))
    yield Command("bayescaffe data", data, data, ("data/train_lmdb/data.mdb",))


def jobs(world: World, seed: str, full: bool) -> Iterator[Trial]:
    """Each command, killed at moments spread over the time that it takes."""
    random = Random(f"{seed} kills")
    for number, name in enumerate(one.name for one in commands(world, world.folder)):
        folder = world.folder / f"kill {number}"
        expected, seconds = _without_fault(world, number, folder)
        for k in range(FULL if full else SAMPLE):
            moment = random.uniform(0, 1.05 * seconds)
            yield Trial(
                f"{name}, killed after {moment:.3f} s",
                partial(
                    _try, world, number, folder.with_name(f"{folder.name} {k}"), moment, expected
                ),
            )


def _prepared(world: World, number: int, folder: Path) -> Command:
    world.new_training(folder)
    return list(commands(world, folder))[number]


def _without_fault(world: World, number: int, folder: Path) -> tuple[dict[str, str], float]:
    command = _prepared(world, number, folder)
    start = time.monotonic()
    done = run(command.first, folder)
    seconds = time.monotonic() - start
    if done.code:
        raise RuntimeError(f"{command.name} failed without a fault:\n{done.text}")
    return _results(command, folder), seconds


def _results(command: Command, folder: Path) -> dict[str, str]:
    """The hashes of the results, without paths and times that they hold."""
    found = {
        name: hashlib.sha256(b"".join(numbers(folder / name))).hexdigest()
        for name in command.results
        if (folder / name).exists()
    }
    if command.packs:
        found |= {path.name: "packed" for path in folder.glob("*.caffemodel") if is_packed(path)}
    return found


def _try(
    world: World, number: int, folder: Path, moment: float, expected: dict[str, str]
) -> tuple[Outcome, str]:
    command = _prepared(world, number, folder)
    run(command.first, folder, kill_after=moment)
    done = run(command.again, folder)
    if done.code:
        return done.outcome, done.text
    remains = [
        str(path) for path in folder.rglob("*") if path.name.endswith(".tmp") or "-tmp" in path.name
    ]
    results = _results(command, folder)
    if results != expected or remains:
        return Outcome.WRONG, f"expected {expected}, found {results}, remains {remains}"
    remove(folder)
    return Outcome.ACCEPTED, done.text
