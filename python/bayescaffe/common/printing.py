"""Text from files, made harmless for a terminal."""

import re
from typing import TextIO

# What moves the cursor, changes colours or titles, or turns the direction of writing; and what
# stands for the bytes of file names that are no UTF-8.
_UNSAFE = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """The text with control characters written as `\\x1b`. New lines and tabs stay."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class PrintableStream:
    """A text stream that gets `printable` text only."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(printable(text))

    def __getattr__(self, name: str):
        return getattr(self._stream, name)
