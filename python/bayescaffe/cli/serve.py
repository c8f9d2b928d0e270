"""The subcommand `bayescaffe serve`: its arguments, its help and what it prints."""

import argparse
import json
from pathlib import Path

from bayescaffe.cli.arguments import (
    add_adaptive_argument,
    add_calibration_argument,
    add_interval_arguments,
    add_model_arguments,
    add_rule_arguments,
    count,
    index,
    model_options,
    read_class_names,
    resolve_files,
)

DESCRIPTION = """\
Answer over HTTP what a net says of images, and how sure it is. The net stays loaded, so an answer
takes milliseconds. NET and WEIGHTS are as for `bayescaffe predict`, and so are the decisions.

  POST /predict    one image or several -> class, interval of each class, decision
  GET  /           a page for people: drop, paste or draw a picture
  GET  /docs       the interface; /openapi.json for programs
  GET  /model, /healthz, /metrics

Requests that come together are computed together. The same image gets the same answer. SIGTERM and
Ctrl-C let the requests that have come end first. docs/serving.md tells more.

Needs the extra [serve]: starlette, uvicorn, python-multipart, prometheus_client. Pictures of more
than 25 million pixels are refused, unless --max-pixels says otherwise."""

EXAMPLES = """\
examples:
  bayescaffe serve lenet.caffemodel                       then open http://127.0.0.1:8080/
  bayescaffe serve net.prototxt net.caffemodel --port 9000 --token-file token.txt
  bayescaffe serve lenet.caffemodel --calibration calibration.json   decisions with a guarantee
  bayescaffe serve lenet.caffemodel --reference digits.npz       and tell when the images change
  curl --data-binary @digit.png 'http://127.0.0.1:8080/predict?invert=true'
  curl -F image=@a.png -F image=@b.png http://127.0.0.1:8080/predict

In Python:
  bayescaffe.serve("lenet.caffemodel", port=8080)"""


def register(subparsers, common: argparse.ArgumentParser) -> None:
    """Add `serve` to the command line."""
    parser = subparsers.add_parser(
        "serve",
        parents=[common],
        help="answer over HTTP, with a page to try it",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_arguments(parser)
    parser.add_argument(
        "--passes",
        type=count,
        metavar="N",
        help="the number of draws of a request that does not say it (default: 100)",
    )
    parser.add_argument(
        "--gpu", type=index, metavar="N", help="compute on this GPU (default: on the CPU)"
    )
    parser.add_argument(
        "--invert",
        action="store_true",
        help="turn image files from black on white to white on black, if a request does not say it",
    )
    add_interval_arguments(parser)
    add_adaptive_argument(parser)
    add_calibration_argument(parser)
    add_rule_arguments(parser)
    parser.add_argument(
        "--reference",
        type=Path,
        metavar="DRAWS",
        help="draws of the test set, from `bayescaffe sample`, which /metrics compares with",
    )
    group = parser.add_argument_group("who may ask, and how much")
    group.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where to listen (default: 127.0.0.1, this machine only)",
    )
    group.add_argument(
        "--port", type=index, default=8080, metavar="N", help="default: 8080; 0 is any free one"
    )
    group.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="let only those in who have the bearer token in this file",
    )
    for name, value, what in (
        ("--draw-memory", 2**28, "keep up to N bytes of drawn weights"),
        ("--max-passes", 1000, "allow up to N draws in a request"),
        ("--max-images", 64, "allow up to N images in a request, and in a batch"),
        ("--max-body", 2**24, "allow up to N bytes in a request"),
        ("--queue", 256, "let up to N images wait, and refuse more with 503"),
    ):
        group.add_argument(
            name,
            type=index if name == "--draw-memory" else count,
            default=value,
            metavar="N",
            help=f"{what} (default: {value})",
        )
    group.add_argument(
        "--timeout",
        type=float,
        default=30,
        metavar="S",
        help="seconds for the body, for waiting and for computing, each (default: 30)",
    )
    parser.set_defaults(run=_run, max_pixels=25_000_000)


def _run(args: argparse.Namespace) -> None:
    from bayescaffe.infer.prediction import Rule
    from bayescaffe.serving.app import Limits, serve

    resolve_files(args)

    def ready(url: str) -> None:
        print(json.dumps({"url": url}) if args.json else f"serving on {url}", flush=True)

    names = ("host", "port", "passes", "level", "interval", "adaptive", "calibration", "invert")
    limits = ("max_passes", "max_images", "max_body", "queue", "timeout")
    serve(
        args.net,
        args.weights,
        **{name: getattr(args, name) for name in (*names, "token_file", "reference")},
        rule=Rule(args.accept_above, args.escalate_below),
        class_names=read_class_names(args.classes),
        limits=Limits(**{name: getattr(args, name) for name in limits}),
        ready=ready,
        **model_options(args),
    )
