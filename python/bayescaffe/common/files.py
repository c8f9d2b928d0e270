"""Files that replace others only when they are complete, and hashes of files."""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from bayescaffe.common.reading import open_regular

NAME = ".bayescaffe-tmp"


@contextlib.contextmanager
def scratch_dir(parent: Path) -> Iterator[Path]:
    """Yield an empty directory inside `parent`, on the same file system so that renames are atomic.

    It is removed afterwards, whatever happens; after a `kill -9` the next call removes it. `parent`
    is created if it does not exist, and locked meanwhile: a second process waits for the first.
    """
    is_new = not parent.exists()
    parent.mkdir(parents=True, exist_ok=True)
    path = parent / NAME
    lock = os.open(parent, os.O_RDONLY)
    try:
        # Some network file systems cannot lock a directory; two runs at once are rare enough.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):  # not empty: the work was done
                parent.rmdir()
        os.close(lock)


@contextlib.contextmanager
def scratch_file(path: Path) -> Iterator[Path]:
    """Yield the name of a file to write, beside `path`. When the block ends it becomes `path`; if
    the block fails it is removed. Until then an existing `path` stays as it is."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: cannot be written, there is no directory {path.parent}")
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield scratch
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def sha256(path: str | os.PathLike) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with open_regular(path) as file:
        digest = hashlib.sha256()
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()
