"""Image sets for Caffe: `prepare` a known one, or `prepare_idx` any in the IDX format.

Both leave `train_lmdb`, `test_lmdb` and `dataset.json` in a directory. `dataset.json` records what
the LMDBs hold, and comes last: if it matches a request, there is nothing to do.
"""

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bayescaffe.common.checks import check_seed
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_dir
from bayescaffe.data import idx, sources
from bayescaffe.data.lmdb import write_lmdb

log = logging.getLogger(__name__)

RECORD = "dataset.json"
LMDBS = ("train_lmdb", "test_lmdb")
# Raise this when the LMDBs of an older version must be rebuilt.
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Dataset:
    """An image set on disk, ready for a Caffe Data layer."""

    train: Path
    """Directory of the training LMDB."""
    test: Path
    """Directory of the test LMDB."""
    train_images: int
    test_images: int
    shape: tuple[int, int, int]
    """Channels, height, width of every image."""
    classes: int
    """One more than the largest label of both sets."""


def prepare(
    name: str,
    out: str | os.PathLike,
    source: str | os.PathLike | None = None,
    seed: int = 0,
    force: bool = False,
    progress: bool = True,
) -> Dataset:
    """Get the known set `name` ("mnist" or "fashion-mnist") and write it as LMDBs into `out`.

    Args:
        source: directory with the four IDX files; without it the cache, mirrors and packages.
        seed: of the training set's order; the test set keeps the order of its files.
        force: rebuild what is complete, and replace LMDBs of another set.
        progress: show progress bars if this runs on a terminal.
    """
    if name not in sources.KNOWN:
        raise BayesCaffeError(f"unknown set {name!r}, expected one of {', '.join(sources.KNOWN)}")
    md5 = sources.KNOWN[name].md5

    def load() -> idx.IdxSet:
        return sources.obtain(name, progress) if source is None else idx.load_set(Path(source), md5)

    return _build(name, md5, load, Path(out), seed, force, progress)


def prepare_idx(
    directory: str | os.PathLike,
    out: str | os.PathLike,
    seed: int = 0,
    force: bool = False,
    progress: bool = True,
) -> Dataset:
    """Write the four IDX files in `directory` as LMDBs into `out`; the rest is as in `prepare`."""
    loaded = idx.load_set(Path(directory))
    return _build("idx", loaded.md5, lambda: loaded, Path(out), seed, force, progress)


def _build(
    name: str,
    md5: dict[str, str],
    load: Callable[[], idx.IdxSet],
    out: Path,
    seed: int,
    force: bool,
    progress: bool,
) -> Dataset:
    check_seed(seed)
    request = {"name": name, "format_version": FORMAT_VERSION, "seed": seed, "md5": md5}
    if not force:
        record = _read_record(out)
        if _is_complete(out, record, request):
            log.info("%s: complete, nothing to do", out)
            return _dataset(out, record)
        _refuse_other_data(out, record, name)

    arrays = load().arrays
    # RandomState, because NumPy promises that its numbers never change between versions.
    orders = (
        np.random.RandomState(seed).permutation(len(arrays["train-labels"])),
        np.arange(len(arrays["test-labels"])),
    )
    with scratch_dir(out) as scratch:
        for lmdb_name, order in zip(LMDBS, orders, strict=True):
            subset = lmdb_name.removesuffix("_lmdb")
            images, labels = arrays[f"{subset}-images"], arrays[f"{subset}-labels"]
            write_lmdb(scratch / lmdb_name, images, labels, order, progress)
        record = {
            **request,
            "train_images": len(arrays["train-images"]),
            "test_images": len(arrays["test-images"]),
            "shape": arrays["train-images"].shape[1:],
            "classes": 1 + max(int(arrays[f"{s}-labels"].max()) for s in ("train", "test")),
            "bytes": {lmdb_name: _size(scratch / lmdb_name) for lmdb_name in LMDBS},
        }
        # Two directories cannot be renamed at once. If this is cut short, the record has only a
        # name: the next run knows that the LMDBs are its own, and that it must rebuild them.
        _write_record(scratch, out, {"name": name})
        for lmdb_name in LMDBS:
            if (out / lmdb_name).exists():
                os.rename(out / lmdb_name, scratch / f"old-{lmdb_name}")
            os.rename(scratch / lmdb_name, out / lmdb_name)
        _write_record(scratch, out, record)
    return _dataset(out, record)


def _is_complete(out: Path, record: dict | None, request: dict) -> bool:
    return (
        record is not None
        and request.items() <= record.items()
        and all(_size(out / name) == size for name, size in record["bytes"].items())
    )


def _refuse_other_data(out: Path, record: dict | None, name: str) -> None:
    if record is None:
        found = [lmdb_name for lmdb_name in LMDBS if (out / lmdb_name).exists()]
        if found:
            raise BayesCaffeError(
                f"{out / found[0]} is there but no {RECORD} beside it, so it was not made by "
                "this command; choose another --out, or replace it with --force"
            )
    elif record.get("name", name) != name:
        raise BayesCaffeError(
            f"{out} holds the set {record['name']}, not {name}; choose another --out, or replace "
            "it with --force"
        )


def _read_record(out: Path) -> dict | None:
    """None if there is none, {} if it cannot be read."""
    try:
        record = json.loads((out / RECORD).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _write_record(scratch: Path, out: Path, record: dict) -> None:
    (scratch / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    os.replace(scratch / RECORD, out / RECORD)


def _dataset(out: Path, record: dict) -> Dataset:
    return Dataset(
        train=out / LMDBS[0],
        test=out / LMDBS[1],
        train_images=record["train_images"],
        test_images=record["test_images"],
        shape=tuple(record["shape"]),
        classes=record["classes"],
    )


def _size(lmdb_dir: Path) -> int:
    """Bytes in the LMDB, 0 if it is not there."""
    path = lmdb_dir / "data.mdb"
    return path.stat().st_size if path.is_file() else 0
