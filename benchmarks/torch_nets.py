"""The nets of nets.py in PyTorch, with weights from Caffe."""

import torch
from nets import (
    Conv,
    Dense,
    Dropout,
    GlobalPool,
    Lrn,
    Net,
    Norm,
    Pool,
    Relu,
    Shape,
    Together,
    shapes_of,
)
from torch import nn
from torch.nn import functional as F


class Ways(nn.Module):
    """Several ways from one blob, concatenated or summed."""

    def __init__(self, ways: list[nn.Module], is_sum: bool):
        super().__init__()
        self.ways, self.is_sum = nn.ModuleList(ways), is_sum

    def forward(self, x):
        results = [way(x) for way in self.ways]
        return sum(results[1:], results[0]) if self.is_sum else torch.cat(results, 1)


def torch_net(net: Net) -> nn.Module:
    """The net, up to its scores."""
    return _way(net.layers, Shape(net.channels, net.size))[0]


def _way(layers: tuple, shape: Shape) -> tuple[nn.Module, Shape]:
    modules = []
    for layer in layers:
        if isinstance(layer, Together):
            ways = [_way(way, shape) for way in layer.ways]
            modules.append(Ways([module for module, _ in ways], layer.is_sum))
        elif isinstance(layer, Dense):
            modules.append(nn.Flatten())
            modules.append(nn.Linear(shape.count, layer.neurons))
        else:
            modules.append(_module(layer, shape))
        *_, (_, _, shape) = shapes_of((layer,), shape)
    return nn.Sequential(*modules), shape


def _module(layer, shape: Shape) -> nn.Module:
    if isinstance(layer, Conv):
        return nn.Conv2d(
            shape.maps, layer.maps, layer.kernel, layer.stride, layer.pad, groups=layer.groups,
            bias=layer.bias,
        )  # fmt: skip
    if isinstance(layer, Pool):
        kind = nn.AvgPool2d if layer.mean else nn.MaxPool2d
        return kind(layer.kernel, layer.stride, layer.pad, ceil_mode=True)
    if isinstance(layer, GlobalPool):
        return nn.AdaptiveAvgPool2d(1)
    if isinstance(layer, Norm):
        return nn.BatchNorm2d(shape.maps)
    if isinstance(layer, Lrn):
        return nn.LocalResponseNorm(layer.size, layer.alpha, layer.beta, k=1)
    if isinstance(layer, Dropout):
        return nn.Dropout(layer.ratio)
    if isinstance(layer, Relu):
        return nn.ReLU(inplace=True)
    raise TypeError(f"no PyTorch module for {layer}")


def load_blobs(net: nn.Module, blobs: list) -> None:
    """Copy the blobs of a Caffe net, in their order, into the same net of PyTorch."""
    rest = iter(blobs)

    def copy(target: torch.Tensor, divisor: float = 1) -> None:
        target.copy_((torch.from_numpy(next(rest)) / divisor).view_as(target))

    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                copy(module.weight)
                if module.bias is not None:
                    copy(module.bias)
            elif isinstance(module, nn.BatchNorm2d):
                mean, variance, factor = (torch.from_numpy(next(rest)) for _ in range(3))
                module.running_mean.copy_(mean / factor)
                module.running_var.copy_(variance / factor)
                copy(module.weight)
                copy(module.bias)
    if next(rest, None) is not None:
        raise ValueError("the net of Caffe has more blobs")


TAU = F.softplus(torch.tensor(-0.71))
"""tau of weights that have not been trained; its value has no effect on the time."""


def drawn(net: nn.Module) -> dict[str, torch.Tensor]:
    """The parameters of convolutions and inner products, drawn as the paper does it."""
    return {
        f"{name}.{which}": parameter * (1 + TAU * torch.randn_like(parameter))
        for name, module in net.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
        for which, parameter in module.named_parameters()
    }


def draw_all(net: nn.Module, x: torch.Tensor, draws: int) -> torch.Tensor:
    """Probabilities of so many draws, all layers Bayesian."""
    call = torch.func.functional_call
    return torch.stack([call(net, drawn(net), (x,)).softmax(1) for _ in range(draws)])


def draw_last(net: nn.Sequential, x: torch.Tensor, draws: int) -> torch.Tensor:
    """The same, only the last layer Bayesian: what is before it runs once."""
    features = net[:-1](x)
    last = net[-1]
    call = torch.func.functional_call
    return torch.stack(
        [
            call(last, {k.lstrip("."): v for k, v in drawn(last).items()}, (features,)).softmax(1)
            for _ in range(draws)
        ]
    )
