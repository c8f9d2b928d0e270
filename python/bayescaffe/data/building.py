"""Your own image sets: `from_folder` for pictures, `from_arrays` for NumPy arrays."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bayescaffe.common.checks import check_seed
from bayescaffe.common.errors import BayesCaffeError, argument, times
from bayescaffe.data.description import ORDERS, RESIZES
from bayescaffe.data.image_files import ImageFiles
from bayescaffe.data.image_set import (
    FORMAT_VERSION,
    Dataset,
    Split,
    refuse_any_data,
    shuffled,
    write_set,
)
from bayescaffe.data.interface import Images, Shape
from bayescaffe.data.labels import sorted_classes, to_labels
from bayescaffe.data.pictures import Pictures, find_pictures
from bayescaffe.data.pixels import PixelArray
from bayescaffe.data.splitting import stratified

log = logging.getLogger(__name__)

VAL = 0.2


def from_folder(
    pictures: str | os.PathLike,
    out: str | os.PathLike,
    *,
    size: int | tuple[int, int],
    val: float | None = None,
    test: float | None = None,
    seed: int = 0,
    aspect: str = "squash",
    channels: str = "bgr",
    class_names: Sequence[str] | None = None,
    strict: bool = False,
    force: bool = False,
    progress: bool = True,
) -> Dataset:
    """Write pictures as LMDBs into `out`: train_lmdb, and val_lmdb and test_lmdb if wanted.

    The same arguments give the same bytes, on any number of cores.

    Args:
        pictures: a folder with a sub-folder for each class; a folder with `train` and `val` or
            `test`, each with a sub-folder for each class; or a list (.csv, .txt) with a file,
            relative to the list, and its class in each line.
        size: of the images: the side of a square, or width and height.
        val, test: the share of each class to set aside (default: 0.2 and 0, or the folders `val`
            and `test`).
        seed: of the split and of the order of the images.
        aspect: "squash" stretches pictures to the size; "keep" cuts off what is too long.
        channels: what the images are: "bgr" (Caffe's order of colours), "rgb" or "grey".
        class_names: the classes, in the order of their labels (default: those found, sorted).
        strict: raise if a picture cannot be read, instead of leaving it out.
        force: replace LMDBs that are in `out`.
        progress: show progress bars if this runs on a terminal or in a notebook.
    """
    pictures, out = Path(pictures), Path(out)
    shape = _shape(size, aspect, channels)
    _check_target(out, seed, force)
    if pictures.is_dir() and out.resolve().is_relative_to(pictures.resolve()):
        raise BayesCaffeError(f"{out}: lies inside of {pictures}; choose another {argument('out')}")
    found = find_pictures(pictures)
    # In given splits, the training pictures tell which classes there are.
    known = [found.classes[row] for row in found.rows("train") or found.rows(None)]
    class_names = _checked_classes(class_names or sorted_classes(known), pictures)
    labels = to_labels(found.classes, class_names, lambda row: found.places[row])
    rows = _split(found, labels, val, test, seed, class_names)
    images = ImageFiles(found.files, names=found.names)
    images.fit(shape, channels, aspect)
    result = write_set(
        out,
        _splits(images, labels, rows, seed),
        {"name": "folder", "format_version": FORMAT_VERSION, "seed": seed},
        channels=channels,
        class_names=class_names,
        resize=aspect,
        strict=strict,
        progress=progress,
    )
    for reason in result.skipped:
        log.warning("left out: %s", reason)
    return result


def _shape(size: int | tuple[int, int], aspect: str, channels: str) -> Shape:
    """The shape of the images that these arguments ask for, once they are checked."""
    for name, value, allowed in (("channels", channels, ORDERS), ("aspect", aspect, RESIZES)):
        if value not in allowed:
            raise BayesCaffeError(f"{argument(name, value)} is not one of {', '.join(allowed)}")
    width, height = (size, size) if isinstance(size, int) else size
    if min(width, height) < 1:
        raise BayesCaffeError(f"{argument('size')}: {width}x{height} is not 1 or more")
    return (1 if channels == "grey" else 3, height, width)


Arrays = tuple[np.ndarray, np.ndarray]
"""Images and their labels."""


def from_arrays(
    X: np.ndarray,
    y: np.ndarray | Sequence,
    out: str | os.PathLike,
    *,
    layout: str | None = None,
    channels: str | None = None,
    class_names: Sequence[str] | None = None,
    val: float | Arrays | None = None,
    test: float | Arrays | None = None,
    seed: int = 0,
    force: bool = False,
    progress: bool = True,
) -> Dataset:
    """Write images in memory as LMDBs into `out`, as `from_folder` does.

    Args:
        X: bytes, or floating-point numbers from 0 to 1; a tensor of PyTorch works too. Images x
            height x width, with channels last or before the height.
        y: a label from 0 for each image, or the name of its class.
        layout: "nhwc", "nchw" or "nhw", if the shape of X does not tell it.
        channels: the order of the colours in X, "rgb" or "bgr"; it must be given for three
            channels. The LMDB has them in Caffe's order, "bgr".
        class_names: the name of each label.
        val, test: the share of each class to set aside (default: 0.2 and 0), or other images and
            their labels, `test=(X_test, y_test)`, which stay in their order.
        seed, force, progress: as in `from_folder`.
    """
    out = Path(out)
    _check_target(out, seed, force)
    given = {"train": (X, y)} | {
        name: part for name, part in (("val", val), ("test", test)) if isinstance(part, tuple)
    }
    images = _pixels({name: part[0] for name, part in given.items()}, layout, channels)
    known = {name: np.asarray(part[1]) for name, part in given.items()}
    for name, part in known.items():
        _check_labels(part, _called("y", name), len(images[name]))
    labels, class_names = _numbered(known, class_names)
    shares = {
        "val": VAL if val is None else 0 if "val" in given else val,
        "test": 0 if test is None or "test" in given else test,
    }
    shown = class_names or tuple(map(str, range(1 + labels["train"].max())))
    _checked_classes(shown, "y")
    rows = stratified(labels["train"], range(len(images["train"])), shares, seed, shown)
    splits = _splits(images["train"], labels["train"], rows, seed)
    for name in ("val", "test"):
        if name in given:
            splits[name] = Split(images[name], labels[name], range(len(images[name])))
    return write_set(
        out,
        splits,
        {"name": "array", "format_version": FORMAT_VERSION, "seed": seed},
        channels=images["train"].channels,
        class_names=class_names,
        progress=progress,
    )


def _called(name: str, split: str) -> str:
    """What errors call the images X or the labels y of a split."""
    return argument(name) if split == "train" else f"{split}[{'Xy'.index(name)}]"


def _pixels(
    arrays: dict[str, np.ndarray], layout: str | None, channels: str | None
) -> dict[str, PixelArray]:
    images = {
        name: PixelArray(np.asarray(array), _called("X", name), layout, channels)
        for name, array in arrays.items()
    }
    shape = images["train"].shape
    for name, one in images.items():
        if one.shape != shape:
            raise BayesCaffeError(
                f"{_called('X', name)}: images are {times(one.shape)}, but those of X are "
                f"{times(shape)} (channels x height x width)"
            )
    return images


def _check_labels(y: np.ndarray, name: str, images: int) -> None:
    is_text = y.dtype.kind == "U" or (y.dtype == object and all(isinstance(one, str) for one in y))
    if y.shape != (images,) or not (is_text or y.dtype.kind in "iu"):
        raise BayesCaffeError(
            f"{name}: is {y.dtype} of shape {times(y.shape)}, expected a whole number or a name "
            f"for each of {images} images"
        )


def _numbered(
    known: dict[str, np.ndarray], class_names: Sequence[str] | None
) -> tuple[dict[str, np.ndarray], tuple[str, ...] | None]:
    """The labels of each split as numbers, and the names of the classes, if there are any."""
    if any(y.dtype.kind not in "iu" for y in known.values()):
        texts = {name: [str(one) for one in y.tolist()] for name, y in known.items()}
        names = tuple(class_names or sorted_classes(texts["train"]))
        return {
            name: to_labels(part, names, lambda row, name=name: f"{_called('y', name)}[{row}]")
            for name, part in texts.items()
        }, names
    found = set(known["train"].tolist())
    count = len(class_names) if class_names else len(found)
    if not class_names and found != set(range(count)):
        shown = ", ".join(map(str, sorted(found)[:20]))
        raise BayesCaffeError(
            f"{argument('y')}: the labels are {shown}; expected all numbers from 0 to the last"
        )
    for name, y in known.items():
        wrong = np.flatnonzero((y < 0) | (y >= count))
        if len(wrong):
            raise BayesCaffeError(
                f"{_called('y', name)}[{wrong[0]}]: label {y[wrong[0]]} is not within "
                f"0..{count - 1}, as there are {count} classes"
            )
    return known, tuple(class_names) if class_names else None


def _check_target(out: Path, seed: int, force: bool) -> None:
    check_seed(seed)
    if not force:
        refuse_any_data(out)


def _checked_classes(class_names: Sequence[str], what: object) -> tuple[str, ...]:
    names = tuple(class_names)
    for name in names:
        if names.count(name) > 1:
            raise BayesCaffeError(f"{argument('class_names')}: {name!r} is there twice")
    if len(names) < 2:
        raise BayesCaffeError(
            f"{what}: there is only one class, {', '.join(names)}; a net needs two or more to tell "
            "apart"
        )
    return names


def _split(
    found: Pictures,
    labels: np.ndarray,
    val: float | None,
    test: float | None,
    seed: int,
    class_names: Sequence[str],
) -> dict[str, Sequence[int]]:
    """The pictures of each split: as they were found, the rest by the shares."""
    given = {name: found.rows(name) for name in ("val", "test") if found.rows(name)}
    for name, share in (("val", val), ("test", test)):
        if share is not None and name in given:
            raise BayesCaffeError(
                f"{argument(name, share)} cannot be set aside, as there is a folder {name} of "
                "pictures"
            )
    if val is None:
        val = 0 if found.rows("train") else VAL
    rest = found.rows("train") or found.rows(None)
    return stratified(labels, rest, {"val": val, "test": test or 0}, seed, class_names) | given


def _splits(
    images: Images, labels: np.ndarray, rows: dict[str, Sequence[int]], seed: int
) -> dict[str, Split]:
    # All are shuffled: a test of some batches should meet all classes.
    return {name: Split(images, labels, shuffled(part, seed)) for name, part in rows.items()}
