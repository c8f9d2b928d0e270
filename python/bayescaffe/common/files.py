"""Files that replace others only when they are complete and on the disk, and hashes of files.

A file is written under a temporary name beside the one that it will replace. The name cannot be
guessed and is new, so nobody's symbolic link is followed. The snapshots of Caffe are written in the
same way: caffe/util/atomic_file.hpp.
"""

import contextlib
import errno
import fcntl
import glob
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.reading import open_regular

NAME = ".bayescaffe-tmp"


@contextlib.contextmanager
def scratch_dir(parent: Path) -> Iterator[Path]:
    """Yield an empty directory inside `parent`, on the same file system so that renames are atomic.

    It is removed afterwards, whatever happens; after a `kill -9` the next call removes it. `parent`
    is created if it does not exist, and locked meanwhile: a second process waits for the first.
    `put_in_place` takes files and directories out of it.
    """
    is_new = not parent.exists()
    parent.mkdir(parents=True, exist_ok=True)
    path = parent / f"{NAME}-{secrets.token_hex(8)}"
    lock = os.open(parent, os.O_RDONLY)
    try:
        # Some network file systems cannot lock a directory; two runs at once are rare enough.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        for left in parent.glob(f"{NAME}*"):
            shutil.rmtree(left, ignore_errors=True)
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
    the block fails it is removed. Until then an existing `path` stays as it is.

    What a killed process left of the same file is removed first.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: cannot be written, there is no directory {path.parent}")
    if _is_special(path):  # there is nothing to replace
        yield path
        return
    _remove_remains(path)
    scratch, file = _new_file(path)
    try:
        with errors_name(path, scratch):
            yield scratch
            put_in_place(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
        os.close(file)


@contextlib.contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside the file `path`, for parts of it. It is removed afterwards; what
    a killed process left is removed first."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.parts"):
        with contextlib.suppress(OSError), _locked(left):
            shutil.rmtree(left)
    folder = path.with_name(f".{path.name}.{secrets.token_hex(8)}.parts")
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        # Some network file systems have no locks.
        with contextlib.suppress(OSError):
            stack.enter_context(_locked(folder))
        yield folder


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises OSError if another process has locked it."""
    lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def put_in_place(source: Path, target: Path) -> None:
    """Rename a file or a directory to `target` once its content is on the disk."""
    sync_all(source)
    os.rename(source, target)
    sync(target.parent)


def sync_all(path: Path) -> None:
    """Wait until a file, or a directory with all that is in it, is on the disk."""
    for part in (*path.rglob("*"), path):
        sync(part)


@contextlib.contextmanager
def errors_name(path: Path, scratch: Path | None = None) -> Iterator[None]:
    """Let errors such as a full disk name the file that the user knows, in place of `scratch`."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename not in (None, scratch, str(scratch)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def without_links(path: str | os.PathLike, flags: int) -> int:
    """An opener for `open`, for files that grow in place: it refuses symbolic links."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise BayesCaffeError(
            f"{path}: a symbolic link; what is written there would go to {os.readlink(path)}. "
            "Remove the link"
        ) from error


def sha256(path: str | os.PathLike) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with open_regular(path) as file:
        digest = hashlib.sha256()
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


def _is_special(path: Path) -> bool:
    """Whether a path is a device or a pipe, such as /dev/stdout."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _new_file(path: Path) -> tuple[Path, int]:
    """An empty file beside `path`, and its descriptor, which keeps it locked."""
    while True:
        scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        with errors_name(path, scratch):
            file = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        # Some network file systems have no locks.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        if scratch.exists():
            return scratch, file
        os.close(file)  # before it was locked, another writer of `path` took it for remains


def _remove_remains(path: Path) -> None:
    # The names of earlier versions had the number of the process instead of a random one.
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]+\.tmp")
    for left in path.parent.iterdir():
        if pattern.fullmatch(left.name):
            with contextlib.suppress(OSError):
                _remove_if_left(left)


def _remove_if_left(path: Path) -> None:
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while it is being written
        path.unlink()
    finally:
        os.close(file)


def sync(path: Path) -> None:
    """Wait until a file or the names in a directory are on the disk."""
    if path.is_symlink():
        return
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(file)
    except OSError as error:
        # Some file systems cannot sync a directory.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(file)
