"""The nets that are timed. Defined once, built for Caffe here and for PyTorch in peers.py and
torch_nets.py."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True)
class Conv:
    maps: int
    kernel: int
    pad: int = 0
    stride: int = 1
    groups: int = 1
    bias: bool = True


@dataclass(frozen=True)
class Pool:
    """Max pooling, or means. As in Caffe, a window may begin inside the image and end outside."""

    kernel: int = 2
    stride: int = 2
    pad: int = 0
    mean: bool = False


@dataclass(frozen=True)
class GlobalPool:
    """The mean of each map."""


@dataclass(frozen=True)
class Relu:
    pass


@dataclass(frozen=True)
class Norm:
    """Batch normalisation, then a learned scale and bias for each map."""


@dataclass(frozen=True)
class Lrn:
    """Local response normalisation across maps."""

    size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75


@dataclass(frozen=True)
class Dropout:
    ratio: float = 0.5


@dataclass(frozen=True)
class Dense:
    neurons: int


@dataclass(frozen=True)
class Together:
    """Several ways from one blob. Their results are concatenated, or summed."""

    ways: tuple[tuple, ...]
    """The layers of each; none: the blob itself."""
    is_sum: bool = False


@dataclass(frozen=True)
class Shape:
    """One image: so many square maps."""

    maps: int
    size: int

    @property
    def count(self) -> int:
        return self.maps * self.size**2


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
    filler: str = "xavier"

    def shapes(self) -> Iterator[tuple[object, Shape, Shape]]:
        """Each layer with the shapes of what it takes and gives, in the order of computation."""
        return shapes_of(self.layers, Shape(self.channels, self.size))

    def flops(self) -> int:
        """Floating point operations per image in a forward pass. A multiply-add counts as two."""
        return 2 * sum(
            weights * (output.size**2 if isinstance(layer, Conv) else 1)
            for layer, _, output, weights in self._weighted()
        )

    def weights(self) -> int:
        """The number of weights of convolutions and inner products, without biases."""
        return sum(weights for *_, weights in self._weighted())

    def bytes(self, batch: int) -> int:
        """What a forward pass has to move at least, if each layer reads what it takes and its
        weights once, writes what it gives once, and nothing stays in a cache."""
        moved = sum(source.count + result.count for _, source, result in self.shapes())
        return 4 * (batch * moved + self.weights())

    def _weighted(self) -> Iterator[tuple[object, Shape, Shape, int]]:
        for layer, source, result in self.shapes():
            if isinstance(layer, Conv):
                each = source.maps // layer.groups * layer.kernel**2
                yield layer, source, result, result.maps * each
            elif isinstance(layer, Dense):
                yield layer, source, result, layer.neurons * source.count


def shapes_of(layers: tuple, shape: Shape) -> Iterator[tuple[object, Shape, Shape]]:
    for layer in layers:
        source = shape
        if isinstance(layer, Together):
            results = []
            for way in layer.ways:
                steps = list(shapes_of(way, source))
                yield from steps
                results.append(steps[-1][2] if steps else source)
            maps = results[0].maps if layer.is_sum else sum(result.maps for result in results)
            # What the ways gave is read once more.
            read = Shape(sum(result.maps for result in results), results[0].size)
            shape = Shape(maps, results[0].size)
            yield layer, read, shape
            continue
        if isinstance(layer, Conv):
            size = (source.size + 2 * layer.pad - layer.kernel) // layer.stride + 1
            shape = Shape(layer.maps, size)
        elif isinstance(layer, Pool):
            size = -((layer.kernel - source.size - 2 * layer.pad) // layer.stride) + 1
            if layer.pad and (size - 1) * layer.stride >= source.size + layer.pad:
                size -= 1
            shape = Shape(source.maps, size)
        elif isinstance(layer, GlobalPool):
            shape = Shape(source.maps, 1)
        elif isinstance(layer, Dense):
            shape = Shape(layer.neurons, 1)
        yield layer, source, shape


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


def prototxt(net: Net, batch: int, bayes: bool, train: bool, *, last_only: bool = False) -> str:
    """The net for Caffe, fed by arrays. It ends in a loss for training, else in "prob".

    Args:
        bayes: make all convolutions and inner products Bayesian.
        last_only: with `bayes`, only the last of them.
    """
    return "\n".join(_Writer(net, bayes, last_only).write(batch, train))


class _Writer:
    """Writes the layers of one net and gives them their names."""

    def __init__(self, net: Net, bayes: bool, last_only: bool):
        self.net = net
        self.lines: list[str] = []
        self.numbers = count(1)
        weighted = sum(isinstance(layer, Conv | Dense) for layer, *_ in net.shapes())
        # How many layers with weights are stock, before the first Bayesian one.
        self.stock = (weighted - 1 if last_only else 0) if bayes else weighted

    def write(self, batch: int, train: bool) -> list[str]:
        net = self.net
        shape = f"dim: {batch} dim: {net.channels} dim: {net.size} dim: {net.size}"
        self.add("data", "Input", (), "data", f"input_param {{ shape {{ {shape} }} }}")
        if train:
            shape = f"input_param {{ shape {{ dim: {batch} }} }}"
            self.add("label", "Input", (), "label", shape)
        top = self.add_way(net.layers, "data")
        if train:
            self.add("loss", "SoftmaxWithLoss", (top, "label"), "loss")
        else:
            self.add("prob", "Softmax", (top,), "prob")
        return self.lines

    def add(self, name: str, kind: str, bottoms: tuple[str, ...], top: str, more: str = "") -> None:
        names = "".join(f'bottom: "{bottom}" ' for bottom in bottoms)
        self.lines.append(f'layer {{ name: "{name}" type: "{kind}" {names}top: "{top}" {more} }}')

    def add_way(self, layers: tuple, top: str) -> str:
        """Write layers that follow each other; return the name of what the last one gives."""
        for layer in layers:
            if isinstance(layer, Relu):
                self.add(f"relu_{top}", "ReLU", (top,), top)
            elif isinstance(layer, Dropout):
                options = f"dropout_param {{ dropout_ratio: {layer.ratio} }}"
                self.add(f"dropout_{top}", "Dropout", (top,), top, options)
            elif isinstance(layer, Norm):
                self.add(f"norm_{top}", "BatchNorm", (top,), top)
                self.add(f"scale_{top}", "Scale", (top,), top, "scale_param { bias_term: true }")
            elif isinstance(layer, Together):
                bottoms = tuple(self.add_way(way, top) for way in layer.ways)
                top = f"layer{next(self.numbers)}"
                self.add(top, "Eltwise" if layer.is_sum else "Concat", bottoms, top)
            else:
                bottom, top = top, f"layer{next(self.numbers)}"
                kind, options = self.options(layer)
                self.add(top, kind, (bottom,), top, options)
        return top

    def options(self, layer) -> tuple[str, str]:
        """The type of a layer that gives a new blob, and its parameters."""
        if isinstance(layer, Pool):
            options = f"pool: {'AVE' if layer.mean else 'MAX'} kernel_size: {layer.kernel} "
            options += f"stride: {layer.stride} pad: {layer.pad}"
            return "Pooling", f"pooling_param {{ {options} }}"
        if isinstance(layer, GlobalPool):
            return "Pooling", "pooling_param { pool: AVE global_pooling: true }"
        if isinstance(layer, Lrn):
            options = f"local_size: {layer.size} alpha: {layer.alpha} beta: {layer.beta}"
            return "LRN", f"lrn_param {{ {options} }}"
        filler = f'weight_filler {{ type: "{self.net.filler}" }}'
        bias_filler = 'bias_filler { type: "gaussian" std: 0.01 }'
        if isinstance(layer, Conv):
            kind = "Convolution"
            options = f"num_output: {layer.maps} kernel_size: {layer.kernel} pad: {layer.pad} "
            options += f"stride: {layer.stride} group: {layer.groups} {filler} "
            options += bias_filler if layer.bias else "bias_term: false"
            options = f"convolution_param {{ {options} }}"
        else:
            kind = "InnerProduct"
            options = (
                f"inner_product_param {{ num_output: {layer.neurons} {filler} {bias_filler} }}"
            )
        if self.stock:
            self.stock -= 1
            return kind, options
        return f"Bayes{kind}", f"{options} bayes_param {{ kl_weight: 0.0024 dataset_size: 60000 }}"
