"""What the campaigns damage: a small image set, a net, its training, its draws."""

import hashlib
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bayescaffe import load_draws
from bayescaffe.common.pycaffe import read_binary
from bayescaffe.net.messages import read_weights
from trial import BAYESCAFFE, CAFFE, REPO, run

sys.path.insert(0, str(REPO / "tests/python"))
from conftest import small_net, write_digits, write_solver  # noqa: E402

ITERATIONS = 2000
SNAPSHOT = 20
"""A snapshot takes about as long as the iterations between two of them, so kills hit both."""


@dataclass(frozen=True)
class World:
    """Files that no trial changes: a trial works on a copy."""

    folder: Path

    @property
    def solver(self) -> Path:
        return self.folder / "train/run.solver.prototxt"

    @property
    def net(self) -> Path:
        return self.folder / "train/run.net.prototxt"

    @property
    def model(self) -> Path:
        return self.folder / f"train/run_iter_{ITERATIONS}.caffemodel"

    @property
    def state(self) -> Path:
        return self.folder / f"train/run_iter_{ITERATIONS}.solverstate"

    @property
    def draws(self) -> Path:
        return self.folder / "draws.npz"

    @property
    def idx(self) -> Path:
        return self.folder / "idx"

    def new_training(self, folder: Path) -> Path:
        """Write the net and its solver, not trained yet, into a folder."""
        folder.mkdir(parents=True)
        text = small_net(self.folder, "dataset_size: 330")
        # It is tested as well, as a user's net is.
        tests = {"test_iter": 5, "test_interval": 50, "display": 100}
        solver = write_solver(folder, text, ITERATIONS, snapshot=SNAPSHOT, **tests)
        solver.write_text(solver.read_text().replace("train_net:", "net:"))
        return solver


def make_world(folder: Path) -> World:
    """Train a net without any fault, and draw from it."""
    world = World(folder)
    write_digits(world.idx, train=330, test=100, size=12, classes=4)
    commands = [
        (*BAYESCAFFE, "data", "idx", world.idx, "--out", folder),
        (CAFFE, "train", "-solver", world.new_training(folder / "train")),
        (*BAYESCAFFE, "sample", world.net, world.model, "--passes", "8", "--out", world.draws),
    ]
    for command in commands:
        done = run(command, folder)
        if done.code:
            raise RuntimeError(f"{command} failed without a fault:\n{done.text}")
    return world


def content(folder: Path) -> dict[str, str]:
    """The hash of each file of a folder, by its path within it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def numbers(path: Path) -> Iterator[bytes]:
    """What a file is written for, without paths and times that it holds."""
    if path.suffix == ".caffemodel":
        for layer in read_weights(path):
            yield from (blob.tobytes() for blob in layer.blobs)
    elif path.suffix == ".solverstate":
        state = read_binary(path, "SolverState", "solver state")
        yield str(state.iter).encode()
        yield from (np.array(blob.data).tobytes() for blob in state.history)
    elif path.suffix == ".npz":
        yield np.asarray(load_draws(path).probabilities).tobytes()
    else:
        yield path.read_bytes()


def remove(folder: Path) -> None:
    """Leave no files of a trial that went well."""
    shutil.rmtree(folder, ignore_errors=True)
