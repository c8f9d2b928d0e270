"""Images to take through a net, from any source.

    images = open_images("photos/", class_names=["cat", "dog"])
    images.fit((3, 224, 224))
    images.read([0, 1])    # an array of 2 x 3 x 224 x 224

`fit` also brings colours to the order that the net takes. Image files tell theirs, and so do LMDBs
with a description; of arrays, say it (`channels`).
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument, times
from bayescaffe.common.reading import read_text
from bayescaffe.data.arrays import (
    ArrayImages,
    checked_labels,
    checked_order,
    one_image,
    open_array_file,
    read_array,
)
from bayescaffe.data.frames import TableImages, is_table
from bayescaffe.data.image_files import ImageFiles, is_pillow, open_folder, open_list
from bayescaffe.data.interface import Images
from bayescaffe.data.lmdb import LmdbImages

__all__ = ["ImageSource", "Images", "open_images"]

ImageSource = Images | str | os.PathLike | np.ndarray | Sequence | Any
"""What `open_images` opens."""


def open_images(
    data: ImageSource,
    *,
    labels: str | os.PathLike | np.ndarray | None = None,
    class_names: Sequence[str] | None = None,
    channels: str | None = None,
    invert: bool = False,
) -> Images:
    """Open images of any source; `fit` them to the net's shape before reading.

    Args:
        data: an LMDB; a folder of image files, including its sub-folders; a text file with the
            name of an image file in each line, and maybe a label behind it; an image file, or
            several; an image of Pillow, or several; a DataFrame with a column `path`, and maybe
            `label` (numbers or class names); an .npy or .npz file; or an array, of one image or
            several, with the channels before height and width or behind. `Images` are returned as
            they are.
        labels: a number for each image, in an array, an .npy file or a text file. Without it, the
            source's own: those of the LMDB, the list or the .npz, or the names of the sub-folders
            if these are numbers or in `class_names`.
        class_names: the classes, in the order of their labels.
        channels: the order of colours in an array, or in an LMDB that does not tell: "rgb" or
            "bgr".
        invert: turn image files from black on white to white on black.
    """
    source = _open(data, class_names, channels, invert)
    if labels is not None:
        if isinstance(source, LmdbImages):
            raise BayesCaffeError(f"{data}: an LMDB has its own labels, no others can be given")
        source.labels = _read_labels(labels, len(source))
        if isinstance(source, ImageFiles):
            source.folders = None
    if channels and isinstance(source, ImageFiles):
        raise BayesCaffeError(
            f"{argument('channels', channels)} is for arrays and LMDBs; image files tell the order "
            "themselves"
        )
    if isinstance(data, (str, os.PathLike)):
        source.recipe = {
            "data": os.path.abspath(data),
            "labels": os.path.abspath(labels) if isinstance(labels, (str, os.PathLike)) else labels,
            "channels": channels,
            "invert": invert,
        }
    return source


def _open(
    data: ImageSource, class_names: Sequence[str] | None, channels: str | None, invert: bool
) -> Images:
    if isinstance(data, Images):
        for name, value in (("invert", invert), ("channels", channels)):
            if value:
                raise BayesCaffeError(
                    f"{argument(name)}: these images are open already; tell open_images"
                )
        return data
    if isinstance(data, np.ndarray):
        return ArrayImages(data, channels=channels)
    if is_table(data):
        return TableImages(data, invert=invert)
    if isinstance(data, bytes) or is_pillow(data):
        return ImageFiles([data], invert=invert)
    if not isinstance(data, (str, os.PathLike)):
        return _open_several(list(data), channels, invert)
    path = Path(data).absolute()
    if not path.exists():
        raise BayesCaffeError(f"{data}: no such file or folder of images")
    if path.suffix == ".mdb" or (path / "data.mdb").exists():
        return _open_lmdb(path, channels)
    if path.is_dir():
        return open_folder(path, class_names, invert)
    if path.suffix in (".npy", ".npz"):
        return open_array_file(path, channels)
    if path.suffix in (".txt", ".lst"):
        return open_list(path, invert)
    return ImageFiles([path], path=path, invert=invert)


def _open_several(items: list, channels: str | None, invert: bool) -> Images:
    """Pictures, or arrays of one image each."""
    if not any(isinstance(item, np.ndarray) for item in items):
        return ImageFiles(items, invert=invert)
    if len({np.shape(item) for item in items}) > 1:
        raise BayesCaffeError(
            "images: a list of arrays needs arrays of one shape, found "
            + " and ".join(sorted({times(np.shape(item)) or "no array" for item in items}))
        )
    return ArrayImages(np.concatenate([one_image(item) for item in items]), channels=channels)


def _open_lmdb(path: Path, channels: str | None) -> LmdbImages:
    source = LmdbImages(path)
    if channels and channels != source.channels:
        if source.channels is not None:
            raise BayesCaffeError(
                f"{path}: {argument('channels', channels)}, but the LMDB has {source.channels}"
            )
        source.channels = checked_order(channels, source.shape, str(path))
    return source


def _read_labels(labels: str | os.PathLike | np.ndarray, images: int) -> np.ndarray:
    if isinstance(labels, np.ndarray):
        return checked_labels(labels, "labels", images)
    path = Path(labels)
    if path.suffix == ".npy":
        return checked_labels(read_array(path), str(path), images)
    try:
        numbers = [int(word) for word in read_text(path).split()]
    except ValueError as error:
        raise BayesCaffeError(f"{path}: expected a whole number for each image: {error}") from error
    return checked_labels(np.array(numbers, np.int64), str(path), images)
