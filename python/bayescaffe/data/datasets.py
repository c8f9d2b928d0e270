"""Known image sets: `prepare` one of them, or `prepare_idx` any set in the IDX format."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bayescaffe.common.checks import check_seed
from bayescaffe.common.errors import BayesCaffeError, argument
from bayescaffe.data import idx, sources
from bayescaffe.data.arrays import ArrayImages
from bayescaffe.data.image_set import (
    FORMAT_VERSION,
    Dataset,
    Split,
    is_complete,
    read_record,
    read_set,
    refuse_other_data,
    shuffled,
    write_set,
)
from bayescaffe.data.lmdb import LmdbImages

log = logging.getLogger(__name__)


def prepare(
    name: str,
    out: str | os.PathLike,
    source: str | os.PathLike | None = None,
    seed: int = 0,
    force: bool = False,
    progress: bool = True,
) -> Dataset:
    """Get the set `name` ("mnist", "fashion-mnist" or "cifar10") and write it as LMDBs into `out`.

    Args:
        source: directory with the four IDX files, or the archive of CIFAR-10; without it the cache,
            mirrors and packages.
        seed: of the training set's order; the test set keeps the order of its files.
        force: rebuild what is complete, and replace LMDBs of another set.
        progress: show progress bars if this runs on a terminal or in a notebook.
    """
    if name not in sources.KNOWN:
        raise BayesCaffeError(f"unknown set {name!r}, expected one of {', '.join(sources.KNOWN)}")
    known = sources.KNOWN[name]

    def load() -> idx.IdxSet:
        if source is None:
            return sources.obtain(name, progress)
        return known.load(Path(source))

    about = {"class_names": known.class_names, "channels": known.channels}
    return _build(name, known.md5, load, about, Path(out), seed, force, progress)


def prepare_idx(
    directory: str | os.PathLike,
    out: str | os.PathLike,
    seed: int = 0,
    force: bool = False,
    progress: bool = True,
) -> Dataset:
    """Write the four IDX files in `directory` as LMDBs into `out`; the rest is as in `prepare`."""
    loaded = idx.load_set(Path(directory))
    return _build("idx", loaded.md5, lambda: loaded, {}, Path(out), seed, force, progress)


def _build(
    name: str,
    md5: dict[str, str],
    load: Callable[[], idx.IdxSet],
    about: dict,
    out: Path,
    seed: int,
    force: bool,
    progress: bool,
) -> Dataset:
    check_seed(seed)
    request = {"name": name, "format_version": FORMAT_VERSION, "seed": seed, "md5": md5}
    if not force:
        record = read_record(out)
        if is_complete(out, record, request):
            found = read_set(out, record)
            if found.description is None:
                return _describe(found, out, request, about, progress)
            log.info("%s: complete, nothing to do", out)
            return found
        refuse_other_data(out, record, name)

    arrays = load().arrays
    splits = {}
    for split in ("train", "test"):
        images, labels = arrays[f"{split}-images"], arrays[f"{split}-labels"]
        order = shuffled(range(len(labels)), seed) if split == "train" else range(len(labels))
        splits[split] = Split(ArrayImages(images), labels, order)
    return _write(out, splits, request, about, progress)


def _write(
    out: Path, splits: dict[str, Split], request: dict, about: dict, progress: bool
) -> Dataset:
    if splits["train"].images.shape[0] == 1:
        about = {**about, "channels": "grey"}
    return write_set(out, splits, request, **about, progress=progress)


def _describe(found: Dataset, out: Path, request: dict, about: dict, progress: bool) -> Dataset:
    """Add descriptions and the mean image to a set that an early version wrote."""
    try:
        splits = {split: _written(path) for split, (path, _) in found.splits.items()}
    except BayesCaffeError as error:  # pycaffe reads LMDBs, and may not be built
        log.warning(
            "%s: has no descriptions; %s writes them (%s)", out, argument("force", True), error
        )
        return found
    log.info("%s: complete, but written by an early version: adding descriptions", out)
    return _write(out, splits, request, about, progress)


def _written(path: Path) -> Split:
    """What an LMDB holds, as it is."""
    images = LmdbImages(path)
    take, count = images.in_order(), len(images)
    steps = [min(1000, count - start) for start in range(0, count, 1000)]
    return Split(images, np.concatenate([take(step)[1] for step in steps]), range(count))
