"""Draws files that are parts of one: `merge`.

bayescaffe.merge(["first.npz", "second.npz"], "all.npz")
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument, span
from bayescaffe.common.progress import ProgressBar
from bayescaffe.stats.draws import (
    PART_NUMBERS,
    Block,
    Draws,
    load_draws,
    load_mapped,
    load_outline,
    write_draws,
)

PATHS = ("net", "weights", "data")
"""What may differ in its name and be the same: its hash is compared."""
OWN = (*PATHS, "path", "part", "passes", "names", "model_of_draw", "created", "seconds")
"""What each part tells of itself in its meta. All else must be the same in all parts."""
SHOWN = 5
"""So many holes are named."""


@dataclass(frozen=True)
class _Part:
    """A file that holds some draws of some images."""

    path: Path
    images: range
    draws: range
    outline: Draws = field(compare=False, repr=False)


def merge(
    paths: Sequence[str | os.PathLike], out: str | os.PathLike | None = None, progress: bool = True
) -> Draws:
    """Join draws files that are parts of one, in any order.

    The result has the bits that one process would give. Its meta is that of one process, too,
    except for `created` (the latest), `seconds` (the sum) and the paths (those of the first part).

    Args:
        paths: files of `sample(…, image_range=…, draw_range=…)`. Together they have each draw of
            each image once. A file with all images and the first draws is a part, too, of more
            draws.
        out: the draws file to write, in place, so it may be larger than memory. Without it the
            result stays in memory.
        progress: show a progress bar on a terminal or in a notebook if this takes long.
    """
    if out is not None and Path(out).resolve() in {Path(path).resolve() for path in paths}:
        raise BayesCaffeError(f"{argument('out', str(out))}: is one of the parts")
    whole = open_parts(paths)
    first = whole.blocks[0]

    def fill(probabilities: np.ndarray) -> Draws:
        draws, images, classes = probabilities.shape
        step = max(1, PART_NUMBERS // (draws * classes))
        with ProgressBar(images, "merging", show=progress, scale=True, delay=1) as bar:
            for start in range(0, images, step):
                stop = min(start + step, images)
                probabilities[:, start:stop] = first.columns(start, stop)
                bar.advance(stop - start)
        later = tuple(
            Block(block.first, block.images, block.columns(0, len(block.images)))
            for block in whole.later
        )
        meta = {name: value for name, value in whole.meta.items() if name != "path"}
        return Draws(probabilities, whole.labels, meta, later)

    shape = first.probabilities.shape
    if out is None:
        return fill(np.empty(shape, np.float32))
    write_draws(out, shape, fill)
    return load_draws(out)


def open_draws(paths: str | os.PathLike | Sequence[str | os.PathLike]) -> Draws:
    """A draws file as `load_draws` opens it; of several, or of a folder, the whole that they are
    parts of, as `open_parts` opens it."""
    if isinstance(paths, (str, os.PathLike)):
        if not Path(paths).is_dir():
            return load_draws(paths)
        folder, paths = paths, sorted(Path(paths).glob("*.npz"))
        if not paths:
            raise BayesCaffeError(f"{folder}: a folder without draws files (*.npz)")
    return load_draws(paths[0]) if len(paths) == 1 else open_parts(paths)


def open_parts(paths: Sequence[str | os.PathLike]) -> Draws:
    """What `merge` would write, left in the files of the parts.

    `of_images` and `parts` read it, as they read a file that is larger than memory. Zeros that take
    no memory stand for `probabilities`.
    """
    if not paths:
        raise BayesCaffeError(f"{argument('paths')}: at least one draws file is needed")
    parts, (passes, images, classes) = _outlines([Path(path) for path in paths])
    _check_cover(parts, passes, images)
    labels, meta = _told(parts, passes, images)
    files = _Files()
    if not parts[0].outline.is_adaptive:
        pieces = [_Piece(part, 0, part.images, part.draws) for part in parts]
        stored = _Joined(files, pieces, (passes, images, classes))
        return Draws(stored.array, labels, meta, (), stored)
    # Each part has all draws of some images. A stage has them in the order of the parts.
    first, *later = [
        _stage(files, parts, number)
        for number in sorted({block.first for part in parts for block in part.outline.blocks})
    ]
    return Draws(first.probabilities, labels, meta, tuple(later), first.stored)


def _stage(files: "_Files", parts: "Sequence[_Part]", first: int) -> Block:
    """The draws from `first` on of the images that have them, in all parts."""
    pieces, images, count = [], [], 0
    for part in parts:
        for block in part.outline.blocks:
            if block.first == first:
                place = range(count, count + len(block.images))
                draws = range(len(block.probabilities))
                pieces.append(_Piece(part, first, place, draws))
                images.append(part.images.start + block.images)
                count = place.stop
    if len({piece.draws for piece in pieces}) > 1:
        one, two = (
            next(p for p in pieces if (p.draws == pieces[0].draws) == same).part.path
            for same in (True, False)
        )
        raise BayesCaffeError(f"{two}: has other stages of draws than {one}")
    shape = (len(pieces[0].draws), count, parts[0].outline.probabilities.shape[2])
    stored = _Joined(files, pieces, shape)
    return Block(first, np.concatenate(images), stored.array, stored)


@dataclass(frozen=True)
class _Piece:
    """Where an array of the whole has a block of a part."""

    part: "_Part"
    first: int
    """The first draw of the block."""
    columns: range
    draws: range


class _Joined:
    """An array, draws x images x classes, that several files have a piece of each."""

    def __init__(
        self, files: "_Files", pieces: Sequence[_Piece], shape: tuple[int, int, int]
    ) -> None:
        self._files, self._pieces = files, pieces
        self.array = np.broadcast_to(np.zeros((), np.float32), shape)

    def columns(self, start: int, stop: int) -> np.ndarray:
        """Some images, read from the files as they are now."""
        draws, _, classes = self.array.shape
        found = np.empty((draws, stop - start, classes), np.float32)
        for piece in self._pieces:
            begin, end = max(start, piece.columns.start), min(stop, piece.columns.stop)
            if begin < end:
                block = self._files.block(piece)
                place = found[piece.draws.start : piece.draws.stop]
                offset = piece.columns.start
                place[:, begin - start : end - start] = block.columns(begin - offset, end - offset)
        return found


class _Files:
    """Parts that are open. Those with other images are closed when one is opened: there may be
    more of them than a process may open."""

    def __init__(self) -> None:
        self._open: dict[_Part, Draws] = {}

    def block(self, piece: _Piece) -> Block:
        part = piece.part
        if part not in self._open:
            for other in [one for one in self._open if one.images.stop <= part.images.start]:
                del self._open[other]
            draws = load_mapped(part.path)
            if (draws.image_range, draws.draw_range) != (part.images, part.draws):
                raise BayesCaffeError(f"{part.path}: has changed while it was read")
            self._open[part] = draws
        return next(one for one in self._open[part].blocks if one.first == piece.first)


def _outlines(paths: Sequence[Path]) -> tuple[list[_Part], tuple[int, int, int]]:
    """The parts by their first draw and image, and draws, images, classes of the whole."""
    parts, passes = [], 0
    first: Draws | None = None
    for path in paths:
        found = load_outline(path)
        first = first or found
        _check_same(first, found)
        passes = max(passes, found.whole[0])
        parts.append(_Part(path, found.image_range, found.draw_range, found))
    parts.sort(key=lambda part: (part.draws.start, part.images.start))
    return parts, (passes, first.whole[1], first.probabilities.shape[2])


def _check_same(first: Draws, other: Draws) -> None:
    """Raise if two parts do not belong together."""
    one, two = _shared(first), _shared(other)
    for name in dict.fromkeys((*one, *two)):
        if one.get(name) != two.get(name):
            raise BayesCaffeError(
                f"{other.meta['path']}: is no part of the same draws as {first.meta['path']}: its "
                f"{name} is {two.get(name)!r:.100}, not {one.get(name)!r:.100}"
            )


def _shared(draws: Draws) -> dict[str, object]:
    """What all parts have in common."""
    meta = draws.meta
    shared = {name: value for name, value in meta.items() if name not in OWN}
    if meta.get("models"):
        shared["models"] = [
            {name: value for name, value in one.items() if name not in PATHS}
            for one in meta["models"]
        ]
    if meta.get("data_sha256") is None:
        shared["data"] = meta.get("data")
    return {
        **shared,
        "number of classes": draws.probabilities.shape[2],
        "number of all images": draws.whole[1],
        "having labels": draws.labels is not None,
        "having names": meta.get("names") is not None,
    }


def _check_cover(parts: Sequence[_Part], passes: int, images: int) -> None:
    """Raise unless the parts have each draw of each image once."""
    rows = _edges([part.images for part in parts], images)
    columns = _edges([part.draws for part in parts], passes)
    # One cell for what lies between neighbouring edges.
    is_there = np.zeros((len(rows) - 1, len(columns) - 1), bool)
    for number, part in enumerate(parts):
        cells = is_there[
            rows[part.images.start] : rows[part.images.stop],
            columns[part.draws.start] : columns[part.draws.stop],
        ]
        if cells.any():
            other = next(one for one in parts[:number] if _common(one, part))
            raise BayesCaffeError(f"{other.path} and {part.path} both have {_common(other, part)}")
        cells[...] = True
    if holes := list(_holes(is_there, list(rows), list(columns))):
        more = f", and {len(holes) - SHOWN} more" if len(holes) > SHOWN else ""
        raise BayesCaffeError(
            f"not all parts are there: of {images:,} images x {passes:,} draws, these are "
            f"missing: {', '.join(holes[:SHOWN])}{more}"
        )


def _edges(ranges: Sequence[range], end: int) -> dict[int, int]:
    """Where ranges begin and end, each with its place in order."""
    edges = {0, end, *(edge for one in ranges for edge in (one.start, one.stop))}
    return {edge: place for place, edge in enumerate(sorted(edges))}


def _common(one: _Part, two: _Part) -> str | None:
    """What two parts both have."""
    images, draws = (
        range(max(a.start, b.start), min(a.stop, b.stop))
        for a, b in ((one.images, two.images), (one.draws, two.draws))
    )
    return _block(images, draws) if images and draws else None


def _holes(is_there: np.ndarray, rows: list[int], columns: list[int]) -> Iterator[str]:
    """The blocks that are missing; neighbouring images that lack the same draws are together."""
    for _, same in groupby(range(len(is_there)), lambda row: is_there[row].tobytes()):
        cells = list(same)
        images = range(rows[cells[0]], rows[cells[-1] + 1])
        for is_known, run in groupby(range(is_there.shape[1]), is_there[cells[0]].item):
            places = list(run)
            if not is_known:
                yield _block(images, range(columns[places[0]], columns[places[-1] + 1]))


def _block(images: range, draws: range) -> str:
    return f"images {span(images)} x draws {span(draws)}"


class _Values:
    """A value for each image or each draw, which all parts must tell alike."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._values = name, [None] * count

    def add(self, indices: range, values: list | None, path: Path) -> None:
        if values is None:
            return
        if len(values) != len(indices):
            raise BayesCaffeError(
                f"{path}: {len(values)} {self._name} in its meta, expected {len(indices)}"
            )
        known = self._values[indices.start : indices.stop]
        for index, value, other in zip(indices, values, known, strict=True):
            if other not in (None, value):
                raise BayesCaffeError(
                    f"{path}: {self._name} of number {index} is {value!r:.100}, but {other!r:.100} "
                    "in another part"
                )
        self._values[indices.start : indices.stop] = values

    def all(self) -> list | None:
        """None if no part tells them."""
        return None if None in self._values else self._values


def _told(
    parts: Sequence[_Part], passes: int, images: int
) -> tuple[np.ndarray | None, dict[str, object]]:
    """Labels and meta of the whole."""
    labels, names = _Values("labels", images), _Values("names", images)
    model_of_draw = _Values("model_of_draw", passes)
    created, seconds = [], 0.0
    for part in parts:
        draws = part.outline
        labels.add(part.images, None if draws.labels is None else draws.labels.tolist(), part.path)
        names.add(part.images, draws.meta.get("names"), part.path)
        model_of_draw.add(part.draws, draws.meta.get("model_of_draw"), part.path)
        created.append(draws.meta.get("created") or "")
        seconds += draws.meta.get("seconds") or 0
    whole = {
        "path": f"{parts[0].path} and {len(parts) - 1} more",
        "passes": passes,
        "names": names.all(),
        "model_of_draw": model_of_draw.all(),
        "created": max(created) or None,
        "seconds": seconds,
    }
    meta = {key: value for key, value in parts[0].outline.meta.items() if key != "part"}
    meta |= {key: value for key, value in whole.items() if key in meta}
    known = labels.all()
    return None if known is None else np.array(known, np.int64), meta
