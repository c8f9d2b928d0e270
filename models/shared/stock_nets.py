"""The stock nets and solvers of models/kl_rule and models/suite, as text."""

import re
from pathlib import Path

MODELS = Path(__file__).parents[1]
UPSTREAM = MODELS.parent / "build/caffe-src/examples"
FILLER = 'weight_filler { type: "msra" }'


def lenet(data: Path, widths: tuple[int, int, int] = (20, 50, 500)) -> str:
    """The LeNet of models/lenet, with other numbers of maps and neurons."""
    text = (MODELS / "lenet/stock-plain/train_test.prototxt").read_text()
    for old, new in zip((20, 50, 500), widths, strict=True):
        text = re.sub(rf"num_output: {old}\b", f"num_output: {new}", text, count=1)
    return _with_data(text, data)


def paper_lenet(data: Path, images: int) -> str:
    """The paper's LeNet with dropout, of models/lenet, for another number of training images."""
    text = (MODELS / "lenet/bayes-dropout/train_test.prototxt").read_text()
    scale = float(re.search(r"kl_weight: (\S+)", text)[1]) / int(
        re.search(r"dataset_size: (\d+)", text)[1]
    )
    text = re.sub(r"kl_weight: \S+", f"kl_weight: {scale * images:g}", text)
    return _with_data(re.sub(r"dataset_size: \d+", f"dataset_size: {images}", text), data)


def cifar10_quick(data: Path) -> str:
    """Upstream's net for CIFAR-10."""
    text = (UPSTREAM / "cifar10/cifar10_quick_train_test.prototxt").read_text()
    return _with_data(text, data)


def quick(data: Path) -> str:
    """Upstream's cifar10_quick with fillers and a scale that let it train at once, and batches of
    64."""
    text = re.sub(
        r"weight_filler \{[^}]*\}", 'weight_filler { type: "xavier" }', cifar10_quick(data)
    )
    text = text.replace("transform_param {", "transform_param { scale: 0.0078125")
    return text.replace("batch_size: 100", "batch_size: 64", 1)


def _with_data(text: str, data: Path) -> str:
    text = re.sub(r'source: "[^"]*train_lmdb"', f'source: "{data}/train_lmdb"', text)
    text = re.sub(r'source: "[^"]*test_lmdb"', f'source: "{data}/val_lmdb"', text)
    return re.sub(r'mean_file: "[^"]*"', f'mean_file: "{data}/mean.binaryproto"', text)


def small(data: Path, classes: int) -> str:
    """Three convolutions with pooling, and two inner products."""
    layers = [*_data(data, 32)]
    bottom = "data"
    for number, maps in enumerate((16, 32, 32), 1):
        conv = f"conv{number}"
        layers += [
            _conv(conv, bottom, maps, 3, 1),
            _layer(f"relu{number}", "ReLU", conv, conv),
            _layer(f"pool{number}", "Pooling", conv, f"pool{number}", POOL),
        ]
        bottom = f"pool{number}"
    layers += [_dense("fc1", bottom, 64), _layer("relu4", "ReLU", "fc1", "fc1")]
    return "\n".join([*layers, _dense("fc2", "fc1", classes), *_losses("fc2")])


def resnet(
    data: Path,
    classes: int,
    stages: tuple[int, ...] = (16, 32, 64),
    first: tuple[int, int] = (5, 2),
) -> str:
    """A ResNet with one block in each stage: convolution, BatchNorm and Scale, twice.

    Args:
        stages: the maps of each stage; three stages make a ResNet-8.
        first: kernel and stride of the convolution before the stages.
    """
    layers = [*_data(data, 64), *_normed("conv1", "data", stages[0], *first), _relu("conv1")]
    bottom = "conv1"
    for number, maps in enumerate(stages, 1):
        name, stride = f"block{number}", 1 if number == 1 else 2
        way = bottom
        if number > 1:
            layers += _normed(f"{name}_way", bottom, maps, 1, stride)
            way = f"{name}_way"
        layers += [*_normed(f"{name}_a", bottom, maps, 3, stride), _relu(f"{name}_a")]
        layers += _normed(f"{name}_b", f"{name}_a", maps, 3, 1)
        layers += [_layer(name, "Eltwise", (way, f"{name}_b"), name), _relu(name)]
        bottom = name
    pool = "pooling_param { pool: AVE global_pooling: true }"
    layers += [_layer("pool", "Pooling", bottom, "pool", pool), _dense("fc", "pool", classes)]
    return "\n".join([*layers, *_losses("fc")])


POOL = "pooling_param { pool: MAX kernel_size: 2 stride: 2 }"


def _layer(name: str, kind: str, bottoms: str | tuple[str, ...], top: str, *more: str) -> str:
    bottoms = (bottoms,) if isinstance(bottoms, str) else bottoms
    names = " ".join(f'bottom: "{bottom}"' for bottom in bottoms)
    return f'layer {{ name: "{name}" type: "{kind}" {names} top: "{top}" {" ".join(more)} }}'


def _data(data: Path, batch: int) -> list[str]:
    return [
        f'layer {{ name: "data" type: "Data" top: "data" top: "label" include {{ phase: {phase} }} '
        f'transform_param {{ scale: 0.0078125 mean_file: "{data}/mean.binaryproto" }} '
        f'data_param {{ source: "{data}/{split}_lmdb" batch_size: {size} backend: LMDB }} }}'
        for phase, split, size in (("TRAIN", "train", batch), ("TEST", "val", 32))
    ]


def _conv(name: str, bottom: str, maps: int, kernel: int, stride: int, bias: bool = True) -> str:
    options = f"num_output: {maps} kernel_size: {kernel} pad: {kernel // 2} stride: {stride}"
    if not bias:
        options += " bias_term: false"
    return _layer(name, "Convolution", bottom, name, f"convolution_param {{ {options} {FILLER} }}")


def _normed(name: str, bottom: str, maps: int, kernel: int, stride: int) -> list[str]:
    return [
        _conv(name, bottom, maps, kernel, stride, bias=False),
        _layer(f"{name}_norm", "BatchNorm", name, name),
        _layer(f"{name}_scale", "Scale", name, name, "scale_param { bias_term: true }"),
    ]


def _relu(name: str) -> str:
    return _layer(f"{name}_relu", "ReLU", name, name)


def _dense(name: str, bottom: str, outputs: int) -> str:
    options = f"inner_product_param {{ num_output: {outputs} {FILLER} }}"
    return _layer(name, "InnerProduct", bottom, name, options)


def _losses(scores: str) -> list[str]:
    bottoms = (scores, "label")
    return [
        _layer("accuracy", "Accuracy", bottoms, "accuracy", "include { phase: TEST }"),
        _layer("loss", "SoftmaxWithLoss", bottoms, "loss"),
    ]


def solver(folder: Path, iterations: int, base_lr: float, decay: float, policy: str) -> str:
    """The text of a solver for folder/net.prototxt, without a seed."""
    return f"""\
net: "{folder}/net.prototxt"
base_lr: {base_lr}
{policy}
momentum: 0.9
weight_decay: {decay}
max_iter: {iterations}
display: 100
average_loss: 100
snapshot_prefix: "{folder}/net"
solver_mode: CPU
"""
