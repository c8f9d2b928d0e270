#!/usr/bin/env python3
"""Repeat the paper's experiments and write RESULTS.md: the command line of experiments.py."""

import argparse
import json
import os
import sys
from pathlib import Path

from bayescaffe.cli import run
from bayescaffe.cli.arguments import common_arguments, count

DESCRIPTION = """\
Train the paper's eight LeNets, sample and analyse them, and write the paper's tables beside ours.

It runs the other commands (data, train, inspect, sample, analyze, report) for each net and seed and
keeps what they write in OUT. It can be interrupted at any time: what is done is not done again, and
a training goes on from where it was. Nets or solvers that were changed since are done again.

With three seeds it takes about an hour of two cores. Run it from the top of the repository."""

EXAMPLES = """\
examples:
  reproduce.py                 all of it: three seeds, RESULTS.md and two reports
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
        help="train from seeds 1 to N (default: 3)",
    )
    parser.add_argument(
        "--jobs",
        type=count,
        default=os.cpu_count() or 1,
        metavar="N",
        help="trainings side by side (default: one for each core, here %(default)s)",
    )
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
        help="where nets, passes, analyses and reports go (default: %(default)s)",
    )
    parser.add_argument(
        "--passes", type=count, default=100, metavar="N", help="draws of each net (default: 100)"
    )
    parser.add_argument(
        "--iterations",
        type=count,
        metavar="N",
        help="of each training (default: as its solver says, 10000)",
    )
    parser.add_argument(
        "--nets", nargs="+", metavar="NET", help="only these, folders of MODELS (default: all)"
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
        passes=args.passes,
        iterations=args.iterations,
        jobs=args.jobs,
    )
    path = reproduce(settings, args.results, progress=not args.quiet)
    if args.json:
        print(json.dumps({"results": str(path), "runs": collect(settings)}))
    else:
        print(f"{path}: the paper's tables beside ours; {args.out} holds the rest")


if __name__ == "__main__":
    sys.exit(run(build_parser().parse_args()))
