"""Arrays in .npz files that are larger than memory.

An .npz is a zip archive of .npy files. NumPy reads and writes a whole member at once; here a member
that is stored without compression is a memory map of the archive itself.
"""

import io
import lzma
import math
import os
import shutil
import struct
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.limits import check_unpacked
from bayescaffe.common.reading import open_regular

# Of the data in the archive: NumPy is slower with numbers that straddle words.
ALIGNMENT = 64
# An extra field of a zip entry begins with an id and a length; readers skip ids they do not know.
PADDING_ID = b"BC"
CHUNK = 2**18
# What zipfile and the decompressors that it uses raise for damaged archives.
ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    KeyError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)


class NpzFile:
    """An .npz file to read arrays from, by name. Arrays stay valid when it is closed."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path)
        self._file = open_regular(path)
        self._unpacked = 0
        try:
            self._zip = zipfile.ZipFile(self._file)
        except ZIP_ERRORS as error:
            self._file.close()
            raise BayesCaffeError(f"{path}: truncated, or not an .npz file: {error}") from error

    def __enter__(self) -> "NpzFile":
        return self

    def __exit__(self, *_) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[str]:
        """The names of the arrays."""
        return (name.removesuffix(".npy") for name in self._zip.namelist())

    def map(self, name: str) -> np.ndarray:
        """The array `name`, read-only. One that is compressed is unpacked into a nameless file."""
        return self.stored(name).map

    def stored(self, name: str) -> "StoredArray":
        """The array `name`. Its bytes are compared with their checksum, once."""
        if name not in list(self):
            raise BayesCaffeError(f"{self.path}: has no array {name!r}, but {list(self)}")
        try:
            info = self._zip.getinfo(name + ".npy")
            with self._zip.open(info) as member:
                if info.compress_type == zipfile.ZIP_STORED:
                    return self._in_place(member, info)
                return self._unpack(member, info)
        except ZIP_ERRORS as error:
            raise BayesCaffeError(
                f"{self.path}: the array {name!r} is damaged, or of objects: {error}"
            ) from error

    def _in_place(self, member: BinaryIO, info: zipfile.ZipInfo) -> "StoredArray":
        while member.read(CHUNK):
            pass  # at the end, zipfile compares the checksum
        self._file.seek(info.header_offset + 26)
        # The bytes begin behind the header, the name and the extra field.
        lengths = np.frombuffer(self._file.read(4), "<u2").tolist()
        start = info.header_offset + 30 + sum(lengths)
        return StoredArray(self._file, start, info.file_size, self.path)

    def _unpack(self, member: BinaryIO, info: zipfile.ZipInfo) -> "StoredArray":
        needed = npy_size(member)
        if needed != info.file_size:
            raise ValueError(f"it has {info.file_size} bytes, but its header needs {needed}")
        self._unpacked += needed
        check_unpacked(self._unpacked, self.path)
        with tempfile.TemporaryFile() as unpacked, self._zip.open(info) as again:
            shutil.copyfileobj(again, unpacked, CHUNK)
            return StoredArray(unpacked, 0, needed, self.path)


class StoredArray:
    """An .npy, alone in a file or as a part of one.

    `map` is quick, but if somebody truncates the file, using it ends the process with SIGBUS.
    `columns` then raises an error.
    """

    map: np.ndarray
    """A read-only memory map."""

    def __init__(self, file: BinaryIO, start: int, size: int, path: str | os.PathLike) -> None:
        """Raises ValueError for what is not an .npy, is cut short, or holds Python objects.

        Args:
            file: stays the caller's, who may close it.
            start, size: the bytes of the .npy in the file.
        """
        file.seek(start)
        shape, order, dtype = _read_header(file)
        self._path, self._start = path, file.tell()
        needed = self._start - start + math.prod(shape) * dtype.itemsize
        if needed > size:
            raise ValueError(f"it has {size} bytes, but its header needs {needed}")
        if 0 in shape or shape == () or dtype.itemsize == 0:
            self.map = np.fromfile(file, dtype, math.prod(shape)).reshape(shape)
        else:
            self.map = np.memmap(file, dtype, "r", self._start, shape, order).view(np.ndarray)
        _check_characters(self.map)
        self._file = os.fdopen(os.dup(file.fileno()), "rb", buffering=0)

    def columns(self, start: int, stop: int) -> np.ndarray:
        """`map[:, start:stop]`, read from the file as it is now."""
        array = self.map
        if array.ndim < 2 or not array.flags.c_contiguous:
            return np.array(array[:, start:stop])
        part = np.empty((len(array), *array[0, start:stop].shape), array.dtype)
        for row, into in enumerate(part):
            place = self._start + row * array.strides[0] + start * array.strides[1]
            if os.preadv(self._file.fileno(), [into.data.cast("B")], place) != into.nbytes:
                raise BayesCaffeError(f"{self._path}: truncated while it was in use")
        return part


def _check_characters(array: np.ndarray) -> None:
    """Raise ValueError if a text has numbers that are no characters: Python's own code would fail
    on such a text in any place."""
    if array.dtype.kind == "U" and array.size:
        order = ">" if array.dtype.byteorder == ">" else "<"
        highest = np.frombuffer(array.tobytes(), f"{order}u4").max(initial=0)
        if highest > sys.maxunicode:
            raise ValueError(f"it has the character {highest:#x}")


def npy_size(file: BinaryIO) -> int:
    """The bytes that an .npy needs, by the header that a file begins with."""
    shape, _, dtype = _read_header(file)
    return file.tell() + math.prod(shape) * dtype.itemsize


def _read_header(file: BinaryIO) -> tuple[tuple[int, ...], str, np.dtype]:
    """Shape, order ("C" or "F") and type of the array of an .npy."""
    try:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"version {version} of .npy is not known")
        read = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
        shape, is_fortran, dtype = read(file)
    except Exception as error:  # it is parsed as Python code, which raises many kinds
        raise ValueError(str(error)) from error
    if dtype.hasobject:
        raise ValueError("Python objects are not read")
    if any(size < 0 for size in shape):
        raise ValueError(f"its shape is {shape}")
    return shape, "F" if is_fortran else "C", dtype


def map_npy(file: BinaryIO) -> np.ndarray:
    """The array of an open .npy file, as a read-only memory map. Raises ValueError as `StoredArray`
    does."""
    return StoredArray(file, 0, os.fstat(file.fileno()).st_size, file.name).map


def write_npz(
    path: Path,
    name: str,
    shape: tuple[int, ...],
    dtype: np.dtype | type,
    fill: Callable[[np.ndarray], dict[str, np.ndarray]],
) -> None:
    """Write an uncompressed .npz, whose first array is filled in place.

    Args:
        name: of the first array. It is a memory map of the file, so it may be larger than memory.
        fill: fills that array, and returns the others by name.
    """
    info = _member(name, 0)
    header = _npy_header(shape, np.dtype(dtype))
    start = len(info.FileHeader(zip64=True)) + len(header)
    end = start + math.prod(shape) * np.dtype(dtype).itemsize
    with path.open("w+b") as file:
        # Without this, a full disk would be a bus error in the middle of the work.
        os.posix_fallocate(file.fileno(), 0, end)
        array = np.memmap(file, dtype, "r+", start, shape)
        others = fill(array)
        info.CRC = zlib.crc32(array.data, zlib.crc32(header))
        info.file_size = info.compress_size = end - start + len(header)
        file.seek(0)
        with zipfile.ZipFile(file, "w") as archive:
            file.write(info.FileHeader(zip64=True) + header)
            file.seek(end)
            # What ZipFile does for a member that it has written itself.
            archive.filelist.append(info)
            archive.NameToInfo[info.filename] = info
            archive.start_dir = end
            for other, values in others.items():
                with archive.open(_member(other, file.tell()), "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(values), allow_pickle=False)


def _member(name: str, offset: int) -> zipfile.ZipInfo:
    """The entry of an array at `offset` of the archive, padded so that its data is aligned."""
    info = zipfile.ZipInfo(name + ".npy")
    info.external_attr = 0o600 << 16
    info.header_offset = offset
    info.CRC = info.compress_size = 0  # until they are known
    header = 30 + len(info.filename) + 20  # fixed fields, name, sizes as 64-bit numbers
    padding = -(offset + header + 4) % ALIGNMENT
    info.extra = PADDING_ID + padding.to_bytes(2, "little") + bytes(padding)
    return info


def _npy_header(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    """What an .npy begins with; NumPy makes its length a multiple of 64."""
    header = io.BytesIO()
    fields = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, fields)
    return header.getvalue()
