"""Writing images as the LMDB that a Caffe Data layer reads: one `Datum` message per image.

The message is put together by hand, so that the data can be made before Caffe is built.
"""

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path

import lmdb
import numpy as np

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.progress import ProgressBar

RECORDS_PER_TRANSACTION = 10_000


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


def write_lmdb(
    path: Path, images: np.ndarray, labels: np.ndarray, order: Sequence[int], progress: bool
) -> None:
    """Make the directory `path` and in it an LMDB of `images` (N x C x H x W), in that `order`."""
    path.mkdir()
    # Generous: a B-tree page may be half empty, and a large record starts on a page of its own.
    # The file only grows to what is used.
    map_size = len(images) * (2 * images[0].size + 2 * mmap.PAGESIZE) + 2**20
    try:
        # Nobody else sees this file yet: no lock needed, and one sync at the end is enough.
        with (
            ProgressBar(len(images), path.name, show=progress) as bar,
            lmdb.open(str(path), map_size, lock=False, sync=False, mode=0o644) as env,
        ):
            for start in range(0, len(images), RECORDS_PER_TRANSACTION):
                rows = order[start : start + RECORDS_PER_TRANSACTION]
                with env.begin(write=True) as transaction:
                    records = _records(images, labels, rows, start)
                    transaction.cursor().putmulti(records, append=True)
                bar.advance(len(rows))
            env.sync(True)
    except lmdb.Error as error:
        raise BayesCaffeError(f"{path}: cannot write the LMDB: {error}") from error


def _records(
    images: np.ndarray, labels: np.ndarray, rows: Sequence[int], start: int
) -> Iterator[tuple[bytes, bytes]]:
    for key, row in enumerate(rows, start):
        yield b"%08d" % key, datum(images[row], int(labels[row]))
