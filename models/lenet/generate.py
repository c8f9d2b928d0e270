#!/usr/bin/env python3
"""Write the paper's eight LeNets: a folder each, with the net and its solver.

    models/lenet/generate.py          write them all beside this file
    models/lenet/generate.py DIR      write them into DIR
    models/lenet/generate.py DIR --posterior PER_OUTPUT --delta-rate 1000
                                      the same with a tau for each neuron and filter, and this
                                      lr_mult of delta
    models/lenet/generate.py DIR --prior-from lenet_iter_10000.caffemodel
                                      the same with the posterior of a trained LeNet as the prior
    models/lenet/generate.py DIR --alpha 0.5 --copies 4
                                      the same with the loss of four draws of each image together

The nets differ in a few things only, which `LeNet` below lists; everything else is said once.
A test keeps the written files in step with this one.
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

TRAIN, TEST = "data/mnist/train_lmdb", "data/mnist/test_lmdb"
# Of the Bayesian nets; README.md tells how these were found.
KL_SCALE = 4e-8  # kl_weight / dataset_size
NOISE = {"Convolution": "draws_per_batch: 8", "InnerProduct": "local_reparametrization: true"}


@dataclass(frozen=True)
class LeNet:
    """What sets one of the nets apart from the others."""

    bayes: bool
    dropout: bool = True
    exchanged: bool = False  # train on the 10,000 test images, test on the 60,000 others
    neurons: int = 500
    posterior: str | None = None  # of bayes_param; None leaves the default
    delta_rate: int = 10  # lr_mult of delta
    prior_from: str | None = None  # of bayes_param
    alpha: float | None = None  # of loss_param
    copies: int = 4  # of each training image, where alpha is set

    @property
    def train_images(self) -> int:
        return 10_000 if self.exchanged else 60_000

    @property
    def test_images(self) -> int:
        return 70_000 - self.train_images


KINDS = {
    "plain": {"dropout": False},
    "dropout": {},
    "exchanged": {"exchanged": True},
    "reduced": {"neurons": 250},
}
NETS = {
    f"{family}-{kind}": LeNet(bayes=family == "bayes", **options)
    for family in ("stock", "bayes")
    for kind, options in KINDS.items()
}


def layer(name: str, kind: str, bottom: str, top: str, *more: str) -> str:
    lines = [f'name: "{name}"', f'type: "{kind}"', f'bottom: "{bottom}"', f'top: "{top}"', *more]
    return block("layer", *lines)


def block(name: str, *lines: str) -> str:
    body = "\n".join(lines).replace("\n", "\n  ")
    return f"{name} {{\n  {body}\n}}"


def data(phase: str, source: str, batch: int, top: str = "data") -> str:
    return block(
        "layer",
        'name: "mnist"',
        'type: "Data"',
        f'top: "{top}"',
        'top: "label"',
        f"include {{ phase: {phase} }}",
        "transform_param { scale: 0.00390625 }",
        f'data_param {{ source: "{source}" batch_size: {batch} backend: LMDB }}',
    )


def weights(net: LeNet, name: str, kind: str, bottom: str, options: str, tau: str = "") -> str:
    """A layer with weights: `kind` is the stock layer, made Bayesian where the net is."""
    field = {"Convolution": "convolution_param", "InnerProduct": "inner_product_param"}[kind]
    rates = [1, 2] + [net.delta_rate, net.delta_rate] * net.bayes
    more = [
        *(f"param {{ lr_mult: {rate} }}" for rate in rates),
        block(
            field,
            *options.split("; "),
            'weight_filler { type: "xavier" }',
            'bias_filler { type: "constant" }',
        ),
    ]
    if net.bayes:
        size = net.train_images
        lines = [f"kl_weight: {KL_SCALE * size:g}", f"dataset_size: {size}", NOISE[kind]]
        if net.posterior:
            lines.append(f"posterior: {net.posterior}")
        if net.prior_from:
            lines.append(f'prior_from: "{net.prior_from}"')
        more.append(block("bayes_param", *lines, *filter(None, tau.split("; "))))
    return layer(name, f"Bayes{kind}" if net.bayes else kind, bottom, name, *more)


def pool(name: str, bottom: str) -> str:
    return layer(
        name, "Pooling", bottom, name, "pooling_param { pool: MAX kernel_size: 2 stride: 2 }"
    )


def train_test(name: str, net: LeNet) -> str:
    train, test = (TEST, TRAIN) if net.exchanged else (TRAIN, TEST)
    conv, dense = "Convolution", "InnerProduct"
    fc1 = f"num_output: {net.neurons}"
    has_alpha = net.bayes and net.alpha is not None
    layers = [
        data("TRAIN", train, 64, "images" if has_alpha else "data"),
        data("TEST", test, 100),
        weights(net, "conv1", conv, "data", "num_output: 20; kernel_size: 5"),
        pool("pool1", "conv1"),
        weights(net, "conv2", conv, "pool1", "num_output: 50; kernel_size: 5"),
        pool("pool2", "conv2"),
        weights(net, "fc1", dense, "pool2", fc1, tau="tau_init: 1; bias_tau_init: 0.2"),
        layer("relu1", "ReLU", "fc1", "fc1"),
    ]
    if has_alpha:
        tile = f"tile_param {{ axis: 0 tiles: {net.copies} }}"
        layers.insert(
            2, layer("copies", "Tile", "images", "data", "include { phase: TRAIN }", tile)
        )
    if net.dropout:
        options = "dropout_ratio: 0.5" + " sample_weights_test: true" * net.bayes
        layers.append(layer("drop1", "Dropout", "fc1", "fc1", f"dropout_param {{ {options} }}"))
    scores = ('bottom: "label"',)
    layers += [
        weights(net, "fc2", dense, "fc1", "num_output: 10"),
        layer("accuracy", "Accuracy", "fc2", "accuracy", *scores, "include { phase: TEST }"),
        layer(
            "loss",
            "SoftmaxWithLoss",
            "fc2",
            "loss",
            *scores,
            *([f"loss_param {{ alpha: {net.alpha:g} }}"] if has_alpha else []),
        ),
    ]
    return "\n".join([HEADER, f'name: "lenet-{name}"', *layers, ""])


def solver(name: str, net: LeNet, root: str) -> str:
    folder = f"{root}/{name}"
    lines = [
        HEADER,
        f'net: "{folder}/train_test.prototxt"',
        f"test_iter: {net.test_images // 100}",
        f"test_interval: {1000 if net.exchanged else 500}",
        "test_initialization: false",
        "base_lr: 0.01",
        'lr_policy: "inv"',
        "gamma: 0.0001",
        "power: 0.75",
        "momentum: 0.9",
        f"weight_decay: {0 if net.bayes else 0.0005}",
        "max_iter: 10000",
        "display: 100",
        "average_loss: 100",
        "snapshot: 5000",
        f'snapshot_prefix: "{folder}/lenet"',
        "random_seed: 1",
        "solver_mode: CPU",
    ]
    return "\n".join([*lines, ""])


HEADER = "# Written by ../generate.py; change it there. Paths are from the top of the repository."


def write(folder: Path, root: str = "models/lenet", **options) -> None:
    """Write all nets into a folder; `root` is what their solvers call it."""
    for name, net in NETS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        text = train_test(name, replace(net, **options))
        (folder / name / "train_test.prototxt").write_text(text)
        (folder / name / "solver.prototxt").write_text(solver(name, net, root))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR")
    parser.add_argument("--posterior", choices=("SHARED", "PER_OUTPUT", "PER_WEIGHT"))
    parser.add_argument("--delta-rate", type=int, default=LeNet.delta_rate)
    parser.add_argument("--prior-from", metavar="CAFFEMODEL")
    parser.add_argument("--alpha", type=float)
    parser.add_argument("--copies", type=int, default=LeNet.copies, metavar="K")
    args = parser.parse_args()
    fields = ("posterior", "delta_rate", "prior_from", "alpha", "copies")
    options = {field: getattr(args, field) for field in fields}
    if args.folder:
        write(args.folder, str(args.folder), **options)
    else:
        write(Path(__file__).parent, **options)


if __name__ == "__main__":
    main()
