"""The subcommand `bayescaffe train`: its arguments, its help and what it prints."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from bayescaffe.cli.arguments import count, indices

DESCRIPTION = """\
Train a net with `caffe train` and watch it: iteration, loss, KL, test error, tau of each layer and
the time left.

SOLVER is a Caffe solver prototxt; it names the net, the learning rate, how many iterations, and
where snapshots go. The paths in it are relative to the current directory. Beside the snapshots
appear, while it runs,
  train.log   everything Caffe says
  curve.csv   a line for each iteration that Caffe tells of (`display` and `test_interval` of the
              solver): loss, KL, learning rate, test loss and error, tau of each Bayesian layer

Ctrl-C writes a snapshot and stops; --resume goes on from there, to the same weights, bit for bit,
as a training that was not interrupted. A training whose loss is no longer a number is stopped."""

EXAMPLES = """\
examples:
  bayescaffe train models/lenet/bayes-plain/solver.prototxt
  bayescaffe train solver.prototxt --resume           go on from the newest good snapshot
  bayescaffe train solver.prototxt --test-draws 20    test also the mean of 20 draws each time
  bayescaffe train solver.prototxt --weights stock.caffemodel   start from trained weights
  bayescaffe train solver.prototxt --gpu 0,1          on two GPUs
  bayescaffe train solver.prototxt --quiet --json     for programs

exit codes: 0 trained, 1 failed or diverged, 2 wrong usage, 130 interrupted"""


def register(subparsers, common: argparse.ArgumentParser) -> None:
    """Add `train` to the command line."""
    parser = subparsers.add_parser(
        "train",
        parents=[common],
        help="train a net, watch it, resume it",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("solver", type=Path, metavar="SOLVER", help="a solver prototxt")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on from the newest good snapshot; start from scratch if there is none",
    )
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="CAFFEMODEL",
        help="start from these weights, of a Bayesian net or of its stock twin",
    )
    parser.add_argument(
        "--test-draws",
        type=count,
        metavar="N",
        help="at each test, also average the predictions of N draws and test that mean "
        "(default: `test_draws` of the solver, else none)",
    )
    parser.add_argument(
        "--gpu",
        type=indices,
        metavar="N,…",
        help="compute on this GPU, on these, or on all of them (default: on the CPU)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where train.log and curve.csv go (default: beside the snapshots)",
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from bayescaffe.training.train import train

    result = train(
        args.solver,
        resume=args.resume,
        weights=args.weights,
        test_draws=args.test_draws,
        gpu=args.gpu,
        out=args.out,
        progress=not args.quiet,
    )
    if args.json:
        print(json.dumps(asdict(result), default=str))
        return
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
