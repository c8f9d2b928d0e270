"""The subcommand `bayescaffe export`: its arguments, its help and what it prints."""

import argparse
import json
from pathlib import Path

from bayescaffe.cli.arguments import (
    add_model_arguments,
    index,
    index_range,
    read_class_names,
    read_model,
    resolve_files,
)

DESCRIPTION = """\
Write a trained net for programs that know no Bayesian layers.

  --means        the net of the means of all weights; dropout is off
  --draw K       one draw, frozen: the network that `bayescaffe sample` uses as draw K of the seed.
                 Dropout that is active in draws becomes a Scale layer with the mask of the draw
  --draws A-B    the draws A to B, each as a net of its own
  --stochastic   ONNX only: a net that draws anew at every run, for each image. It adds noise to the
                 output of each Bayesian layer, with the mean and the variance that random weights
                 give it. (Within a convolution's output, the pixels get independent noise.)

--to caffe writes a prototxt for deployment and a caffemodel, without anything that stock Caffe
does not know. OpenCV 4 and other readers of Caffe's files load them. --to onnx writes one ONNX file
with a free batch size; it needs the Python package onnx. The files are named means, draw-K or
stochastic. Programs that use them transform the images themselves: the comment in the prototxt and
the metadata of the ONNX file tell mean and scale."""

EXAMPLES = """\
examples:
  bayescaffe export train_test.prototxt lenet.caffemodel --means --to caffe --out exported
  bayescaffe export train_test.prototxt lenet.caffemodel --draws 0-99 --to onnx --out exported
  bayescaffe export train_test.prototxt lenet.caffemodel --stochastic --to onnx --out exported

In Python:
  model = bayescaffe.Model("train_test.prototxt", "lenet.caffemodel")
  bayescaffe.export(model, "exported", range(100), to="onnx")"""


def register(subparsers, common: argparse.ArgumentParser) -> None:
    """Add `export` to the command line."""
    parser = subparsers.add_parser(
        "export",
        parents=[common],
        help="write a net for stock Caffe, OpenCV or ONNX",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_arguments(parser)
    forms = parser.add_mutually_exclusive_group(required=True)
    for name in ("means", "stochastic"):
        forms.add_argument(f"--{name}", dest="form", action="store_const", const=name, help="above")
    forms.add_argument("--draw", dest="form", type=index, metavar="K", help="above")
    forms.add_argument("--draws", dest="form", type=index_range, metavar="A-B", help="above")
    parser.add_argument("--to", choices=("caffe", "onnx"), required=True, help="the format")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="where the files go; made if needed"
    )
    parser.set_defaults(run=_run, usage_error=parser.error)


def _run(args: argparse.Namespace) -> None:
    if args.form == "stochastic" and args.to != "onnx":
        args.usage_error("--stochastic needs --to onnx: stock Caffe has no layer that gives noise")

    from bayescaffe.exporting.export import export

    resolve_files(args)
    class_names = read_class_names(args.classes)
    paths = export(
        read_model(args),
        args.out,
        args.form,
        to=args.to,
        class_names=class_names,
        progress=not args.quiet,
    )
    if args.json:
        print(json.dumps({"files": [str(path) for path in paths]}))
        return
    for path in paths:
        print(path)
