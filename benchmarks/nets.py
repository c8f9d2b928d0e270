"""The nets that are timed. Defined once, built for Caffe here and for PyTorch in peers.py."""

from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True)
class Conv:
    maps: int
    kernel: int
    pad: int = 0


@dataclass(frozen=True)
class Pool:
    """Max pooling, 2 x 2 with stride 2."""


@dataclass(frozen=True)
class Relu:
    pass


@dataclass(frozen=True)
class Dense:
    neurons: int


@dataclass(frozen=True)
class Net:
    channels: int
    size: int
    """Height and width of an image."""
    batch: int
    """Images of a training step."""
    images: int
    """Images of inference, in four batches."""
    draws: int
    """Draws of our Bayesian net in one call."""
    layers: tuple

    def flops(self) -> int:
        """Floating point operations per image in a forward pass. A multiply-add counts as two."""
        channels, size, total = self.channels, self.size, 0
        for layer in self.layers:
            if isinstance(layer, Conv):
                size += 2 * layer.pad - layer.kernel + 1
                total += 2 * layer.maps * size**2 * channels * layer.kernel**2
                channels = layer.maps
            elif isinstance(layer, Pool):
                size //= 2
            elif isinstance(layer, Dense):
                total += 2 * layer.neurons * channels * size**2
                channels, size = layer.neurons, 1
        return total


def vgg_block(maps: int) -> tuple:
    return (Conv(maps, 3, 1), Relu(), Conv(maps, 3, 1), Relu(), Pool())


NETS = {
    "lenet": Net(
        1, 28, 64, 2000, 100,
        (Conv(20, 5), Pool(), Conv(50, 5), Pool(), Dense(500), Relu(), Dense(10)),
    ),
    "quick": Net(
        3, 32, 64, 2000, 20,
        (Conv(32, 3, 1), Pool(), Relu(), Conv(32, 3, 1), Relu(), Pool(), Conv(64, 3, 1), Relu(),
         Pool(), Dense(64), Dense(10)),
    ),
    "vgg": Net(
        3, 32, 32, 200, 10,
        (*vgg_block(64), *vgg_block(128), *vgg_block(256), Dense(256), Relu(), Dense(10)),
    ),
    "wide": Net(1, 28, 128, 2000, 10, (Dense(2048), Relu(), Dense(2048), Relu(), Dense(10))),
}  # fmt: skip


def prototxt(net: Net, batch: int, bayes: bool, train: bool) -> str:
    """The net for Caffe, fed by arrays. It ends in a loss for training, else in "prob"."""
    shape = f"dim: {batch} dim: {net.channels} dim: {net.size} dim: {net.size}"
    text = [
        f'layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ {shape} }} }} }}'
    ]
    if train:
        text.append(
            'layer { name: "label" type: "Input" top: "label" '
            f"input_param {{ shape {{ dim: {batch} }} }} }}"
        )
    prefix = "Bayes" if bayes else ""
    options = "bayes_param { kl_weight: 0.0024 dataset_size: 60000 }" if bayes else ""
    filler = 'weight_filler { type: "xavier" } bias_filler { type: "gaussian" std: 0.01 }'
    top, numbers = "data", count(1)
    for layer in net.layers:
        bottom = top
        if isinstance(layer, Relu):
            kind, more = "ReLU", ""
        elif isinstance(layer, Pool):
            kind, more = "Pooling", "pooling_param { pool: MAX kernel_size: 2 stride: 2 }"
        elif isinstance(layer, Conv):
            kind = f"{prefix}Convolution"
            more = f"num_output: {layer.maps} kernel_size: {layer.kernel} pad: {layer.pad}"
            more = f"convolution_param {{ {more} {filler} }} {options}"
        else:
            kind = f"{prefix}InnerProduct"
            more = f"inner_product_param {{ num_output: {layer.neurons} {filler} }} {options}"
        if kind != "ReLU":
            top = f"layer{next(numbers)}"
        text.append(
            f'layer {{ name: "{top if kind != "ReLU" else "relu_" + top}" type: "{kind}" '
            f'bottom: "{bottom}" top: "{top}" {more} }}'
        )
    if train:
        text.append(
            f'layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "{top}" bottom: "label" '
            'top: "loss" }'
        )
    else:
        text.append(f'layer {{ name: "prob" type: "Softmax" bottom: "{top}" top: "prob" }}')
    return "\n".join(text)
