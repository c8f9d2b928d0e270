"""The command `bayescaffe train`."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bayescaffe.cli.arguments import count, index, indices, seeds

if TYPE_CHECKING:
    from bayescaffe.training.train import TrainingResult

DESCRIPTION = """\
Train a net with `caffe train`. Shows the iteration, loss, KL, test error, tau of each layer and the
time left.

SOLVER is a Caffe solver prototxt. It names the net, the learning rate, the number of iterations and
the folder of the snapshots. Its paths are relative to the current directory. Two files grow beside
the snapshots:
  train.log   the full log of Caffe
  curve.csv   one line per logged iteration (`display` and `test_interval` of the solver): loss, KL,
              learning rate, test loss, test error, tau of each Bayesian layer

The caffemodels carry the net: `bayescaffe predict` and others need no other file.

Ctrl-C writes a snapshot and stops. --resume continues from it and ends with the same weights, bit
for bit, as a training without a break. It takes no snapshot that is damaged, or that was written
with another net or other settings of the solver; max_iter, display, tests and paths may differ.
A training whose loss becomes NaN or infinite is stopped.

--seeds trains the net once for each seed, one after the other, as if `random_seed` of the solver
were that seed. Seed 3 has a folder of its own, seed-3, beside the snapshots of SOLVER: for its
solver, snapshots, log and curve. With --resume, seeds that are finished are not trained again. A
seed that fails ends the command. At the end it prints the `bayescaffe sample` command that draws
from all of them.

--ranks trains with several processes that share each batch, here or on several hosts. It needs Open
MPI, and a caffe that was built with it. After a failure, such as a host that goes down, --retries
resumes from the newest snapshot.

What may be wrong is printed in one line each, with what to change, and again at the end: what
`bayescaffe check` finds in the files; a loss that explodes or is no better than a constant guess;
tau that runs away, is at its floor or never leaves its start."""

EXAMPLES = """\
examples:
  bayescaffe train models/lenet/bayes-plain/solver.prototxt
  bayescaffe train solver.prototxt --resume           continue from the newest good snapshot
  bayescaffe train solver.prototxt --test-draws 20    also test the mean prediction of 20 draws
  bayescaffe train solver.prototxt --weights stock.caffemodel   start from trained weights
  bayescaffe train solver.prototxt --seeds 1-5        five trainings, for a mixture or an ensemble
  bayescaffe train solver.prototxt --gpu 0,1          on two GPUs
  bayescaffe train solver.prototxt --ranks 4          with four processes (docs/mpi.md)
  bayescaffe train solver.prototxt --ranks 8 --hosts a,b --retries 3
  bayescaffe train solver.prototxt --ranks 8 --hosts a,b --gpu all   four GPUs of each host
  bayescaffe train solver.prototxt --quiet --json     print JSON only

