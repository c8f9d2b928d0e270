"""The command `bayescaffe`: parses arguments, runs one subcommand, turns failures into exit codes.

Exit codes: 0 done, 1 failed (one clear error on stderr), 2 wrong usage, 130 interrupted, 141 nobody
reads the output any more (`bayescaffe … | head`).
"""

import argparse
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence

from bayescaffe import __version__
from bayescaffe.cli import (
    analyze,
    calibrate,
    check,
    completion,
    convert,
    data,
    export,
    inspect,
    merge,
    pack,
    predict,
    report,
    sample,
    serve,
    train,
)
from bayescaffe.cli.arguments import CommandParser, common_arguments
from bayescaffe.common.errors import BayesCaffeError, arguments_are_options
from bayescaffe.common.limits import VARIABLES, limits
from bayescaffe.common.printing import PrintableStream, printable

# A subcommand is a function that adds its parser to the subparsers it is given and sets the
# parser's default `run`, a function from the parsed arguments to None. It imports what is heavy
# inside `run`, so that `--help` stays quick.
COMMANDS = (
    data.register,
    convert.register,
    check.register,
    train.register,
    sample.register,
    merge.register,
    calibrate.register,
    analyze.register,
    predict.register,
    serve.register,
    inspect.register,
    pack.register,
    export.register,
    report.register,
    completion.register,
)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="bayescaffe",
        description="Bayesian Caffe's driver. Start with `bayescaffe data mnist`.",
    )
    parser.add_argument("--version", action="version", version=f"bayescaffe {__version__}")
    subparsers = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=CommandParser
    )
    for register in COMMANDS:
        register(subparsers, common_arguments())
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return its exit code."""
    return run(build_parser().parse_args(argv))


class _Formatter(logging.Formatter):
    """Log lines may have names from files in them."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def run(args: argparse.Namespace) -> int:
    """Call what the arguments have as `run`, and return an exit code."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(message)s"))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("bayescaffe").setLevel(logging.WARNING if args.quiet else logging.INFO)
    try:
        with (
            arguments_are_options(getattr(args, "options", {})),
            limits(**{name: getattr(args, name, None) for name in VARIABLES}),
            contextlib.redirect_stdout(PrintableStream(sys.stdout)),
        ):
            args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # Silently, as other tools are ended by SIGPIPE; what is left in the buffer goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (BayesCaffeError, OSError) as error:
        print(f"bayescaffe: error: {printable(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bayescaffe: interrupted", file=sys.stderr)
        return 130
    return 0
