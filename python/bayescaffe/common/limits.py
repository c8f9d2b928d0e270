"""How much memory a file may take: one of a few kilobytes can hold gigabytes.

The limits are environment variables, so that they hold for Caffe, too, in this process and in
`caffe train`.
"""

import contextlib
import os
from collections.abc import Iterator

from bayescaffe.common.errors import BayesCaffeError, argument

VARIABLES = {
    "max_pixels": ("BAYESCAFFE_MAX_PIXELS", 100_000_000),
    "max_unpacked": ("BAYESCAFFE_MAX_UNPACKED", 2**30),
}
"""By argument: the variable, and the limit without it."""


@contextlib.contextmanager
def limits(max_pixels: int | None = None, max_unpacked: int | None = None) -> Iterator[None]:
    """Set limits while a `with` statement runs; None leaves one as it is.

    Args:
        max_pixels: of one picture; decoding takes about 8 bytes for each (10 of a progressive
            JPEG). By default 100 million.
        max_unpacked: bytes that one set of compressed files unpacks to. By default 1 GiB.
    """
    chosen = {"max_pixels": max_pixels, "max_unpacked": max_unpacked}
    names = {VARIABLES[key][0]: value for key, value in chosen.items() if value is not None}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: str(int(value)) for name, value in names.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def limit(name: str) -> int:
    """The limit of that name."""
    variable, default = VARIABLES[name]
    text = os.environ.get(variable, "")
    if text and not (text.isascii() and text.isdigit()):
        raise BayesCaffeError(f"{variable} is {text!r}, expected a whole number")
    return int(text) if text else default


def check_pixels(width: int, height: int) -> None:
    """Raise if a picture has too many pixels."""
    if width * height > limit("max_pixels"):
        raise BayesCaffeError(
            f"has {width} x {height} pixels, more than the {limit('max_pixels')} that are allowed; "
            + _way("max_pixels", width * height)
        )


def check_unpacked(count: int, path: str | os.PathLike) -> None:
    """Raise if files, the last of which is `path`, unpack to too many bytes."""
    if count > limit("max_unpacked"):
        raise BayesCaffeError(
            f"{path}: unpacks to {count} bytes, more than the {limit('max_unpacked')} that are "
            "allowed; " + _way("max_unpacked", count)
        )


def _way(name: str, needed: int) -> str:
    text = argument(name, needed)
    allow = text if text.startswith("-") else f"`with bayescaffe.limits({text}):`"
    return f"if memory suffices, {allow} allows it"
