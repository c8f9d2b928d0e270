"""Nets that users bring, for 1,000 classes of ImageNet, and a script that writes their prototxts.

    reference_nets.py [--nets alexnet,resnet18] [--bayes none|all|last] [--batch 16] [--out DIR]

Writes DIR/NET.prototxt for training, fed by arrays (the layers "data" and "label"), and
DIR/NET_solver.prototxt, which `bayescaffe check` and `caffe time` take.

- alexnet: with two groups in conv2, conv4 and conv5, and the normalisation before pooling.
- googlenet: without its two auxiliary heads.
- vgg16: configuration D.
- resnet18, resnet50: the stride of a stage is in the first convolution of its first block.
- mobilenet: version 1, of full width.

"all" makes all convolutions and inner products Bayesian; the scales after batch normalisation stay
stock.
"""

import argparse
from pathlib import Path

from bayescaffe.common.files import scratch_file
from nets import Conv, Dense, Dropout, GlobalPool, Lrn, Net, Norm, Pool, Relu, Together, prototxt

CLASSES = 1000


def _conv(maps: int, kernel: int, pad: int = 0, **options) -> tuple:
    return (Conv(maps, kernel, pad, **options), Relu())


def _normed(maps: int, kernel: int, **options) -> tuple:
    return (Conv(maps, kernel, kernel // 2, bias=False, **options), Norm())


def _net(size: int, *layers) -> Net:
    flat = tuple(
        one for layer in layers for one in (layer if isinstance(layer, tuple) else (layer,))
    )
    return Net(3, size, 16, 64, 10, flat, filler="msra")


def alexnet() -> Net:
    hidden = (Dense(4096), Relu(), Dropout())
    return _net(
        227,
        _conv(96, 11, stride=4), Lrn(), Pool(3),
        _conv(256, 5, 2, groups=2), Lrn(), Pool(3),
        _conv(384, 3, 1), _conv(384, 3, 1, groups=2), _conv(256, 3, 1, groups=2), Pool(3),
        hidden, hidden, Dense(CLASSES),
    )  # fmt: skip


def _inception(one: int, three: tuple[int, int], five: tuple[int, int], pool: int) -> Together:
    """Kernels of 1, 3 and 5 and a pool side by side; a pair has the maps of a 1 x 1 before it."""
    return Together(
        (
            _conv(one, 1),
            _conv(three[0], 1) + _conv(three[1], 3, 1),
            _conv(five[0], 1) + _conv(five[1], 5, 2),
            (Pool(3, 1, 1), *_conv(pool, 1)),
        )
    )


def googlenet() -> Net:
    return _net(
        224,
        _conv(64, 7, 3, stride=2), Pool(3), Lrn(),
        _conv(64, 1), _conv(192, 3, 1), Lrn(), Pool(3),
        _inception(64, (96, 128), (16, 32), 32),
        _inception(128, (128, 192), (32, 96), 64), Pool(3),
        _inception(192, (96, 208), (16, 48), 64),
        _inception(160, (112, 224), (24, 64), 64),
        _inception(128, (128, 256), (24, 64), 64),
        _inception(112, (144, 288), (32, 64), 64),
        _inception(256, (160, 320), (32, 128), 128), Pool(3),
        _inception(256, (160, 320), (32, 128), 128),
        _inception(384, (192, 384), (48, 128), 128),
        GlobalPool(), Dropout(0.4), Dense(CLASSES),
    )  # fmt: skip


def vgg16() -> Net:
    stages = [
        _conv(maps, 3, 1) * repeats + (Pool(),)
        for maps, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
    ]
    hidden = (Dense(4096), Relu(), Dropout())
    return _net(224, *stages, hidden, hidden, Dense(CLASSES))


def _resnet(blocks: tuple[int, ...], bottleneck: bool) -> Net:
    layers = [*_normed(64, 7, stride=2), Relu(), Pool(3)]
    maps = 64
    for stage, repeats in enumerate(blocks):
        width = 64 * 2**stage
        result = 4 * width if bottleneck else width
        for block in range(repeats):
            stride = 2 if stage and not block else 1
            if bottleneck:
                way = (
                    *_normed(width, 1, stride=stride), Relu(), *_normed(width, 3), Relu(),
                    *_normed(result, 1),
                )  # fmt: skip
            else:
                way = (*_normed(width, 3, stride=stride), Relu(), *_normed(width, 3))
            short = _normed(result, 1, stride=stride) if stride > 1 or maps != result else ()
            layers += [Together((short, way), is_sum=True), Relu()]
            maps = result
    return _net(224, *layers, GlobalPool(), Dense(CLASSES))


def resnet18() -> Net:
    return _resnet((2, 2, 2, 2), bottleneck=False)


def resnet50() -> Net:
    return _resnet((3, 4, 6, 3), bottleneck=True)


def mobilenet() -> Net:
    layers = [*_normed(32, 3, stride=2), Relu()]
    maps = 32
    # The maps that each pair of a depthwise and a 1 x 1 convolution gives, and its stride.
    for result, stride in (
        (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2),
        *[(512, 1)] * 5, (1024, 2), (1024, 1),
    ):  # fmt: skip
        layers += [*_normed(maps, 3, stride=stride, groups=maps), Relu()]
        layers += [*_normed(result, 1), Relu()]
        maps = result
    return _net(224, *layers, GlobalPool(), Dense(CLASSES))


REFERENCE_NETS = {
    make.__name__: make() for make in (alexnet, googlenet, vgg16, resnet18, resnet50, mobilenet)
}


def chosen_nets(text: str) -> list[str]:
    """The names in a list with commas; an argument of the command line."""
    names = text.split(",")
    for name in names:
        if name not in REFERENCE_NETS:
            raise argparse.ArgumentTypeError(f"no net {name!r}; there are {_all()}")
    return names


def _all() -> str:
    return ", ".join(REFERENCE_NETS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nets", type=chosen_nets, default=list(REFERENCE_NETS))
    parser.add_argument("--bayes", choices=("none", "all", "last"), default="none")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("build/reference_nets"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.nets:
        path = options.out / f"{name}.prototxt"
        net, bayes = REFERENCE_NETS[name], options.bayes != "none"
        text = prototxt(net, options.batch, bayes, train=True, last_only=options.bayes == "last")
        solver = (
            f'net: "{path}"\nbase_lr: 0.001\nlr_policy: "fixed"\nmomentum: 0.9\nmax_iter: 10\n'
            f'snapshot_prefix: "{options.out / name}"\nsolver_mode: CPU\n'
        )
        for file, content in ((path, text), (options.out / f"{name}_solver.prototxt", solver)):
            with scratch_file(file) as scratch:
                scratch.write_text(f"{content}\n" if content is text else content)
        print(f"{path}: {net.weights():,} weights, {net.flops() / 1e9:.2f} GFLOP for an image")


if __name__ == "__main__":
    main()
