"""Image sets on disk: an LMDB for each split, their descriptions, the mean image and a record.

    OUT/train_lmdb, OUT/val_lmdb, OUT/test_lmdb   each with its description
    OUT/mean.binaryproto                          the mean training image, for `mean_file`
    OUT/dataset.json                              the record: what was asked for

The record comes last: if it matches a request, there is nothing to do.
"""

import json
import os
import shutil
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument
from bayescaffe.common.files import errors_name, put_in_place, scratch_dir, sync, sync_all
from bayescaffe.common.reading import parse_json, read_text
from bayescaffe.data.description import Description, read_description, write_description
from bayescaffe.data.interface import Images, Shape
from bayescaffe.data.lmdb import Written, varint, write_lmdb

RECORD = "dataset.json"
MEAN = "mean.binaryproto"
SPLITS = ("train", "val", "test")
# Raise this when the LMDBs of an older version must be rebuilt.
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Dataset:
    """An image set on disk, ready for a Caffe Data layer."""

    train: Path
    """Directory of the training LMDB."""
    test: Path | None
    """Directory of the test LMDB, if there is one."""
    train_images: int
    test_images: int
    shape: Shape
    """Channels, height, width of every image."""
    classes: int
    """One more than the largest label of all splits."""
    val: Path | None = None
    """Directory of the validation LMDB, if there is one."""
    val_images: int = 0
    skipped: tuple[str, ...] = ()
    """Why pictures could not be read; these are not in the set."""

    @property
    def description(self) -> Description | None:
        """Class names, mean and more; None for a set that an early version wrote."""
        return read_description(self.train)

    @property
    def splits(self) -> dict[str, tuple[Path, int]]:
        """The LMDB and the number of images of each split that there is, by name."""
        paths = {"train": self.train, "val": self.val, "test": self.test}
        return {
            name: (path, getattr(self, f"{name}_images")) for name, path in paths.items() if path
        }


@dataclass(frozen=True)
class Split:
    """The images of one split."""

    images: Images
    labels: Sequence[int]
    """Of all `images`."""
    order: Sequence[int]
    """Which of them are in this split, in this order."""


def shuffled(rows: Sequence[int], seed: int) -> np.ndarray:
    """The rows in the order in which a net is trained."""
    # RandomState, because NumPy promises that its numbers never change between versions.
    return np.asarray(rows)[np.random.RandomState(seed).permutation(len(rows))]


def write_set(
    out: Path,
    splits: Mapping[str, Split],
    request: Mapping[str, object],
    *,
    channels: str | None = None,
    class_names: Sequence[str] | None = None,
    resize: str | None = None,
    strict: bool = False,
    progress: bool = True,
) -> Dataset:
    """Write an image set into `out`, in place of what is there.

    Args:
        splits: by name, "train" among them.
        request: what the record begins with: `name` and `seed` at least.
        channels, class_names, resize: for the descriptions.
        strict: raise if an image cannot be read.
    """
    with scratch_dir(out) as scratch:
        written = {}
        for name, split in splits.items():
            path = scratch / f"{name}_lmdb"
            written[name] = write_lmdb(path, split.images, split.labels, split.order, progress)
            if strict and written[name].skipped:
                raise BayesCaffeError(_list_of(written[name].skipped, "could not be read"))
        classes = len(class_names or ()) or 1 + max(
            max(one.labels, default=0) for one in written.values()
        )
        counts = {name: np.bincount(one.labels, minlength=classes) for name, one in written.items()}
        _refuse_empty(counts, class_names, written)
        mean = written["train"].total / len(written["train"].labels)
        for name, one in written.items():
            description = Description(
                shape=splits[name].images.shape,
                channels=channels,
                class_names=None if class_names is None else tuple(class_names),
                mean=tuple(mean.mean(axis=(1, 2)).round(4).tolist()),
                split=name,
                images=len(one.labels),
                images_per_class=tuple(counts[name].tolist()),
                seed=request["seed"],
                sha256=one.sha256,
                resize=resize,
            )
            write_description(scratch / f"{name}_lmdb", description)
        (scratch / MEAN).write_bytes(blob_proto(mean))
        record = {
            **request,
            **{f"{name}_images": len(one.labels) for name, one in written.items()},
            "shape": splits["train"].images.shape,
            "classes": classes,
            "bytes": {f"{name}_lmdb": lmdb_size(scratch / f"{name}_lmdb") for name in written},
        }
        _put_in_place(scratch, out, record)
    return read_set(out, record, [why for one in written.values() for why in one.skipped])


def _refuse_empty(
    counts: Mapping[str, np.ndarray],
    class_names: Sequence[str] | None,
    written: Mapping[str, Written],
) -> None:
    """Raise if no image, or none of a class that has a name, could be read."""
    skipped = [why for one in written.values() for why in one.skipped]
    for name, count in counts.items():
        if not count.sum():
            raise BayesCaffeError(_list_of(skipped, f"could not be read, no others are in {name}"))
    for label in np.flatnonzero(counts["train"] == 0) if class_names and skipped else ():
        raise BayesCaffeError(
            f"class {class_names[label]!r} has no picture in train that can be read: "
            + _list_of(skipped, "could not be read")
        )


