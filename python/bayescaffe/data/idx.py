"""Reading image sets in the IDX format, the one MNIST came in.

A set is four files: images and labels, for training and for testing. An IDX file is a magic number
(two zero bytes, a type code, the number of dimensions), the dimensions as big-endian 32-bit
numbers, then the values, the last dimension fastest.
"""

import gzip
import hashlib
import math
import os
import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, times
from bayescaffe.common.limits import check_unpacked
from bayescaffe.common.reading import open_regular

FILE_NAME = re.compile(r"(train|t10k|test)-(images|labels)[-.]idx\d-ubyte(\.gz)?")

# Type code 8 is unsigned bytes, so every label is within 0..255.
LABEL_MAGIC = (0x0801,)
IMAGE_MAGIC = (0x0803, 0x0804)
# The most bytes that one byte of a gzip file becomes.
GZIP_RATIO = 1032

PARTS = ("train-images", "train-labels", "test-images", "test-labels")


@dataclass(frozen=True)
class IdxSet:
    """A checked image set in memory."""

    arrays: dict[str, np.ndarray]
    """By part: images are N x channels x height x width bytes, labels N bytes."""
    md5: dict[str, str]
    """By part: of the file's content, uncompressed."""
    files: dict[str, Path]
    """By part: where it was read from."""


def load_set(directory: Path, md5: dict[str, str] | None = None) -> IdxSet:
    """Read the four files in `directory`; refuse any that is damaged, unlike its sibling, or does
    not have the expected `md5` (by part)."""
    files = find_files(directory)
    arrays, found_md5 = {}, {}
    for part in PARTS:
        magic = IMAGE_MAGIC if part.endswith("images") else LABEL_MAGIC
        size = sum(array.size for array in arrays.values())
        array, found_md5[part] = read_array(files[part], magic, size)
        if md5 and found_md5[part] != md5[part]:
            raise BayesCaffeError(
                f"{files[part]}: md5 of the content is {found_md5[part]}, expected {md5[part]}"
            )
        if array.ndim == 3:
            array = array[:, np.newaxis]
        elif array.ndim == 4 and array.shape[1] > 4 >= array.shape[3]:
            raise BayesCaffeError(
                f"{files[part]}: dimensions {times(array.shape)} look like images x height x "
                "width x channels; expected images x channels x height x width"
            )
        arrays[part] = array

    for subset in ("train", "test"):
        images, labels = f"{subset}-images", f"{subset}-labels"
        if len(arrays[images]) != len(arrays[labels]):
            raise BayesCaffeError(
                f"{files[images]} has {len(arrays[images])} images, but "
                f"{files[labels]} has {len(arrays[labels])} labels"
            )
    train_shape, test_shape = (arrays[f"{s}-images"].shape[1:] for s in ("train", "test"))
    if train_shape != test_shape:
        raise BayesCaffeError(
            f"{files['train-images']} has images of {times(train_shape)}, but "
            f"{files['test-images']} of {times(test_shape)} (channels x height x width)"
        )
    return IdxSet(arrays, found_md5, files)


def find_files(directory: Path) -> dict[str, Path]:
    """The set's four files by part; where a file is there both plain and gzipped, the plain one."""
    if not directory.is_dir():
        raise BayesCaffeError(f"{directory}: no such directory")
    found: dict[str, list[Path]] = {part: [] for part in PARTS}
    for path in sorted(directory.iterdir()):
        match = FILE_NAME.fullmatch(path.name)
        if match and not (match[3] and path.with_suffix("").exists()):
            subset = "train" if match[1] == "train" else "test"
            found[f"{subset}-{match[2]}"].append(path)
    for part, paths in found.items():
        if not paths:
            dimensions = 3 if part.endswith("images") else 1
            stem = part.replace("test", "t10k")
            raise BayesCaffeError(
                f"{directory}: no {part} file, expected {stem}-idx{dimensions}-ubyte or the same "
                "with .gz"
            )
        if len(paths) > 1:
            names = " and ".join(path.name for path in paths)
            raise BayesCaffeError(f"{directory}: {names} are both {part}; keep one of them")
    return {part: paths[0] for part, paths in found.items()}


def read_array(path: Path, magic: tuple[int, ...], unpacked: int = 0) -> tuple[np.ndarray, str]:
    """The array in an IDX file, and the MD5 of its content, which may be gzipped, whatever its name
    says. Memory is taken for what the header promises, and not before that is found possible.

    Args:
        unpacked: bytes that the other files of the set have unpacked to.
    """
    with open_regular(path) as file:
        is_packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            return _read_array(
                gzip.GzipFile(fileobj=file) if is_packed else file, path, magic, unpacked
            )
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise BayesCaffeError(f"{path}: damaged or truncated gzip file: {error}") from error


def _read_array(
    file: BinaryIO, path: Path, magic: tuple[int, ...], unpacked: int
) -> tuple[np.ndarray, str]:
    start = file.read(4)
    shape = _shape(start + file.read(4 * (start[3] if len(start) == 4 else 0)), path, magic)
    header = 4 + 4 * len(shape)
    expected = header + math.prod(shape)
    size = os.fstat(file.fileno()).st_size
    if not isinstance(file, gzip.GzipFile):
        _check_size(size, shape, expected, path)
    elif expected > GZIP_RATIO * size:
        raise EOFError(f"{size} bytes do not unpack to the {expected} of {times(shape)}")
    else:
        check_unpacked(unpacked + expected, path)
    file.seek(0)
    content = np.empty(expected, np.uint8)
    size = 0
    # One byte more than is expected: what follows is an error, and it is not unpacked.
    while chunk := file.read(min(2**20, expected + 1 - size)):
        if size + len(chunk) <= expected:
            content[size : size + len(chunk)] = np.frombuffer(chunk, np.uint8)
        size += len(chunk)
    _check_size(size, shape, expected, path)
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return content[header:].reshape(shape), md5


def _shape(content: bytes, path: Path, magic: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions in the header of an IDX file; `path` is for the error message."""
    found_magic = int.from_bytes(content[:4], "big")
    if len(content) < 4 or found_magic not in magic:
        allowed = " or ".join(f"0x{number:08x}" for number in magic)
        raise BayesCaffeError(
            f"{path}: begins with 0x{content[:4].hex()}, expected the IDX magic number {allowed}"
        )
    dimensions = found_magic & 0xFF
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise BayesCaffeError(
            f"{path}: truncated header: {len(content)} bytes, expected at least {header}"
        )
    return struct.unpack(f">{dimensions}I", content[4:header])


def _check_size(size: int, shape: tuple[int, ...], expected: int, path: Path) -> None:
    if size != expected:
        more = "at least " if size > expected else ""
        raise BayesCaffeError(
            f"{path}: {more}{size} bytes, but its dimensions {times(shape)} need {expected}"
        )
    if 0 in shape:
        raise BayesCaffeError(f"{path}: is empty, its dimensions are {times(shape)}")
