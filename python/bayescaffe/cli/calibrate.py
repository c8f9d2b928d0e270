"""The subcommand `bayescaffe calibrate`: its arguments, its help and what it prints."""

from __future__ import annotations

import argparse
import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bayescaffe.cli.arguments import (
    add_data_arguments,
    add_net_arguments,
    read_class_names,
    read_model,
    resolve_files,
)

if TYPE_CHECKING:
    from bayescaffe.infer.calibration import Calibration

log = logging.getLogger(__name__)

DESCRIPTION = """\
Make a net as sure as it is right, by temperature scaling. Its class scores are divided by one
number, the temperature, which fits held-out images best: with it, the mean of the draws has the
lowest negative log-likelihood. Above 1, the net was too sure; below 1, not sure enough.

DATA must have labels. Take images that the net was not trained with, and others than those that you
report on: `bayescaffe data folder --test 0.2` sets aside both kinds.

The weights of the last layer are divided by the temperature, so OUT is a caffemodel like any other:
sample, predict, export, stock Caffe and other programs take it. It carries its net. A stopping rule
for the old weights does not fit it."""

EXAMPLES = """\
examples:
  bayescaffe calibrate photos-net/solver.prototxt --data data/photos/val_lmdb --out sure.caffemodel
  bayescaffe calibrate trained.caffemodel --data x.npy --labels y.npy --out sure.caffemodel
  bayescaffe sample sure.caffemodel --data data/photos/test_lmdb --out draws.npz

In Python:
  found = bayescaffe.calibrate(model, "data/photos/val_lmdb", out="sure.caffemodel")
  found.fit.temperature"""


def register(subparsers, common: argparse.ArgumentParser) -> None:
    """Add `calibrate` to the command line."""
    parser = subparsers.add_parser(
        "calibrate",
        parents=[common],
        help="make a net as sure as it is right, with held-out images",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_net_arguments(parser)
    add_data_arguments(parser, "held-out images with labels; what `sample` takes", required=True)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="OUT", help="the caffemodel to write"
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from bayescaffe.data.images import open_images
    from bayescaffe.infer.calibration import calibrate

    class_names = read_class_names(args.classes)
    images = open_images(args.data, labels=args.labels, channels=args.channels, invert=args.invert)
    resolve_files(args)
    found = calibrate(
        read_model(args, images.shape),
        images,
        args.passes,
        out=args.out,
        class_names=class_names,
        progress=not args.quiet,
    )
    _print(args, found)


def _print(args: argparse.Namespace, found: Calibration) -> None:
    fit = found.fit
    if args.json:
        print(json.dumps({"out": str(found.out), "layer": found.layer, **asdict(fit)}))
        return
    print(f"{found.out}: the scores of {found.layer} divided by {fit.temperature:.3f}")
    meaning = "it was too sure" if fit.temperature > 1 else "it was not sure enough"
    interval = f"{fit.low:.3f} to {fit.high:.3f}, 95 % interval"
    print(f"temperature  {fit.temperature:.3f}   ({interval}): {meaning}")
    print(f"{'':12}{'before':>8}{'after':>10}   (of the {fit.images:,} images that it fits)")
    print(f"{'NLL':12}{fit.nll[0]:>8.4f}{fit.nll[1]:>10.4f}")
    print(f"{'ECE':12}{100 * fit.ece[0]:>7.2f}%{100 * fit.ece[1]:>9.2f}%")
    if not fit.is_shown:
        log.warning(
            "the interval contains 1: %s images do not show that the net needs another temperature",
            f"{fit.images:,}",
        )
