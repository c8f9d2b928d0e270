"""Names of image files that come one after the other: a folder that is watched, lines of a pipe."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.reading import open_regular
from bayescaffe.data.image_files import find_images

POLL_SECONDS = 0.5
MOST_AT_ONCE = 64


def new_pictures(folder: Path, seconds: float = POLL_SECONDS) -> Iterator[list[str]]:
    """The image files in a folder, then those that come or change, for ever.

    A file that is still being written is left until its size and time stay as they are.
    """
    if not folder.is_dir():
        raise BayesCaffeError(f"{folder}: no such folder to watch")
    told: dict[Path, tuple[int, int]] = {}
    before: dict[Path, tuple[int, int]] = {}
    while True:
        now = _pictures(folder)
        ready = [path for path, state in now.items() if before.get(path) == state]
        fresh = [path for path in ready if told.get(path) != now[path]]
        told = {path: state for path, state in told.items() if path in now}
        for start in range(0, len(fresh), MOST_AT_ONCE):
            group = fresh[start : start + MOST_AT_ONCE]
            told |= {path: now[path] for path in group}
            yield [str(path) for path in group]
        before = now
        time.sleep(seconds)


def _pictures(folder: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of change of each picture."""
    found = {}
    try:
        paths = find_images(folder)
    except BayesCaffeError:  # there is none yet
        return found
    for path in paths:
        try:
            status = path.stat()
        except OSError:  # it has gone
            continue
        found[path] = status.st_size, status.st_mtime_ns
    return found


def lines_of(name: str) -> Iterator[list[str]]:
    """The lines of a file or, for "-", of standard input: those that are there at a time."""
    file = sys.stdin.buffer if name == "-" else open_regular(name)
    rest = b""
    with file:
        # What `os.read` returns need not be as much as it is asked for, so nobody waits for more.
        while content := os.read(file.fileno(), 2**16):
            *lines, rest = (rest + content).split(b"\n")
            yield from _groups(lines)
    yield from _groups([rest])


def _groups(lines: list[bytes]) -> Iterator[list[str]]:
    names = [os.fsdecode(line.rstrip(b"\r")) for line in lines if line.strip()]
    for start in range(0, len(names), MOST_AT_ONCE):
        yield names[start : start + MOST_AT_ONCE]
