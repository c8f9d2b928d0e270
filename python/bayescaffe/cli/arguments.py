"""Arguments that several commands have, and types of arguments.

argparse shows the name of a type in its error messages.
"""

import argparse

from bayescaffe.common.checks import check_seed
from bayescaffe.common.errors import BayesCaffeError


def common_arguments() -> argparse.ArgumentParser:
    """A parent parser: the options that all commands have."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--quiet", action="store_true", help="print results only, no progress")
    common.add_argument(
        "--json", action="store_true", help="print the results as one JSON object, for programs"
    )
    return common


def add_interval_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what chooses the credible intervals."""
    parser.add_argument(
        "--level",
        type=float,
        default=0.95,
        metavar="L",
        help="level of the credible intervals, between 0 and 1 (default: %(default)s); a higher "
        "level needs more draws: 41 for 0.95, 201 for 0.99",
    )
    parser.add_argument(
        "--interval",
        choices=("equal-tailed", "hdi"),
        default="equal-tailed",
        help="kind of the credible intervals: equal-tailed leaves out as many draws below as "
        "above, as in the paper; hdi is the shortest interval (default: %(default)s)",
    )


def count(text: str) -> int:
    """A whole number, 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def index(text: str) -> int:
    """A whole number, 0 or more."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is not 0 or more")
    return number


def indices(text: str) -> str:
    """Whole numbers with commas between them, or `all`; returned as it is."""
    if text != "all":
        for word in text.split(","):
            index(word)
    return text


def seed(text: str) -> int:
    """A whole number of 32 bits."""
    number = int(text)
    try:
        check_seed(number)
    except BayesCaffeError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return number
