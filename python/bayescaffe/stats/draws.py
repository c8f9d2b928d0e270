"""Draws files: what many draws of a net say about many images.

A draws file is an uncompressed .npz with the members

    probabilities   float32, passes x images x classes
    labels          int64 per image; not there when the labels are not known
    meta            JSON text: where the numbers come from

so `np.load(path)["probabilities"]` reads it too. `load_draws` maps the probabilities into memory
instead, so they may be larger than it.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_file
from bayescaffe.common.npz import NpzFile, write_npz


@dataclass(frozen=True)
class Draws:
    """The class probabilities of images in each pass, a pass being one draw of the net."""

    probabilities: np.ndarray
    """float32, passes x images x classes; a read-only memory map when loaded from a file."""
    labels: np.ndarray | None
    """int64 per image, None when not known."""
    meta: dict
    """Where they come from: seed, net and weights (paths as given), net_sha256, weights_sha256,
    data (absolute path), passes, version, created (UTC), class_names, names (of image files); path,
    if loaded from a file."""


def save_draws(
    path: str | os.PathLike,
    probabilities: np.ndarray | list[np.ndarray],
    labels: np.ndarray | None,
    meta: dict,
) -> None:
    """Write a draws file; one that is there is replaced when the new one is complete.

    A list of arrays is taken as one, joined along the images.
    """
    path = Path(path)
    members = {"probabilities": probabilities}
    if labels is not None:
        members["labels"] = np.asarray(labels, np.int64)
    members["meta"] = np.array(json.dumps(meta))
    with scratch_file(path) as scratch:
        write_npz(scratch, members)


def load_draws(path: str | os.PathLike) -> Draws:
    """Open a draws file; the probabilities stay on disk until they are used."""
    with NpzFile(path) as file:
        probabilities = file.map("probabilities")
        labels = file.map("labels") if "labels" in file else None
        text = file.map("meta")
    try:
        meta = json.loads(str(text))
    except ValueError as error:
        raise BayesCaffeError(f"{path}: not a draws file, its meta is no JSON: {error}") from error
    if not isinstance(meta, dict):
        raise BayesCaffeError(f"{path}: not a draws file, its meta is {meta!r}, expected an object")
    if probabilities.ndim != 3 or probabilities.dtype != np.float32 or not probabilities.size:
        raise BayesCaffeError(
            f"{path}: not a draws file: probabilities are {probabilities.dtype} of shape "
            f"{probabilities.shape}, expected float32 of passes x images x classes"
        )
    if labels is not None and (
        labels.shape != probabilities.shape[1:2] or labels.dtype.kind not in "iu"
    ):
        raise BayesCaffeError(
            f"{path}: not a draws file: labels are {labels.dtype} of shape {labels.shape}, "
            f"expected one whole number for each of {probabilities.shape[1]} images"
        )
    labels = None if labels is None else np.array(labels, np.int64)
    return Draws(probabilities, labels, {**meta, "path": str(path)})
