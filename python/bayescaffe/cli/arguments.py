"""Arguments that several commands have, and types of arguments.

argparse shows the name of a type in its error messages.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayescaffe.common.checks import SEEDS
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.reading import read_text

if TYPE_CHECKING:
    from bayescaffe.data.interface import Shape
    from bayescaffe.net.model import Model


OTHER_NAMES = {
    "baseline": "baselines",
    "classes": "class_names",
    "data": "images",
    "sets": "method",
    "shape": "image_shape",
}
"""Arguments of functions that have another name than the option, by that of the option."""


MOST_SEEDS = 1000
"""What --seeds takes for no slip of the pen."""


class CommandParser(argparse.ArgumentParser):
    """The parser of a command.

    It takes options between positional arguments, even if the number of these is free, and tells
    how arguments of functions are called on the command line.
    """

    _is_inside = False

    def parse_known_args(self, args=None, namespace=None):
        if self._is_inside or self._subparsers:
            return super().parse_known_args(args, namespace)
        self._is_inside = True  # what it calls calls this again
        try:
            namespace, rest = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_inside = False
        namespace.options = self.options()
        return namespace, rest

    def options(self) -> dict[str, str]:
        """The option, or the name of the positional argument, of each argument of a function."""
        names = {
            action.dest: action.option_strings[-1] if action.option_strings else action.metavar
            for action in self._actions
        }
        return names | {OTHER_NAMES[name]: names[name] for name in names if name in OTHER_NAMES}


def common_arguments() -> argparse.ArgumentParser:
    """A parent parser: the options that all commands have."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--quiet", action="store_true", help="print results only, no progress")
    common.add_argument(
        "--json", action="store_true", help="print the results as one JSON object, for programs"
    )
    common.add_argument(
        "--max-pixels",
        type=count,
        metavar="N",
        help="read pictures of up to N pixels (default: 100 million)",
    )
    common.add_argument(
        "--max-unpacked",
        type=count,
        metavar="N",
        help="read compressed files that unpack to up to N bytes (default: 1 GiB)",
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


def add_adaptive_argument(parser: argparse.ArgumentParser) -> None:
    """Add what chooses adaptive sampling."""
    parser.add_argument(
        "--adaptive",
        type=Path,
        metavar="RULE",
        help="give an image no more draws when its answer is settled; a file from `bayescaffe "
        "analyze --stopping-rule`, for the same weights and seed",
    )


def add_worker_arguments(group: argparse._ActionsContainer) -> None:
    """Add where to compute."""
    where = group.add_mutually_exclusive_group()
    where.add_argument("--workers", type=count, metavar="N", help="compute in N processes")
    where.add_argument(
        "--dask", metavar="ADDRESS", help="compute on a Dask cluster: tcp://host:port"
    )


def add_calibration_argument(parser: argparse.ArgumentParser) -> None:
    """Add what decides with a guarantee."""
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="sets of classes and decisions with a guarantee; a file from `bayescaffe calibrate "
        "DRAWS`, for the same net, seed and number of draws",
    )


