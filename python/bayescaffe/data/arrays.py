"""Images in arrays, in memory or in .npy and .npz files."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument, times
from bayescaffe.common.npz import NpzFile, read_npy
from bayescaffe.common.reading import open_regular
from bayescaffe.data.interface import Images, Labels, Shape

log = logging.getLogger(__name__)


class ArrayImages(Images):
    """Images in an array: images x height x width, or images x channels x height x width.

    The channels may also come last, if the net takes images of that shape. One image may lack the
    first axis: it is height x width, or height x width x channels.
    """

    def __init__(
        self,
        array: np.ndarray,
        *,
        path: Path | None = None,
        labels: Labels = None,
        channels: str | None = None,
    ) -> None:
        self.path = path
        self._name = str(path or "array")
        if array.ndim == 2 or _is_one_colour_image(array):
            array = one_image(array)
        elif array.ndim == 3:
            array = array[:, np.newaxis]
        if array.ndim != 4 or not array.size or array.dtype.kind not in "buif":
            raise BayesCaffeError(
                f"{self._name}: is {array.dtype} of shape {times(array.shape)}, expected numbers "
                "of images x height x width or images x channels x height x width"
            )
        self._array = array
        self.shape = array.shape[1:]
        self.labels = labels
        self._said = channels
        # If the channels come last, `fit` is told so by the net.
        if self.shape[0] in (1, 3) or self.shape[2] not in (1, 3):
            self.channels = checked_order(channels, self.shape, self._name)

    def fit(self, shape: Shape, channels: str | None = None, resize: str | None = None) -> None:
        channels_last = (*shape[1:], shape[0])
        if self.shape == channels_last != shape:
            self._array = np.moveaxis(self._array, 3, 1)
            self.shape = shape
        self.channels = checked_order(self._said, self.shape, self._name)
        super().fit(shape, channels, resize)
        if self.channels is None and shape[0] == 3:
            log.warning(
                "%s: the order of its colours is not known, neither is the net's; they are taken "
                "as they are. %s or bgr says what they are.",
                *(self._name, argument("channels", "rgb")),
            )

    def __len__(self) -> int:
        return len(self._array)

    def read(self, indices: Sequence[int]) -> np.ndarray:
        rows = slice(indices.start, indices.stop) if isinstance(indices, range) else indices
        return self._ordered(np.asarray(self._array[rows]))

    def describe(self, index: int) -> str:
        return f"{self._name}: image {index}"


def one_image(array: np.ndarray) -> np.ndarray:
    """One image as an array of one: height x width, with channels behind or before."""
    if array.ndim == 2:
        return array[np.newaxis, np.newaxis]
    if _is_one_colour_image(array):
        array = np.moveaxis(array, 2, 0)
    return array[np.newaxis]


def _is_one_colour_image(array: np.ndarray) -> bool:
    """Whether an array is height x width x channels, and not images x height x width."""
    return array.ndim == 3 and array.shape[2] in (1, 3) and min(array.shape[:2]) > 3


def checked_order(channels: str | None, shape: Shape, name: str) -> str | None:
    """The order of the channels, if it is one that images of `shape` can have."""
    if channels not in (None, *{1: ("grey",), 3: ("bgr", "rgb")}.get(shape[0], ())):
        raise BayesCaffeError(
            f"{name}: {argument('channels', channels)}, but images are {times(shape)}; "
            "expected rgb or bgr for three channels, grey for one"
        )
    return "grey" if shape[0] == 1 else channels


def open_array_file(path: Path, channels: str | None = None) -> ArrayImages:
    """The images of an .npy file, or of an .npz file with the labels that may be in it."""
    if path.suffix == ".npy":
        return ArrayImages(read_array(path), path=path, channels=channels)
    with NpzFile(path) as file:
        arrays = {name: file.array(name) for name in file}
    images = [name for name, array in arrays.items() if array.ndim in (3, 4)]
    if len(images) != 1:
        raise BayesCaffeError(
            f"{path}: expected one array of images (3 or 4 dimensions), found {images or 'none'}; "
            "save the one that is meant as .npy"
        )
    labels = [array for array in arrays.values() if array.ndim == 1]
    array = arrays[images[0]]
    checked = checked_labels(labels[0], str(path), len(array)) if len(labels) == 1 else None
    return ArrayImages(array, path=path, labels=checked, channels=channels)


def checked_labels(labels: np.ndarray, name: str, images: int) -> np.ndarray:
    """Labels as int64, if there is one whole number for each image; `name` is for the error."""
    if labels.shape != (images,) or labels.dtype.kind not in "iu":
        raise BayesCaffeError(
            f"{name}: labels are {labels.dtype} of shape {labels.shape}, expected one whole number "
            f"for each of {images} images"
        )
    return labels.astype(np.int64)


def read_array(path: Path) -> np.ndarray:
    """The array in an .npy file, read-only."""
    with open_regular(path) as file:
        try:
            return read_npy(file)
        except ValueError as error:
            raise BayesCaffeError(f"{path}: damaged, or not an array (.npy): {error}") from error
