"""LMDBs of images as a Caffe Data layer reads them: one `Datum` message per image.

`write_lmdb` puts the message together by hand, so that data can be prepared before Caffe is built;
`LmdbImages` reads it with pycaffe's own class.
"""

import contextlib
import hashlib
import math
import mmap
import os
import re
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import lmdb
import numpy as np

from bayescaffe.common import pycaffe
from bayescaffe.common.errors import BayesCaffeError, times
from bayescaffe.common.progress import ProgressBar
from bayescaffe.data.description import Description, description_path, read_description
from bayescaffe.data.image_files import decode
from bayescaffe.data.interface import Images, Labels, Shape, Take

# Of one transaction: LMDB holds what it has not committed in memory.
BYTES_PER_TRANSACTION = 2**24
MAX_KEY = 511  # bytes, as LMDB is built


def varint(number: int) -> bytes:
    """Protobuf's encoding of a number that is not negative: 7 bits a byte, lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def datum(image: np.ndarray, label: int) -> bytes:
    """Caffe's `Datum`: channels = 1, height = 2, width = 3, data = 4 (bytes), label = 5.

    Before each value stands its tag, `field << 3 | type` (type 0 is a varint, 2 is bytes).
    """
    channels, height, width = image.shape
    return b"".join(
        (
            b"\x08" + varint(channels),
            b"\x10" + varint(height),
            b"\x18" + varint(width),
            b"\x22" + varint(image.size) + image.tobytes(),
            b"\x28" + varint(label),
        )
    )


@dataclass
class Written:
    """What `write_lmdb` has written."""

    labels: list[int] = field(default_factory=list)
    total: np.ndarray | int = 0
    """The sum of all images."""
    sha256: str = ""
    """Of all keys and records."""
    skipped: list[str] = field(default_factory=list)
    """Why images could not be read; these have no record."""


def write_lmdb(
    path: Path, images: Images, labels: Sequence[int], order: Sequence[int], progress: bool
) -> Written:
    """Make the directory `path` and in it an LMDB of `images` (bytes), in that `order`.

    `labels` are those of all images. Images that cannot be read are left out.
    """
    path.mkdir()
    size = math.prod(images.shape)
    # Generous: a B-tree page may be half empty, and a large record starts on a page of its own.
    # The file only grows to what is used.
    map_size = len(order) * (2 * size + 2 * mmap.PAGESIZE) + 2**20
    written, digest = Written(), hashlib.sha256()

    def records(rows: Sequence[int]) -> Iterator[tuple[bytes, bytes]]:
        for row, image in zip(rows, images.read_each(rows), strict=True):
            bar.advance(1)
            if isinstance(image, BayesCaffeError):
                written.skipped.append(str(image))
                continue
            key = _key(len(written.labels), images.names[row] if images.names else None)
            record = datum(image, int(labels[row]))
            digest.update(key + record)
            written.labels.append(int(labels[row]))
            written.total = written.total + image.astype(np.int64)
            yield key, record

    step = max(1, BYTES_PER_TRANSACTION // size)
    try:
        # Nobody else sees this file yet: no lock needed, and one sync at the end is enough.
        with (
            ProgressBar(len(order), path.name, show=progress) as bar,
            lmdb.open(str(path), map_size, lock=False, sync=False, mode=0o644) as env,
        ):
            for start in range(0, len(order), step):
                with env.begin(write=True) as transaction:
                    transaction.cursor().putmulti(records(order[start : start + step]), append=True)
            env.sync(True)
    except lmdb.Error as error:
        raise BayesCaffeError(f"{path}: cannot write the LMDB: {error}") from error
    written.sha256 = digest.hexdigest()
    return written


def _key(number: int, name: str | None) -> bytes:
    """Behind the number, the name of a picture, as convert_imageset has it."""
    suffix = b"" if name is None else b"_" + os.fsencode(name)
    return (b"%08d" % number + suffix)[:MAX_KEY]


def data_file(path: Path) -> Path:
    """The file of an LMDB, which is its folder or that file."""
    return path / "data.mdb" if path.is_dir() else path


class LmdbImages(Images):
    """The `Datum` records of an LMDB, in the order of their keys, as a Data layer reads them."""

    shape: Shape
    description: Description | None
    """What the file beside the records tells of them."""
    _open: weakref.WeakValueDictionary = weakref.WeakValueDictionary()

    def __init__(self, path: str | os.PathLike, color: bool | None = None) -> None:
        """Open an LMDB; `color` makes encoded images colour (True) or grey (False)."""
        self.path = Path(path)
        self._channels = None if color is None else 3 if color else 1
        self._size: tuple[int, int] | None = None
        self._env = self._environment()
        self._length = self._env.stat()["entries"]
        if not self._length:
            raise BayesCaffeError(f"{path}: the LMDB has no records")
        self._keys: list[bytes] | None = None
        with self._transaction() as transaction:
            key, record = next(iter(transaction.cursor()))
            datum = self._datum(0, key, record)
            self._is_encoded, self._has_labels = datum.encoded, datum.HasField("label")
            first = self._pixels(0, datum)
            self._dtype, self.shape = first.dtype, first.shape
        self.description = self._own_description()
        if self.description:
            self.channels = self.description.channels
        elif self.shape[0] == 1 or self._is_encoded:
            self.channels = "grey" if self.shape[0] == 1 else "bgr"

    @property
    def names(self) -> list[str] | None:
        """The names of the pictures, if the LMDB was made of files."""
        keys = [os.fsdecode(key) for key in self._all_keys()]
        if not all(re.match(r"[0-9]{8}_.", key) for key in keys):
            return None
        return [key[9:] for key in keys]

    def _all_keys(self) -> list[bytes]:
        if self._keys is None:
            with self._transaction() as transaction:
                self._keys = list(transaction.cursor().iternext(values=False))
        return self._keys

    def _own_description(self) -> Description | None:
        found = read_description(self.path)
        if found and (found.images, found.shape) != (self._length, self.shape):
            raise BayesCaffeError(
                f"{description_path(self.path)}: tells of {found.images} images of "
                f"{times(found.shape)}, but the LMDB has {self._length} of {times(self.shape)}; if "
                "the LMDB was written anew, remove this file"
            )
        return found

    def fit(self, shape: Shape, channels: str | None = None, resize: str | None = None) -> None:
        if self._is_encoded:
            self._channels, self._size, self.shape = shape[0], shape[1:], shape
        super().fit(shape, channels, resize)

    def __len__(self) -> int:
        return self._length

    def read(self, indices: Sequence[int]) -> np.ndarray:
        keys = self._all_keys()
        with self._transaction() as transaction:
            images = [
                self._record(index, keys[index], transaction.get(keys[index]))[0]
                for index in indices
            ]
        empty = np.empty((0, *self.shape), self._dtype)
        return self._ordered(np.stack(images) if images else empty)

    def in_order(self, start: int = 0) -> Take:
        records = self._records(start)

        def take(count: int) -> tuple[np.ndarray, Labels]:
            images = np.empty((count, *self.shape), self._dtype)
            labels = np.empty(count, np.int64) if self._has_labels else None
            for row in range(count):
                images[row], label = next(records)
                if labels is not None:
                    labels[row] = label
            return self._ordered(images), labels

        return take

    def describe(self, index: int) -> str:
        return f"{self.path}: record {index}"

    def _records(self, start: int) -> Iterator[tuple[np.ndarray, int | None]]:
        with self._transaction(buffers=True) as transaction:
            cursor = transaction.cursor()
            if start:
                cursor.set_key(self._all_keys()[start])
            for index, (key, record) in enumerate(cursor, start):
                yield self._record(index, key, record)

    @contextlib.contextmanager
    def _transaction(self, **options: bool) -> Iterator[lmdb.Transaction]:
        try:
            with self._env.begin(**options) as transaction:
                yield transaction
        except lmdb.Error as error:  # it was whole when it was opened
            raise BayesCaffeError(f"{self.path}: damaged while it was in use: {error}") from error

    def _datum(self, index: int, key: bytes, record: bytes):
        try:
            return pycaffe.decode(bytes(record), "Datum", "not a Datum")
        except BayesCaffeError as error:
            key = bytes(key).decode(errors="replace")
            raise BayesCaffeError(f"{self.describe(index)} (key {key}): {error}") from error

    def _record(self, index: int, key: bytes, record: bytes) -> tuple[np.ndarray, int]:
        """Pixels and label of a record, which must be like the first one."""
        datum = self._datum(index, key, record)
        image = self._pixels(index, datum)
        if image.shape != self.shape:
            raise BayesCaffeError(
                f"{self.describe(index)}: is {times(image.shape)}, but the first record is "
                f"{times(self.shape)}"
            )
        if image.dtype != self._dtype or datum.HasField("label") != self._has_labels:
            raise BayesCaffeError(
                f"{self.describe(index)}: some records have bytes or a label and some have not"
            )
        return image, datum.label

    def _pixels(self, index: int, datum) -> np.ndarray:
        if datum.encoded:
            try:
                return decode(datum.data, self._channels, self._size)
            except BayesCaffeError as error:
                raise BayesCaffeError(f"{self.describe(index)}: {error}") from error
        shape = (datum.channels, datum.height, datum.width)
        values = (
            np.frombuffer(datum.data, np.uint8)
            if datum.data
            else np.array(datum.float_data, np.float32)
        )
        if values.size != math.prod(shape) or not values.size:
            raise BayesCaffeError(
                f"{self.describe(index)}: has {values.size} values, but its shape is {times(shape)}"
            )
        return values.reshape(shape)

    def _environment(self) -> lmdb.Environment:
        """The open LMDB. A process must not open one twice, so those in use are remembered."""
        path = data_file(self.path)
        status = path.stat()
        identity = (status.st_dev, status.st_ino)
        if identity in self._open:
            return self._open[identity]
        # A damaged file would be a bus error, or another that ends the process.
        fault = pycaffe.import_pycaffe("caffe").lmdb_fault(os.fsencode(path))
        if fault:
            raise BayesCaffeError(f"{self.path}: {fault}")
        try:
            env = lmdb.open(str(path), readonly=True, lock=False, subdir=False)
        except lmdb.Error as error:
            raise BayesCaffeError(f"{self.path}: damaged, or not an LMDB: {error}") from error
        self._open[identity] = env
        return env
