"""The set-ups of the measurement: images, a stock net and its solver, as a user would have them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bayescaffe import data
from bayescaffe.common.files import scratch_dir
from pictures import KINDS, SIDE, write_pictures
from stock_nets import cifar10_quick, lenet, resnet, small, solver

HELD_OUT = 5000
"""Images at the end of a known training set that no net is trained on."""
INV = 'lr_policy: "inv" gamma: 0.0001 power: 0.75'
FIXED = 'lr_policy: "fixed"'
POLY = 'lr_policy: "poly" power: 1'


@dataclass(frozen=True)
class Setup:
    """One kind of net on one set of images."""

    source: str
    """`mnist`, `fashion-mnist`, `cifar10`, or a kind of drawn pictures."""
    images: int
    """To train on; of drawn pictures, a fifth of them is set aside by `bayescaffe data`."""
    net: Callable[[Path], str]
    iterations: int
    base_lr: float = 0.01
    decay: float = 0.0005
    policy: str = INV
    held_out: int = HELD_OUT
    seconds: float = 60
    """What a run takes on one core, roughly."""

    def solver(self, folder: Path) -> str:
        return solver(folder, self.iterations, self.base_lr, self.decay, self.policy)

    @property
    def is_drawn(self) -> bool:
        return self.source in KINDS


def _drawn(kind: str, net: Callable[[Path], str], seconds: float) -> Setup:
    return Setup(kind, 480, net, 400, policy=POLY, held_out=2000, seconds=seconds)


SETUPS = {
    "shapes-small": _drawn("shapes", lambda folder: small(folder, 5), 10),
    "textures-resnet": _drawn("textures", lambda folder: resnet(folder, 4, (8, 16, 32)), 15),
    "mnist-1000": Setup("mnist", 1000, lenet, 600, seconds=8),
    "mnist-10000-narrow": Setup(
        "mnist", 10_000, lambda folder: lenet(folder, (8, 20, 150)), 1000, seconds=10
    ),
    "mnist-10000": Setup("mnist", 10_000, lenet, 1000, seconds=20),
    "mnist-10000-wide": Setup(
        "mnist", 10_000, lambda folder: lenet(folder, (8, 20, 5000)), 1000, seconds=45
    ),
    "mnist-50000": Setup("mnist", 50_000, lenet, 1200, seconds=25),
    "fashion-50000": Setup("fashion-mnist", 50_000, lenet, 1200, seconds=25),
    "cifar10-resnet": Setup(
        "cifar10", 45_000, lambda folder: resnet(folder, 10), 600, policy=POLY, seconds=80
    ),
    "cifar10-quick": Setup(
        "cifar10", 45_000, cifar10_quick, 2000, 0.001, 0.004, FIXED, seconds=150
    ),
}


def prepare(setup: Setup, seed: int, known: Path, out: Path) -> Path:
    """The folder of the set-up's LMDBs and, of drawn pictures, of `held_out`; made if missing.

    Args:
        seed: of the pictures that are drawn. The images of known sets are always the same.
        known: the folder of the known sets, as `bayescaffe data` writes them.
        out: the folder for the folders of all set-ups.
    """
    name = f"{setup.source}-{setup.images}"
    folder = out / (f"{name}-{seed}" if setup.is_drawn else name)
    if folder.exists():
        return folder
    with scratch_dir(folder.parent / f"{folder.name}-new") as scratch:
        if setup.is_drawn:
            _draw(setup, seed, scratch)
        else:
            _take(setup, known / setup.source / "train_lmdb", scratch)
        scratch.rename(folder)
    return folder


def _draw(setup: Setup, seed: int, folder: Path) -> None:
    write_pictures(folder / "pictures", setup.source, setup.images, seed)
    write_pictures(folder / "held_out", setup.source, setup.held_out, 1000 + seed)
    data.from_folder(folder / "pictures", folder, size=SIDE, progress=False)


def _take(setup: Setup, lmdb: Path, folder: Path) -> None:
    images = data.open_images(lmdb)
    pixels, labels = images.in_order()(len(images))
    cut = len(images) - setup.held_out
    data.from_arrays(
        pixels[: setup.images],
        labels[: setup.images],
        folder,
        layout="nchw",
        channels="rgb" if pixels.shape[1] == 3 else None,
        val=(pixels[cut:], labels[cut:]),
        progress=False,
    )
