#!/usr/bin/env python3
"""Reproduce the paper's experiments and write RESULTS.md: the command line of experiments.py."""

import argparse
import json
import sys
from pathlib import Path

from bayescaffe.cli import run
from bayescaffe.cli.arguments import common_arguments, count
from bayescaffe.common.provenance import cores

sys.path.append(str(Path(__file__).parents[1] / "shared"))
from side_by_side import add_dask_argument  # noqa: E402

DESCRIPTION = """\
Train the paper's eight LeNets, sample and analyse them, and write the paper's tables beside ours.

This runs the other commands (data, train, inspect, sample, analyze, report) for each net and seed,
and keeps what they write in OUT. You can interrupt it at any time. The next call skips what is
done and continues trainings from their snapshots. Nets or solvers that have changed are run again.

Three seeds take one to two hours on two cores. Run it from the top of the repository."""

EXAMPLES = """\
examples:
  reproduce.py                 everything: three seeds, RESULTS.md and two reports
  reproduce.py --seeds 1       one seed, in a third of the time
  reproduce.py --seeds 1 --iterations 500 --nets bayes-plain stock-plain --results try.md
                               a quick try, a few minutes"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="reproduce.py",
        parents=[common_arguments()],
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seeds",
        type=count,
        default=3,
        metavar="N",
        help="use the seeds 1 to N (default: 3)",
    )
    parser.add_argument(
        "--jobs",
        type=count,
        default=cores(),
        metavar="N",
        help="number of trainings that run side by side (default: one per core, here %(default)s)",
    )
    add_dask_argument(parser)
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("RESULTS.md"),
        metavar="FILE",
        help="where the tables go (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("results"),
        metavar="OUT",
        help="where nets, draws, analyses and reports go (default: %(default)s)",
    )
    parser.add_argument(
        "--passes",
        type=count,
        default=100,
        metavar="N",
        help="number of draws of each net (default: 100)",
    )
    parser.add_argument(
        "--iterations",
        type=count,
        metavar="N",
        help="number of iterations of each training (default: as in its solver, 10000)",
    )
    parser.add_argument(
        "--nets",
        nargs="+",
        metavar="NET",
        help="only these nets, named as the folders in MODELS (default: all)",
    )
    parser.add_argument(
        "--models",
        type=Path,
        default=Path("models/lenet"),
        metavar="MODELS",
        help="the folder of the nets (default: %(default)s)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("data"),
        metavar="DATA",
        help="the folder of the image sets; the nets read data/mnist (default: %(default)s)",
    )
    parser.set_defaults(run=_run)
    return parser


def _run(args: argparse.Namespace) -> None:
    from experiments import NETS, Settings, collect, reproduce

    settings = Settings(
        out=args.out,
        models=args.models,
        data=args.data,
        nets=tuple(args.nets or NETS),
        seeds=tuple(range(1, args.seeds + 1)),
        draws=args.passes,
        iterations=args.iterations,
        jobs=args.jobs,
        dask=args.dask,
    )
    path = reproduce(settings, args.results, progress=not args.quiet)
    if args.json:
        print(json.dumps({"results": str(path), "runs": collect(settings)}))
    else:
        print(f"{path}: the paper's tables beside ours; everything else is in {args.out}")


if __name__ == "__main__":
    sys.exit(run(build_parser().parse_args()))
