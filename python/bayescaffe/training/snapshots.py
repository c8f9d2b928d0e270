"""Finds the snapshots of `caffe train` and checks that they are complete."""

import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.reading import open_regular
from bayescaffe.net.messages import read_message, read_state, read_weights


@dataclass(frozen=True)
class Snapshot:
    """A solver state that a training can resume from, and its weights."""

    iteration: int
    state: Path
    model: Path


def snapshot_prefix(solver_path: str | os.PathLike, solver) -> Path:
    """The start of the names of the solver's snapshots, by Caffe's rule."""
    path = Path(solver_path)
    if not solver.HasField("snapshot_prefix"):
        return path.with_suffix("")
    prefix = Path(solver.snapshot_prefix)
    return prefix / path.stem if prefix.is_dir() else prefix


def trained_net(solver_path: str | os.PathLike) -> tuple[Path, Path]:
    """The net of a solver as it is tested, and the weights of its newest good snapshot."""
    solver = read_message(solver_path, "SolverParameter")
    prefix = snapshot_prefix(solver_path, solver)
    faults: list[str] = []
    newest = newest_snapshot(prefix, faults.append)
    if newest is None:
        why = f"; {faults[0]}" if faults else f"; train it with `bayescaffe train {solver_path}`"
        raise BayesCaffeError(
            f"{solver_path}: there is no good snapshot {prefix}_iter_*.solverstate{why}"
        )
    return Path((*solver.test_net, solver.net, solver.train_net)[0]), newest.model


def list_states(prefix: Path) -> list[Path]:
    """All solver states with this prefix, the newest first.

    The newest is the one written last: if a training was started again, states of later iterations
    may remain from before.
    """
    if not prefix.parent.is_dir():
        return []
    paths = [path for path in prefix.parent.iterdir() if _iteration(prefix, path) is not None]
    return sorted(
        paths, key=lambda path: (path.stat().st_mtime_ns, _iteration(prefix, path)), reverse=True
    )


def newest_snapshot(prefix: Path, skipped: Callable[[str], None]) -> Snapshot | None:
    """The newest good snapshot. `skipped` is called with the fault of each newer one."""
    for path in list_states(prefix):
        try:
            return read_snapshot(path)
        except (BayesCaffeError, OSError) as error:
            skipped(str(error))
    return None


def read_snapshot(state: Path) -> Snapshot:
    """Check that a solver state and its caffemodel are complete and hold finite numbers."""
    iteration = int(re.search(r"_iter_(\d+)\.", state.name)[1])
    if state.suffix == ".h5":
        model = state.with_name(state.name.replace(".solverstate", ".caffemodel"))
        for path in (state, model):
            _check_hdf5(path)
        return Snapshot(iteration, state, model)
    message = read_state(state)
    model = Path(message.learned_net)
    # The solver has a history of each learned blob (Adam has two), so a caffemodel that was cut
    # off between two layers is noticed, too.
    layers = read_weights(model)
    blobs = Counter(blob.shape for layer in layers for blob in layer.blobs)
    histories = Counter(tuple(blob.shape.dim) for blob in message.history)
    if any(count > 2 * blobs[shape] for shape, count in histories.items()):
        raise BayesCaffeError(f"{model}: it lacks layers that {state.name} has")
    for layer in layers:
        if not all(np.isfinite(blob).all() for blob in layer.blobs):
            raise BayesCaffeError(f"{model}: the weights of layer '{layer.name}' are not finite")
    return Snapshot(iteration, state, model)


def _iteration(prefix: Path, path: Path) -> int | None:
    if not path.name.startswith(prefix.name):
        return None
    found = re.fullmatch(r"_iter_(\d+)\.solverstate(?:\.h5)?", path.name[len(prefix.name) :])
    return int(found[1]) if found else None


def _check_hdf5(path: Path) -> None:
    # The superblock tells where the file ends.
    with open_regular(path) as file:
        head = file.read(48)
    end = int.from_bytes(head[40:48], "little")
    if head[:8] != b"\x89HDF\r\n\x1a\n" or len(head) < 48 or path.stat().st_size < end:
        raise BayesCaffeError(f"{path}: damaged, or no HDF5 file")
