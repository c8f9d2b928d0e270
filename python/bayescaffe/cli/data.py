"""The subcommand `bayescaffe data`: its arguments, its help and what it prints."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from bayescaffe.cli.arguments import seed
from bayescaffe.common.errors import times

DESCRIPTION = """\
Write an image set as two LMDBs, OUT/train_lmdb and OUT/test_lmdb, that a Caffe Data layer reads.

The training set is shuffled (the same seed gives the same order). The test set keeps its order, so
record k is image k of the test file. The test files of MNIST and Fashion-MNIST are not sorted by
class, so the two LMDBs may also be exchanged and the test images used for training.

If OUT already holds what is asked for, nothing is done; another seed rebuilds it."""

EXAMPLES = {
    "mnist": """\
examples:
  bayescaffe data mnist                        get MNIST, write data/mnist/{train,test}_lmdb
  bayescaffe data mnist --from ~/Downloads     use the four files that are already there
  bayescaffe data mnist --out /tmp/m --seed 1  elsewhere, and in another order""",
    "fashion-mnist": """\
examples:
  bayescaffe data fashion-mnist                get it, write data/fashion-mnist/{train,test}_lmdb
  bayescaffe data fashion-mnist --from DIR     use the four files in DIR""",
    "idx": """\
DIR holds four files, each plain or gzipped, where N is the number of dimensions:
  train-images-idxN-ubyte   train-labels-idx1-ubyte
  t10k-images-idxN-ubyte    t10k-labels-idx1-ubyte     (`test` for `t10k`, `.idx` for `-idx` too)
Pixels are unsigned bytes: grey images x height x width (N = 3), or colour images x channels x
height x width (N = 4, channels before height). Shuffle a test set that is sorted by class before
you train on it.

examples:
  bayescaffe data idx my-digits --out data/my-digits""",
}


def register(subparsers, common: argparse.ArgumentParser) -> None:
    """Add `data` and the sets it knows to the command line."""
    data = subparsers.add_parser(
        "data",
        help="fetch an image set and write it as LMDBs for Caffe",
        description=DESCRIPTION,
        epilog=EXAMPLES["mnist"] + "\n\n`bayescaffe data SET --help` tells more about a set.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sets = data.add_subparsers(title="image sets", metavar="SET", required=True)

    def add_set(name: str, summary: str) -> argparse.ArgumentParser:
        parser = sets.add_parser(
            name,
            parents=[common],
            help=summary,
            description=f"{summary}.\n\n{DESCRIPTION}",
            epilog=EXAMPLES[name],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument(
            "--seed", type=seed, default=0, metavar="N", help="seed of the shuffle (default: 0)"
        )
        parser.add_argument(
            "--force",
            action="store_true",
            help="rebuild what is complete, and replace LMDBs of another set in OUT",
        )
        return parser

    known = {
        "mnist": "MNIST, 70,000 handwritten digits",
        "fashion-mnist": "Fashion-MNIST, 70,000 pictures of clothes",
    }
    for name, summary in known.items():
        parser = add_set(name, summary)
        parser.add_argument(
            "--out",
            type=Path,
            default=Path("data", name),
            metavar="OUT",
            help="where the LMDBs go (default: %(default)s)",
        )
        parser.add_argument(
            "--from",
            dest="source",
            type=Path,
            metavar="DIR",
            help="directory with the four IDX files, plain or gzipped; no other source is tried "
            "(default: this machine's cache, then public mirrors and packages)",
        )
        parser.set_defaults(run=_run_known, name=name)

    parser = add_set("idx", "Any set of four IDX files")
    parser.add_argument("source", type=Path, metavar="DIR", help="directory with the IDX files")
    parser.add_argument("--out", type=Path, required=True, metavar="OUT", help="where the LMDBs go")
    parser.set_defaults(run=_run_idx)


def _run_known(args: argparse.Namespace) -> None:
    from bayescaffe.data.datasets import prepare

    _print(
        args,
        prepare(
            args.name,
            out=args.out,
            source=args.source,
            seed=args.seed,
            force=args.force,
            progress=not args.quiet,
        ),
    )


def _run_idx(args: argparse.Namespace) -> None:
    from bayescaffe.data.datasets import prepare_idx

    _print(
        args,
        prepare_idx(
            args.source, args.out, seed=args.seed, force=args.force, progress=not args.quiet
        ),
    )


def _print(args: argparse.Namespace, dataset) -> None:
    if args.json:
        print(json.dumps(asdict(dataset), default=str))
        return
    shape = times(dataset.shape)
    for path, count in (
        (dataset.train, dataset.train_images),
        (dataset.test, dataset.test_images),
    ):
        print(f"{path}: {count} images of {shape}, {dataset.classes} classes")