def _list_of(reasons: Sequence[str], what: str) -> str:
    shown = "".join(f"\n  {reason}" for reason in reasons[:20])
    more = f"\n  and {len(reasons) - 20} more" if len(reasons) > 20 else ""
    return f"{len(reasons)} pictures {what}:{shown}{more}"


def _put_in_place(scratch: Path, out: Path, record: dict) -> None:
    """Let a new set take the place of the old one. If that fails, the old one stays."""
    old = scratch / "old"
    old.mkdir()
    with errors_name(out):
        if (out / RECORD).exists():
            shutil.copy(out / RECORD, old / RECORD)
        # Several directories cannot be renamed at once. If this process is killed meanwhile, the
        # record has only a name: the next run knows that it must rebuild LMDBs of its own.
        _write_text(scratch / "started", {"name": record["name"]})
        _write_text(scratch / RECORD, record)
        sync_all(scratch)  # so that what follows needs no room on the disk
    moves = [(scratch / "started", out / RECORD)]
    for name in (*(f"{split}_lmdb" for split in SPLITS), MEAN):
        if (out / name).exists():
            moves.append((out / name, old / name))
        if (scratch / name).exists():
            moves.append((scratch / name, out / name))
    done = []
    try:
        for source, target in moves:
            os.rename(source, target)
            done.append((source, target))
        sync(out)
        put_in_place(scratch / RECORD, out / RECORD)
    except BaseException:
        for source, target in reversed(done[1:]):
            os.rename(target, source)
        if (old / RECORD).exists():
            os.rename(old / RECORD, out / RECORD)
        elif done:
            (out / RECORD).unlink()
        raise


def is_complete(out: Path, record: dict | None, request: dict) -> bool:
    """Whether `out` holds what is asked for."""
    return (
        record is not None
        and request.items() <= record.items()
        and _tells_all(record)
        and all(lmdb_size(out / name) == size for name, size in record["bytes"].items())
    )


def _tells_all(record: dict) -> bool:
    """Whether a record has what `read_set` needs. One that was changed by hand or damage, and one
    of a run that was cut short, may not."""

    def is_count(value: object) -> bool:
        return isinstance(value, int) and 0 < value < 2**63

    splits = [f"{name}_images" for name in SPLITS if f"{name}_images" in record]
    shape, sizes = record.get("shape"), record.get("bytes")
    return (
        "train_images" in splits
        and all(is_count(record.get(name)) for name in (*splits, "classes"))
        and (isinstance(shape, list) and len(shape) == 3 and all(map(is_count, shape)))
        and (isinstance(sizes, dict) and "train_lmdb" in sizes)
    )


def _other_ways() -> str:
    return f"choose another {argument('out')}, or replace it with {argument('force', True)}"


def refuse_other_data(out: Path, record: dict | None, name: str) -> None:
    """Raise if `out` holds another set, or LMDBs of unknown origin."""
    found = [out / f"{split}_lmdb" for split in SPLITS if (out / f"{split}_lmdb").exists()]
    if record is None and found:
        raise BayesCaffeError(
            f"{found[0]} is there but no {RECORD} beside it, so it was not made by this command; "
            f"{_other_ways()}"
        )
    if record and record.get("name", name) != name:
        raise BayesCaffeError(f"{out} holds the set {record['name']}, not {name}; {_other_ways()}")


def refuse_any_data(out: Path) -> None:
    """Raise if `out` holds LMDBs."""
    for path in (out / f"{name}_lmdb" for name in SPLITS):
        if path.exists():
            raise BayesCaffeError(f"{path} is there already; {_other_ways()}")


def read_record(out: Path) -> dict | None:
    """None if there is none, {} if it cannot be read."""
    try:
        record = parse_json(read_text(out / RECORD))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _write_text(path: Path, record: dict) -> None:
    path.write_text(json.dumps(record, indent=2) + "\n")


def read_set(out: Path, record: dict, skipped: Sequence[str] = ()) -> Dataset:
    """The set in `out` that the record tells of."""
    paths = {name: out / f"{name}_lmdb" for name in SPLITS if f"{name}_images" in record}
    return Dataset(
        **{name: paths.get(name) for name in SPLITS},
        **{f"{name}_images": record.get(f"{name}_images", 0) for name in SPLITS},
        shape=tuple(record["shape"]),
        classes=record["classes"],
        skipped=tuple(skipped),
    )


def lmdb_size(lmdb_dir: Path) -> int:
    """Bytes in the LMDB, 0 if it is not there."""
    path = lmdb_dir / "data.mdb"
    return path.stat().st_size if path.is_file() else 0


def blob_proto(image: np.ndarray) -> bytes:
    """Caffe's `BlobProto` of an image: num = 1, channels = 2, height = 3, width = 4, data = 5."""
    channels, height, width = image.shape
    data = struct.pack(f"<{image.size}f", *image.ravel().tolist())
    return b"".join(
        (
            b"\x08" + varint(1),
            b"\x10" + varint(channels),
            b"\x18" + varint(height),
            b"\x20" + varint(width),
            b"\x2a" + varint(len(data)) + data,
        )
    )
