"""The description that travels with an LMDB: `dataset.json` in its folder, beside `data.mdb`.

LMDB and Caffe ignore the file. An LMDB without one works, but then nobody knows the names of its
classes and the order of its colours.
"""

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_file
from bayescaffe.common.reading import parse_json, read_text
from bayescaffe.data.interface import Shape

FILE_NAME = "dataset.json"
ORDERS = ("bgr", "rgb", "grey")
RESIZES = ("squash", "keep")


@dataclass(frozen=True)
class Description:
    """What an LMDB holds."""

    shape: Shape
    """Channels, height, width of every image."""
    channels: str | None
    """The order of the channels: "bgr", "rgb" or "grey"; None if it is not known."""
    class_names: tuple[str, ...] | None
    """The name of each label; None if labels are only numbers."""
    mean: tuple[float, ...]
    """Of each channel, over the images of the training split."""
    split: str
    """Such as "train", "val" or "test"."""
    images: int
    images_per_class: tuple[int, ...]
    """The number of images of each label."""
    seed: int
    """Of the split and of the order of the training images."""
    sha256: str
    """Of all keys and records, in order."""
    resize: str | None
    """How pictures were brought to one size: "squash" stretches them, "keep" cuts off what is too
    long; None if they had it."""


def description_path(lmdb: str | os.PathLike) -> Path:
    """Where the description of an LMDB is; `lmdb` is its folder or its data.mdb."""
    path = Path(lmdb)
    return (path.parent if path.suffix == ".mdb" else path) / FILE_NAME


def write_description(lmdb: Path, description: Description) -> None:
    """Write the description into an LMDB's folder."""
    with scratch_file(description_path(lmdb)) as scratch:
        scratch.write_text(json.dumps(asdict(description), indent=2) + "\n", encoding="utf-8")


def read_description(lmdb: str | os.PathLike) -> Description | None:
    """The description of an LMDB, None if it has none."""
    path = description_path(lmdb)
    try:
        content = parse_json(read_text(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise BayesCaffeError(
            f"{path}: damaged: {error}; remove it to use the LMDB without a description"
        ) from error
    return _checked(content, path)


def _is_numbers(value: Any, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, list) and all(
        # Not infinite, and none that NumPy has no type for.
        isinstance(number, kind) and not isinstance(number, bool) and abs(number) < 2**63
        for number in value
    )


_EXPECTED = {
    "shape": (
        lambda v: _is_numbers(v, int) and len(v) == 3 and min(v) > 0,
        "channels, height, width",
    ),
    "channels": (lambda v: v in (*ORDERS, None), "one of bgr, rgb, grey, null"),
    "class_names": (
        lambda v: v is None or (isinstance(v, list) and all(isinstance(name, str) for name in v)),
        "a list of names, or null",
    ),
    "mean": (lambda v: _is_numbers(v, (int, float)), "a list of numbers"),
    "split": (lambda v: isinstance(v, str), "a name"),
    "images": (lambda v: _is_numbers([v], int), "a whole number"),
    "images_per_class": (lambda v: _is_numbers(v, int), "a list of whole numbers"),
    "seed": (lambda v: _is_numbers([v], int), "a whole number"),
    "sha256": (lambda v: isinstance(v, str), "a text"),
    "resize": (lambda v: v in (*RESIZES, None), "one of squash, keep, null"),
}


def _checked(content: Any, path: Path) -> Description:
    """The description in a file's content. Fields of later versions are left out."""
    if not isinstance(content, dict):
        raise BayesCaffeError(f"{path}: damaged: expected one JSON object")
    values = {}
    for field in fields(Description):
        is_valid, expected = _EXPECTED[field.name]
        if field.name not in content:
            raise BayesCaffeError(f"{path}: damaged: has no field {field.name!r}")
        value = content[field.name]
        if not is_valid(value):
            raise BayesCaffeError(f"{path}: {field.name} is {value!r}, expected {expected}")
        values[field.name] = tuple(value) if isinstance(value, list) else value
    found = Description(**values)
    if found.channels and (found.channels == "grey") != (found.shape[0] == 1):
        raise BayesCaffeError(
            f"{path}: channels is {found.channels!r}, but shape has {found.shape[0]} channels"
        )
    if found.class_names and len(found.class_names) != len(found.images_per_class):
        raise BayesCaffeError(
            f"{path}: {len(found.class_names)} class_names, but {len(found.images_per_class)} "
            "images_per_class"
        )
    if len(found.mean) != found.shape[0]:
        raise BayesCaffeError(
            f"{path}: mean has {len(found.mean)} numbers for {found.shape[0]} channels"
        )
    return found
