"""The subcommand `bayescaffe inspect`: its arguments, its help and what it prints."""

import argparse
import json
import shlex
from dataclasses import asdict
from pathlib import Path

from bayescaffe.cli.arguments import add_file_arguments

DESCRIPTION = """\
Show the uncertainty of each Bayesian layer of a trained net, and advise on the size of layers.

A weight has the posterior N(m, (tau m)^2). If tau is above 0.608, fewer than 95 % of a layer's
weights are expected to have the sign of their mean. Such a layer is unsure of its signs, and can
probably do with fewer outputs: the paper halved LeNet's first fully connected layer (tau 0.758;
0.567 afterwards) at no loss of accuracy. The output layer has the size that the task demands, so it
is left alone. A net that has not learned its data has a high tau as well, if kl_weight is too high.

--reduce writes the net with smaller layers to --out; train it again. Only the num_output of these
layers changes; comments and layout stay."""

EXAMPLES = """\
examples:
  cd models/lenet/bayes-dropout
  bayescaffe inspect lenet_iter_10000.caffemodel
  bayescaffe inspect train_test.prototxt lenet_iter_10000.caffemodel --csv layers.csv
  bayescaffe inspect train_test.prototxt lenet_iter_10000.caffemodel \\
      --reduce fc1=250 --reduce conv2=25 --out reduced.prototxt"""

COLUMNS = """\
  K       number of weights                 |m|/sd  |mean| of a weight by its standard deviation
  tau     standard deviation / |mean|       sign    weights expected to have the sign of their mean
  tau_b   the same for the biases           norm    Euclidean norm of the means
          (the median and the range, if outputs or weights have a tau of their own)
  KL      KL(posterior || prior) in nats, biases included, and the layer's share of it"""


def register(subparsers, common: argparse.ArgumentParser) -> None:
    """Add `inspect` to the command line."""
    parser = subparsers.add_parser(
        "inspect",
        parents=[common],
        help="show the uncertainty of each layer, and make layers smaller",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_file_arguments(parser)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write the numbers to FILE")
    parser.add_argument(
        "--reduce",
        type=layer_size,
        action="append",
        default=[],
        metavar="LAYER=N",
        help="give LAYER only N outputs; may be repeated",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the reduced net goes")
    parser.set_defaults(run=_run, usage_error=parser.error)


def layer_size(text: str) -> tuple[str, int]:
    """The type of --reduce; argparse takes its name into the error message."""
    name, _, size = text.rpartition("=")
    if not name or not size.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not LAYER=N, such as fc1=250")
    return name, int(size)


def _run(args: argparse.Namespace) -> None:
    sizes = dict(args.reduce)
    if len(sizes) < len(args.reduce):
        args.usage_error("--reduce names a layer twice")
    if bool(sizes) != bool(args.out):
        args.usage_error("--reduce LAYER=N and --out FILE go together")

    from bayescaffe.net.messages import net_text, parse_message
    from bayescaffe.net.objective import objective_of
    from bayescaffe.net.posterior import inspect, write_csv
    from bayescaffe.net.reducing import advice

    layers = inspect(args.net, args.weights)
    text = net_text(args.net)
    args.weights = args.weights or args.net
    reduction = _write_reduced(args, text, sizes) if sizes else None
    if args.csv:
        write_csv(layers, args.csv)
    advised = advice(text, layers, str(args.net))
    if args.json:
        result = {
            "net": str(args.net),
            "weights": str(args.weights),
            "layers": [layer.as_dict() for layer in layers],
            "kl": sum(layer.kl for layer in layers),
            "penalty": sum(layer.penalty for layer in layers),
            "advice": [asdict(one) for one in advised],
            "reduced": reduction,
        }
        print(json.dumps(result, allow_nan=False))
        return
    print(_table(layers))
    if not args.quiet:
        print(f"\n{COLUMNS}")
    if reduction:
        before, after = reduction["parameters_before"], reduction["parameters"]
        print(f"\n{args.out}: {before:,} -> {after:,} weights and biases (1/{before / after:.2f})")
    else:
        weights = sum(layer.weights + layer.biases for layer in layers)
        message = parse_message(text, "NetParameter", args.net)
        objective = objective_of(message.layer, weights=weights)
        print(f"\n{_advice(args, advised, objective)}")


def _write_reduced(args: argparse.Namespace, text: str, sizes: dict[str, int]) -> dict:
    from bayescaffe.common.errors import BayesCaffeError
    from bayescaffe.common.files import scratch_file
    from bayescaffe.net.messages import read_weights
    from bayescaffe.net.reducing import count_parameters, reduce_net

    if args.out.exists() and any(args.out.samefile(path) for path in (args.net, args.weights)):
        raise BayesCaffeError(f"--out {args.out} would overwrite what is read; name another file")
    reduced = reduce_net(text, sizes, str(args.net))
    before, after = count_parameters(text, reduced, read_weights(args.weights))
    with scratch_file(args.out) as scratch:
        scratch.write_text(reduced)
    return {"out": str(args.out), "parameters_before": before, "parameters": after}


def _table(layers) -> str:
    head = ["layer", "K", "tau", "tau_b", "|m|/sd", "sign", "norm", "KL", "share"]
    rows = [
        [
            layer.name,
            f"{layer.weights:,}",
            layer.tau_text,
            layer.tau_bias_text if layer.biases else "-",
            f"{layer.signal_to_noise:,.3g}",
            f"{layer.sign_certainty:.2%}",
            f"{layer.norm:.4g}",
            f"{layer.kl:,.0f}",
            f"{layer.kl_share:.1%}",
        ]
        for layer in layers
    ]
    weights, kl = sum(layer.weights for layer in layers), sum(layer.kl for layer in layers)
    rows.append(["total", f"{weights:,}", *[""] * 5, f"{kl:,.0f}", ""])
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for name, *numbers in (head, *rows):
        cells = [cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *cells]).rstrip())
    penalty = sum(layer.penalty for layer in layers)
    factors = [f"{layer.kl_scale:.3g}" for layer in layers]
    if len(set(factors)) > 1:
        factors = [f"{layer.name} {factor}" for layer, factor in zip(layers, factors, strict=True)]
    factors = ", ".join(dict.fromkeys(factors))
    lines += ["", f"KL adds {penalty:.4g} to the loss: it is multiplied by {factors}"]
    return "\n".join(lines)


def _advice(args: argparse.Namespace, advised, objective) -> str:
    from bayescaffe.net.reducing import SIGN_CERTAINTY

    limit = f"{SIGN_CERTAINTY:.0%}"
    if not advised:
        return f"Every layer whose size can change is sure of its signs (sign is {limit} or more)."
    lines, sizes = [], []
    if objective.is_above_rule:
        lines.append(f"If the net's error is high, KL outweighs the data: {objective.advice}. Else")
    for one in advised:
        found = f"{one.layer} is unsure of its signs (sign {one.sign_certainty:.2%}, below {limit})"
        if one.obstacle:
            lines.append(f"{found}, but cannot be halved: {one.obstacle}")
        else:
            lines.append(f"{found}: try {one.proposed} outputs in place of {one.outputs}")
            sizes += ["--reduce", f"{one.layer}={one.proposed}"]
    if sizes:
        files = [str(args.net), str(args.weights)]
        command = ["bayescaffe", "inspect", *files, *sizes, "--out", "reduced.prototxt"]
        lines.append(f"  {shlex.join(command)}")
    return "\n".join(lines)
