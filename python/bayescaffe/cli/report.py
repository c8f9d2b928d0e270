"""The command `bayescaffe report`: its arguments, its help and its output."""

from __future__ import annotations

import argparse
import json
import logging
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bayescaffe.cli.arguments import add_calibration_argument, add_interval_arguments
from bayescaffe.common.errors import BayesCaffeError

if TYPE_CHECKING:
    from bayescaffe.data.images import Images
    from bayescaffe.net.posterior import LayerPosterior

log = logging.getLogger(__name__)

THUMBNAIL = (3, 112, 112)
"""Shape in which image files of any size are shown."""

DESCRIPTION = """\
Write an HTML page that shows the results of a net and its uncertainty.

DRAWS is a file written by `bayescaffe sample`. The page has a summary, the errors, a table of
certain and uncertain predictions, the error over the share of images accepted (with a slider), the
images that the net got wrong with every draw of them, calibration, and uncertainty. It is a single
file and needs no network.

DRAWS names the net, the weights and the data that it was sampled from, and holds their hashes. If
these files have not changed, the page also shows the images and the uncertainty of each layer. If
several models were sampled, it shows the layers of each, and how far the models disagree.
Options replace these files or add others. No other file is read."""

EPILOG = """\
examples:
  bayescaffe report draws.npz                              write report.html
  bayescaffe report draws.npz --baseline stock=stock.npz   compare with one or more other nets
  bayescaffe report draws.npz --ood clothes.npz            add out-of-distribution images
  bayescaffe report draws.npz --curve bayes=a/curve.csv --curve stock=b/curve.csv
                                                           add the training curves of two nets
  bayescaffe report draws.npz --calibration calibration.json
                                                           add sets of classes, and what is accepted
  bayescaffe report draws.npz --title "Night shift" --level 0.99 --out night.html"""


def register(subparsers, common: argparse.ArgumentParser) -> None:
    """Add `report` to the command line."""
    parser = subparsers.add_parser(
        "report",
        parents=[common],
        help="write an HTML page with figures, tables and images",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("draws", type=Path, metavar="DRAWS", help="file from `bayescaffe sample`")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="file to write (default: %(default)s)",
    )
    parser.add_argument(
        "--title", metavar="TEXT", help="title of the page (default: name of DRAWS)"
    )
    add_interval_arguments(parser)
    add_calibration_argument(parser)
    parser.add_argument(
        "--baseline",
        action="append",
        default=[],
        metavar="NAME=DRAWS",
        help="draws of another net for the same images; may be repeated",
    )
    parser.add_argument(
        "--ood",
        type=Path,
        metavar="DRAWS",
        help="draws of the same net for out-of-distribution images",
    )
    parser.add_argument(
        "--curve",
        action="append",
        default=[],
        metavar="[NAME=]CURVE",
        help="curve.csv of `bayescaffe train`, or a .log of `caffe train`; may be repeated",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DATA",
        help="images: LMDB, folder, list or .npy (default: those that were sampled)",
    )
    parser.add_argument("--net", type=Path, metavar="NET", help="prototxt of the layers")
    parser.add_argument("--weights", type=Path, metavar="WEIGHTS", help="caffemodel of the layers")
    parser.add_argument(
        "--untrained",
        action="store_true",
        help="report on draws that were sampled with --untrained",
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
    read = {args.draws, args.ood, args.calibration, *curves.values(), *baselines.values()} - {None}
    if args.out.resolve() in {path.resolve() for path in read}:
        raise BayesCaffeError(f"--out {args.out}: the report reads this file; choose another name")

    options = {"level": args.level, "interval": args.interval, "progress": not args.quiet}
    draws = load_draws(args.draws)
    ood = None if args.ood is None else load_draws(args.ood)
    analysis = analyze(draws, ood=ood, calibration=args.calibration, **options)
    path = report(
        args.out,
        draws,
        analysis,
        title=args.title or args.draws.stem,
        curves={
            name: parse_log(path) if path.suffix == ".log" else read_curve(path)
            for name, path in curves.items()
        },
        layers=_layers(args, draws.models),
        ood=None if ood is None else analyze(ood, **options),
        images=_images(args, draws),
        baselines={name: analyze(load_draws(path), **options) for name, path in baselines.items()},
        command=_command(args),
        untrained=args.untrained,
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


def _layers(args: argparse.Namespace, models: list[dict]) -> list[LayerPosterior] | None:
    from bayescaffe.net.posterior import inspect

    is_asked = args.net is not None or args.weights is not None
    try:
        if args.net is not None and args.weights is not None:
            return inspect(args.net, args.weights)
        if is_asked and len(models) > 1:
            raise BayesCaffeError("the draws are of several models; give both --net and --weights")
        found = []
        for number, model in enumerate(models, 1):
            files = (getattr(args, key) or _same_file(model, key) for key in ("net", "weights"))
            layers = inspect(*files)
            if len(models) > 1:
                layers = [replace(layer, name=f"{layer.name}, model {number}") for layer in layers]
            found += layers
        return found
    except (BayesCaffeError, ImportError, OSError) as error:
        if is_asked:
            raise
        log.info("no layers: %s", error)
        return None


def _same_file(model: dict, key: str) -> str:
    """The path of a file that the draws name, if it is still the one that was sampled.

    Draws may come from anyone, so a path in them alone is no reason to read a file.
    """
    from bayescaffe.common.files import sha256

    path, expected = model[key], model[f"{key}_sha256"]
    if path is None or expected is None:
        raise BayesCaffeError(
            f"the draws do not tell their {key} and its hash; give both --net and --weights"
        )
    if sha256(path) != expected:
        raise BayesCaffeError(f"{path} has changed since it was sampled; give --{key}")
    return path


def _images(args: argparse.Namespace, draws) -> Images | None:
    try:
        return _open_images(args, draws)
    except (BayesCaffeError, OSError) as error:
        if args.data is not None:
            raise
        log.info("no images: %s", error)
        return None


def _open_images(args: argparse.Namespace, draws) -> Images:
    """The images that the user names, or those that the draws name, if they have not changed."""
    from bayescaffe.data.digests import images_sha256
    from bayescaffe.data.images import open_images

    count, meta = draws.probabilities.shape[1], draws.meta
    path, expected = args.data or meta.get("data"), meta.get("data_sha256")
    if args.data is None and (path is None or expected is None):
        raise BayesCaffeError("the draws do not tell their data and its hash; give --data")
    source = open_images(path, channels=meta.get("channels"))
    if len(source) != count:
        raise BayesCaffeError(f"{path}: {len(source)} images, but the draws have {count}")
    if args.data is None and images_sha256(source) != expected:
        raise BayesCaffeError(f"{path} has changed since it was sampled; give --data")
    if source.channels or source.shape is None:
        source.fit(source.shape or THUMBNAIL, "bgr")
    return source


def _command(args: argparse.Namespace) -> str:
    """The command line, with the options that change the report."""
    words = ["bayescaffe", "report", str(args.draws)]
    for option in ("title", "level", "interval", "calibration", "ood", "data", "net", "weights"):
        value = getattr(args, option)
        if value is not None and value != {"level": 0.95, "interval": "equal-tailed"}.get(option):
            words += [f"--{option}", str(value)]
    for option in ("baseline", "curve"):
        for value in getattr(args, option):
            words += [f"--{option}", value]
    if args.untrained:
        words.append("--untrained")
    return shlex.join([*words, "--out", str(args.out)])
