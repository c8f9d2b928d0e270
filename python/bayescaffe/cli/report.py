"""The subcommand `bayescaffe report`: its arguments, its help and what it prints."""

from __future__ import annotations

import argparse
import json
import logging
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from bayescaffe.cli.arguments import add_interval_arguments
from bayescaffe.common.errors import BayesCaffeError

if TYPE_CHECKING:
    from bayescaffe.data.images import Images
    from bayescaffe.net.posterior import LayerPosterior

log = logging.getLogger(__name__)

THUMBNAIL = (3, 112, 112)
"""Shape that image files of any size are shown in."""

DESCRIPTION = """\
Write one HTML file that shows a person what the draws of a net say.

DRAWS is a file written by `bayescaffe sample`. The report holds a summary in plain words, errors,
the table certain/uncertain, risk and coverage with a slider, the images that the net got wrong with
what each pass said of them, calibration and uncertainty. It needs no network and no other file.

The draws know their net, weights and data; if these are still there and are the same, the report
takes the layers' uncertainty and the images from them. Options name others, or add more."""

EPILOG = """\
examples:
  bayescaffe report draws.npz                              write report.html
  bayescaffe report draws.npz --baseline stock=stock.npz    compare with another net, or several
  bayescaffe report draws.npz --ood clothes.npz            and show what it says of other images
  bayescaffe report draws.npz --curve bayes=a/curve.csv --curve plain=b/curve.csv
                                                           and how they learned
  bayescaffe report draws.npz --title "Night shift" --level 0.99 --out night.html"""


def register(subparsers, common: argparse.ArgumentParser) -> None:
    """Add `report` to the command line."""
    parser = subparsers.add_parser(
        "report",
        parents=[common],
        help="write an HTML report on draws, for people",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("draws", type=Path, metavar="DRAWS", help="what `bayescaffe sample` wrote")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="where the report goes (default: %(default)s)",
    )
    parser.add_argument("--title", metavar="TEXT", help="of the page (default: name of DRAWS)")
    add_interval_arguments(parser)
    parser.add_argument(
        "--baseline",
        action="append",
        default=[],
        metavar="NAME=DRAWS",
        help="draws of another net for the same images, to compare with; may be repeated",
    )
    parser.add_argument(
        "--ood",
        type=Path,
        metavar="DRAWS",
        help="draws of the same net for images of another kind, which it should be unsure of",
    )
    parser.add_argument(
        "--curve",
        action="append",
        default=[],
        metavar="[NAME=]CURVE",
        help="a training: the curve.csv of `bayescaffe train`, or a .log of `caffe train`; may be "
        "repeated",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DATA",
        help="where the images are: LMDB, folder, list, .npy (default: where they were sampled)",
    )
    parser.add_argument("--net", type=Path, metavar="NET", help="prototxt, for the layers")
    parser.add_argument(
        "--weights", type=Path, metavar="WEIGHTS", help="caffemodel, for the layers"
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from bayescaffe.reporting.page import report
    from bayescaffe.stats.analysis import analyze
    from bayescaffe.stats.draws import load_draws
    from bayescaffe.training.log import parse_log, read_curve

    curves = {name or path.parent.name or path.stem: path for name, path in map(_named, args.curve)}
    baselines = dict(map(_named, args.baseline))
    if None in baselines:
        raise BayesCaffeError(f"--baseline {baselines[None]}: expected NAME=DRAWS")
    read = {args.draws, args.ood, *curves.values(), *baselines.values()} - {None}
    if args.out.resolve() in {path.resolve() for path in read}:
        raise BayesCaffeError(f"--out {args.out}: is a file that the report reads")

    options = {"level": args.level, "interval": args.interval, "progress": not args.quiet}
    draws = load_draws(args.draws)
    ood = None if args.ood is None else load_draws(args.ood)
    analysis = analyze(draws, ood=ood, **options)
    path = report(
        args.out,
        draws,
        analysis,
        title=args.title or args.draws.stem,
        curves={
            name: parse_log(path) if path.suffix == ".log" else read_curve(path)
            for name, path in curves.items()
        },
        layers=_layers(args, draws.meta),
        ood=None if ood is None else analyze(ood, **options),
        images=_images(args, draws),
        baselines={name: analyze(load_draws(path), **options) for name, path in baselines.items()},
        command=_command(args),
    )
    size = path.stat().st_size
    if args.json:
        found = {"draws_file": str(args.draws), "report": str(path), "bytes": size}
        print(json.dumps({**found, **analysis.summary()}))
    else:
        print(f"{path}: {size / 1e6:.1f} MB; open it in a browser")


def _named(text: str) -> tuple[str | None, Path]:
    name, separator, path = text.partition("=")
    return (name, Path(path)) if separator else (None, Path(text))


def _layers(args: argparse.Namespace, meta: dict) -> list[LayerPosterior] | None:
    from bayescaffe.common.files import sha256
    from bayescaffe.net.posterior import inspect

    if args.net is not None or args.weights is not None:
        net, weights = args.net or meta.get("net"), args.weights or meta.get("weights")
        if net is None or weights is None:
            raise BayesCaffeError("the draws do not know their net; give both --net and --weights")
        return inspect(net, weights)
    try:
        for key in ("net", "weights"):
            if sha256(meta[key]) != meta[f"{key}_sha256"]:
                log.info("without layers: %s is not what was sampled any more", meta[key])
                return None
        return inspect(meta["net"], meta["weights"])
    except (BayesCaffeError, ImportError, KeyError, OSError, TypeError) as error:
        log.info("without layers: %s", error)
        return None


def _images(args: argparse.Namespace, draws) -> Images | None:
    from bayescaffe.data.images import open_images

    count = draws.probabilities.shape[1]
    path = args.data or draws.meta.get("data")
    if path is None:
        log.info("without images: the draws do not know where they are; --data says it")
        return None
    try:
        source = open_images(path)
        if len(source) != count:
            raise BayesCaffeError(f"{path}: {len(source)} images, but the draws are of {count}")
        if source.shape is None:
            source.fit(THUMBNAIL)
        return source
    except (BayesCaffeError, OSError) as error:
        if args.data is not None:
            raise
        log.info("without images: %s", error)
        return None


def _command(args: argparse.Namespace) -> str:
    """The command line again, as far as it changes the report."""
    words = ["bayescaffe", "report", str(args.draws)]
    for option in ("title", "level", "interval", "ood", "data", "net", "weights"):
        value = getattr(args, option)
        if value is not None and value != {"level": 0.95, "interval": "equal-tailed"}.get(option):
            words += [f"--{option}", str(value)]
    for option in ("baseline", "curve"):
        for value in getattr(args, option):
            words += [f"--{option}", value]
    return shlex.join([*words, "--out", str(args.out)])
