"""The subcommand `bayescaffe pack`: its arguments, its help and what it prints."""

import argparse
import json
from pathlib import Path

from bayescaffe.cli.arguments import add_definition_arguments, read_class_names, read_model

DESCRIPTION = """\
Let a caffemodel carry its net and what else predictions need: the shape and the order of colours of
its images, scale, mean, and the names of the classes. It then works without NET, from any directory
and on any machine, with sample, predict, inspect and export.

`bayescaffe train` does this to its snapshots. This command does it to other caffemodels, and adds
what the options tell. Caffe and other programs read the file as before."""

EXAMPLES = """\
examples:
  bayescaffe pack train_test.prototxt lenet.caffemodel
  bayescaffe pack deploy.prototxt net.caffemodel --mean 104,117,123 --channels bgr \\
      --classes names.txt --out my.caffemodel
  bayescaffe predict my.caffemodel photo.jpg

In Python:
  bayescaffe.pack(bayescaffe.Model("deploy.prototxt", "net.caffemodel"))
  model = bayescaffe.Model("net.caffemodel")"""


def register(subparsers, common: argparse.ArgumentParser) -> None:
    """Add `pack` to the command line."""
    parser = subparsers.add_parser(
        "pack",
        parents=[common],
        help="let a caffemodel carry its net, so that it works on its own",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_definition_arguments(parser)
    parser.add_argument(
        "--channels",
        choices=("rgb", "bgr"),
        help="the order of colours that the net was trained with (default: that of its LMDB)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the file to write (default: WEIGHTS itself)"
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from bayescaffe.net.model import Model
    from bayescaffe.net.packing import pack

    path = pack(
        read_model(args),
        args.out,
        class_names=read_class_names(args.classes),
        channels=args.channels,
    )
    model = Model(path)
    names = model.class_names
    facts = {
        "out": str(path),
        "image_shape": model.image_shape,
        "channels": model.channels,
        "scale": model.transform.scale,
        "has_mean": model.transform.mean is not None,
        "class_names": None if names is None else list(names),
    }
    if args.json:
        print(json.dumps(facts))
        return
    channels, height, width = model.image_shape
    print(f"{path}: carries its net; {model.classes} classes")
    print(f"images   {channels} x {height} x {width}, channels {model.channels or 'not known'}")
    mean = "subtracted" if facts["has_mean"] else "none"
    print(f"mean     {mean}; scale {model.transform.scale:g}")
    print(f"classes  {', '.join(names) if names else 'have no names'}")
