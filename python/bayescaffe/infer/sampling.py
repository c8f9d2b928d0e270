"""Images through many draws of a net: `sample`.

model = bayescaffe.Model("net.prototxt", "net.caffemodel")
draws = bayescaffe.sample(model, images, passes=100)
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument, span
from bayescaffe.data.images import Images, ImageSource, open_images
from bayescaffe.infer.stages import as_rule
from bayescaffe.infer.work import Work
from bayescaffe.infer.workers import draw_on_workers
from bayescaffe.net.analytic import ANALYTIC, as_analytic
from bayescaffe.net.mixture import Mixture, as_mixture
from bayescaffe.net.model import Model
from bayescaffe.stats.draws import Draws, load_draws
from bayescaffe.stats.stopping import StoppingRule

log = logging.getLogger(__name__)


def sample(
    model: Model | Mixture | str | os.PathLike,
    images: ImageSource | None = None,
    passes: int | str | None = None,
    *,
    weights: str | os.PathLike | Sequence[str | os.PathLike] | None = None,
    out: str | os.PathLike | None = None,
    adaptive: StoppingRule | str | os.PathLike | None = None,
    labels: str | os.PathLike | np.ndarray | None = None,
    class_names: Sequence[str] | None = None,
    channels: str | None = None,
    invert: bool = False,
    image_range: range | None = None,
    draw_range: range | None = None,
    workers: int | None = None,
    dask: str | None = None,
    parts: str | os.PathLike | None = None,
    progress: bool = True,
) -> Draws:
    """Compute the class probabilities of images in many draws of a net.

    Draw k of a seed is the same network for every image, for any number of draws, on every machine.

    Args:
        model: a loaded `Model`, a `Mixture` of several, or a prototxt; a `Model` takes a seed and
            other options.
        images: see `open_images`; without it, the LMDB that the net reads in phase TEST.
        passes: the number of draws; by default 100, or one of each model for a `Mixture` in which
            no model is random. Or "analytic": means and variances go through the net once, at the
            price of about three draws, and 256 draws are taken of the scores alone.
        weights: the caffemodel, if `model` is a prototxt; several are a `Mixture`.
        out: the draws file to write; one that is there is replaced when the new one is complete.
            The probabilities are written in place, so they may be larger than memory. Without
            `out` they stay in memory. With `adaptive`, the draws after the first stage stay in
            memory until the file is complete.
        adaptive: a `StoppingRule` or its file: images whose answer is settled get no more draws.
        labels, channels, invert: see `open_images`.
        class_names: a name for each class, to be kept with the draws; by default those of the
            net's LMDB.
        image_range, draw_range: compute only these of the images and of the `passes` draws, such as
            range(50, 100). The result has the bits that the whole has there, and its meta tells
            which part it is; `merge` joins such files. With `adaptive` or "analytic", the draws of
            an image belong together, and only `image_range` works.
        workers: compute in so many processes, with Dask. A script needs
            `if __name__ == "__main__":`, as for multiprocessing.
        dask: compute on the workers of the Dask scheduler of this address, tcp://host:port. They
            must see the net, the images and the folder of `out` under the same names.
        parts: a folder where workers write parts of the result, as `image_range` and `draw_range`
            give them. They stay there when all is done. Without it they are beside `out`, and
            removed.
        progress: show a progress bar if this runs on a terminal or in a notebook.
    """
    if out is not None and not Path(out).parent.is_dir():
        raise BayesCaffeError(f"{out}: cannot be written, there is no directory {Path(out).parent}")

    def open_source(data: ImageSource) -> Images:
        return open_images(data, labels=labels, channels=channels, invert=invert)

    ranges = {"image_range": image_range, "draw_range": draw_range}
    _check_combination(ranges, {"workers": workers, "dask": dask}, passes, adaptive, out, parts)
    source = None if images is None else open_source(images)
    model = as_mixture(model, weights, source.shape if source else None)
    is_analytic = passes == ANALYTIC
    if is_analytic:
        model, passes = as_analytic(model, adaptive)
    rule = None if adaptive is None else as_rule(adaptive, model, passes)
    passes = model.passes_for(rule.passes if rule else passes)
    if (enough := model.distinct_draws) and passes > enough:
        equal = (
            "all draws are equal and one is" if enough == 1 else f"draws repeat and {enough} are"
        )
        log.info("%s: no layer is random, so %s enough", model.path, equal)
    class_names = model.names_for(class_names)
    if source is None:
        if model.test_images is None:
            lmdb = f"the LMDB {model.data} is not there" if model.data else "the net reads no LMDB"
            raise BayesCaffeError(f"{model.path}: {lmdb}; name the images as {argument('images')}")
        source = open_source(model.test_images)
    images_of = _checked_range("image_range", image_range, len(source), "images")
    draws_of = _checked_range("draw_range", draw_range, passes, "draws")
    work = Work(model, source, passes, class_names, rule=rule, is_analytic=is_analytic)
    if workers or dask:
        return draw_on_workers(work, Path(out), workers, dask, parts, progress)
    drawn = work.draw(out, images_of, draws_of, progress)
    return drawn or load_draws(out)


def _check_combination(
    ranges: dict[str, object],
    places: dict[str, object],
    passes: int | str | None,
    adaptive: object,
    out: object,
    parts: object,
) -> None:
    """Raise if arguments of `sample` cannot go together.

    Args:
        ranges: those that choose a part, by name.
        places: those that choose where to compute.
    """
    chosen = [argument(name) for name, value in ranges.items() if value is not None]
    where = [argument(name) for name, value in places.items() if value is not None]
    if ranges["draw_range"] is not None:
        name = argument("draw_range")
        if adaptive is not None:
            raise BayesCaffeError(
                f"{argument('adaptive')}: does not work with {name}, because the first draws of an "
                f"image decide whether it gets more; {argument('image_range')} makes parts"
            )
        if passes == ANALYTIC:
            raise BayesCaffeError(
                f"{argument('passes', ANALYTIC)}: does not work with {name}, because all draws "
                f"come from one pass; {argument('image_range')} makes parts"
            )
    if len(where) > 1:
        raise BayesCaffeError(f"{where[1]}: does not work with {where[0]}")
    if where and chosen:
        raise BayesCaffeError(
            f"{chosen[0]}: does not work with {where[0]}, which computes all parts"
        )
    if where and out is None:
        raise BayesCaffeError(f"{where[0]}: needs a file to write, {argument('out')}")
    if parts is not None and not where:
        raise BayesCaffeError(f"{argument('parts')}: needs {argument('workers')} or a Dask cluster")
    if places["workers"] is not None and places["workers"] < 1:
        raise BayesCaffeError(f"{argument('workers', places['workers'])}: at least one is needed")


def _checked_range(name: str, indices: range | None, count: int, what: str) -> range:
    """This range, by default all."""
    if indices is None:
        return range(count)
    if not isinstance(indices, range) or indices.step != 1 or not indices:
        raise BayesCaffeError(f"{argument(name, indices)}: expected a range such as range(0, 100)")
    if indices.start < 0 or indices.stop > count:
        raise BayesCaffeError(
            f"{argument(name)}: {span(indices)} is not within {span(range(count))}, the {what}"
            + (f"; {argument('passes')} sets their number" if what == "draws" else "")
        )
    return indices
