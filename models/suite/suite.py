#!/usr/bin/env python3
"""Compare the Bayesian nets with other methods on every row of the suite: the command line."""

import argparse
import json
import sys
from pathlib import Path

from bayescaffe.cli import run as run_command
from bayescaffe.cli.arguments import common_arguments, count
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.provenance import cores

sys.path.append(str(Path(__file__).parents[1] / "shared"))
from side_by_side import add_dask_argument  # noqa: E402

DESCRIPTION = """\
Train the nets of every row, predict with every method, and write the suite's part of RESULTS.md.

What tuned.json lacks is tuned first, on held-out training images. You can interrupt it at any time;
the next call skips what is done. The page has every row and method that is in SCORES, also from
earlier calls. Run it from the top of the repository, with the data sets mnist, fashion-mnist
and cifar10 in DATA."""

EXAMPLES = """\
examples:
  suite.py --dry-run                                  how long all of it takes
  suite.py --rows mnist-1000 --methods stock ours     one row, two methods
  suite.py --ensembles 5                              five independent ensembles: 25 seeds"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="suite.py",
        parents=[common_arguments()],
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="only these rows (default: all)")
    parser.add_argument(
        "--methods", nargs="+", metavar="METHOD", help="only these methods (default: all)"
    )
    parser.add_argument(
        "--seeds", type=count, default=5, metavar="N", help="seeds 1 to N (default: %(default)s)"
    )
    parser.add_argument(
        "--ensembles",
        type=count,
        default=1,
        metavar="N",
        help="number of ensembles, each of five seeds of its own: 1-5, 6-10, … (default: 1)",
    )
    parser.add_argument(
        "--draws", type=count, default=20, metavar="N", help="of each net (default: %(default)s)"
    )
    parser.add_argument(
        "--jobs",
        type=count,
        default=cores(),
        metavar="N",
        help="number of nets side by side (default: one per core, here %(default)s)",
    )
    add_dask_argument(parser)
    for name, path, text in (
        ("data", "data", "the folder of the known image sets"),
        ("out", "results/suite", "where nets and predictions go"),
        ("page", "RESULTS.md", "the page whose part is replaced"),
        ("tuned", "models/suite/tuned.json", "the file of chosen hyperparameters"),
        ("scores", "models/suite/scores", "what was measured"),
    ):
        parser.add_argument(
            f"--{name}",
            type=Path,
            default=Path(path),
            metavar=name.upper(),
            help=f"{text} (default: %(default)s)",
        )
    parser.add_argument(
        "--dry-run", action="store_true", help="only say what is to be done and how long it takes"
    )
    parser.set_defaults(run=_run)
    return parser


def _run(args: argparse.Namespace) -> None:
    from families import Place
    from methods import METHODS
    from plan_suite import Plan
    from suite_page import write_page
    from tasks import TASKS
    from tuning import Tuned

    for given, known, option in ((args.rows, TASKS, "rows"), (args.methods, METHODS, "methods")):
        for name in given or ():
            if name not in known:
                raise BayesCaffeError(f"--{option} {name}: expected some of {', '.join(known)}")
    plan = Plan(
        place=Place(args.data, args.out, args.scores),
        tuned=Tuned.read(args.tuned),
        rows=tuple(args.rows or TASKS),
        methods=tuple(args.methods or METHODS),
        seeds=args.seeds,
        ensembles=args.ensembles,
        draws=args.draws,
        jobs=args.jobs,
        dask=args.dask,
    )
    if not args.quiet:
        print(plan.estimate(), file=sys.stderr)
    if args.dry_run:
        return
    plan.run(quiet=args.quiet)
    shown = write_page(args.page, plan)
    if args.json:
        print(json.dumps(shown))
    else:
        print(f"{args.page}: the suite's part has {', '.join(shown) or 'no complete row'}")


if __name__ == "__main__":
    sys.exit(run_command(build_parser().parse_args()))
