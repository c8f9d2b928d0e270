"""The subcommand `bayescaffe merge`: its arguments, its help and what it prints."""

import argparse
import json
from pathlib import Path

DESCRIPTION = """\
Join draws files that are parts of one, in any order.

The parts are from `bayescaffe sample --images A-B --draws A-B`. Together they must have each draw
of each image once, and be of the same net, weights, seed, images and options. What is missing,
there twice or different is named. The result has the bits that one process would give.

Memory is bounded: parts are copied into the new file a few images at a time.

To add draws to a complete file of 100, sample the next ones with `--passes 200 --draws 100-199`,
and merge both."""

EXAMPLES = """\
examples:
  bayescaffe merge first.npz second.npz --out all.npz
  bayescaffe merge parts/*.npz --out all.npz

In Python:
  bayescaffe.merge(["first.npz", "second.npz"], "all.npz")"""


def register(subparsers, common: argparse.ArgumentParser) -> None:
    """Add `merge` to the command line."""
    parser = subparsers.add_parser(
        "merge",
        parents=[common],
        help="join draws files that are parts of one",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", type=Path, nargs="+", metavar="DRAWS", help="the parts")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the draws file to write"
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from bayescaffe.stats.merging import merge

    draws = merge(args.paths, args.out, progress=not args.quiet)
    passes, (images, classes) = draws.passes, draws.probabilities.shape[1:]
    result = {"out": str(args.out), "parts": len(args.paths), "draws": passes, "images": images}
    if args.json:
        print(json.dumps({**result, "classes": classes}))
        return
    drawn = f"up to {passes:,}" if draws.is_adaptive else f"{passes:,}"
    print(
        f"{args.out}: {drawn} draws of {images:,} images, {classes} classes, from "
        f"{len(args.paths):,} files"
    )
