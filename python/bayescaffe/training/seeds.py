"""Trains the net of one solver several times, each time from another seed.

results = bayescaffe.train_seeds("solver.prototxt", range(1, 6))
model = bayescaffe.Mixture([bayescaffe.Model(one.snapshot) for one in results.values()])
"""

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from bayescaffe.common.checks import check_seeds
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_file
from bayescaffe.net.messages import parse_message, read_text
from bayescaffe.net.prototext import update
from bayescaffe.training.snapshots import list_states, newest_iteration, snapshot_prefix
from bayescaffe.training.train import TrainingResult, train_share
from bayescaffe.training.view import Share

logger = logging.getLogger(__name__)

_HEAD = "# Written by `bayescaffe train --seeds`, which writes it again at each start.\n"


def train_seeds(
    solver: str | os.PathLike,
    seeds: Iterable[int],
    *,
    resume: bool = False,
    weights: str | os.PathLike | None = None,
    test_draws: int | None = None,
    gpu: str | int | None = None,
    cpu: bool = False,
    ranks: int | None = None,
    hosts: str | None = None,
    retries: int = 0,
    out: str | os.PathLike | None = None,
    progress: bool = True,
) -> dict[int, TrainingResult]:
    """Train the net of a solver once for each seed, one after the other; return results by seed.

    The training of seed 3 is that of the solver with `random_seed: 3`. All that it writes is in a
    folder `seed-3` beside the solver's own snapshots: its solver, snapshots, log and curve.

    Args:
        seeds: the values of `random_seed`.
        resume: do not train again what is finished, and continue the others as `train` does.
        out: the folder of the folders `seed-3` with log and curve; by default that of the
            snapshots.
        weights, test_draws, gpu, cpu, ranks, hosts, retries, progress: see `train`; they are the
            same for all seeds.

    Raises:
        BayesCaffeError: the training of a seed failed. Those after it are not started.
        KeyboardInterrupt: after Ctrl-C, once Caffe has written a snapshot to resume from.
    """
    seeds = check_seeds(seeds)
    solver = Path(solver)
    text = read_text(solver)
    message = parse_message(text, "SolverParameter", solver)
    own_prefix = snapshot_prefix(solver, message)
    prefixes = {seed: own_prefix.parent / f"seed-{seed}" / own_prefix.name for seed in seeds}
    options = {"weights": weights, "test_draws": test_draws, "gpu": gpu, "cpu": cpu}
    options |= {"ranks": ranks, "hosts": hosts, "retries": retries}
    last = message.max_iter
    done = dict.fromkeys(seeds, 0)
    if resume:
        done = {seed: min(newest_iteration(prefix), last) for seed, prefix in prefixes.items()}
    results = {}
    for number, (seed, prefix) in enumerate(prefixes.items(), 1):
        path = _write_solver(text, message, solver, seed, prefix)
        logger.info("Seed %d, %d of %d: %s", seed, number, len(seeds), path)
        results[seed] = train_share(
            path,
            Share(f"seed {seed}", sum(done.values()) - done[seed], len(seeds) * last),
            # A seed that has not begun is no news.
            resume=resume and bool(list_states(prefix)),
            out=None if out is None else Path(out) / prefix.parent.name,
            progress=progress,
            **options,
        )
        done[seed] = last
    return results


def _write_solver(text: str, message, source: Path, seed: int, prefix: Path) -> Path:
    """Write the solver of a seed; return its path."""
    path = prefix.parent / source.name
    if path.exists() and not read_text(path).startswith(_HEAD):
        raise BayesCaffeError(
            f"{path}: is not written by `bayescaffe train`, and in the place of the solver of seed "
            f"{seed}. Rename it, or give {source} another snapshot_prefix"
        )
    changed = type(message)()
    changed.CopyFrom(message)
    changed.random_seed, changed.snapshot_prefix = seed, str(prefix)
    path.parent.mkdir(parents=True, exist_ok=True)
    with scratch_file(path) as scratch:
        scratch.write_text(_HEAD + update(text, message, changed, source))
    return path
