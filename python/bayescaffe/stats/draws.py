"""Draws files: the class probabilities that many draws of a net give to many images.

A draws file is an uncompressed .npz with the members

    probabilities   float32, draws x images x classes
    labels          int64 per image; missing if the labels are not known
    meta            JSON text: where the numbers come from

so `np.load(path)["probabilities"]` reads it too. `load_draws` maps more than 1 GiB of them into
memory instead of reading them, so a file may be larger than memory.

Adaptive sampling gives some images fewer draws. Its files have these members as well:

    draw_counts        int64 per image: how many draws it has, the first ones
    probabilities_K    float32, draws x images x classes: the draws from K on, up to those of the
                       next member, of the images with more than K draws, in order

`probabilities` then has the draws that all images have.

A file may be a part of the draws, of the images or of both. Then `part` in its meta is an object:
`first_draw` and `first_image` name the first that it has, and `all_images` is the number of images
of the whole; `passes` is the number of draws of the whole. `merge` joins such files.
"""

import functools
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, span
from bayescaffe.common.files import scratch_file
from bayescaffe.common.npz import NpzFile, StoredArray, write_npz
from bayescaffe.common.packages import import_optional
from bayescaffe.common.reading import parse_json

MODEL_FILES = ("net", "weights", "net_sha256", "weights_sha256")
"""What `meta` tells of a model: the paths as given, and the hashes of these files."""
PART_NUMBERS = 2**18
"""Probabilities processed at a time: a few megabytes with all copies."""
LATER = re.compile(r"probabilities_(\d+)")
"""The members of a draws file that have further draws of some images."""


