"""The subcommand `bayescaffe sample`: its arguments, its help and what it prints."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from bayescaffe.cli.arguments import (
    add_adaptive_argument,
    add_data_arguments,
    add_net_arguments,
    add_worker_arguments,
    index_range,
    read_class_names,
    read_models,
)
from bayescaffe.common.errors import BayesCaffeError, span

if TYPE_CHECKING:
    from bayescaffe.net.model import Model
    from bayescaffe.stats.draws import Draws

DESCRIPTION = """\
Compute the class probabilities of images in many draws of a trained net. They are written to a
draws file, which `bayescaffe analyze` and `bayescaffe report` read.

A draw is one network, drawn from the posterior. Draw k of a seed is the same network for every
image, for any number of draws, on every machine. NET is the prototxt that the net was trained with,
or one for deployment; WEIGHTS is its caffemodel. For a solver, both are known: give it alone. A
caffemodel from `bayescaffe train` or `bayescaffe pack` carries its net: give it alone, too.

Several WEIGHTS are a mixture of posteriors, or an ensemble if they are of a stock net. The models
take turns: with M of them, draw k is draw k of the model k mod M, counted from 0. The file names
all of them. `bayescaffe train --seeds` trains such models.

DATA is an LMDB, a folder of image files (sub-folders included), a text file that names an image
file in each line, or an .npy or .npz array: images x height x width, or images x channels x height
x width. Image files are brought to the size that the net takes and converted to grey or colour.

If the net's own LMDB was made by `bayescaffe data`, it tells the order of colours (others are
converted to it; of an array, say it with --channels), how pictures are resized, and the names of
the classes. Else image files get Caffe's order, blue, green, red; arrays and LMDBs stay as they
are.

With --adaptive, an image gets 4, 8, 16, … draws until its class and its verdict, certain or not,
are settled; few images need all. `bayescaffe analyze --stopping-rule` writes RULE, and tells what
it promises. The file says how many draws each image has.

With --passes analytic, means and variances go through the net once, at the price of about three
draws, and 256 draws are taken of the class scores alone. No network has these, but their means and
intervals are close to those of many networks; docs/metrics.md tells how close.

--images and --draws compute a part: some images, some of the --passes draws, or both. The file
tells which part it is, and `bayescaffe merge` joins such files. So the tasks of a job array can
share the work without knowing of each other. The bits are those of one process. With --adaptive or
--passes analytic, only --images works: the draws of an image belong together.

--workers computes in N processes, and --dask on the workers of a Dask scheduler, which must see all
files under the same names. Both need the Python package distributed. A worker that dies is
replaced. The file is that of one process. docs/scale.md tells more.

Labels come from the LMDB, the list (behind the name), the .npz, --labels, or sub-folders that are
named by numbers or classes. Without labels there is no error to report."""

EXAMPLES = """\
examples:
  bayescaffe sample solver.prototxt --out draws.npz         the newest weights, the net's own images
  bayescaffe sample train_test.prototxt lenet.caffemodel              the net's own test images
  bayescaffe sample trained.caffemodel --data photos/                 image files
  bayescaffe sample seed-1/net.caffemodel seed-2/net.caffemodel       draws of two models, in turns
  bayescaffe sample net.prototxt net.caffemodel --data x.npy --labels y.npy --passes 20 --out x.npz
  bayescaffe sample trained.caffemodel --data new/ --adaptive rule.json    fewer draws where these
                                                                           give the same answer
  bayescaffe sample trained.caffemodel --passes analytic    about the answer of many draws, in one
                                                            pass
  bayescaffe sample trained.caffemodel --workers 4 --out draws.npz         four processes
  bayescaffe sample trained.caffemodel --draws 50-99 --out second.npz      a part; see merge

