"""Files to read: only regular ones. A device or a pipe may have no end, or wait for ever."""

import json
import os
import stat
from typing import Any, BinaryIO

from bayescaffe.common.errors import BayesCaffeError

KINDS = {
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: str | os.PathLike) -> BinaryIO:
    """Open a file to read its bytes. Raises OSError if that fails, BayesCaffeError for what is a
    device, a pipe or a socket."""
    try:
        # Without this flag, opening a pipe waits for somebody to write.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:
        raise BayesCaffeError(f"{path}: is not the name of a file: {error}") from error
    kind = KINDS.get(stat.S_IFMT(os.fstat(number).st_mode))
    if kind is not None:
        os.close(number)
        raise BayesCaffeError(f"{path}: is {kind}, expected a file")
    try:
        return open(number, "rb")
    except IsADirectoryError as error:
        os.close(number)
        raise IsADirectoryError(error.errno, error.strerror, os.fspath(path)) from None


def read_bytes(path: str | os.PathLike) -> bytes:
    """The content of a file."""
    with open_regular(path) as file:
        return file.read()


def read_text(path: str | os.PathLike, encoding: str = "utf-8") -> str:
    """The text of a file, with one character for the end of a line. Raises UnicodeDecodeError if it
    is no text."""
    text = read_bytes(path).decode(encoding)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse_json(text: str) -> Any:
    """What a JSON text holds. Raises ValueError if it is none."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
