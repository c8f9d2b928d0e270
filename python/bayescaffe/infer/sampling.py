"""Many passes of many images through a net, into a draws file."""

import logging
import os
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from bayescaffe import __version__
from bayescaffe.common.checks import check_class_names, check_passes
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import sha256
from bayescaffe.common.progress import ProgressBar
from bayescaffe.data.images import Images, open_images
from bayescaffe.net.model import Model
from bayescaffe.stats.draws import Draws, load_draws, save_draws

log = logging.getLogger(__name__)

# Images that are held in memory at a time, as they enter the net. For each such chunk the weights
# of every draw are sampled once, which is nothing beside so many images.
CHUNK_BYTES = 2**26


def sample(
    net: str | os.PathLike,
    weights: str | os.PathLike,
    data: str | os.PathLike | np.ndarray | Sequence[str | os.PathLike] | None = None,
    passes: int = 100,
    seed: int = 1,
    *,
    out: str | os.PathLike,
    labels: str | os.PathLike | np.ndarray | None = None,
    class_names: Sequence[str] | None = None,
    invert: bool = False,
    output: str | None = None,
    mc_dropout: bool = False,
    gpu: int | None = None,
    image_shape: tuple[int, int, int] | None = None,
    scale: float | None = None,
    mean: np.ndarray | Sequence[float] | float | None = None,
    progress: bool = True,
) -> Draws:
    """Take images through `passes` draws of a net and write the class probabilities to `out`.

    Pass k is draw k of the seed, the same network for every image and however many passes there
    are. Memory stays bounded for any number of images and passes.

    Args:
        data: see `images.open_images`; without it, the LMDB that the net reads in phase TEST.
        out: the draws file; one that is there is replaced when the new one is complete.
        labels, invert: see `images.open_images`.
        class_names: a name for each class, to be kept in the file.
        output, mc_dropout, gpu, image_shape, scale, mean: see `nets.Model`.
        progress: show a progress bar if this runs on a terminal.
    """
    check_passes(passes)
    out = Path(out)

    def open_source(source) -> Images:
        return open_images(source, labels=labels, class_names=class_names, invert=invert)

    source = None if data is None else open_source(data)
    model = Model(
        net,
        weights,
        seed=seed,
        output=output,
        mc_dropout=mc_dropout,
        gpu=gpu,
        image_shape=image_shape or (source.shape if source else None),
        scale=scale,
        mean=mean,
    )
    check_class_names(class_names, model.classes)
    if source is None:
        if model.data is None:
            raise BayesCaffeError(f"{net}: reads no LMDB in phase TEST; say which data to take")
        source = open_source(model.data)
    source.fit(model.image_shape)
    if passes > 1 and not model.is_random:
        log.info("%s: no layer is random, so all passes are equal and one would do", net)

    meta = {
        "seed": seed,
        "net": str(net),
        "weights": str(weights),
        "net_sha256": sha256(net),
        "weights_sha256": sha256(weights),
        "data": str(source.path) if source.path else None,
        "passes": passes,
        "version": __version__,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "class_names": None if class_names is None else list(class_names),
        "names": source.names,
        "mc_dropout": mc_dropout,
        "is_random": model.is_random,
    }
    if not out.parent.is_dir():
        raise BayesCaffeError(f"{out}: cannot be written, there is no directory {out.parent}")
    size = passes * len(source) * model.classes
    with tempfile.TemporaryFile(dir=out.parent) as scratch:
        # Without this, a full disk would be a bus error in the middle of the work.
        os.posix_fallocate(scratch.fileno(), 0, 4 * size)
        numbers = np.memmap(scratch, np.float32, "r+", shape=(size,))
        parts, found_labels, seconds = _sample_chunks(model, source, passes, numbers, progress)
        save_draws(out, parts, found_labels, {**meta, "seconds": seconds})
    return load_draws(out)


def _sample_chunks(
    model: Model, source: Images, passes: int, numbers: np.ndarray, progress: bool
) -> tuple[list[np.ndarray], np.ndarray | None, float]:
    """Fill `numbers` with the probabilities, chunk of images after chunk of images.

    Returns the chunks' arrays (passes x images x classes), which are views of `numbers`, the
    labels, and the seconds that the net took.
    """
    chunk_size = max(1, CHUNK_BYTES // (4 * int(np.prod(model.image_shape))))
    parts, labels = [], []
    start, seconds = 0, 0.0
    with ProgressBar(passes * len(source), "sampling", show=progress, scale=True) as bar:
        for images, chunk_labels in source.chunks(chunk_size):
            count = len(images)
            if chunk_labels is not None:
                _check_labels(chunk_labels, start, source, model.classes)
                labels.append(chunk_labels)
            if start == 0:
                _warn_of_small_numbers(images, model, source)
            values = passes * count * model.classes
            part = numbers[start * passes * model.classes :][:values]
            part = part.reshape(passes, count, model.classes)

            def show(share: float, done: int = passes * start, work: int = passes * count) -> None:
                bar.move_to(round(done + share * work))

            began = time.perf_counter()
            model.sample(images, passes, out=part, progress=show)
            seconds += time.perf_counter() - began
            _check_probabilities(part, images, start, source)
            parts.append(part)
            start += count
    return parts, np.concatenate(labels) if labels else None, seconds


def _check_labels(labels: np.ndarray, start: int, source: Images, classes: int) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise BayesCaffeError(
            f"{source.describe(start + wrong[0])}: label {labels[wrong[0]]} is not within "
            f"0..{classes - 1}, the classes of the net"
        )


def _check_probabilities(part: np.ndarray, images: np.ndarray, start: int, source: Images) -> None:
    # A sum is NaN or infinite if any of its terms is, and is quicker than looking at each.
    if np.isfinite(part.sum(dtype=np.float64)):
        return
    draw, row, _ = (int(where[0]) for where in np.nonzero(~np.isfinite(part)))
    name = source.describe(start + row)
    if not np.isfinite(images[row]).all():
        raise BayesCaffeError(f"{name}: has pixels that are no numbers (NaN or infinite)")
    raise BayesCaffeError(
        f"{name}: the net gives a probability that is no number (NaN), in draw {draw}; its weights "
        "may be too large"
    )


def _warn_of_small_numbers(images: np.ndarray, model: Model, source: Images) -> None:
    if images.dtype.kind == "f" and images.max() <= 1 and model.transform.scale < 0.1:
        log.warning(
            "%s: numbers are at most 1, and the net scales them by %g; is 0 to 255 meant? "
            "(--scale 1 leaves them as they are)",
            source.path or "array",
            model.transform.scale,
        )
