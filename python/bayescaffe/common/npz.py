"""Arrays in .npz files that may be larger than memory.

An .npz is a zip archive of .npy files. NumPy reads and writes a whole member at once; here a large
member that is stored without compression is a memory map of the archive itself.
"""

import contextlib
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
# Bytes. A larger array is mapped, a smaller one is read, and stays if somebody truncates the file.
# It is as much as a compressed file may unpack to by default.
IN_MEMORY = 2**30
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

    def __init__(self, path: str | os.PathLike, is_mapped: bool = False) -> None:
        """Open a file; `is_mapped` maps small arrays, too."""
        self.path, self._is_mapped = Path(path), is_mapped
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

    def array(self, name: str) -> np.ndarray:
        """The array `name`, read-only."""
        return self.stored(name).array

    def stored(self, name: str) -> "StoredArray":
        """The array `name`. Its bytes are compared with their checksum, once. One that is
        compressed is unpacked into a nameless file."""
        with self._member(name) as (info, member):
            if info.compress_type == zipfile.ZIP_STORED:
                return self._in_place(info)
            return self._unpack(member, info)

    def outline(self, name: str) -> np.ndarray:
        """Zeros of the shape and the type of the array `name`, which take no memory. Only its
        header is read."""
        with self._member(name) as (info, member):
            shape, _, dtype = _read_header(member)
            _check_size(info, member.tell() + math.prod(shape) * dtype.itemsize)
            return np.broadcast_to(np.zeros((), dtype), shape)

    @contextlib.contextmanager
    def _member(self, name: str) -> Iterator[tuple[zipfile.ZipInfo, BinaryIO]]:
        """The open member of an array. Errors name it."""
        if name not in list(self):
            raise BayesCaffeError(f"{self.path}: has no array {name!r}, but {list(self)}")
        try:
            info = self._zip.getinfo(name + ".npy")
            with self._zip.open(info) as member:
                yield info, member
        except ZIP_ERRORS as error:
            raise BayesCaffeError(
                f"{self.path}: the array {name!r} is damaged, or of objects: {error}"
            ) from error

    def _in_place(self, info: zipfile.ZipInfo) -> "StoredArray":
        self._file.seek(info.header_offset + 26)
        # The bytes begin behind the header, the name and the extra field.
        lengths = np.frombuffer(self._file.read(4), "<u2").tolist()
        start = info.header_offset + 30 + sum(lengths)
        return StoredArray(self._file, start, info.file_size, self.path, info.CRC, self._is_mapped)

    def _unpack(self, member: BinaryIO, info: zipfile.ZipInfo) -> "StoredArray":
        needed = npy_size(member)
        _check_size(info, needed)
        self._unpacked += needed
        check_unpacked(self._unpacked, self.path)
        with tempfile.TemporaryFile() as unpacked, self._zip.open(info) as again:
            shutil.copyfileobj(again, unpacked, CHUNK)
            return StoredArray(unpacked, 0, needed, self.path, is_mapped=self._is_mapped)


class StoredArray:
    """An .npy, alone in a file or as a part of one.

    If it is mapped and somebody truncates the file, using `array` ends the process with SIGBUS.
    `columns` then raises an error.
    """

    array: np.ndarray
    """Read-only: in memory, or a memory map."""

    def __init__(
        self,
        file: BinaryIO,
        start: int,
        size: int,
        path: str | os.PathLike,
        checksum: int | None = None,
        is_mapped: bool = False,
    ) -> None:
        """Raises ValueError for what is not an .npy, is cut short, is not what its checksum says,
        or holds Python objects.

        Args:
            file: stays the caller's, who may close it.
            start, size: the bytes of the .npy in the file.
            checksum: CRC-32 of these bytes. An array in memory is compared with it as it is read.
            is_mapped: map it even if it is small.
        """
        file.seek(start)
        shape, order, dtype = _read_header(file)
        self._path, self._start = path, file.tell()
        count = math.prod(shape) * dtype.itemsize
        size = min(size, os.fstat(file.fileno()).st_size - start)
        needed = self._start - start + count
        if needed > size or (checksum is not None and needed != size):
            raise ValueError(f"it has {size} bytes, but its header needs {needed}")
        self._is_mapped = shape != () and count > (0 if is_mapped else IN_MEMORY)
        content = None if self._is_mapped else np.empty(count, np.uint8)
        if checksum is not None:
            _read_checked(file, start, self._start, count, checksum, content)
        elif content is not None and file.readinto(content) != count:
            raise ValueError("it is cut short")
        if content is None:
            self.array = np.memmap(file, dtype, "r", self._start, shape, order).view(np.ndarray)
        elif dtype.itemsize:
            self.array = content.view(dtype).reshape(shape, order=order)
        else:
            self.array = np.zeros(shape, dtype)  # texts of no characters
        self.array.flags.writeable = False
        _check_characters(self.array)
        self._file = os.fdopen(os.dup(file.fileno()), "rb", buffering=0)

    def columns(self, start: int, stop: int) -> np.ndarray:
        """`array[:, start:stop]` of an array with three axes, read from the file as it is now if it
        is mapped."""
        if not self._is_mapped:
            return self.array[:, start:stop]
        # In Fortran's order, the file has the axes the other way round.
        is_fortran = not self.array.flags.c_contiguous
        array = self.array.T if is_fortran else self.array
        part = np.empty((len(array), stop - start, array.shape[2]), array.dtype)
        for row, into in enumerate(part):
            place = self._start + row * array.strides[0] + start * array.strides[1]
            if os.preadv(self._file.fileno(), [into.data.cast("B")], place) != into.nbytes:
                raise BayesCaffeError(f"{self._path}: truncated while it was in use")
        return part.T if is_fortran else part


def _check_size(info: zipfile.ZipInfo, needed: int) -> None:
    if needed != info.file_size:
        raise ValueError(f"it has {info.file_size} bytes, but its header needs {needed}")


def _read_checked(
    file: BinaryIO, start: int, data: int, count: int, checksum: int, content: np.ndarray | None
) -> None:
    """Compare a header, which begins at `start`, and the `count` bytes from `data` on with their
    checksum. These bytes go to `content` at the same time, if there is one."""
    file.seek(start)
    found = zlib.crc32(file.read(data - start))
    scratch = np.empty(CHUNK if content is None else 0, np.uint8)
    for begin in range(0, count, CHUNK):
        end = min(begin + CHUNK, count)
        part = scratch[: end - begin] if content is None else content[begin:end]
        if file.readinto(part) != len(part):
            raise ValueError("it is cut short")
        found = zlib.crc32(part, found)
    if found != checksum:
        raise ValueError("its bytes do not have its checksum (CRC-32)")


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


def read_npy(file: BinaryIO) -> np.ndarray:
    """The array of an open .npy file, read-only. Raises ValueError as `StoredArray` does."""
    return StoredArray(file, 0, os.fstat(file.fileno()).st_size, file.name).array


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
