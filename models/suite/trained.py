"""Trained nets: each is trained once, and again if its prototxts have changed."""

import contextlib
import fcntl
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import bayescaffe
from bayescaffe.common import provenance
from bayescaffe.common.files import scratch_file
from families import FAMILIES, Place, Training, Written


@dataclass(frozen=True)
class Trained:
    """A net that is trained."""

    training: Training
    folder: Path
    net: Path
    weights: Path
    data: Path
    """The folder of the LMDBs that it was trained on."""
    origin: str
    """The commit and the machine."""


def train(training: Training, place: Place) -> Trained:
    """Train a net, unless it is done; go on where an earlier run was interrupted."""
    with _locked(training.folder(place)) as folder:
        written = FAMILIES[training.family].write(training, folder, place)
        done = folder / "done.json"
        if not _is_of(written, done):
            if done.exists():  # of other prototxts
                for old in (*folder.glob("*.npz"), *folder.rglob("*_iter_*"), done):
                    old.unlink()
            if written.first:
                first = train(written.first, place)
                written = replace(written, weights=written.weights or first.weights)
            record = _train(written, folder)
            with scratch_file(done) as scratch:
                scratch.write_text(json.dumps(record) + "\n")
        record = json.loads(done.read_text())
    weights, data = folder / record["weights"], training.data(place)
    return Trained(training, folder, written.net, weights, data, record["origin"])


def is_trained(training: Training, place: Place) -> bool:
    """Whether a training is done, with the prototxts that it has today."""
    if not (training.folder(place) / "done.json").exists():
        return False
    with _locked(training.folder(place)) as folder:
        written = FAMILIES[training.family].write(training, folder, place)
        return _is_of(written, folder / "done.json")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """Another process may need the same net."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _is_of(written: Written, done: Path) -> bool:
    return done.exists() and json.loads(done.read_text())["inputs"] == written.inputs


def _train(written: Written, folder: Path) -> dict:
    origin = f"commit {provenance.commit(Path(__file__).parent)} on {provenance.machine()}"
    started = time.monotonic()
    resume = any(folder.rglob("*.solverstate"))
    found = bayescaffe.train(written.solver, resume=resume, weights=written.weights, progress=False)
    for path in folder.rglob("*.solverstate"):
        path.unlink()
    return {
        "inputs": written.inputs,
        "weights": str(found.snapshot.relative_to(folder)),
        "seconds": round(time.monotonic() - started, 1),
        "origin": origin,
    }
