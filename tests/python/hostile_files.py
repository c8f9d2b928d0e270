"""Files that do harm: small ones that hold gigabytes, and what is not a file.

The tests use small ones, `make test-faults` those of full size.
"""

import gzip
import io
import os
import socket
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
from conftest import write_digits

ESCAPE = "\x1b[31mred\x9b2J"
"""What a terminal would obey."""
BLOCK = 2**24
"""Zeros that are packed at once."""


class Zeros:
    """A head and zeros behind it, in deflate's format.

    The bytes of one packed block serve for all of them, so gigabytes take a few seconds.
    """

    def __init__(self, head: bytes, zeros: int) -> None:
        packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
        block = bytes(BLOCK)
        blocks, rest = divmod(zeros, BLOCK)
        self.content = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
        if blocks:
            self.content += (packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)) * blocks
        self.content += packer.compress(block[:rest]) + packer.flush()
        self.crc32, self.adler32 = zlib.crc32(head), zlib.adler32(head)
        for part in (*[block] * blocks, block[:rest]):
            self.crc32 = zlib.crc32(part, self.crc32)
            self.adler32 = zlib.adler32(part, self.adler32)
        self.size = len(head) + zeros

    def zlib(self) -> bytes:
        return b"\x78\xda" + self.content + self.adler32.to_bytes(4, "big")

    def gzip(self) -> bytes:
        end = struct.pack("<II", self.crc32, self.size % 2**32)
        return gzip.compress(b"", mtime=0)[:10] + self.content + end


def png(width: int, height: int) -> bytes:
    """A black picture."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        crc = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc)

    head = struct.pack(">II", width, height) + b"\x08\0\0\0\0"
    pixels = Zeros(b"", (1 + width) * height).zlib()
    parts = ((b"IHDR", head), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def idx_bomb(folder: Path, images: int, promised: int | None = None) -> None:
    """Four IDX files of 1000 x 1000 pixels; so many images to train with."""
    promised = promised or images
    write_digits(folder, train=promised, test=2, size=12, classes=2)
    for name, said, count in (("train", promised, images), ("t10k", 2, 2)):
        (folder / f"{name}-images-idx3-ubyte").unlink()
        head = b"\0\0\x08\x03" + np.array([said, 1000, 1000], ">u4").tobytes()
        bomb = Zeros(head, count * 10**6)
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(bomb.gzip())


def draws_bomb(path: Path, draws: int) -> None:
    """A compressed draws file of so many draws of 1000 images in 1000 classes: 4 MB each."""
    head = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": (draws, 1000, 1000)}
    np.lib.format.write_array_header_1_0(head, fields)
    bomb = Zeros(head.getvalue(), 4 * 10**6 * draws)
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo("probabilities.npy")
        info.compress_type = zipfile.ZIP_DEFLATED
        info.CRC, info.file_size, info.compress_size = bomb.crc32, bomb.size, len(bomb.content)
        info.header_offset = 0
        archive.fp.write(info.FileHeader(zip64=True) + bomb.content)
        # What ZipFile does for a member that it has packed itself.
        archive.filelist.append(info)
        archive.NameToInfo[info.filename] = info
        archive.start_dir = archive.fp.tell()
        meta = io.BytesIO()
        np.save(meta, np.array("{}"))
        archive.writestr("meta.npy", meta.getvalue())


def special_files(folder: Path) -> dict[str, Path]:
    """By kind: what can be opened or has a name, but is no file."""
    os.mkfifo(folder / "pipe")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / "socket"))
    server.close()
    return {"pipe": folder / "pipe", "socket": folder / "socket", "device": Path("/dev/zero")}
