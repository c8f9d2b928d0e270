"""Images to take through a net: an LMDB, image files or an array, with one interface.

Images are arrays of images x channels x height x width before the transform, so bytes are 0 to 255.
Colours are blue, green, red, in this order, as is Caffe's custom: image files are turned to it;
LMDBs and arrays are taken as they are. No source holds all its images in memory.
"""

import io
import math
import os
import re
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import numpy as np

from bayescaffe.common import pycaffe
from bayescaffe.common.errors import BayesCaffeError, times
from bayescaffe.common.npz import NpzFile, map_npy

Shape = tuple[int, int, int]
Labels = np.ndarray | None


class Images(ABC):
    """Images in a definite order, with labels and names if they have any."""

    path: Path | None = None
    """Where they are, None if in no file."""
    shape: Shape | None
    """Channels, height, width of each; None for image files that were not told it yet."""
    names: list[str] | None = None
    """The files' names, if each image is one."""
    labels: Labels = None
    """int64 per image; None if not known, or if `chunks` tells them."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, indices: Sequence[int]) -> np.ndarray:
        """The images of these indices, in that order."""

    @abstractmethod
    def describe(self, index: int) -> str:
        """How to name an image in an error."""

    def fit(self, shape: Shape) -> None:
        """Make the images of that shape: image files are stretched, others must have it."""
        if self.shape != shape:
            hint = ""
            if self.shape == (*shape[1:], shape[0]):
                hint = "; put the channels before height and width"
            raise BayesCaffeError(
                f"{self.path or 'array'}: images are {times(self.shape)}, but the net takes "
                f"{times(shape)}{hint}"
            )

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, Labels]]:
        """All images in order, `size` at a time, with their labels or None."""
        for start in range(0, len(self), size):
            rows = range(start, min(start + size, len(self)))
            yield self.read(rows), None if self.labels is None else self.labels[start : rows.stop]


class LmdbImages(Images):
    """The `Datum` records of an LMDB, in the order of their keys, as a Data layer reads them."""

    _open: weakref.WeakValueDictionary = weakref.WeakValueDictionary()

    def __init__(self, path: str | os.PathLike, color: bool | None = None) -> None:
        """Open an LMDB; `color` makes encoded images colour (True) or grey (False)."""
        self.path = Path(path)
        self._channels = None if color is None else 3 if color else 1
        self._size: tuple[int, int] | None = None
        self.shape = None
        self._env = self._environment()
        self._length = self._env.stat()["entries"]
        if not self._length:
            raise BayesCaffeError(f"{path}: the LMDB has no records")
        self._keys: list[bytes] | None = None
        with self._env.begin() as transaction:
            key, record = next(iter(transaction.cursor()))
            self._is_encoded = self._datum(0, key, record).encoded
            self.shape = self._image(0, key, record)[0].shape

    def fit(self, shape: Shape) -> None:
        if self._is_encoded:
            self._channels, self._size, self.shape = shape[0], shape[1:], shape
        super().fit(shape)

    def __len__(self) -> int:
        return self._length

    def read(self, indices: Sequence[int]) -> np.ndarray:
        if self._keys is None:
            with self._env.begin() as transaction:
                self._keys = list(transaction.cursor().iternext(values=False))
        with self._env.begin() as transaction:
            images = [
                self._image(index, self._keys[index], transaction.get(self._keys[index]))[0]
                for index in indices
            ]
        return np.stack(images) if images else np.empty((0, *self.shape), np.uint8)

    def chunks(self, size: int) -> Iterator[tuple[np.ndarray, Labels]]:
        records = self._records()
        for start in range(0, len(self), size):
            count = min(size, len(self) - start)
            image, label = next(records)
            images = np.empty((count, *self.shape), image.dtype)
            labels = None if label is None else np.empty(count, np.int64)
            for row in range(count):
                if row:
                    image, label = next(records)
                if image.dtype != images.dtype or (label is None) != (labels is None):
                    raise BayesCaffeError(
                        f"{self.describe(start + row)}: some records have bytes or a label and "
                        "some have not"
                    )
                images[row] = image
                if labels is not None:
                    labels[row] = label
            yield images, labels

    def describe(self, index: int) -> str:
        return f"{self.path}: record {index}"

    def _records(self) -> Iterator[tuple[np.ndarray, int | None]]:
        with self._env.begin(buffers=True) as transaction:
            for index, (key, record) in enumerate(transaction.cursor()):
                yield self._image(index, key, record)

    def _datum(self, index: int, key: bytes, record: bytes):
        try:
            return pycaffe.decode(bytes(record), "Datum", "not a Datum")
        except BayesCaffeError as error:
            key = bytes(key).decode(errors="replace")
            raise BayesCaffeError(f"{self.describe(index)} (key {key}): {error}") from error

    def _image(self, index: int, key: bytes, record: bytes) -> tuple[np.ndarray, int | None]:
        datum = self._datum(index, key, record)
        if datum.encoded:
            try:
                image = decode(datum.data, self._channels, self._size)
            except BayesCaffeError as error:
                raise BayesCaffeError(f"{self.describe(index)}: {error}") from error
        else:
            shape = (datum.channels, datum.height, datum.width)
            values = (
                np.frombuffer(datum.data, np.uint8)
                if datum.data
                else np.array(datum.float_data, np.float32)
            )
            if values.size != math.prod(shape) or not values.size:
                raise BayesCaffeError(
                    f"{self.describe(index)}: has {values.size} values, but its shape is "
                    f"{times(shape)}"
                )
            image = values.reshape(shape)
        if self.shape is not None and image.shape != self.shape:
            raise BayesCaffeError(
                f"{self.describe(index)}: is {times(image.shape)}, but the first record is "
                f"{times(self.shape)}"
            )
        return image, datum.label if datum.HasField("label") else None

    def _environment(self) -> lmdb.Environment:
        """The opened LMDB. A process must not open one twice, so those in use are kept in mind."""
        path = self.path / "data.mdb" if self.path.is_dir() else self.path
        status = path.stat()
        identity = (status.st_dev, status.st_ino)
        if identity in self._open:
            return self._open[identity]
        try:
            env = lmdb.open(str(path), readonly=True, lock=False, subdir=False)
        except lmdb.Error as error:
            raise BayesCaffeError(f"{self.path}: truncated, or not an LMDB: {error}") from error
        # What lies behind the end of a truncated file would be a bus error.
        size = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        if status.st_size < size:
            env.close()
            raise BayesCaffeError(
                f"{self.path}: truncated: {path.name} has {status.st_size} bytes, expected {size}"
            )
        self._open[identity] = env
        return env


class ImageFiles(Images):
    """Image files of any size and format, stretched to one shape. A file may be its content."""

    def __init__(
        self,
        files: Sequence[str | os.PathLike | bytes],
        *,
        shape: Shape | None = None,
        path: Path | None = None,
        names: Sequence[str] | None = None,
        labels: Labels = None,
        invert: bool = False,
    ) -> None:
        self.path = path
        self.shape = None
        self.names = list(names or (_file_name(file) for file in files))
        self.labels = labels
        self._files = list(files)
        self._invert = invert
        if shape is not None:
            self.fit(shape)

    def fit(self, shape: Shape) -> None:
        if shape[0] not in (1, 3):
            raise BayesCaffeError(
                f"image files are grey or colour, but the net takes {shape[0]} channels"
            )
        self.shape = shape

    def __len__(self) -> int:
        return len(self._files)

    def read(self, indices: Sequence[int]) -> np.ndarray:
        result = np.empty((len(indices), *self.shape), np.uint8)

        def load(row: int) -> None:
            result[row] = self._load(indices[row])

        if len(indices) == 1:
            load(0)
        else:
            with ThreadPoolExecutor() as pool:  # Pillow decodes without Python's lock
                list(pool.map(load, range(len(indices))))
        return result

    def describe(self, index: int) -> str:
        return _file_name(self._files[index])

    def _load(self, index: int) -> np.ndarray:
        try:
            file = self._files[index]
            content = file if isinstance(file, bytes) else Path(file).read_bytes()
            image = decode(content, self.shape[0], self.shape[1:])
        except (BayesCaffeError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise BayesCaffeError(f"{self.describe(index)}: {reason}") from error
        return 255 - image if self._invert else image


def _file_name(file: str | os.PathLike | bytes) -> str:
    return "-" if isinstance(file, bytes) else str(file)


class ArrayImages(Images):
    """Images in an array: images x height x width, or images x channels x height x width."""

    def __init__(
        self, array: np.ndarray, *, path: Path | None = None, labels: Labels = None
    ) -> None:
        self.path = path
        self._name = str(path or "array")
        if array.ndim == 3:
            array = array[:, np.newaxis]
        if array.ndim != 4 or not array.size or array.dtype.kind not in "buif":
            raise BayesCaffeError(
                f"{self._name}: is {array.dtype} of shape {times(array.shape)}, expected numbers "
                "of images x height x width or images x channels x height x width"
            )
        self._array = array
        self.shape = array.shape[1:]
        self.labels = labels

    def __len__(self) -> int:
        return len(self._array)

    def read(self, indices: Sequence[int]) -> np.ndarray:
        rows = slice(indices.start, indices.stop) if isinstance(indices, range) else indices
        return np.asarray(self._array[rows])

    def describe(self, index: int) -> str:
        return f"{self._name}: image {index}"


def open_images(
    data: str | os.PathLike | np.ndarray | Sequence[str | os.PathLike],
    *,
    labels: str | os.PathLike | np.ndarray | None = None,
    class_names: Sequence[str] | None = None,
    invert: bool = False,
) -> Images:
    """The images of any source; `fit` them to the net's shape before reading.

    Args:
        data: an LMDB; a folder of image files, with those in its sub-folders; a text file with
            the name of an image file in each line, and maybe a label behind it; an image file, or
            several; an .npy or .npz file; or an array.
        labels: a number for each image, in an array, an .npy file or a text file. Without it, the
            source's own: those of the LMDB, the list or the .npz, or the names of the sub-folders
            if these are numbers or in `class_names`.
        invert: of image files, to make black on white white on black.
    """
    if isinstance(data, np.ndarray):
        source = ArrayImages(data)
    elif not isinstance(data, (str, os.PathLike)):
        source = ImageFiles(data, invert=invert)
    else:
        path = Path(data).absolute()
        if not path.exists():
            raise BayesCaffeError(f"{data}: no such file or folder of images")
        if path.suffix == ".mdb" or (path / "data.mdb").exists():
            source = LmdbImages(path)
        elif path.is_dir():
            source = _folder(path, class_names, invert)
        elif path.suffix in (".npy", ".npz"):
            source = _array_file(path)
        elif path.suffix in (".txt", ".lst"):
            source = _listed(path, invert)
        else:
            source = ImageFiles([path], path=path, invert=invert)
    if labels is not None:
        if isinstance(source, LmdbImages):
            raise BayesCaffeError(f"{data}: an LMDB has its own labels, no others can be given")
        source.labels = _read_labels(labels, len(source))
    return source


def find_images(folder: Path) -> list[Path]:
    """The image files in a folder and its sub-folders, sorted; hidden ones are left out."""
    from PIL import Image

    known = Image.registered_extensions()
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in known
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    if not found:
        raise BayesCaffeError(f"{folder}: no image files in this folder")
    return found


def decode(
    content: bytes, channels: int | None = None, size: tuple[int, int] | None = None
) -> np.ndarray:
    """An image file's content as channels x height x width bytes, upright, over white where it is
    transparent, and stretched to `size` (height, width). Without `channels`, grey stays grey."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content)) as opened:
            image = ImageOps.exif_transpose(opened)
            image = _plain(image, channels)
    except UnidentifiedImageError as error:
        raise BayesCaffeError("not an image, or of a format that is not known") from error
    except BayesCaffeError:
        raise
    except Exception as error:  # Pillow's readers raise many kinds for damaged files
        raise BayesCaffeError(f"cannot be read as an image: {error}") from error
    if size and (image.height, image.width) != size:
        image = image.resize(size[::-1], Image.Resampling.LANCZOS)
    pixels = np.asarray(image)
    return pixels[np.newaxis] if pixels.ndim == 2 else pixels[..., ::-1].transpose(2, 0, 1)


