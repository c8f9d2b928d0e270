"""Arrays inside of .npz files, mapped into memory instead of read.

An .npz is a zip archive of .npy files. NumPy reads a whole member at once; here a member that is
stored without compression is a memory map of the archive itself, so that it may be larger than
memory.
"""

import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
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


def write_npz(path: Path, members: dict[str, np.ndarray | list[np.ndarray]]) -> None:
    """Write an uncompressed .npz. An array may be larger than memory: it is written row by row.

    A list of arrays (of two axes or more) is one array, joined along the second axis.
    """
    with zipfile.ZipFile(path, "w") as archive:
        for name, parts in members.items():
            parts = parts if isinstance(parts, list) else [parts]
            info = zipfile.ZipInfo(name + ".npy")
            _align(info, archive.fp.tell())
            with archive.open(info, "w", force_zip64=True) as file:
                _write_npy(file, parts)


def _align(info: zipfile.ZipInfo, offset: int) -> None:
    """Pad the header of a member at `offset`, so that its bytes begin at a multiple of 64."""
    header = 30 + len(info.filename) + 20  # fixed fields, name, sizes as 64-bit numbers
    padding = -(offset + header + 4) % ALIGNMENT
    info.extra = PADDING_ID + padding.to_bytes(2, "little") + bytes(padding)


def _write_npy(file, parts: list[np.ndarray]) -> None:
    first = parts[0]
    shape = first.shape
    if len(parts) > 1:
        shape = (shape[0], sum(part.shape[1] for part in parts), *shape[2:])
    header = {"descr": first.dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    if first.ndim < 2:
        file.write(first.tobytes())
        return
    for row in range(len(first)):
        for part in parts:
            file.write(np.ascontiguousarray(part[row]).data)
