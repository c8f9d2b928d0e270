"""Image files: photos and drawings of any size and format that Pillow reads."""

import contextlib
import io
import logging
import os
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument, nearest
from bayescaffe.common.limits import check_pixels, limit
from bayescaffe.common.provenance import cores
from bayescaffe.common.reading import read_bytes, read_text
from bayescaffe.data.interface import Images, Labels, Shape
from bayescaffe.data.labels import not_a_class

log = logging.getLogger(__name__)

Picture = Any
"""An image file by name (str, PathLike) or content (bytes), or an image of Pillow."""
STRIP_PIXELS = 2**20
"""Of a large picture, so many are converted at a time."""
_pillow_limit = threading.Lock()
_large_picture = threading.Lock()


def is_pillow(item: object) -> bool:
    """Whether this is an image of Pillow."""
    from PIL import Image

    return isinstance(item, Image.Image)


class ImageFiles(Images):
    """Image files of any size and format, brought to one shape. A file may be its content, or a
    Pillow image."""

    files: list[Picture]
    folders: list[str] | None = None
    """The sub-folder of each file, if these may tell its class; None once the classes are known."""
    _order, _resize = "bgr", "squash"

    def __init__(
        self,
        files: Sequence[Picture],
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
        self.files = list(files)
        self._invert = invert
        if shape is not None:
            self.fit(shape)

    def fit(self, shape: Shape, channels: str | None = None, resize: str | None = None) -> None:
        if shape[0] not in (1, 3):
            raise BayesCaffeError(
                f"image files are grey or colour, but the net takes {shape[0]} channels"
            )
        self.shape = shape
        self._order = channels or "bgr"
        self._resize = resize or "squash"

    def name_classes(self, class_names: Sequence[str]) -> None:
        if self.folders is not None:
            self.labels = _folder_labels(self.folders, class_names, self.path)

    def __len__(self) -> int:
        return len(self.files)

    def read(self, indices: Sequence[int]) -> np.ndarray:
        result = np.empty((len(indices), *self.shape), np.uint8)
        for row, image in enumerate(self.read_each(indices)):
            if isinstance(image, BayesCaffeError):
                raise image
            result[row] = image
        return result

    def read_each(self, indices: Sequence[int]) -> Iterator[np.ndarray | BayesCaffeError]:
        if len(indices) == 1:
            yield self._load(indices[0])
            return
        with ThreadPoolExecutor(cores()) as pool:  # Pillow decodes without Python's lock
            yield from pool.map(self._load, indices)

    def describe(self, index: int) -> str:
        return _file_name(self.files[index])

    def _load(self, index: int) -> np.ndarray | BayesCaffeError:
        try:
            file = self.files[index]
            if not isinstance(file, bytes) and not is_pillow(file):
                file = read_bytes(file)
            image = decode(file, self.shape[0], self.shape[1:], self._order, self._resize)
        except (BayesCaffeError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            return BayesCaffeError(f"{self.describe(index)}: {reason}")
        return 255 - image if self._invert else image


def _file_name(file: Picture) -> str:
    if is_pillow(file):
        return getattr(file, "filename", "") or "image"
    return "-" if isinstance(file, bytes) else str(file)


def open_folder(path: Path, class_names: Sequence[str] | None, invert: bool) -> ImageFiles:
    """The image files in a folder and its sub-folders, whose names may be labels."""
    files = find_images(path)
    names = [str(file.relative_to(path)) for file in files]
    source = ImageFiles(files, path=path, names=names, invert=invert)
    source.folders = [os.path.dirname(name).split(os.sep)[0] for name in names]
    source.name_classes(class_names or ())
    if class_names:
        source.folders = None
    return source


def open_list(path: Path, invert: bool) -> ImageFiles:
    """A list of image files, relative to where the list is; a label may follow the name."""
    try:
        lines = [line.rstrip() for line in read_text(path).splitlines() if line.strip()]
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
    content: Picture,
    channels: int | None = None,
    size: tuple[int, int] | None = None,
    order: str = "bgr",
    resize: str = "squash",
) -> np.ndarray:
    """An image file's content as channels x height x width bytes, upright and over white where it
    is transparent.

    Args:
        content: of an image file; or an image of Pillow.
        channels: 1 for grey, 3 for colour; without it, grey stays grey.
        size: height, width.
        order: of colours, "bgr" or "rgb".
        resize: to the size: "squash" stretches, "keep" cuts off what is too long, on both sides.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        if is_pillow(content):  # the user's, who may need it again: it stays as it is
            image = _plain(ImageOps.exif_transpose(content), channels)
        else:
            with _opened(content) as opened, _in_turn(opened):
                ImageOps.exif_transpose(opened, in_place=True)
                image = _plain(opened, channels)
    except UnidentifiedImageError as error:
        raise BayesCaffeError("not an image, or of a format that is not known") from error
    except BayesCaffeError:
        raise
    except Exception as error:  # Pillow's readers raise many kinds for damaged files
        raise BayesCaffeError(f"cannot be read as an image: {error}") from error
    if size and (image.height, image.width) != size:
        if resize == "keep":
            image = ImageOps.fit(image, size[::-1], Image.Resampling.LANCZOS)
        else:
            image = image.resize(size[::-1], Image.Resampling.LANCZOS)
    pixels = np.asarray(image)
    if pixels.ndim == 2:
        return pixels[np.newaxis]
    return (pixels if order == "rgb" else pixels[..., ::-1]).transpose(2, 0, 1)


def _opened(content: bytes):
    """A picture whose pixels are not decoded yet, and not too many."""
    from PIL import Image

    with _pillow_limit:  # Pillow's own limit, which is one for the process and may be below ours
        before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            image = Image.open(io.BytesIO(content))
        finally:
            Image.MAX_IMAGE_PIXELS = before
    check_pixels(*image.size)
    return image


def _in_turn(image) -> contextlib.AbstractContextManager:
    """Lets threads decode at the same time what together is within the limit of one picture; a
    larger picture waits for its turn."""
    is_large = image.width * image.height > limit("max_pixels") // cores()
    return _large_picture if is_large else contextlib.nullcontext()


def _plain(image, channels: int | None):
    """A Pillow image with 8 bits a channel, grey or red, green, blue."""
    from PIL import Image

    if image.mode == "F":
        raise BayesCaffeError("has floating-point pixels, whose range is not known")
    if channels is None:
        channels = 1 if image.mode in ("1", "L", "LA") or image.mode.startswith("I") else 3
    mode = "L" if channels == 1 else "RGB"
    rows = max(1, STRIP_PIXELS // image.width)
    if image.height <= rows:
        return _converted(image, mode)
    result = Image.new(mode, image.size)
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        result.paste(_converted(strip, mode), (0, top))
    return result


def _converted(image, mode: str):
    """A Pillow image in the mode "L" or "RGB", over white where it is transparent."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits
        image = Image.fromarray((np.asarray(image) / 257).clip(0, 255).round().astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)


def _folder_labels(folders: list[str], class_names: Sequence[str], path: Path) -> Labels:
    """Labels by the sub-folders: their places in `class_names`, or the numbers that they are."""
    found = sorted(set(folders))
    known = set(found) & set(class_names)
    if len(known) == len(found):
        return np.array([list(class_names).index(folder) for folder in folders], np.int64)
    if all(re.fullmatch(r"[0-9]+", folder) for folder in found):
        return np.array([int(folder) for folder in folders], np.int64)
    for folder in found:
        if folder and folder not in known and (known or nearest(folder, class_names)):
            raise BayesCaffeError(
                f"{path / folder}: {not_a_class(folder, class_names)}; rename the folder, or give "
                f"{argument('labels')}"
            )
    if known:
        log.warning("%s: no labels, as %d pictures are in no sub-folder", path, folders.count(""))
    return None