def _plain(image, channels: int | None):
    """A Pillow image with 8 bits a channel, grey or red, green, blue."""
    from PIL import Image

    if image.mode == "F":
        raise BayesCaffeError("has floating-point pixels, whose range is not known")
    if image.mode.startswith("I"):  # 16 bits
        image = Image.fromarray((np.asarray(image) / 257).clip(0, 255).round().astype(np.uint8))
    if channels is None:
        channels = 1 if image.mode in ("1", "L", "LA") else 3
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("L" if channels == 1 else "RGB")


def _folder(path: Path, class_names: Sequence[str] | None, invert: bool) -> ImageFiles:
    files = find_images(path)
    names = [str(file.relative_to(path)) for file in files]
    labels = _folder_labels(names, class_names)
    return ImageFiles(files, path=path, names=names, labels=labels, invert=invert)


def _folder_labels(names: list[str], class_names: Sequence[str] | None) -> Labels:
    """Labels by the sub-folders: their places in `class_names`, or the numbers that they are."""
    folders = [os.path.dirname(name).split(os.sep)[0] for name in names]
    if class_names is not None and set(folders) <= set(class_names):
        return np.array([list(class_names).index(folder) for folder in folders], np.int64)
    if all(re.fullmatch(r"[0-9]+", folder) for folder in folders):
        return np.array([int(folder) for folder in folders], np.int64)
    return None


