"""The rows of the suite: a stock net, its images and its budget, the same for every method."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from bayescaffe import data
from bayescaffe.common.files import scratch_dir, scratch_file
from pictures import KINDS, write_pictures
from shifts import SHIFTS, STRENGTHS, shifted
from stock_nets import lenet, quick, resnet

SHIFTED_IMAGES = 500
"""Test images that are shifted, the first ones; each shift and strength has the same."""
OOD_IMAGES = 2000
HELD_OUT = 5000
"""Training images that hyperparameters are chosen on; a fifth of them if there are fewer than
25,000."""

COMMON = (
    "stock",
    "temperature",
    "mc-dropout",
    "swag",
    "laplace",
    "ours",
    "ensemble",
    "ours-ensemble",
)
OF_LENET = (*COMMON, "paper")
OF_TRANSFER = ("stock", "ours", "fine-tuned", "prior")


@dataclass(frozen=True)
class Task:
    """One row: architecture, images, length and schedule. The rate falls linearly to 0."""

    source: str
    """A set that `bayescaffe data` knows."""
    images: int
    """To train on."""
    net: Callable[[Path], str]
    """The text of the stock net that reads the LMDBs of a folder."""
    iterations: int
    ood: str
    """Out-of-distribution images: another known set, or a kind of drawn pictures."""
    base_lr: float = 0.01
    decay: float = 0.0005
    """The weight decay of stock nets, before it is tuned."""
    has_more: bool = False
    """Whether the set has more training images than the row uses, so that some of those can be held
    out. Else the last of the row's own are."""
    is_exchanged: bool = False
    """Train on the set's test images, and test on its training images."""
    classes: tuple[int, ...] = ()
    """Of the set, the only ones that it has, numbered anew; all if empty."""
    methods: tuple[str, ...] = COMMON
    """The columns that it has."""
    pretrained: str = ""
    """Another task, whose nets the fine-tuned ones of this row start from."""
    step: float = 20e-3
    """Seconds of an iteration on one core, roughly, for the time left."""
    look: float = 75e-6
    """Seconds of an image and a draw."""

    @property
    def held_out(self) -> int:
        """How many images hyperparameters are chosen on."""
        return HELD_OUT if self.has_more else min(HELD_OUT, self.images // 5)

    @property
    def tuned_on(self) -> int:
        """How many images nets are trained on while hyperparameters are chosen."""
        return self.images if self.has_more else self.images - self.held_out

    @property
    def is_resampled(self) -> bool:
        """Whether each seed has training images of its own: of so few, the choice matters. Nets of
        other images make no ensemble, so other rows have the same for all seeds."""
        return bool(self.pretrained)

    @property
    def measured(self) -> int:
        """About how many images a net is measured on."""
        test = 60_000 if self.is_exchanged else 10_000
        return test + len(SHIFTS) * len(STRENGTHS) * SHIFTED_IMAGES + OOD_IMAGES


def lenet_of_five(folder: Path, last: str = "fc2") -> str:
    """LeNet with five classes. Weights of a net whose last layer has another name are not loaded
    into it."""
    text = lenet(folder).replace("num_output: 10", "num_output: 5")
    return text.replace('name: "fc2"', f'name: "{last}"')


resnet8 = partial(resnet, classes=10, first=(3, 1))
_mnist = partial(Task, "mnist", net=lenet, ood="fashion-mnist", methods=OF_LENET)
_fashion = partial(Task, "fashion-mnist", net=lenet, ood="mnist", methods=OF_LENET)
_transfer = partial(
    Task, "mnist", net=partial(lenet_of_five, last="digits"), iterations=500, ood="fashion-mnist",
    has_more=True, classes=(5, 6, 7, 8, 9), methods=OF_TRANSFER, pretrained="digits-0-4",
)  # fmt: skip
_colour = partial(Task, "cifar10", ood="shapes")
_quick = partial(_colour, net=quick, base_lr=0.01, decay=0.004, step=110e-3, look=540e-6)
_resnet = partial(_colour, net=resnet8, base_lr=0.05, step=220e-3, look=860e-6)
TASKS = {
    "mnist-60000": _mnist(60_000, iterations=10_000),
    "mnist-exchanged": _mnist(10_000, iterations=10_000, is_exchanged=True),
    "mnist-1000": _mnist(1000, iterations=3000, has_more=True),
    "fashion-60000": _fashion(60_000, iterations=10_000),
    "fashion-5000": _fashion(5000, iterations=5000, has_more=True),
    "cifar10-quick-50000": _quick(50_000, iterations=4000),
    "cifar10-quick-5000": _quick(5000, iterations=2000, has_more=True),
    "cifar10-resnet8-50000": _resnet(50_000, iterations=4000),
    "cifar10-resnet8-5000": _resnet(5000, iterations=2000, has_more=True),
    "digits-5-9-100": _transfer(100),
    "digits-5-9-500": _transfer(500),
    # No row: the nets that the two before it start from.
    "digits-0-4": Task(
        "mnist", 30_000, lenet_of_five, 5000, "fashion-mnist", classes=(0, 1, 2, 3, 4), methods=()
    ),
}


Labelled = tuple[np.ndarray, np.ndarray]
"""Images x channels x height x width, in Caffe's order of colours, and their labels."""


def load(task: Task, part: str, known: Path, seed: int = 1) -> tuple[Labelled, Labelled]:
    """The images to train on and those to measure on.

    Args:
        seed: of the net; it matters only where `task.is_resampled`.
        part: `full`, with the set's own test images; or `tune`, where other training images are
            measured on, and no test image is seen.
        known: the folder of the known sets, as `bayescaffe data` writes them.
    """
    names = ("test", "train") if task.is_exchanged else ("train", "test")
    pixels, labels = _of_classes(task, known / task.source / f"{names[0]}_lmdb")
    # The test images of MNIST, which `is_exchanged` trains on, are sorted by who wrote them.
    order = np.random.default_rng(seed if task.is_resampled else 0).permutation(len(labels))
    if part == "tune":
        cut = task.tuned_on
        chosen = order[:cut], order[cut : cut + task.held_out]
        return tuple((pixels[which], labels[which]) for which in chosen)
    first = order[: task.images]
    test = _of_classes(task, known / task.source / f"{names[1]}_lmdb")
    return (pixels[first], labels[first]), test


def _of_classes(task: Task, lmdb: Path) -> Labelled:
    pixels, labels = read_images(lmdb)
    if not task.classes:
        return pixels, labels
    kept = np.isin(labels, task.classes)
    return pixels[kept], np.searchsorted(task.classes, labels[kept])


def read_images(lmdb: Path) -> Labelled:
    """All images of an LMDB and their labels."""
    images = data.open_images(lmdb)
    pixels, labels = images.in_order()(len(images))
    return (pixels[:, ::-1] if images.channels == "rgb" else pixels), labels


def prepare(task: Task, name: str, part: str, known: Path, out: Path, seed: int = 1) -> Path:
    """The folder of the LMDBs that nets are trained on, made if missing."""
    folder = out / (f"{name}-{part}-{seed}" if task.is_resampled else f"{name}-{part}")
    if (folder / "train_lmdb").exists():
        return folder
    out.mkdir(parents=True, exist_ok=True)
    with scratch_dir(out) as scratch:
        if (folder / "train_lmdb").exists():  # another process was first
            return folder
        (pixels, labels), measured = load(task, part, known, seed)
        colours = "bgr" if pixels.shape[1] == 3 else None
        data.from_arrays(
            pixels,
            labels,
            scratch / "set",
            layout="nchw",
            channels=colours,
            val=measured,
            progress=False,
        )
        (scratch / "set").rename(folder)
    return folder


@dataclass(frozen=True)
class Measured:
    """What nets are measured on, or the probabilities that a method gives to it."""

    test: np.ndarray
    labels: np.ndarray
    """Of `test`."""
    shifted: np.ndarray
    """Shifts x strengths x images x …, of the first images of `test`."""
    ood: np.ndarray

    def apply(self, function: Callable[[np.ndarray], np.ndarray]) -> "Measured":
        """What a function of images gives, computed at once for all of them."""
        count, several = len(self.test), self.shifted.shape[:3]
        flat = self.shifted.reshape(-1, *self.test.shape[1:])
        found = function(np.concatenate([self.test, flat, self.ood]))
        test, flat, ood = np.split(found, [count, count + len(flat)])
        return Measured(test, self.labels, flat.reshape(*several, *found.shape[1:]), ood)

    def save(self, path: Path, **more: object) -> None:
        """Write it, and `more` beside it, into an npz file."""
        with scratch_file(path) as scratch, scratch.open("wb") as file:
            np.savez(file, **vars(self), **more)

    @classmethod
    def read(cls, path: Path) -> "Measured":
        with np.load(path) as file:
            return cls(**{name: file[name] for name in cls.__dataclass_fields__})


def to_measure(task: Task, name: str, part: str, known: Path, out: Path, seed: int = 1) -> Measured:
    """The images that nets are measured on. The shifted ones are computed once and kept."""
    _, (test, labels) = load(task, part, known, seed)
    if part == "tune":
        return Measured(test, labels, test[np.newaxis, np.newaxis, :0], test[:0])
    kept = out / f"{name}-measured.npz"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        some = test[:SHIFTED_IMAGES]
        kinds = [kind for kind, shift in SHIFTS.items() if shift.fits(some)]
        shown = [[shifted(some, kind, strength) for strength in STRENGTHS] for kind in kinds]
        Measured(test[:0], labels[:0], np.array(shown), _ood(task, known, test.shape[1:])).save(
            kept
        )
    made = Measured.read(kept)
    return Measured(test, labels, made.shifted, made.ood)


def _ood(task: Task, known: Path, shape: tuple[int, ...]) -> np.ndarray:
    if task.ood not in KINDS:
        return read_images(known / task.ood / "test_lmdb")[0][:OOD_IMAGES]
    with TemporaryDirectory() as folder:
        write_pictures(Path(folder), task.ood, OOD_IMAGES, seed=1)
        images = data.open_images(folder)
        images.fit(shape, "bgr")
        return images.in_order()(len(images))[0]
