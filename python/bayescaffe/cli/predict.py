"""The subcommand `bayescaffe predict`: its arguments, its help and what it prints."""

import argparse
import csv
import json
import logging
import sys
from collections import Counter
from dataclasses import asdict, fields
from pathlib import Path

from bayescaffe.cli.arguments import (
    add_adaptive_argument,
    add_interval_arguments,
    add_net_arguments,
    read_class_names,
    read_model,
    resolve_files,
    share,
)
from bayescaffe.common.errors import BayesCaffeError

log = logging.getLogger(__name__)

DESCRIPTION = """\
Predict the class of images with many draws of a trained net, and decide what to do with each:

  accept    the class's credible interval overlaps that of no other class, and its lower end is at
            least --accept-above: the draws agree
  escalate  otherwise, if the mean probability is below --escalate-below: no class stands out, and a
            person should look
  repeat    otherwise: one class leads, but the draws differ; another picture may settle it

A draw is one network, drawn from the posterior. NET is the prototxt that the net was trained with,
or one for deployment; WEIGHTS is its caffemodel. For a solver, both are known: give it alone. A
caffemodel from `bayescaffe train` or `bayescaffe pack` carries its net: give it alone, too.

An IMAGE is a file that Pillow reads (PNG, JPEG, …), of any size, grey or colour; a folder,
sub-folders included; or - for one image from standard input. Images are turned upright, put on
white where they are transparent, and brought to the size and the order of colours that the net
takes. A net for MNIST expects white digits on black: use --invert for ink on paper.

If an image cannot be read, the others are still predicted and the exit code is 1."""

EXAMPLES = """\
examples:
  bayescaffe predict lenet.caffemodel digit.png --invert
  bayescaffe predict solver.prototxt photo.jpg                        the newest weights
  bayescaffe predict net.prototxt net.caffemodel photos/ --classes names.txt --accept-above 0.9
  bayescaffe predict lenet.caffemodel scans/ --adaptive rule.json     fewer draws of clear images
  curl -s http://camera/still | bayescaffe predict net.prototxt net.caffemodel - --json

In Python:
  model = bayescaffe.Model("net.prototxt", "net.caffemodel")
  bayescaffe.predict(model, ["a.png"], rule=bayescaffe.Rule(accept_above=0.9))"""


def register(subparsers, common: argparse.ArgumentParser) -> None:
    """Add `predict` to the command line."""
    parser = subparsers.add_parser(
        "predict",
        parents=[common],
        help="predict images, with credible intervals and a decision",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_net_arguments(parser)
    parser.add_argument("images", metavar="IMAGE", nargs="*", help="image file, folder, or -")
    add_interval_arguments(parser)
    add_adaptive_argument(parser)
    for name, what in (
        ("--accept-above", "accept only what is certain with a lower end of at least X"),
        ("--escalate-below", "escalate what is not accepted with a mean probability below X"),
    ):
        parser.add_argument(
            name, type=share, default=0.5, metavar="X", help=f"{what} (default: 0.5)"
        )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a line for each image")
    parser.set_defaults(run=_run, usage_error=parser.error)


def _run(args: argparse.Namespace) -> None:
    from bayescaffe.infer.prediction import Rule, predict

    resolve_files(args)
    if not args.images:
        args.usage_error("the following arguments are required: IMAGE")
    errors = []

    def report(name: str, error: BayesCaffeError) -> None:
        log.error("bayescaffe: error: %s", error)
        errors.append({"image": name, "error": str(error)})

    predictions = predict(
        read_model(args),
        [sys.stdin.buffer.read() if name == "-" else name for name in args.images],
        args.passes,
        adaptive=args.adaptive,
        level=args.level,
        interval=args.interval,
        rule=Rule(args.accept_above, args.escalate_below),
        class_names=read_class_names(args.classes),
        invert=args.invert,
        on_error=report,
        progress=not args.quiet,
    )
    if args.csv:
        _write_csv(args.csv, predictions)
    decisions = Counter(prediction.decision for prediction in predictions)
    counts = {name: decisions[name] for name in ("accept", "repeat", "escalate")}
    if args.json:
        images = [asdict(prediction) for prediction in predictions]
        print(json.dumps({"images": images, "decisions": counts, "errors": errors}))
    elif predictions:
        _print_table(predictions, args.level, args.adaptive is not None)
        print(f"\n{len(predictions)} images: " + ", ".join(f"{n} {d}" for d, n in counts.items()))
    if errors:
        raise BayesCaffeError(
            f"{len(errors)} of {len(errors) + len(predictions)} images or folders could not be read"
        )


def _print_table(predictions: list, level: float, is_adaptive: bool) -> None:
    rows = [
        (
            prediction.image,
            str(prediction.label) if prediction.class_name is None else prediction.class_name,
            f"{prediction.probability:.3f}",
            f"{prediction.lower:.3f} to {prediction.upper:.3f}",
            "yes" if prediction.certain else "no",
            f"{prediction.entropy:.3f}",
            f"{prediction.epistemic:.3f}",
            prediction.decision,
            *([str(prediction.draws)] if is_adaptive else []),
        )
        for prediction in predictions
    ]
    heads = ("image", "class", "probability", f"{100 * level:g} % interval", "certain")
    rows.insert(0, (*heads, "entropy", "epistemic", "decision", *["draws"] * is_adaptive))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _write_csv(path: Path, predictions: list) -> None:
    from bayescaffe.common.files import scratch_file
    from bayescaffe.infer.prediction import Prediction

    names = [field.name for field in fields(Prediction) if field.name != "probabilities"]
    with scratch_file(path) as scratch, scratch.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([getattr(one, name) for name in names] for one in predictions)