def _listed(path: Path, invert: bool) -> ImageFiles:
    """A list of image files, relative to where the list is; a label may follow the name."""
    try:
        lines = [line.rstrip() for line in path.read_text().splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise BayesCaffeError(f"{path}: not a text file: {error}") from error
    if not lines:
        raise BayesCaffeError(f"{path}: names no image files")
    labelled = [re.fullmatch(r"(.+?)\s+(-?\d+)", line) for line in lines]
    labels = None
    if all(labelled):
        names = [match[1] for match in labelled]
        labels = np.array([int(match[2]) for match in labelled], np.int64)
    else:
        names = lines
    files = [path.parent / name for name in names]
    return ImageFiles(files, path=path, names=names, labels=labels, invert=invert)


def _array_file(path: Path) -> ArrayImages:
    if path.suffix == ".npy":
        return ArrayImages(_map_npy(path), path=path)
    with NpzFile(path) as file:
        arrays = {name: file.map(name) for name in file}
    images = [name for name, array in arrays.items() if array.ndim in (3, 4)]
    if len(images) != 1:
        raise BayesCaffeError(
            f"{path}: expected one array of images (3 or 4 dimensions), found {images or 'none'}; "
            "save the one that is meant as .npy"
        )
    labels = [array for array in arrays.values() if array.ndim == 1]
    array = arrays[images[0]]
    checked = _checked_labels(labels[0], str(path), len(array)) if len(labels) == 1 else None
    return ArrayImages(array, path=path, labels=checked)


def _read_labels(labels: str | os.PathLike | np.ndarray, images: int) -> np.ndarray:
    if isinstance(labels, np.ndarray):
        return _checked_labels(labels, "labels", images)
    path = Path(labels)
    if path.suffix == ".npy":
        return _checked_labels(_map_npy(path), str(path), images)
    try:
        numbers = [int(word) for word in path.read_text().split()]
    except ValueError as error:
        raise BayesCaffeError(f"{path}: expected a whole number for each image: {error}") from error
    return _checked_labels(np.array(numbers, np.int64), str(path), images)


def _checked_labels(labels: np.ndarray, name: str, images: int) -> np.ndarray:
    if labels.shape != (images,) or labels.dtype.kind not in "iu":
        raise BayesCaffeError(
            f"{name}: labels are {labels.dtype} of shape {labels.shape}, expected one whole number "
            f"for each of {images} images"
        )
    return labels.astype(np.int64)


def _map_npy(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        try:
            return map_npy(file)
        except (ValueError, EOFError) as error:
            raise BayesCaffeError(f"{path}: damaged, or not an array (.npy): {error}") from error
