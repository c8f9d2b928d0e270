"""The subcommand `bayescaffe calibrate`: its arguments, its help and what it prints."""

from __future__ import annotations

import argparse
import json
import logging
from dataclasses import fields
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
    from bayescaffe.stats.temperature import TemperatureFit

log = logging.getLogger(__name__)

DESCRIPTION = """\
Make a net as sure as it is right. Two numbers are chosen with held-out images, and written into the
weights:

  temperature  what the class scores are divided by; above 1 if the net was too sure, below 1 if it
               was not sure enough
  noise        what the standard deviation of every Bayesian weight is multiplied by, at most 1

Training often needs more noise than predictions do. For each of a few factors of the noise, the
temperature is fitted that gives the mean of the draws the lowest negative log-likelihood. Of the
factors whose likelihood is not shown to be worse than the best, the largest is taken.

DATA must have labels. Take images that the net was not trained with, and others than those that you
report on: `bayescaffe data folder --test 0.2` sets aside both kinds.

OUT is a caffemodel like any other: sample, predict, export, stock Caffe and other programs take it.
It carries its net. A stopping rule for the old weights does not fit it. The means of the last layer
are divided by the temperature, and delta of each Bayesian layer is changed for the noise."""

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
        "--noise",
        type=float,
        metavar="F",
        help="take this factor, and fit the temperature only; 1 keeps the learned noise",
    )
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
        noise=args.noise,
        class_names=class_names,
        progress=not args.quiet,
    )
    _print(args, found)


def _print(args: argparse.Namespace, found: Calibration) -> None:
    fit, most = found.fit, max(found.fits)
    if args.json:
        fits = [{"noise": noise, **_as_dict(one)} for noise, one in found.fits.items()]
        facts = {"out": str(found.out), "layer": found.layer, "noise": found.noise, "fits": fits}
        print(json.dumps({**facts, **_as_dict(fit)}))
        return
    images = f"{fit.images:,} images"
    print(f"{found.out}: the scores of {found.layer} divided by {fit.temperature:.3f}")
    print(
        f"  noise  temperature  (95 % interval)       NLL     ECE   (of the {images} that it fits)"
    )
    before = found.fits[most]
    print(_line(f"{most:g}", "1", "not divided", before.nll[0], before.ece[0]))
    for noise, one in found.fits.items():
        mark = "<" if noise == found.noise else ""
        interval = f"{one.low:.3f} to {one.high:.3f}"
        numbers = (one.nll[1], one.ece[1])
        print(_line(f"{noise:g}", f"{one.temperature:.3f}", interval, *numbers), mark)
    if not fit.is_shown and found.noise == most:
        log.warning(
            "the interval contains 1: %s do not show that the net needs another temperature", images
        )


def _line(noise: str, temperature: str, interval: str, nll: float, ece: float) -> str:
    return f"  {noise:>5}  {temperature:>11}  {interval:15} {nll:>10.4f} {100 * ece:>5.2f} %"


def _as_dict(fit: TemperatureFit) -> dict:
    """All of it but what it has for each image."""
    return {f.name: getattr(fit, f.name) for f in fields(fit) if f.name != "losses"}