exit codes: 0 trained, 1 failed or diverged, 2 wrong usage, 130 interrupted"""

COLUMNS = {
    "loss": "training loss",
    "kl": "KL",
    "test_error": "test error",
    "mean_test_error": "mean of draws",
}
"""What is printed of each seed: the numbers of a `TrainingResult` and their titles."""


def register(subparsers, common: argparse.ArgumentParser) -> None:
    """Add `train` to the command line."""
    parser = subparsers.add_parser(
        "train",
        parents=[common],
        help="train a net, or resume a training",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("solver", type=Path, metavar="SOLVER", help="a solver prototxt")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue from the newest good snapshot, or start from scratch if there is none",
    )
    parser.add_argument(
        "--seeds",
        type=seeds,
        metavar="A-B,…",
        help="train once for each of these seeds, such as 1-5 or 1,3,7-9",
    )
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="CAFFEMODEL",
        help="start from these weights of the Bayesian net or of the stock net",
    )
    parser.add_argument(
        "--test-draws",
        type=count,
        metavar="N",
        help="at each test, also test the mean prediction of N draws "
        "(default: `test_draws` of the solver, if set)",
    )
    device = parser.add_mutually_exclusive_group()
    device.add_argument(
        "--gpu",
        type=indices,
        metavar="N,…",
        help="the GPUs to use, such as 0 or 0,1, or `all` (default: `solver_mode` of the solver)",
    )
    device.add_argument(
        "--cpu", action="store_true", help="use the CPU, whatever `solver_mode` of the solver is"
    )
    parser.add_argument(
        "--ranks",
        type=count,
        metavar="N",
        help="train with N processes (mpirun); with --gpu each has one of these GPUs of its host",
    )
    parser.add_argument(
        "--hosts",
        metavar="HOST,…",
        help="start the ranks on these hosts, such as a,b or a:4,b:2 (default: this machine)",
    )
    parser.add_argument(
        "--retries",
        type=index,
        default=0,
        metavar="N",
        help="after a failure, resume from the newest snapshot up to N times (default: 0)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="the folder of train.log and curve.csv, or of the folders seed-N with them (default: "
        "that of the snapshots)",
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from bayescaffe.training.seeds import train_seeds
    from bayescaffe.training.train import train

    options = {
        "resume": args.resume,
        "weights": args.weights,
        "test_draws": args.test_draws,
        "gpu": args.gpu,
        "cpu": args.cpu,
        "ranks": args.ranks,
        "hosts": args.hosts,
        "retries": args.retries,
        "out": args.out,
        "progress": not args.quiet,
    }
    if args.seeds is not None:
        _print_seeds(args, train_seeds(args.solver, args.seeds, **options))
        return
    result = train(args.solver, **options)
    if args.json:
        print(json.dumps(asdict(result), default=str))
        return
    _print(result)


def _print(result: TrainingResult) -> None:
    print(f"{result.iterations} iterations in {result.seconds:.0f} s")
    if result.loss is not None:
        print(f"training loss  {result.loss:.4g}")
    if result.kl is not None:
        print(f"KL             {result.kl:.6g} nats")
    if result.test_error is not None:
        print(f"test error     {result.test_error:.2%} (one draw)")
    if result.mean_test_error is not None:
        print(f"               {result.mean_test_error:.2%} (mean of {result.test_draws} draws)")
    if result.tau:
        width = max(map(len, [*result.tau, "layer"])) + 2
        print(f"{'layer':<{width}}{'tau':>11}{'tau_b':>11}")
        for layer, tau in result.tau.items():
            tau_bias = result.tau_bias.get(layer)
            print(
                f"{layer:<{width}}{tau:>11.6f}"
                + (f"{tau_bias:>11.6f}" if tau_bias is not None else "")
            )
    for name, path in (
        ("weights", result.snapshot),
        ("curve", result.curve),
        ("log", result.log),
    ):
        if path is not None:
            print(f"{name:<9}{path}")
    for finding in result.findings:
        print(finding)


def _print_seeds(args: argparse.Namespace, results: dict[int, TrainingResult]) -> None:
    models = [result.snapshot for result in results.values() if result.snapshot is not None]
    command = _sample_command(models) if len(models) == len(results) else None
    if args.json:
        trainings = [{"seed": seed, **asdict(result)} for seed, result in results.items()]
        found = {"trainings": trainings, "models": models, "sample": command}
        print(json.dumps(found, default=str))
        return
    rows = {seed: [_cell(result, name) for name in COLUMNS] for seed, result in results.items()}
    for seed, row in ({"seed": COLUMNS.values()} | rows).items():
        print(f"{seed:>10}" + "".join(f"{cell:>15}" for cell in row))
    for model in models:
        print(f"weights  {model}")
    findings = [str(finding) for result in results.values() for finding in result.findings]
    for finding in dict.fromkeys(findings):
        print(finding)
    if command is not None:
        print(f"to draw from all of them:\n  {command}")


def _cell(result: TrainingResult, name: str) -> str:
    value = getattr(result, name)
    if value is None:
        return "–"
    return f"{value:.2%}" if name.endswith("error") else f"{value:.4g}"


def _sample_command(models: list[Path]) -> str | None:
    """The command that draws from these models; None if `sample` cannot read them."""
    from bayescaffe.net.packing import is_packed

    # A net that is no classifier is not carried, nor is any in an HDF5 file.
    if not all(model.suffix != ".h5" and is_packed(model) for model in models):
        return None
    return shlex.join(["bayescaffe", "sample", *map(str, models)])