@dataclass(frozen=True)
class Block:
    """Consecutive draws of some images."""

    first: int
    """The index of the first of these draws."""
    images: np.ndarray
    """The indices of the images, increasing."""
    probabilities: np.ndarray
    """float32, draws x images x classes."""
    stored: StoredArray | None = field(default=None, repr=False, compare=False)
    """Where the probabilities are read from, if they are not in memory."""

    @property
    def end(self) -> int:
        """The index of the last of these draws, and 1."""
        return self.first + len(self.probabilities)

    def of_images(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Which of the images from `start` to before `stop` are in it, and their probabilities."""
        begin, end = np.searchsorted(self.images, (start, stop)).tolist()
        return self.images[begin:end], self.columns(begin, end)

    def columns(self, begin: int, end: int) -> np.ndarray:
        """The probabilities of its images from the one at `begin` to before that at `end`."""
        is_stored = self.stored is not None and self.stored.array is self.probabilities
        if is_stored and end > begin:
            return self.stored.columns(begin, end)
        return np.asarray(self.probabilities[:, begin:end])


@dataclass(frozen=True)
class Draws:
    """The class probabilities of images, one set for each network drawn from the posterior."""

    probabilities: np.ndarray
    """float32, draws x images x classes; read-only if loaded from a file.

    More than 1 GiB is a memory map of the file. If somebody truncates that file, using the map ends
    the process; use `of_images` or `parts`, which raise an error then.

    After adaptive sampling, these are the draws that all images have."""
    labels: np.ndarray | None = None
    """int64 per image; None if not known."""
    meta: dict = field(default_factory=dict)
    """Where they come from: seed, net and weights (paths as given), net_sha256, weights_sha256,
    data (absolute path), data_sha256, passes (the number of draws), version, created (UTC),
    class_names, names (of image files); path, if loaded from a file. `antithetic` is there and true
    if the draws are pairs of mirror images.

    Of several models, `models` has these four of each, and `model_of_draw` has the index of the
    model of each draw: draw k of the file is draw k of that model.

    After adaptive sampling, `stopping_rule` is the rule that settled the images, and `passes` the
    number of draws of an image that it did not settle.

    If these are a part, `part` tells which: see `image_range` and `draw_range`."""
    later: tuple[Block, ...] = ()
    """After adaptive sampling, further draws of the images that were not settled by then."""
    _stored: StoredArray | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        """A few lines for a terminal or a notebook, without arrays."""
        shape = " x ".join(f"{size:,}" for size in np.shape(self.probabilities))
        labels = "no labels" if self.labels is None else "with labels"
        lines = [f"Draws: {shape} (draws x images x classes), {labels}"]
        if self.is_adaptive:
            mean = f"{self.draw_counts.mean():.1f}"
            lines.append(f"  adaptive: up to {self.passes} draws of an image, {mean} on average")
        if self.part:
            lines.append(f"  part: {self.part}")
        known = [key for key in ("path", "net", "weights", "data", "seed") if key in self.meta]
        lines += [f"  {key}: {self.meta[key]}" for key in known]
        if self.meta.get("models"):
            lines.append(f"  models: {', '.join(str(one['weights']) for one in self.models)}")
        return "\n".join(lines)

    @property
    def models(self) -> list[dict]:
        """Where the models come from, one or several: net, weights, net_sha256, weights_sha256;
        None for what is not known."""
        return [
            {key: one.get(key) for key in MODEL_FILES}
            for one in self.meta.get("models") or [self.meta]
        ]

    @property
    def passes(self) -> int:
        """The number of draws of an image that has all of them."""
        if self.is_adaptive and isinstance(self.meta.get("passes"), int):
            return self.meta["passes"]
        return self.blocks[-1].end

    @property
    def draw_range(self) -> range:
        """The names of the draws: those of a part need not begin with 0."""
        first = self._part.get("first_draw", 0)
        return range(first, first + self.passes)

    @property
    def image_range(self) -> range:
        """Which of all images these are."""
        first = self._part.get("first_image", 0)
        return range(first, first + self.probabilities.shape[1])

    @property
    def whole(self) -> tuple[int, int]:
        """How many draws and images there are with all other parts."""
        if not self._part:
            return self.passes, self.probabilities.shape[1]
        return self.meta["passes"], self._part["all_images"]

    @property
    def part(self) -> str | None:
        """Which part of the whole these are, for people; None if they are the whole."""
        passes, images = self.whole
        if (len(self.draw_range), len(self.image_range)) == (passes, images):
            return None
        return (
            f"images {span(self.image_range)} of {images:,}, draws {span(self.draw_range)} of "
            f"{passes:,}"
        )

    @property
    def _part(self) -> dict[str, int]:
        return self.meta.get("part") or {}

    @property
    def is_adaptive(self) -> bool:
        """Whether images may have unequal numbers of draws."""
        return bool(self.later) or self.meta.get("stopping_rule") is not None

    @property
    def is_analytic(self) -> bool:
        """Whether they are of the scores' distribution, and not of the weights."""
        return self.meta.get("analytic") is True

    @property
    def draw_counts(self) -> np.ndarray:
        """How many draws each image has: the first ones."""
        draws, images, _ = self.probabilities.shape
        counts = np.full(images, draws, np.int64)
        for block in self.later:
            counts[block.images] = block.end
        return counts

    @functools.cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The draws that all images have, and `later`."""
        images = np.arange(np.shape(self.probabilities)[1])
        return (Block(0, images, self.probabilities, self._stored), *self.later)

    def of_images(self, start: int, stop: int) -> np.ndarray:
        """The probabilities of the images from `start` to before `stop`, draws x images x classes;
        NaN for draws that an image does not have.

        From a large file, they are read as it is now. If it was truncated, that is an error.
        """
        found = [(block, *block.of_images(start, stop)) for block in self.blocks]
        if not self.later:
            return found[0][2]
        shape = (found[-1][0].end, stop - start, self.probabilities.shape[2])
        whole = np.full(shape, np.nan, np.float32)
        for block, images, probabilities in found:
            whole[block.first : block.end, images - start] = probabilities
        return whole

    def of_image(self, index: int) -> np.ndarray:
        """The probabilities of one image in the draws that it has, draws x classes."""
        return self.of_images(index, index + 1)[: self.draw_counts[index], 0]

    def parts(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All probabilities, a few images at a time: the indices of the images, and their
        probabilities, draws x images x classes. Images of a part have equally many draws."""
        _, images, classes = self.probabilities.shape
        counts = self.draw_counts
        step = max(1, PART_NUMBERS // (self.blocks[-1].end * classes))
        for start in range(0, images, step):
            stop = min(start + step, images)
            whole, of_part = self.of_images(start, stop), counts[start:stop]
            for count in np.unique(of_part):
                rows = np.flatnonzero(of_part == count)
                is_all = len(rows) == stop - start
                yield start + rows, whole[:count] if is_all else whole[:count, rows]

    def to_xarray(self):
        """A DataArray of xarray: the probabilities by draw, image and class.

        Images are named by their files and classes by their names, if these are known. Labels are
        a coordinate, and so is the model of each draw if there are several. The probabilities are
        not copied, and what `meta` tells is in `attrs`.

        After adaptive sampling, a draw that an image does not have is NaN, and the number of draws
        of each image is the coordinate `draws`.
        """
        xarray = import_optional("xarray", "to_xarray")
        probabilities = self.probabilities
        if self.later:
            probabilities = self.of_images(0, probabilities.shape[1])
        draws, images, classes = probabilities.shape
        names, class_names = self.meta.get("names"), self.meta.get("class_names")
        coords = {
            "draw": np.arange(draws) + self.draw_range.start,
            "image": np.arange(images) + self.image_range.start if names is None else names,
            "class": np.arange(classes) if class_names is None else class_names,
        }
        if self.labels is not None:
            coords["label"] = ("image", self.labels)
        if self.meta.get("model_of_draw"):
            coords["model"] = ("draw", self.meta["model_of_draw"][:draws])
        if self.is_adaptive:
            coords["draws"] = ("image", self.draw_counts)
        facts = {
            key: value for key, value in self.meta.items() if isinstance(value, (str, int, float))
        }
        return xarray.DataArray(
            probabilities,
            coords,
            ("draw", "image", "class"),
            name="probability",
            # Files of netCDF know no booleans.
            attrs={key: int(v) if isinstance(v, bool) else v for key, v in facts.items()},
        )

    def to_inference_data(self):
        """ArviZ's InferenceData: `probability` in the group posterior, as one chain.

        Labels are in the group observed_data. ArviZ 1.0 has xarray's DataTree in its place.
        """
        arviz = import_optional("arviz", "to_inference_data")
        array = self.to_xarray()
        groups = {"posterior": array.drop_vars("label", errors="ignore").expand_dims("chain")}
        if self.labels is not None:
            groups["observed_data"] = array["label"].drop_vars("label")
        groups = {name: one.to_dataset() for name, one in groups.items()}
        if hasattr(arviz, "InferenceData"):
            return arviz.InferenceData(**groups)
        return import_optional("xarray", "to_inference_data").DataTree.from_dict(groups)


def save_draws(
    path: str | os.PathLike, probabilities: np.ndarray, labels: np.ndarray | None, meta: dict
) -> None:
    """Write a draws file. An existing file is replaced only when the new one is complete."""

    def fill(array: np.ndarray) -> Draws:
        array[...] = probabilities
        return Draws(array, labels, meta)

    write_draws(path, np.shape(probabilities), fill)


def write_draws(
    path: str | os.PathLike,
    shape: tuple[int, int, int],
    fill: Callable[[np.ndarray], Draws],
) -> None:
    """Write a draws file in place. An existing file is replaced only when the new one is complete.

    Args:
        shape: draws, images, classes.
        fill: fills the probabilities, a memory map of the file, and returns the draws of which they
            are a part.
    """

    def members(probabilities: np.ndarray) -> dict[str, np.ndarray]:
        draws = fill(probabilities)
        found = {f"probabilities_{block.first}": block.probabilities for block in draws.later}
        if draws.is_adaptive:
            found["draw_counts"] = draws.draw_counts
        if draws.labels is not None:
            found["labels"] = np.asarray(draws.labels, np.int64)
        return {**found, "meta": np.array(json.dumps(draws.meta))}

    with scratch_file(Path(path)) as scratch:
        write_npz(scratch, "probabilities", shape, np.float32, members)


def load_draws(path: str | os.PathLike) -> Draws:
    """Open a draws file.

    Up to 1 GiB of probabilities are read into memory. More than that stays on disk until it is
    used: see `Draws.probabilities`.
    """
    return _load(path)


def load_mapped(path: str | os.PathLike) -> Draws:
    """Open a draws file, and leave its probabilities on disk until they are used, however few."""
    return _load(path, is_mapped=True)


def load_outline(path: str | os.PathLike) -> Draws:
    """Open a draws file without reading its probabilities; zeros that take no memory stand for
    them. All else is checked as `load_draws` does."""
    return _load(path, is_outline=True)


def _load(path: str | os.PathLike, is_outline: bool = False, is_mapped: bool = False) -> Draws:
    with NpzFile(path, is_mapped) as file:

        def read(name: str) -> tuple[np.ndarray, StoredArray | None]:
            if is_outline:
                return file.outline(name), None
            stored = file.stored(name)
            return stored.array, stored

        probabilities, stored = read("probabilities")
        labels = file.array("labels") if "labels" in file else None
        counts = file.array("draw_counts") if "draw_counts" in file else None
        more = {int(k[1]): read(k[0]) for k in map(LATER.fullmatch, file) if k}
        text = file.array("meta")
    try:
        meta = parse_json(str(text))
    except ValueError as error:
        raise BayesCaffeError(f"{path}: not a draws file, its meta is not JSON: {error}") from error
    if not isinstance(meta, dict):
        raise BayesCaffeError(f"{path}: not a draws file, its meta is {meta!r}, expected an object")
    if probabilities.ndim != 3 or probabilities.dtype != np.float32 or not probabilities.size:
        raise BayesCaffeError(
            f"{path}: not a draws file: probabilities are {probabilities.dtype} of shape "
            f"{probabilities.shape}, expected float32, draws x images x classes"
        )
    if labels is not None and (
        labels.shape != probabilities.shape[1:2] or labels.dtype.kind not in "iu"
    ):
        raise BayesCaffeError(
            f"{path}: not a draws file: labels are {labels.dtype} of shape {labels.shape}, "
            f"expected one whole number for each of {probabilities.shape[1]} images"
        )
    labels = None if labels is None else np.array(labels, np.int64)
    _check_meta(meta, path)
    later = _later(probabilities, counts, more, path)
    draws = Draws(probabilities, labels, {**meta, "path": str(path)}, later, stored)
    most = draws.draw_counts.max()
    if draws.passes < most:
        raise BayesCaffeError(
            f"{path}: not a draws file, 'passes' in its meta is {draws.passes}, but an image has "
            f"{most} draws"
        )
    _check_models(meta, draws.passes, path)
    _check_part(draws, path)
    return draws


def _later(
    probabilities: np.ndarray,
    counts: np.ndarray | None,
    more: dict[int, tuple[np.ndarray, StoredArray | None]],
    path: str | os.PathLike,
) -> tuple[Block, ...]:
    """The further draws of some images, from the members by their first draw."""
    draws, images, classes = probabilities.shape
    if counts is None:
        counts = np.full(images, draws)
    if counts.shape != (images,) or counts.dtype.kind not in "iu":
        raise BayesCaffeError(
            f"{path}: not a draws file: draw_counts are {counts.dtype} of shape {counts.shape}, "
            f"expected one whole number for each of {images} images"
        )
    ends, blocks = [draws], []
    for first, (array, stored) in sorted(more.items()):
        rows = np.flatnonzero(counts > first)
        shape = (len(rows), classes)
        if array.dtype != np.float32 or array.shape[1:] != shape or not len(array):
            raise BayesCaffeError(
                f"{path}: not a draws file: probabilities_{first} are {array.dtype} of shape "
                f"{array.shape}, expected float32, draws x {shape[0]} images with more than "
                f"{first} draws x {classes} classes"
            )
        if first != ends[-1]:
            raise BayesCaffeError(
                f"{path}: not a draws file: has probabilities_{first}, but the draws before end "
                f"with {ends[-1] - 1}"
            )
        blocks.append(Block(first, rows, array, stored))
        ends.append(blocks[-1].end)
    wrong = np.flatnonzero(~np.isin(counts, ends))
    if len(wrong):
        raise BayesCaffeError(
            f"{path}: not a draws file: image {wrong[0]} has {counts[wrong[0]]} draws by "
            f"draw_counts, expected one of {', '.join(map(str, ends))}"
        )
    return tuple(blocks)


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


_TEXT = (lambda value: isinstance(value, str), "a text")
_NUMBER = (lambda value: isinstance(value, (int, float)), "a number")
_NAMES = (_is_names, "a list of texts")
_EXPECTED = {
    **dict.fromkeys((*MODEL_FILES, "data", "version", "created", "channels", "data_sha256"), _TEXT),
    **dict.fromkeys(("seed", "passes", "seconds"), _NUMBER),
    **dict.fromkeys(("names", "class_names"), _NAMES),
    "stopping_rule": (lambda value: isinstance(value, dict), "an object"),
}


def _check_meta(meta: dict, path: str | os.PathLike) -> None:
    """Raise if a field that others read is of another type. Any field may be missing or null."""
    for name, (is_valid, expected) in _EXPECTED.items():
        value = meta.get(name)
        if value is not None and not is_valid(value):
            raise BayesCaffeError(
                f"{path}: not a draws file, {name!r} in its meta is {value!r:.100}, expected "
                f"{expected} or null"
            )


def _check_models(meta: dict, draws: int, path: str | os.PathLike) -> None:
    """Raise if what is said of several models is not whole; both fields may be missing or null."""
    models, of_draw = meta.get("models"), meta.get("model_of_draw")
    if models is None and of_draw is None:
        return
    if not isinstance(models, list) or not models or not all(isinstance(x, dict) for x in models):
        raise BayesCaffeError(
            f"{path}: not a draws file, 'models' in its meta is {models!r:.100}, expected a list "
            "of objects"
        )
    for one in models:
        _check_meta(one, path)
    numbers = range(len(models))
    is_list = isinstance(of_draw, list) and all(isinstance(x, int) for x in of_draw)
    if not is_list or len(of_draw) != draws or not all(x in numbers for x in of_draw):
        raise BayesCaffeError(
            f"{path}: not a draws file, 'model_of_draw' in its meta is {of_draw!r:.100}, expected "
            f"a number within 0..{len(models) - 1} for each of {draws} draws"
        )


def _check_part(draws: Draws, path: str | os.PathLike) -> None:
    """Raise if what is said of a part is not whole, or not within the whole."""
    part, passes = draws.meta.get("part"), draws.meta.get("passes")
    if part is None:
        return
    names = ("first_draw", "first_image", "all_images")
    is_part = isinstance(part, dict) and all(type(part.get(name)) is int for name in names)
    if not is_part or min(part["first_draw"], part["first_image"]) < 0:
        raise BayesCaffeError(
            f"{path}: not a draws file, 'part' in its meta is {part!r:.100}, expected an object "
            f"with the numbers {', '.join(names)}"
        )
    for indices, name, count in (
        (draws.draw_range, "passes", passes),
        (draws.image_range, "all_images", part["all_images"]),
    ):
        if type(count) is not int or indices.stop > count:
            raise BayesCaffeError(
                f"{path}: not a draws file, {name!r} in its meta is {count!r:.100}, but it has "
                f"number {indices.stop - 1}"
            )
