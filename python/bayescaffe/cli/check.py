"""The command `bayescaffe check`: its arguments, its help and what it prints."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from bayescaffe.cli.arguments import add_shape_argument
from bayescaffe.common.errors import BayesCaffeError, times

if TYPE_CHECKING:
    from bayescaffe.net.checking import Check

DESCRIPTION = """\
Look for mistakes in a net or a solver, without training.

Prints the shapes, parameters and memory of the net, and one line for each finding, with what to
change: fields and layers that Caffe does not know, a dataset_size that differs from the data, a
Bayesian layer that does not learn, a kl_weight that makes KL dwarf the loss, stock weights in place
of a posterior, tau that has run away or is at its floor, layers that make the images of a batch
depend on each other.

Memory is that of one train net and its solver with the CPU engine, for the batch in the prototxt.
Test nets, batches that are read ahead, and a snapshot while it is written come on top of it. For a
Bayesian net it is compared with that of the same net with stock layers."""

EXAMPLES = """\
examples:
  bayescaffe check solver.prototxt
  bayescaffe check train_val.prototxt net.caffemodel
  bayescaffe check train_val.prototxt --shape 3x256x256    if its data is not here

exit codes: 0 no errors, 1 errors, 2 wrong usage"""


def register(subparsers, common: argparse.ArgumentParser) -> None:
    """Add `check` to the command line."""
    parser = subparsers.add_parser(
        "check",
        parents=[common],
        help="look for mistakes in a net, without training",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("net", type=Path, metavar="NET", help="prototxt of a net or of a solver")
    parser.add_argument(
        "weights", type=Path, nargs="?", metavar="WEIGHTS", help="a caffemodel of the net"
    )
    add_shape_argument(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from bayescaffe.net.checking import check

    found = check(args.net, args.weights, shape=args.shape)
    if args.json:
        print(json.dumps({"net": str(args.net), "is_good": found.is_good, **asdict(found)}))
    else:
        _print(args, found)
    if not found.is_good:
        errors = sum(finding.severity == "error" for finding in found.findings)
        raise BayesCaffeError(f"{args.net}: {errors} error{'s' * (errors > 1)}")


def _print(args: argparse.Namespace, found: Check) -> None:
    if found.layers and not args.quiet:
        rows = [
            (
                layer.name,
                layer.type,
                ", ".join(f"{top} {times(dims) or 1}" for top, dims in layer.tops.items()),
                f"{layer.parameters:,}" if layer.parameters else "",
            )
            for layer in found.layers
        ]
        rows.insert(0, ("layer", "type", "gives", "parameters"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for *words, number in rows:
            cells = [word.ljust(width) for word, width in zip(words, widths, strict=False)]
            print("  ".join([*cells, number.rjust(widths[-1])]).rstrip())
    if found.layers:
        total = sum(layer.parameters for layer in found.layers)
        print(f"{total:,} parameters")
        _print_memory(found)
    if found.kl is not None:
        print(f"KL is {found.kl:,.0f} nats and adds {found.kl_term:.3g} to the loss")
    if found.is_itemwise:
        print("draws are taken image by image")
    for finding in found.findings:
        print(finding)
    counts = Counter(finding.severity for finding in found.findings)
    print(", ".join(f"{counts[kind]} {kind}s" for kind in ("error", "warning")))


def _print_memory(found: Check) -> None:
    """One line in all, and with a Bayesian net what its stock twin takes."""
    parts = {
        field.name.replace("_", " "): getattr(found.memory, field.name)
        for field in fields(found.memory)
    }
    text = ", ".join(f"{name} {size / 1e6:,.1f}" for name, size in parts.items() if size)
    print(f"memory in training: {found.memory.total / 1e6:,.1f} MB ({text})")
    if found.stock_memory is not None:
        stock = found.stock_memory.total
        ratio = found.memory.total / stock
        print(f"{ratio:.2f} times that of the net with stock layers, {stock / 1e6:,.1f} MB")
