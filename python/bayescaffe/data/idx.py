"""Reading image sets in the IDX format, the one MNIST came in.

A set is four files: images and labels, for training and for testing. An IDX file is a magic number
(two zero bytes, a type code, the number of dimensions), the dimensions as big-endian 32-bit
numbers, then the values, the last dimension fastest.
"""

import gzip
import hashlib
import math
import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, times

FILE_NAME = re.compile(r"(train|t10k|test)-(images|labels)[-.]idx\d-ubyte(\.gz)?")

# Type code 8 is unsigned bytes, so every label is within 0..255.
LABEL_MAGIC = (0x0801,)
IMAGE_MAGIC = (0x0803, 0x0804)

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
        is_image = part.endswith("images")
        content = read_content(files[part])
        array = parse(content, files[part], IMAGE_MAGIC if is_image else LABEL_MAGIC)
        found_md5[part] = hashlib.md5(content, usedforsecurity=False).hexdigest()
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


def read_content(path: Path) -> bytes:
    """The bytes of a file, uncompressed if they are gzipped, whatever its name says."""
    content = path.read_bytes()
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise BayesCaffeError(f"{path}: damaged or truncated gzip file: {error}") from error


def parse(content: bytes, path: Path, magic: tuple[int, ...]) -> np.ndarray:
    """The array in an IDX file's `content`; `path` is for the error message."""
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
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    expected = header + math.prod(shape)
    if len(content) != expected:
        raise BayesCaffeError(
            f"{path}: {len(content)} bytes, but its dimensions {times(shape)} need {expected}"
        )
    if 0 in shape:
        raise BayesCaffeError(f"{path}: is empty, its dimensions are {times(shape)}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
