"""Types of arguments that several commands have; argparse takes their names into its messages."""

import argparse


def common_arguments() -> argparse.ArgumentParser:
    """A parent parser: the options that all commands have."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--quiet", action="store_true", help="print results only, no progress")
    common.add_argument(
        "--json", action="store_true", help="print the results as one JSON object, for programs"
    )
    return common


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
    if not 0 <= number < 2**32:
        raise argparse.ArgumentTypeError(f"{number} is not within 0..{2**32 - 1}")
    return number
