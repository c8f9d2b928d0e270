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
from bayescaffe.common.errors import BayesCaffeError

if TYPE_CHECKING:
    from bayescaffe.infer.calibration import Calibration
    from bayescaffe.stats.temperature import TemperatureFit

log = logging.getLogger(__name__)

DESCRIPTION = """\
Calibrate a net, or decisions, with held-out images. What it does depends on its first argument:

  NET    mends the net's probabilities, and writes a caffemodel
  DRAWS  gives guarantees on decisions, and writes calibration.json

NET: make a net as sure as it is right. Two numbers are chosen, and written into the weights:

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
are divided by the temperature, and delta of each Bayesian layer is changed for the noise.

DRAWS: a file of `bayescaffe sample`, of held-out images with labels. The net stays as it is. OUT is
a JSON file for `analyze --calibration`, `predict --calibration` and `report --calibration`:

  sets    of classes: at least the share --coverage of images have their class in their set
  accept  with --error E: with --confidence, at most the share E of what is accepted is wrong

Both hold for images like the held-out ones, with the same net, seed and number of draws. A coverage
of 0.95 needs 24 images or more, and an error of 0.01 needs 373."""

EXAMPLES = """\
examples:
  bayescaffe calibrate photos-net/solver.prototxt --data data/photos/val_lmdb --out sure.caffemodel
  bayescaffe calibrate trained.caffemodel --data x.npy --labels y.npy --out sure.caffemodel
  bayescaffe sample sure.caffemodel --data data/photos/test_lmdb --out draws.npz
  bayescaffe calibrate held-out.npz --coverage 0.95 --error 0.01 --out calibration.json
  bayescaffe predict sure.caffemodel scans --calibration calibration.json

In Python:
  found = bayescaffe.calibrate(model, "data/photos/val_lmdb", out="sure.caffemodel")
  found.fit.temperature
  bayescaffe.calibrate_decisions("held-out.npz", coverage=0.95, error=0.01)"""

DECISIONS = ("coverage", "error", "sets", "confidence", "temperature")
"""Options for DRAWS; the others are for NET."""


def register(subparsers, common: argparse.ArgumentParser) -> None:
    """Add `calibrate` to the command line."""
    parser = subparsers.add_parser(
        "calibrate",
        parents=[common],
        help="make a net as sure as it is right, or its decisions safe, with held-out images",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_net_arguments(parser)
    add_data_arguments(parser, "held-out images with labels; what `sample` takes (with NET)")
    parser.add_argument(
        "--noise",
        type=float,
        metavar="F",
        help="take this factor, and fit the temperature only; 1 keeps the learned noise",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="OUT",
        help="the file to write: a caffemodel, or calibration.json with DRAWS",
    )
    group = parser.add_argument_group("decisions, with DRAWS in the place of NET")
    group.add_argument(
        "--coverage",
        type=float,
        metavar="C",
        help="the share of images whose class is to be in their set (default: 0.95)",
    )
    group.add_argument(
        "--sets",
        choices=("lac", "aps", "raps"),
        help="lac has the smallest sets, some may be empty; aps and raps have larger sets for "
        "harder images, none is empty (default: lac)",
    )
    group.add_argument(
        "--error",
        type=float,
        metavar="E",
        help="the largest share of the accepted images that may be wrong; without it, the "
        "calibration has sets only",
    )
    group.add_argument(
        "--confidence",
        type=float,
        metavar="C",
        help="that the error is kept (default: 0.95)",
    )
    group.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="take this temperature (default: fitted with a fifth of the images)",
    )
    parser.set_defaults(run=_run, usage_error=parser.error)


def _run(args: argparse.Namespace) -> None:
    from bayescaffe.data.images import open_images
    from bayescaffe.infer.calibration import calibrate

    if _is_draws(args.net):
        _calibrate_decisions(args)
        return
    given = [f"--{name}" for name in DECISIONS if getattr(args, name) is not None]
    if given:
        raise BayesCaffeError(
            f"{given[0]}: is for decisions, calibrated with DRAWS of `bayescaffe sample` (.npz); "
            f"{args.net} is a net"
        )
    if args.data is None:
        args.usage_error("the following arguments are required with NET: --data")
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


def _is_draws(path: Path) -> bool:
    """Whether the first argument is a draws file, which is a zip file, and not a net."""
    from bayescaffe.common.reading import open_regular

    if not path.is_file():
        return path.suffix == ".npz"
    with open_regular(path) as file:
        return file.read(4) == b"PK\3\4" or path.suffix == ".npz"


def _calibrate_decisions(args: argparse.Namespace) -> None:
    from bayescaffe.stats.decisions import DecisionRule, calibrate_decisions

    for name in ("weights", "data", "labels", "passes", "noise"):
        if getattr(args, name) is not None:
            option = "WEIGHTS" if name == "weights" else f"--{name}"
            raise BayesCaffeError(
                f"{option} {getattr(args, name)}: is for NET; {args.net} is a draws file, which "
                "has its images and labels"
            )
    if args.out.suffix == ".caffemodel" or args.out.resolve() == args.net.resolve():
        raise BayesCaffeError(
            f"--out {args.out}: with draws, a JSON file such as calibration.json is written; to "
            "write a caffemodel, give the net and --data"
        )
    options = {name: getattr(args, name) for name in DECISIONS}
    options["method"] = options.pop("sets")
    given = {name: value for name, value in options.items() if value is not None}
    rule: DecisionRule = calibrate_decisions(args.net, **given)
    rule.save(args.out)
    log.info("wrote %s", args.out)
    if rule.missing_classes:
        log.warning(
            "no image is of class %s: sets hold for all images together, and say nothing about it",
            ", ".join(map(str, rule.missing_classes)),
        )
    if args.json:
        print(json.dumps({"out": str(args.out), **rule.as_dict()}))
        return
    print(f"{args.out}: temperature {rule.temperature:.3f}, calibrated with {rule.images:,} images")
    print(
        f"  sets ({rule.method}): at least {100 * rule.coverage:g} % of images like these have "
        "their class in the set"
    )
    if rule.threshold is not None:
        print(
            f"  accept from a probability of {rule.threshold:.4f} on: {rule.accepted:,} of these "
            f"images, {rule.wrong:,} of them wrong;\n  with {rule.confidence:.0%} confidence, at "
            f"most {100 * rule.error:g} % of what is accepted is wrong"
        )


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
