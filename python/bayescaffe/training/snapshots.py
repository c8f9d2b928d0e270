"""Finds the snapshots of `caffe train` and checks that they are complete."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bayescaffe.common.errors import BayesCaffeError, argument
from bayescaffe.common.pycaffe import caffe_says, import_pycaffe
from bayescaffe.net.messages import read_message


@dataclass(frozen=True)
class Snapshot:
    """A solver state that a training can resume from, and its weights."""

    iteration: int
    state: Path
    model: Path
    training: int | None
    """What tells it from those of other trainings; None if an older version wrote it."""


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
    return tested_net(solver), newest.model


def tested_net(solver) -> Path:
    """The net of a `SolverParameter` as it is tested, or as it is trained if it is not tested."""
    return Path(next(filter(None, (*solver.test_net, solver.net, solver.train_net)), ""))


def list_states(prefix: Path) -> list[Path]:
    """All solver states with this prefix, the newest first.

    The newest is the one written last: if a training was started again, states of later iterations
    may remain from before.
    """
    if not prefix.parent.is_dir():
        return []
    paths = [path for path in prefix.parent.iterdir() if _iteration(prefix, path) is not None]
    return sorted(
        filter(Path.is_file, paths),
        key=lambda path: (path.stat().st_mtime_ns, _iteration(prefix, path)),
        reverse=True,
    )


def newest_iteration(prefix: Path) -> int:
    """The iteration of the newest solver state with this prefix, by its name; 0 without one."""
    states = list_states(prefix)
    return _iteration(prefix, states[0]) if states else 0


def newest_snapshot(
    prefix: Path, skipped: Callable[[str], None], training: int | None = None
) -> Snapshot | None:
    """The newest good snapshot. `skipped` is called with the fault of each newer one.

    Args:
        training: the `training_hash` of the solver, for snapshots of no other training.

    Raises:
        BayesCaffeError: all that are good are of another training, which must not be overwritten.
    """
    others = []
    for path in list_states(prefix):
        try:
            found = read_snapshot(path)
        except (BayesCaffeError, OSError) as error:
            skipped(str(error))
            continue
        if training is None or found.training in (None, training):
            return found
        others.append(path)
        skipped(f"{path}: of another training, which had another net or solver")
    if others:
        raise BayesCaffeError(
            f"{others[0]}: of another training, which had another net or solver. Give the solver "
            f"another snapshot_prefix, or start from scratch without {argument('resume')}"
        )
    return None


def read_snapshot(state: Path) -> Snapshot:
    """Check that a solver state and its weights are complete, finite and belong together."""
    with caffe_says():
        iteration, model, training = import_pycaffe("caffe").check_snapshot(str(state))
    return Snapshot(iteration, state, Path(model), training)


def training_hash(solver_path: str | os.PathLike) -> int:
    """What tells the snapshots of a solver from those of other trainings."""
    with caffe_says():
        return import_pycaffe("caffe").training_hash(str(solver_path))


def _iteration(prefix: Path, path: Path) -> int | None:
    if not path.name.startswith(prefix.name):
        return None
    found = re.fullmatch(r"_iter_(\d+)\.solverstate(?:\.h5)?", path.name[len(prefix.name) :])
    return int(found[1]) if found else None
