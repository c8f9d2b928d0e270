"""Arguments that several commands have, and types of arguments.

argparse shows the name of a type in its error messages.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bayescaffe.common.checks import check_seed
from bayescaffe.common.errors import BayesCaffeError

if TYPE_CHECKING:
    from bayescaffe.data.interface import Shape
    from bayescaffe.net.model import Model


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


def add_net_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the commands that draw from a net have: the net, and how to draw from it."""
    add_model_arguments(parser)
    parser.add_argument(
        "--passes", type=count, default=100, metavar="N", help="the number of draws (default: 100)"
    )
    parser.add_argument(
        "--gpu", type=index, metavar="N", help="compute on this GPU (default: on the CPU)"
    )
    parser.add_argument(
        "--invert",
        action="store_true",
        help="turn image files from black on white to white on black, as MNIST's nets expect",
    )


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `read_model` needs."""
    parser.add_argument("net", metavar="NET", help="prototxt of the net")
    parser.add_argument("weights", metavar="WEIGHTS", help="caffemodel of the net")
    parser.add_argument(
        "--seed", type=seed, default=1, metavar="N", help="seed of the draws (default: 1)"
    )
    parser.add_argument(
        "--classes",
        type=Path,
        metavar="FILE",
        help="names of the classes, one in each line (default: those of the net's LMDB)",
    )
    parser.add_argument(
        "--untrained",
        action="store_true",
        help="take stock WEIGHTS for Bayesian layers; the spread of the draws then says nothing",
    )
    parser.set_defaults(gpu=None)
    group = parser.add_argument_group("if the net does not tell")
    group.add_argument(
        "--output", metavar="BLOB", help="the class scores (default: those in SoftmaxWithLoss)"
    )
    add_shape_argument(group)
    group.add_argument(
        "--scale",
        type=float,
        metavar="X",
        help="what pixels are multiplied by (default: as in the net's data layer)",
    )
    group.add_argument(
        "--mean",
        type=mean,
        metavar="M",
        help="what is subtracted before: a number, one for each channel (104,117,123), or a "
        ".binaryproto file (default: as in the net's data layer)",
    )
    group.add_argument(
        "--mc-dropout",
        action="store_true",
        help="let Dropout layers drop, which makes a stock net random",
    )


def add_shape_argument(parser: argparse._ActionsContainer) -> None:
    """Add --shape, to a parser or to a group of one."""
    parser.add_argument(
        "--shape",
        type=shape,
        metavar="CxHxW",
        help="channels, height, width of the images, if the net's own LMDB is not here",
    )


def read_model(args: argparse.Namespace, image_shape: Shape | None = None) -> Model:
    """The model that `add_net_arguments` asked for; its images may tell their shape."""
    from bayescaffe.net.messages import read_mean
    from bayescaffe.net.model import Model

    return Model(
        args.net,
        args.weights,
        seed=args.seed,
        output=args.output,
        mc_dropout=args.mc_dropout,
        gpu=args.gpu,
        image_shape=args.shape or image_shape,
        scale=args.scale,
        mean=read_mean(args.mean) if isinstance(args.mean, str) else args.mean,
        untrained=args.untrained,
    )


def read_class_names(path: Path | None) -> list[str] | None:
    """The lines of the file that --classes names."""
    if path is None:
        return None
    try:
        return [line.strip() for line in path.read_text().splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise BayesCaffeError(f"--classes {path}: not a text file: {error}") from error


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


def index_range(text: str) -> range:
    """A range such as 0-99; both ends belong to it."""
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"{text!r} is not A-B, such as 0-99")
    return range(int(first), int(last) + 1)


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


def share(text: str) -> float:
    """A number from 0 to 1."""
    number = float(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not within 0..1")
    return number


def shape(text: str) -> Shape:
    """Channels, height and width."""
    try:
        channels, height, width = (int(word) for word in text.lower().split("x"))
    except ValueError:
        channels = height = width = 0
    if min(channels, height, width) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not CxHxW, such as 1x28x28")
    return channels, height, width


def mean(text: str) -> list[float] | str:
    """Numbers, or the name of a file."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        return text