def add_rule_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what decides on an image."""
    for name, what in (
        ("--accept-above", "accept only what is certain with a lower end of at least X"),
        ("--escalate-below", "escalate what is not accepted with a mean probability below X"),
    ):
        parser.add_argument(
            name, type=share, default=0.5, metavar="X", help=f"{what} (default: 0.5)"
        )


def add_data_arguments(parser: argparse.ArgumentParser, text: str) -> None:
    """Add images, their labels and their order of colours; `text` is the help of --data."""
    parser.add_argument("--data", metavar="DATA", help=text)
    parser.add_argument(
        "--labels", metavar="FILE", help="a label for each image: .npy, or numbers in a text file"
    )
    parser.add_argument(
        "--channels",
        choices=("rgb", "bgr"),
        help="the order of colours in DATA, if it is an array, or an LMDB that does not tell",
    )


def add_net_arguments(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """Add what the commands that draw from a net have: the net, and how to draw from it.

    Args:
        several: take several WEIGHTS, as a list.
    """
    add_model_arguments(parser, several)
    more = "; of several WEIGHTS as many each, or one each if none is random" if several else ""
    parser.add_argument(
        "--passes",
        type=count_or_analytic,
        metavar="N",
        help=f"the number of draws (default: 100{more}); or `analytic`: means and variances go "
        "through the net once, at the price of about three draws",
    )
    parser.add_argument(
        "--gpu", type=index, metavar="N", help="compute on this GPU (default: on the CPU)"
    )
    parser.add_argument(
        "--invert",
        action="store_true",
        help="turn image files from black on white to white on black, as MNIST's nets expect",
    )


def add_model_arguments(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """Add what `read_model` needs."""
    group = add_definition_arguments(parser, several)
    parser.add_argument(
        "--seed", type=seed, default=1, metavar="N", help="seed of the draws (default: 1)"
    )
    parser.add_argument(
        "--antithetic",
        action="store_true",
        help="draws in pairs with noise of opposite sign; far fewer give the same mean prediction",
    )
    parser.add_argument(
        "--untrained",
        action="store_true",
        help="take stock WEIGHTS for Bayesian layers; the spread of the draws then says nothing",
    )
    parser.set_defaults(gpu=None)
    group.add_argument(
        "--mc-dropout",
        action="store_true",
        help="let Dropout layers drop, which makes a stock net random",
    )


def add_file_arguments(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """Add a net and its weights, which may be in one file."""
    parser.add_argument(
        "net",
        type=Path,
        metavar="NET",
        help="prototxt of the net, or of the solver that trained it; not needed if WEIGHTS is from "
        "`bayescaffe train` or `pack`",
    )
    parser.add_argument(
        "weights",
        type=Path,
        nargs="*" if several else "?",
        metavar="WEIGHTS",
        help="caffemodel of the net (default: the newest snapshot, if NET is a solver)"
        + ("; several are sampled together" if several else ""),
    )


def add_definition_arguments(
    parser: argparse.ArgumentParser, several: bool = False
) -> argparse._ArgumentGroup:
    """Add what tells a net, its images and its classes; return the group of what nets often tell
    themselves."""
    add_file_arguments(parser, several)
    parser.add_argument(
        "--classes",
        type=Path,
        metavar="FILE",
        help="names of the classes, one in each line (default: those of the net's LMDB)",
    )
    group = parser.add_argument_group("if the net does not tell")
    group.add_argument(
        "--output",
        metavar="BLOB",
        help="the class scores (default: those in the SoftmaxWithLoss of the greatest weight)",
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
    return group


def add_shape_argument(parser: argparse._ActionsContainer) -> None:
    """Add --shape, to a parser or to a group of one."""
    parser.add_argument(
        "--shape",
        type=shape,
        metavar="CxHxW",
        help="channels, height, width of the images, if the net's own LMDB is not here",
    )


def resolve_files(args: argparse.Namespace) -> None:
    """Let a solver stand for its net and its newest weights, and let a caffemodel that carries its
    net come alone: what is then in the place of the weights is the first of the images."""
    is_alone, is_of_solver = _kind_of_net(args.net)
    has_no_weights = is_alone or (
        is_of_solver and args.weights and args.weights.suffix not in (".caffemodel", ".h5")
    )
    if has_no_weights and args.weights and hasattr(args, "images"):
        args.images.insert(0, str(args.weights))
        args.weights = None
    if is_of_solver:
        args.net, (args.weights,) = _files_of_solver(args.net, [args.weights])


def read_models(args: argparse.Namespace, image_shape: Shape | None = None) -> list[Model]:
    """The models of a net and a list of weights, as `resolve_files` and `read_model` read one."""
    for path in args.weights:
        if path.is_dir():
            raise BayesCaffeError(
                f"{path}: is a folder, not a caffemodel; images are named by --data {path}"
            )
    is_alone, is_of_solver = _kind_of_net(args.net)
    net, weights = args.net, args.weights or [None]
    if is_of_solver:
        net, weights = _files_of_solver(net, weights)
    files = [(net, one) for one in weights]
    if is_alone:
        files = [(one, None) for one in (net, *args.weights)]
    return [_read_model(args, *both, image_shape) for both in files]


def _kind_of_net(path: Path) -> tuple[bool, bool]:
    """Whether NET is a caffemodel that carries it, and whether it is a solver."""
    from bayescaffe.net.messages import is_caffemodel
    from bayescaffe.net.messages import read_text as read_prototxt
    from bayescaffe.net.net_files import is_solver

    if not path.is_file():
        raise BayesCaffeError(f"{path}: no such file")
    is_alone = is_caffemodel(path)
    return is_alone, not is_alone and is_solver(read_prototxt(path))


def _files_of_solver(solver: Path, weights: list[Path | None]) -> tuple[Path, list[Path]]:
    """The net of a solver, and its newest weights in place of None."""
    from bayescaffe.net.messages import read_message
    from bayescaffe.training.snapshots import tested_net, trained_net

    if weights == [None]:
        net, newest = trained_net(solver)
        return net, [newest]
    return tested_net(read_message(solver, "SolverParameter")), weights


def read_model(args: argparse.Namespace, image_shape: Shape | None = None) -> Model:
    """The model that `add_model_arguments` or `add_definition_arguments` asked for; its images may
    tell their shape."""
    return _read_model(args, args.net, args.weights, image_shape)


def _read_model(
    args: argparse.Namespace, net: Path, weights: Path | None, image_shape: Shape | None
) -> Model:
    from bayescaffe.net.model import Model

    return Model(net, weights, **model_options(args, image_shape))


def model_options(args: argparse.Namespace, image_shape: Shape | None = None) -> dict[str, Any]:
    """The options of `Model`. Most commands draw once, so they keep no drawn weights."""
    from bayescaffe.net.messages import read_mean

    options = ("seed", "antithetic", "output", "mc_dropout", "gpu", "scale", "untrained")
    return {
        "image_shape": args.shape or image_shape,
        "mean": read_mean(args.mean) if isinstance(args.mean, str) else args.mean,
        "draw_memory": getattr(args, "draw_memory", 0),
        **{name: getattr(args, name) for name in options if hasattr(args, name)},
    }


def read_class_names(path: Path | None) -> list[str] | None:
    """The lines of the file that --classes names."""
    if path is None:
        return None
    try:
        return [line.strip() for line in read_text(path).splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise BayesCaffeError(f"--classes {path}: not a text file: {error}") from error


def count(text: str) -> int:
    """A whole number, 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def count_or_analytic(text: str) -> int | str:
    """A whole number, 1 or more, or the word."""
    if text == "analytic":
        return text
    try:
        return count(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number, and not analytic") from None


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


def seeds(text: str) -> list[int]:
    """Whole numbers and ranges with commas between them, such as 1,3,7-9."""
    found: list[int] = []
    for word in text.split(","):
        first, dash, last = word.partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            raise argparse.ArgumentTypeError(f"{text!r} is not seeds, such as 1-5 or 1,3,7-9")
        numbers = range(seed(first), seed(last) + 1)
        if len(found) + len(numbers) > MOST_SEEDS:
            raise argparse.ArgumentTypeError(f"{text!r} is more than {MOST_SEEDS:,} seeds")
        found += numbers
    return found


def seed(text: str) -> int:
    """A whole number of 32 bits."""
    number = int(text)
    if not 0 <= number < SEEDS:
        raise argparse.ArgumentTypeError(f"{number} is not within 0..{SEEDS - 1}")
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
