#!/usr/bin/env python3
"""Measure which KL scale nets need, and write the table of docs/kl.md."""

import argparse
import json
import sys
from concurrent.futures import as_completed
from pathlib import Path

from bayescaffe.cli import run as run_command
from bayescaffe.cli.arguments import common_arguments, count
from bayescaffe.common.progress import ProgressBar
from bayescaffe.common.provenance import cores

sys.path.append(str(Path(__file__).parents[1] / "shared"))
from side_by_side import add_dask_argument, side_by_side  # noqa: E402

DESCRIPTION = """\
Train stock nets and their Bayesian forms with several KL scales, measure them on held-out training
images, and write the table and the figure of docs/kl.md.

Each run becomes a line of OUT/runs.jsonl as soon as it is done. You can interrupt it at any time;
the next call skips what is there. All runs take an hour or more on two cores. Run it from the top
of the repository, with the data sets mnist, fashion-mnist and cifar10 in DATA."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="measure.py",
        parents=[common_arguments()],
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--setups", nargs="+", metavar="SETUP", help="only these set-ups (default: all)"
    )
    parser.add_argument(
        "--jobs",
        type=count,
        default=cores(),
        metavar="N",
        help="number of runs side by side, one thread each (default: one per core)",
    )
    add_dask_argument(parser)
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("data"),
        metavar="DATA",
        help="the folder of the known image sets (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("results/kl_rule"),
        metavar="OUT",
        help="where runs and their nets go (default: %(default)s)",
    )
    parser.add_argument(
        "--page",
        type=Path,
        default=Path("docs/kl.md"),
        metavar="FILE",
        help="the page whose table is replaced (default: %(default)s)",
    )
    parser.set_defaults(run=_run)
    return parser


def _run(args: argparse.Namespace) -> None:
    from page import write_page
    from plan import planned
    from runs import read_lines

    lines = args.out / "runs.jsonl"
    runs = planned(args.setups)
    measure_all(runs, args.data, args.out, args.jobs, not args.quiet, args.dask)
    write_page(args.page, args.out, args.setups)
    if args.json:
        print(json.dumps(read_lines(lines)))
    else:
        print(f"{args.page}: its table and figure are new; the runs are in {lines}")


def measure_all(
    runs: list, known: Path, out: Path, jobs: int, progress: bool, dask: str | None = None
) -> None:
    """Do the runs that OUT/runs.jsonl does not have yet."""
    from runs import is_done, measure, read_lines
    from setups import SETUPS

    out.mkdir(parents=True, exist_ok=True)
    lines = out / "runs.jsonl"
    found = read_lines(lines)
    # A run that starts from stock weights needs the stock run.
    todo = [run for run in runs if not is_done(run, found)]
    for stage in (True, False):
        these = [run for run in todo if (run.kind == "stock") == stage]
        if not these:
            continue
        total = sum(SETUPS[run.setup].seconds for run in these)
        with (
            side_by_side(jobs, dask) as submit,
            lines.open("a") as file,
            ProgressBar(total, "measure", show=progress, unit=" s") as bar,
        ):
            waiting = {submit(measure, run, known, out): run for run in these}
            for future in as_completed(waiting):
                print(json.dumps(future.result()), file=file, flush=True)
                bar.advance(SETUPS[waiting[future].setup].seconds)


if __name__ == "__main__":
    sys.exit(run_command(build_parser().parse_args()))
