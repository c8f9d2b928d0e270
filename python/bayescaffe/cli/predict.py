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
    add_calibration_argument,
    add_interval_arguments,
    add_net_arguments,
    add_rule_arguments,
    add_worker_arguments,
    read_class_names,
    read_model,
    resolve_files,
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

With --calibration, accept is what the calibration accepts, and keeps its error; each image also has
a set of classes, which holds the true one as often as the calibration promises.

A draw is one network, drawn from the posterior. NET is the prototxt that the net was trained with,
or one for deployment; WEIGHTS is its caffemodel. For a solver, both are known: give it alone. A
caffemodel from `bayescaffe train` or `bayescaffe pack` carries its net: give it alone, too.

An IMAGE is a file that Pillow reads (PNG, JPEG, …), of any size, grey or colour; a folder,
sub-folders included; or - for one image from standard input. Images are turned upright, put on
white where they are transparent, and brought to the size and the order of colours that the net
takes. A net for MNIST expects white digits on black: use --invert for ink on paper.

--workers predicts in N processes, and --dask on the workers of a Dask scheduler, which must see all
files under the same names. The answers are those of one process. docs/scale.md tells more.

If an image cannot be read, the others are still predicted and the exit code is 1."""

EXAMPLES = """\
examples:
  bayescaffe predict lenet.caffemodel digit.png --invert
  bayescaffe predict solver.prototxt photo.jpg                        the newest weights
  bayescaffe predict net.prototxt net.caffemodel photos/ --classes names.txt --accept-above 0.9
  bayescaffe predict lenet.caffemodel scans/ --adaptive rule.json     fewer draws of clear images
  bayescaffe predict lenet.caffemodel scans/ --workers 4 --csv scans.csv      four processes
  bayescaffe predict lenet.caffemodel scans/ --calibration calibration.json
  bayescaffe predict lenet.caffemodel --watch incoming/               a line of JSON for each
  find . -name '*.png' | bayescaffe predict lenet.caffemodel --jsonl -
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
    add_worker_arguments(parser)
    add_calibration_argument(parser)
    add_rule_arguments(parser)
    parser.add_argument(
        "--watch",
        type=Path,
        metavar="FOLDER",
        help="predict the pictures that are in this folder, and those that come, until Ctrl-C; "
        "print a line of JSON for each",
    )
    parser.add_argument(
        "--jsonl",
        metavar="FILE",
        help="predict the image files that this file names, one in each line (- is standard "
        "input), and print a line of JSON for each as soon as it is known",
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a line for each image")
    parser.set_defaults(run=_run, usage_error=parser.error)


def _run(args: argparse.Namespace) -> None:
    from bayescaffe.infer.prediction import Rule, predict

    resolve_files(args)
    if args.watch is not None or args.jsonl is not None:
        _run_stream(args)
        return
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
        calibration=args.calibration,
        level=args.level,
        interval=args.interval,
        rule=Rule(args.accept_above, args.escalate_below),
        class_names=read_class_names(args.classes),
        invert=args.invert,
        on_error=report,
        workers=args.workers,
        dask=args.dask,
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
        if args.calibration:
            _print_promise(args.calibration)
    if errors:
        raise BayesCaffeError(
            f"{len(errors)} of {len(errors) + len(predictions)} images or folders could not be read"
        )


def _set(prediction) -> str:
    """The classes of its set."""
    names = prediction.class_set if prediction.set_names is None else prediction.set_names
    return "{" + ", ".join(map(str, names)) + "}"


def _run_stream(args: argparse.Namespace) -> None:
    """A line of JSON for each image of --watch or --jsonl."""
    from bayescaffe.infer.prediction import Rule, predict
    from bayescaffe.infer.streaming import lines_of, new_pictures
    from bayescaffe.net.model import DRAW_MEMORY

    if args.images or args.csv or args.workers or args.dask or (args.watch and args.jsonl):
        args.usage_error(
            "--watch and --jsonl go without IMAGE, --csv, --workers, --dask and each other"
        )
    failed = 0

    def tell(name: str, error: BayesCaffeError) -> None:
        nonlocal failed
        failed += 1
        print(json.dumps({"image": name, "error": str(error)}), flush=True)

    args.draw_memory = DRAW_MEMORY
    model, rule = read_model(args), Rule(args.accept_above, args.escalate_below)
    class_names = read_class_names(args.classes)
    groups = new_pictures(args.watch) if args.watch is not None else lines_of(args.jsonl)
    for names in groups:
        for one in predict(
            model,
            names,
            args.passes,
            adaptive=args.adaptive,
            calibration=args.calibration,
            level=args.level,
            interval=args.interval,
            rule=rule,
            class_names=class_names,
            invert=args.invert,
            on_error=tell,
            progress=False,
        ):
            print(json.dumps(asdict(one)), flush=True)
    if failed:
        raise BayesCaffeError(f"{failed} images could not be read; their lines tell why")


def _print_table(predictions: list, level: float, is_adaptive: bool) -> None:
    has_sets = predictions[0].class_set is not None
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
            *([_set(prediction)] if has_sets else []),
        )
        for prediction in predictions
    ]
    heads = ("image", "class", "probability", f"{100 * level:g} % interval", "certain")
    more = ("entropy", "epistemic", "decision", *["draws"] * is_adaptive, *["set"] * has_sets)
    rows.insert(0, (*heads, *more))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _print_promise(path: Path) -> None:
    from bayescaffe.stats.decisions import DecisionRule

    rule = DecisionRule.load(path)
    print(f"set: has the class of at least {100 * rule.coverage:g} % of images like the held-out")
    if rule.threshold is None:
        print(f"decision: by the intervals; {path} has no threshold, and promises nothing of it")
    else:
        print(
            f"accept: with {rule.confidence:.0%} confidence, at most {100 * rule.error:g} % of "
            "what is accepted is wrong"
        )


def _write_csv(path: Path, predictions: list) -> None:
    from bayescaffe.common.files import scratch_file
    from bayescaffe.infer.prediction import Prediction

    left_out = {"probabilities", "intervals", "set_names"}
    names = [field.name for field in fields(Prediction) if field.name not in left_out]
    if not any(one.class_set is not None for one in predictions):
        names.remove("class_set")
    with scratch_file(path) as scratch, scratch.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([_cell(getattr(one, name)) for name in names] for one in predictions)


def _cell(value: object) -> object:
    return " ".join(map(str, value)) if isinstance(value, tuple) else value
