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

OOD_IMAGES = 2000
HELD_OUT = 5000
"""Images that no net is trained on, and hyperparameters are chosen on."""

COMMON = (
    "stock",
    "temperature",
    "mc-dropout",
    "swag",
    "laplace",
    "ours",
    "calibrated",
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
    is_exchanged: bool = False
    """Train on the set's test images. The held-out ones and those to test on are of the others."""
    classes: tuple[int, ...] = ()
    """Of the set, the only ones that it has, numbered anew; all if empty."""
    methods: tuple[str, ...] = COMMON
    """The columns that it has."""
    pretrained: str = ""
    """Another task, whose nets the fine-tuned ones of this row start from."""
    trial_share: int = 1
    """A trial of tuning has the iterations divided by this."""
    shifted: int = 500
    """Test images that are shifted, the first ones; each shift and strength has the same."""
    step: float = 20e-3
    """Seconds of an iteration on one core, roughly, for the time left."""
    look: float = 75e-6
    """Seconds of an image and a draw."""

    @property
    def is_resampled(self) -> bool:
        """Whether each seed has training images of its own: of so few, the choice matters. Nets of
        other images make no ensemble, so other rows have the same for all seeds."""
        return bool(self.pretrained)

    @property
    def measured(self) -> int:
        """About how many images a net is measured on."""
        test = 55_000 if self.is_exchanged else 10_000
        return test + len(SHIFTS) * len(STRENGTHS) * self.shifted + OOD_IMAGES


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
    classes=(5, 6, 7, 8, 9), methods=OF_TRANSFER, pretrained="digits-0-4",
)  # fmt: skip
_long = {"iterations": 10_000, "base_lr": 0.02, "decay": 0.002, "trial_share": 4}
"""Tuning starts from the rate and the decay that it chose in the first rows."""
_colour = partial(Task, "cifar10", ood="shapes", trial_share=2, shifted=200)
_quick = partial(_colour, net=quick, base_lr=0.01, decay=0.004, step=100e-3, look=540e-6)
_resnet = partial(_colour, net=resnet8, base_lr=0.05, step=160e-3, look=860e-6)
TASKS = {
    "mnist-55000": _mnist(55_000, **_long),
    "mnist-exchanged": _mnist(10_000, is_exchanged=True, **_long),
    "mnist-1000": _mnist(1000, iterations=3000),
    "fashion-55000": _fashion(55_000, **_long),
    "fashion-5000": _fashion(5000, iterations=5000),
    "cifar10-quick-45000": _quick(45_000, iterations=4000),
    "cifar10-quick-5000": _quick(5000, iterations=2000),
    "cifar10-resnet8-45000": _resnet(45_000, iterations=4000),
    "cifar10-resnet8-5000": _resnet(5000, iterations=2000),
    "digits-5-9-100": _transfer(100),
    "digits-5-9-500": _transfer(500),
    # No row: the nets that the two before it start from.
    "digits-0-4": Task(
        "mnist", 30_000, lenet_of_five, 5000, "fashion-mnist", classes=(0, 1, 2, 3, 4), methods=()
    ),
}


Labelled = tuple[np.ndarray, np.ndarray]
"""Images x channels x height x width, in Caffe's order of colours, and their labels."""


@dataclass(frozen=True)
class Split:
    """The images of a row, of which none is in two parts."""

    train: Labelled
    held_out: Labelled
    """Those that hyperparameters are chosen on."""
    test: Labelled


def load(task: Task, known: Path, seed: int = 1) -> Split:
    """The images of a row.

    Args:
        known: the folder of the known sets, as `bayescaffe data` writes them.
        seed: of the net; it matters only where `task.is_resampled`.
    """
    names = ("test", "train") if task.is_exchanged else ("train", "test")
    first, second = (_of_classes(task, known / task.source / f"{name}_lmdb") for name in names)
    # The test images of MNIST are sorted by who wrote them.
    rng = np.random.default_rng(seed if task.is_resampled else 0)
    order = rng.permutation(len(first[1]))
    train, rest = _some(first, order[: task.images]), order[task.images :]
    if not task.is_exchanged:
        return Split(train, _some(first, rest[:HELD_OUT]), second)
    others = rng.permutation(len(second[1]))
    return Split(train, _some(second, others[:HELD_OUT]), _some(second, others[HELD_OUT:]))


def _some(images: Labelled, which: np.ndarray) -> Labelled:
    return images[0][which], images[1][which]


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


def prepare(task: Task, name: str, known: Path, out: Path, seed: int = 1) -> Path:
    """The folder of the LMDBs that nets are trained on, made if missing."""
    folder = out / (f"{name}-{seed}" if task.is_resampled else name)
    if (folder / "train_lmdb").exists():
        return folder
    out.mkdir(parents=True, exist_ok=True)
    with scratch_dir(out) as scratch:
        if (folder / "train_lmdb").exists():  # another process was first
            return folder
        split = load(task, known, seed)
        pixels, labels = split.train
        colours = "bgr" if pixels.shape[1] == 3 else None
        data.from_arrays(
            pixels,
            labels,
            scratch / "set",
            layout="nchw",
            channels=colours,
            val=split.held_out,
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


def held_out(task: Task, known: Path, seed: int = 1) -> Measured:
    """The images that hyperparameters are chosen on; none is shifted or from elsewhere."""
    pixels, labels = load(task, known, seed).held_out
    return Measured(pixels, labels, pixels[np.newaxis, np.newaxis, :0], pixels[:0])


def to_test(task: Task, name: str, known: Path, out: Path) -> Measured:
    """The images that methods are compared on. The shifted ones are computed once and kept."""
    test, labels = load(task, known).test
    kept = out / f"{name}-measured.npz"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        some = test[: task.shifted]
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
