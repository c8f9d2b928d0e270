"""Arrays in .npz files that are larger than memory.

An .npz is a zip archive of .npy files. NumPy reads and writes a whole member at once; here a member
that is stored without compression is a memory map of the archive itself.
"""

import io
import math
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from bayescaffe.common.errors import BayesCaffeError

# Of the data in the archive: NumPy is slower with numbers that straddle words.
ALIGNMENT = 64
# An extra field of a zip entry begins with an id and a length; readers skip ids they do not know.
PADDING_ID = b"BC"


class NpzFile:
    """An .npz file to read arrays from, by name. Arrays stay valid when it is closed."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path)
        self._file = self.path.open("rb")
        try:
            self._zip = zipfile.ZipFile(self._file)
        except zipfile.BadZipFile as error:
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
        if name not in list(self):
            raise BayesCaffeError(f"{self.path}: has no array {name!r}, but {list(self)}")
        info = self._zip.getinfo(name + ".npy")
        try:
            with self._zip.open(info) as member:
                if info.compress_type == zipfile.ZIP_STORED:
                    return map_npy(self._file, self._data_offset(info))
                with tempfile.TemporaryFile() as unpacked:
                    shutil.copyfileobj(member, unpacked, 2**20)
                    return map_npy(unpacked)
        except (zipfile.BadZipFile, ValueError, EOFError) as error:
            raise BayesCaffeError(
                f"{self.path}: the array {name!r} is damaged, or of objects: {error}"
            ) from error

    def _data_offset(self, info: zipfile.ZipInfo) -> int:
        """Where a member's bytes begin: behind its header, its name and its extra field."""
        self._file.seek(info.header_offset + 26)
        lengths = self._file.read(4)
        return info.header_offset + 30 + sum(np.frombuffer(lengths, "<u2").tolist())


def map_npy(file, offset: int = 0) -> np.ndarray:
    """The array of an .npy that begins at `offset` of an open file, as a read-only memory map.

    Raises ValueError for what is not an .npy, is cut short, or holds Python objects.
    """
    file.seek(offset)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of .npy is not known")
    read = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
    shape, is_fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("Python objects are not read")
    if 0 in shape or shape == ():
        return np.fromfile(file, dtype, int(np.prod(shape))).reshape(shape)
    order = "F" if is_fortran else "C"
    return np.memmap(file, dtype, "r", file.tell(), shape, order).view(np.ndarray)


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
