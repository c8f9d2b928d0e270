"""The subcommand `bayescaffe sample`: its arguments, its help and what it prints."""

import argparse
import json
from pathlib import Path

from bayescaffe.cli.arguments import count, index, seed

DESCRIPTION = """\
Take images through many draws of a trained net, and write the class probabilities of every pass to
a draws file, which `bayescaffe analyze` and `bayescaffe report` read.

NET is the prototxt the net was trained with, or one for deployment; WEIGHTS its caffemodel. Pass k
is the same network for every image, for any number of passes, on every machine.

DATA is an LMDB, a folder of image files (also in sub-folders), a text file that names one in each
line, or an .npy or .npz array of images x height x width or images x channels x height x width.
Image files are stretched to the size the net takes, and made grey or colour (blue, green, red, as
is Caffe's custom); LMDBs and arrays are taken as they are. Labels are those of the LMDB, of the
list (behind the name), of the .npz, of --labels, or of sub-folders that are named by numbers or
classes; without any there is no error to report."""

EXAMPLES = """\
examples:
  bayescaffe sample train_test.prototxt lenet.caffemodel              the net's own test images
  bayescaffe sample net.prototxt net.caffemodel --data photos/        image files
  bayescaffe sample net.prototxt net.caffemodel --data x.npy --labels y.npy --passes 20 --out x.npz

In Python: bayescaffe.sample(net, weights, data, passes=100, out="x.draws.npz")"""


def register(subparsers, common: argparse.ArgumentParser) -> None:
    """Add `sample` to the command line."""
    parser = subparsers.add_parser(
        "sample",
        parents=[common],
        help="take images through many draws of a net",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_net_arguments(parser)
    parser.add_argument(
        "--data", metavar="DATA", help="the images (default: the LMDB in the net's TEST phase)"
    )
    parser.add_argument(
        "--labels", metavar="FILE", help="a label for each image: .npy, or numbers in a text file"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the draws file (default: the name of WEIGHTS with .draws.npz, in this directory)",
    )
    parser.set_defaults(run=_run)


def add_net_arguments(parser: argparse.ArgumentParser) -> None:
    """What every command says of the net it draws from."""
    parser.add_argument("net", metavar="NET", help="prototxt of the net")
    parser.add_argument("weights", metavar="WEIGHTS", help="caffemodel of the net")
    parser.add_argument(
        "--passes", type=count, default=100, metavar="N", help="draws of the net (default: 100)"
    )
    parser.add_argument(
        "--seed", type=seed, default=1, metavar="N", help="of the draws (default: 1)"
    )
    parser.add_argument(
        "--gpu", type=index, metavar="N", help="compute on this GPU (default: on the CPU)"
    )
    parser.add_argument(
        "--classes", type=Path, metavar="FILE", help="the classes' names, one in each line"
    )
    parser.add_argument(
        "--invert",
        action="store_true",
        help="turn image files from black on white to white on black, which MNIST's nets expect",
    )
    group = parser.add_argument_group("nets that do not tell by themselves")
    group.add_argument(
        "--output", metavar="BLOB", help="the class scores (default: those in SoftmaxWithLoss)"
    )
    group.add_argument(
        "--shape",
        type=shape,
        metavar="CxHxW",
        help="channels, height, width of the images, where the net's own LMDB is not here",
    )
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
        help="let Dropout layers drop, which makes an ordinary net random",
    )


def net_arguments(args: argparse.Namespace) -> dict:
    """What `add_net_arguments` asked for, as arguments of `sample` and `predict`."""
    from bayescaffe.net.messages import read_mean

    return {
        "net": args.net,
        "weights": args.weights,
        "passes": args.passes,
        "seed": args.seed,
        "class_names": read_class_names(args.classes) if args.classes else None,
        "invert": args.invert,
        "output": args.output,
        "mc_dropout": args.mc_dropout,
        "gpu": args.gpu,
        "image_shape": args.shape,
        "scale": args.scale,
        "mean": read_mean(args.mean) if isinstance(args.mean, str) else args.mean,
    }


def shape(text: str) -> tuple[int, int, int]:
    """The type of --shape."""
    numbers = tuple(int(word) for word in text.lower().split("x"))
    if len(numbers) != 3 or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not CxHxW, such as 1x28x28")
    return numbers


def mean(text: str) -> list[float] | str:
    """The type of --mean: numbers, or the name of a file."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        return text


def read_class_names(path: Path) -> list[str]:
    """The lines of a text file."""
    from bayescaffe.common.errors import BayesCaffeError

    try:
        return [line.strip() for line in path.read_text().splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise BayesCaffeError(f"{path}: not a text file: {error}") from error


def _run(args: argparse.Namespace) -> None:
    from bayescaffe.infer.sampling import sample

    out = args.out or Path(Path(args.weights).name).with_suffix(".draws.npz")
    draws = sample(
        data=args.data,
        labels=args.labels,
        out=out,
        progress=not args.quiet,
        **net_arguments(args),
    )
    count, images, classes = draws.probabilities.shape
    wrong = None
    if draws.labels is not None:
        predicted = draws.probabilities.mean(axis=0).argmax(axis=-1)
        wrong = int((predicted != draws.labels).sum())
    seconds = draws.meta["seconds"]
    result = {
        "out": str(out),
        "passes": count,
        "images": images,
        "classes": classes,
        "seed": args.seed,
        "wrong": wrong,
        "error": None if wrong is None else wrong / images,
        "seconds": seconds,
    }
    if args.json:
        print(json.dumps(result))
        return
    print(f"{out}: {count:,} passes of {images:,} images, {classes} classes")
    if wrong is not None:
        print(f"error of the mean prediction: {wrong / images:.2%} ({wrong:,} of {images:,})")
    print(
        f"time: {seconds:.1f} s, {1e6 * seconds / (count * images):.1f} µs for an image and a pass"
    )
