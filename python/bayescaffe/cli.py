"""The command `bayescaffe`: parses arguments, runs one subcommand, turns failures into exit codes.

Exit codes: 0 done, 1 failed (one clear error on stderr), 2 wrong usage, 130 interrupted.
"""

import argparse
import logging
import sys
from collections.abc import Sequence

from bayescaffe import (
    __version__,
    analyze_command,
    data_command,
    inspect_command,
    predict_command,
    report_command,
    reproduce_command,
    sample_command,
    train_command,
)
from bayescaffe.errors import BayesCaffeError

# A subcommand is a function that adds its parser to the subparsers it is given and sets the
# parser's default `run`, a function from the parsed arguments to None. It imports what is heavy
# inside `run`, so that `--help` stays quick.
COMMANDS = (
    data_command.register,
    train_command.register,
    sample_command.register,
    analyze_command.register,
    predict_command.register,
    inspect_command.register,
    report_command.register,
    reproduce_command.register,
)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="bayescaffe",
        description="Bayesian Caffe's driver. Start with `bayescaffe data mnist`.",
    )
    parser.add_argument("--version", action="version", version=f"bayescaffe {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--quiet", action="store_true", help="print results only, no progress")
    common.add_argument(
        "--json", action="store_true", help="print the results as one JSON object, for programs"
    )
    for register in COMMANDS:
        register(subparsers, common)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return its exit code."""
    args = build_parser().parse_args(argv)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("bayescaffe").setLevel(logging.WARNING if args.quiet else logging.INFO)
    try:
        args.run(args)
    except (BayesCaffeError, OSError) as error:
        print(f"bayescaffe: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bayescaffe: interrupted", file=sys.stderr)
        return 130
    return 0