In Python:
  model = bayescaffe.Model("net.prototxt", "net.caffemodel")
  draws = bayescaffe.sample(model, images, passes=100)
  draws = bayescaffe.sample(bayescaffe.Mixture([model, other]), images)"""


def register(subparsers, common: argparse.ArgumentParser) -> None:
    """Add `sample` to the command line."""
    parser = subparsers.add_parser(
        "sample",
        parents=[common],
        help="compute class probabilities of images in many draws of a net",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_net_arguments(parser, several=True)
    add_data_arguments(parser, "the images (default: the LMDB of the net's TEST phase)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the draws file (default: the name of WEIGHTS with .draws.npz, or mixture.draws.npz "
        "for several, in this directory)",
    )
    add_adaptive_argument(parser)
    _add_parts(parser)
    parser.set_defaults(run=_run)


def _add_parts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("parts and workers")
    for option, what in (("image", "images, counted from 0"), ("draw", "draws, of all --passes")):
        group.add_argument(
            f"--{option}s",
            dest=f"{option}_range",
            type=index_range,
            metavar="A-B",
            help=f"only these {what}; both ends belong to them",
        )
    add_worker_arguments(group)
    group.add_argument(
        "--parts",
        type=Path,
        metavar="DIR",
        help="with workers: write the parts of the result to DIR and keep them (default: beside "
        "the draws file, and removed)",
    )


def _run(args: argparse.Namespace) -> None:
    from bayescaffe.data.images import open_images
    from bayescaffe.infer.sampling import sample
    from bayescaffe.net.mixture import mixture

    class_names = read_class_names(args.classes)
    images = None
    if args.data is not None:
        images = open_images(
            args.data, labels=args.labels, channels=args.channels, invert=args.invert
        )
    elif args.labels is not None:
        raise BayesCaffeError("--labels: needs --data; the net's own LMDB has its labels")
    elif args.channels is not None:
        raise BayesCaffeError("--channels: needs --data; the net takes its own LMDB as it is")
    models = read_models(args, images.shape if images else None)
    out = args.out or _default_out(args, models)
    draws = sample(
        mixture(models),
        images,
        args.passes,
        out=out,
        adaptive=args.adaptive,
        class_names=class_names,
        image_range=args.image_range,
        draw_range=args.draw_range,
        workers=args.workers,
        dask=args.dask,
        parts=args.parts,
        progress=not args.quiet,
    )
    _print(args, draws, out)


def _default_out(args: argparse.Namespace, models: list[Model]) -> Path:
    """Parts have names of their own."""
    stem = models[0].weights.stem if len(models) == 1 else "mixture"
    ranges = {"images": args.image_range, "draws": args.draw_range}
    part = "".join(f".{name}-{span(one)}" for name, one in ranges.items() if one)
    return Path(f"{stem}{part}.draws.npz")


def _print(args: argparse.Namespace, draws: Draws, out: Path) -> None:
    passes, (images, classes) = draws.passes, draws.probabilities.shape[1:]
    mean_draws = float(draws.draw_counts.mean())
    wrong = None
    if draws.labels is not None:
        wrong = 0
        for rows, part in draws.parts():
            wrong += int((part.mean(axis=0).argmax(axis=-1) != draws.labels[rows]).sum())
    seconds = draws.meta["seconds"]
    models = len(draws.models)
    result = {
        "out": str(out),
        "draws": passes,
        "mean_draws": mean_draws,
        "models": models,
        "images": images,
        "classes": classes,
        "seed": args.seed,
        "wrong": wrong,
        "error": None if wrong is None else wrong / images,
        "seconds": seconds,
        **({"part": draws.part} if draws.part else {}),
    }
    if args.json:
        print(json.dumps(result))
        return
    from_models = f" from {models} models" if models > 1 else ""
    on_average = f"up to {passes:,} draws, {mean_draws:.1f} on average,"
    drawn = on_average if draws.is_adaptive else f"{passes:,} draws"
    if draws.is_analytic:
        drawn = f"analytic, {passes:,} draws of the scores"
    print(f"{out}: {drawn}{from_models} of {images:,} images, {classes} classes")
    if draws.part:
        print(f"part: {draws.part}")
    if wrong is not None:
        print(f"error of the mean prediction: {wrong / images:.2%} ({wrong:,} of {images:,})")
    work, unit = (images, "image") if draws.is_analytic else (mean_draws * images, "image and draw")
    together = " of all workers together" if args.workers or args.dask else ""
    print(f"time: {seconds:.1f} s{together}, {1e6 * seconds / work:.1f} µs per {unit}")
