"""The command `bayescaffe convert`: its arguments, its help and what it prints."""

import argparse
import json
import shlex
from dataclasses import asdict
from pathlib import Path

from bayescaffe.cli.arguments import add_shape_argument, count

DESCRIPTION = """\
Make a stock net Bayesian.

NET is a prototxt for training or for deployment, or a solver. The folder --out gets the Bayesian
prototxt, a solver and, with --weights, a caffemodel to start from. Each layer that is converted
gets `Bayes` before its type and a `bayes_param`. Its kl_weight is the default for the number of
Bayesian weights of the net and of training examples (docs/kl.md tells the rule). In training, each
image gets noise of its own in inner products, and each quarter of a batch in convolutions.
Everything else stays as it is, comments, layout and weight decay included. A net in an old format
is upgraded first, and loses its comments.

By default all layers are converted that can be, without those that are frozen by lr_mult: 0."""

EXAMPLES = """\
examples:
  bayescaffe convert solver.prototxt --weights stock.caffemodel
  bayescaffe convert solver.prototxt --data data/photos     on your own pictures
  bayescaffe convert train_val.prototxt --layers 'fc*,conv5' --out bayes
  bayescaffe convert deploy.prototxt --last 1
  bayescaffe convert solver.prototxt --dataset-size 1281167 --cpu
  bayescaffe convert bayes/solver.prototxt --weights bayes/net.caffemodel --to-stock

In Python:
  bayescaffe.convert("solver.prototxt", "stock.caffemodel", layers=["fc*"])"""


def register(subparsers, common: argparse.ArgumentParser) -> None:
    """Add `convert` to the command line."""
    parser = subparsers.add_parser(
        "convert",
        parents=[common],
        help="make a stock net Bayesian, or a Bayesian net stock",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("net", type=Path, metavar="NET", help="prototxt of a net or of a solver")
    parser.add_argument(
        "--weights", type=Path, metavar="CAFFEMODEL", help="convert these weights of the net, too"
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--layers",
        type=patterns,
        metavar="NAME,…",
        help="the layers to convert: names, or patterns such as fc*",
    )
    choice.add_argument(
        "--last", type=count, metavar="N", help="convert the last N layers that can be converted"
    )
    choice.add_argument("--all", action="store_true", help="convert all of them (the default)")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="let the net read the LMDBs that `bayescaffe data` wrote to DIR, with their mean and "
        "as many classes as they have (default: what the net says)",
    )
    parser.add_argument(
        "--dataset-size",
        type=count,
        metavar="N",
        help="the number of training examples (default: read from the net's training LMDB)",
    )
    add_shape_argument(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="the folder to write to (default: bayes, or stock with --to-stock, beside NET)",
    )
    parser.add_argument(
        "--to-stock", action="store_true", help="convert Bayesian layers to stock layers instead"
    )
    parser.add_argument(
        "--cpu", action="store_true", help="write solver_mode: CPU to the solver, whatever it was"
    )
    parser.set_defaults(run=_run)


def patterns(text: str) -> list[str]:
    """Names or patterns with commas between them."""
    return [word.strip() for word in text.split(",") if word.strip()]


def _run(args: argparse.Namespace) -> None:
    from bayescaffe.net.converting import convert

    done = convert(
        args.net,
        args.weights,
        layers=args.layers,
        last=args.last,
        data=args.data,
        dataset_size=args.dataset_size,
        shape=args.shape,
        out=args.out,
        to_stock=args.to_stock,
        cpu=args.cpu,
    )
    if args.json:
        print(json.dumps(asdict(done), default=str))
        return
    print(f"{len(done.layers)} layers are now {'stock' if args.to_stock else 'Bayesian'}: ", end="")
    print(", ".join(done.layers))
    for note in done.notes:
        print(f"note: {note}")
    for kind, paths in (("net", done.nets), ("solver", [done.solver]), ("weights", [done.weights])):
        for path in filter(None, paths):
            print(f"{kind:<9}{path}")
    if done.solver and not args.quiet:
        print(f"next: {shlex.join(['bayescaffe', 'train', str(done.solver)])}")
