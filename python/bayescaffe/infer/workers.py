"""`sample` in several processes, on one machine or many, with Dask.

A task is some draws of some images. The worker that takes it opens the net and the images by their
names, once, and writes a part file into a folder that all see. No array goes through the scheduler.
At the end the parts are merged. Draws have names, so the bits are those of one process.
"""

import contextlib
import logging
import math
import os
import secrets
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayescaffe import __version__
from bayescaffe.common.errors import (
    BayesCaffeError,
    argument,
    arguments_are_options,
    known_options,
    span,
)
from bayescaffe.common.files import scratch_folder
from bayescaffe.common.limits import VARIABLES, limit, limits
from bayescaffe.common.packages import import_optional
from bayescaffe.common.progress import ProgressBar
from bayescaffe.common.provenance import cores
from bayescaffe.data.images import open_images
from bayescaffe.infer.work import Work
from bayescaffe.net.mixture import Mixture, mixture
from bayescaffe.net.model import Model
from bayescaffe.stats.draws import Draws
from bayescaffe.stats.merging import merge

log = logging.getLogger(__name__)

TASK_IMAGES = 1000
"""Of one task at most. The weights of a draw are drawn anew for each task, which takes as long as
a few images do."""
TASK_BYTES = 2**28
"""Of the probabilities of one task at most."""
TASKS_PER_WORKER = 4
"""At least, so that workers end at about the same time."""
CONNECT_SECONDS = 10


@dataclass(frozen=True)
class Job:
    """What a worker needs to know once."""

    key: str
    """No two jobs have the same."""
    folder: str
    """The current directory, for names that are relative to it."""
    models: list[dict[str, Any]]
    """`Model.recipe` of each."""
    images: dict[str, Any] | None
    """`Images.recipe`; None for the net's own images."""
    passes: int
    class_names: Sequence[str] | None
    data_sha256: str | None
    options: dict[str, str]
    """How errors call arguments."""
    limits: dict[str, int]


def draw_on_workers(
    work: Work,
    out: Path,
    workers: int | None,
    dask: str | None,
    parts: str | os.PathLike | None,
    progress: bool,
) -> Draws:
    """All draws of all images into the file `out`; `sample` tells of the arguments."""
    name = argument("workers", workers) if dask is None else argument("dask", dask)
    distributed = import_optional("distributed", name)
    job, total = _job(work), len(work.source) * work.passes
    place = (out.parent if parts is None else Path(parts)).absolute()
    place.mkdir(parents=True, exist_ok=True)
    with (
        scratch_folder(place / out.name) as folder,
        _cluster(distributed, workers, dask) as client,
        ProgressBar(total, "sampling", show=progress, scale=True) as bar,
    ):
        before = _addresses(client)
        tasks = _tasks(work, len(before))
        paths = _draw_all(distributed, client, job, tasks, folder, bar)
        if lost := len(before - _addresses(client)):
            log.warning("%d worker%s died; the tasks were computed again", lost, "s" * (lost > 1))
        draws = merge(paths, out, progress)
        if parts is not None:
            for path in paths:
                path.rename(place / path.name)
        return draws


def _job(work: Work) -> Job:
    if work.source.recipe is None and work.source is not work.model.test_images:
        raise BayesCaffeError(
            f"{argument('images')}: workers open images by name; give an LMDB, a folder, a list of "
            "files or an array file"
        )
    models = work.model.models if isinstance(work.model, Mixture) else [work.model]
    return Job(
        key=secrets.token_hex(8),
        folder=os.getcwd(),
        models=[model.recipe for model in models],
        images=work.source.recipe,
        passes=work.passes,
        class_names=work.class_names,
        data_sha256=work.data_sha256,
        options=dict(known_options()),
        limits={name: limit(name) for name in VARIABLES},
    )


def _tasks(work: Work, workers: int) -> list[tuple[range, range]]:
    """Images and draws of each task."""
    images, draws = len(work.source), work.passes
    of_images = _split(images, math.ceil(images / TASK_IMAGES))
    at_most = max(1, TASK_BYTES // (4 * work.model.classes * len(of_images[-1])))
    pieces = max(math.ceil(TASKS_PER_WORKER * workers / len(of_images)), math.ceil(draws / at_most))
    of_draws = _split(draws, min(draws, pieces))
    return [(one, other) for one in of_images for other in of_draws]


def _split(count: int, pieces: int) -> list[range]:
    """Ranges of about the same length."""
    edges = [count * piece // pieces for piece in range(pieces + 1)]
    return [range(*both) for both in zip(edges, edges[1:], strict=False)]


@contextlib.contextmanager
def _cluster(distributed, workers: int | None, dask: str | None) -> Iterator[Any]:
    """A client of the scheduler at an address, or of one with so many workers of its own."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_silent("distributed"))
        if dask is None:
            threads = max(1, cores() // workers)
            dask = stack.enter_context(
                distributed.LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,  # of Python; Caffe has its own
                    memory_limit=0,  # none, as for one process
                    dashboard_address="127.0.0.1:0",  # not a port that another may have
                    silence_logs=logging.CRITICAL,
                    local_directory=stack.enter_context(tempfile.TemporaryDirectory()),
                    env={"OMP_NUM_THREADS": str(threads)},
                )
            )
        try:
            client = distributed.Client(dask, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise BayesCaffeError(
                f"{argument('dask', dask)}: no scheduler answers: {error}"
            ) from error
        stack.enter_context(client)
        if workers:
            client.register_plugin(_ignore_interrupts(distributed))
        if not _addresses(client):
            log.info("%s: has no workers yet; waiting for the first", dask)
            client.wait_for_workers(1)
        if not workers:
            _check_versions(client, argument("dask", dask))
        yield client


def _check_versions(client, name: str) -> None:
    """Raise if others have another version of this package: what they cannot read ends them."""
    try:
        found = {client.run_on_scheduler(installed), *client.run(installed).values()}
    except Exception as error:  # an ImportError, which some versions of Dask give another type
        raise BayesCaffeError(
            f"{name}: the scheduler or a worker lacks bayescaffe {__version__}: {error}"
        ) from error
    if others := found - {__version__}:
        raise BayesCaffeError(
            f"{name}: has bayescaffe {', '.join(sorted(others))}, but this is {__version__}"
        )


def _ignore_interrupts(distributed):
    """A plugin for workers: Ctrl-C is for the process that has started them."""

    class IgnoreInterrupts(distributed.WorkerPlugin):
        def setup(self, worker) -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    return IgnoreInterrupts()


@contextlib.contextmanager
def _silent(name: str) -> Iterator[None]:
    """Without the log of a package."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def _addresses(client) -> set[str]:
    """Of the workers."""
    return set(client.nthreads())


def _draw_all(
    distributed,
    client,
    job: Job,
    tasks: Sequence[tuple[range, range]],
    folder: Path,
    bar: ProgressBar,
) -> list[Path]:
    """Run tasks; return their files."""
    # A task of its own, so that it travels to each worker once, and again if one is lost.
    known = client.submit(_same, job, key=f"bayescaffe-{job.key}")
    blocks = {}
    for images, draws in tasks:
        path = folder / f"images-{span(images)}.draws-{span(draws)}.npz"
        future = client.submit(draw_part, known, images, draws, path, pure=False)
        blocks[future] = (images, draws, path)
    try:
        for future in distributed.as_completed(list(blocks), loop=client.loop):
            images, draws, _ = blocks[future]
            try:
                future.result()
            except distributed.KilledWorker as error:
                raise BayesCaffeError(
                    f"workers died again and again while they computed images {span(images)}, "
                    f"draws {span(draws)}; the last was {error.last_worker.address}. Is memory "
                    "short?"
                ) from error
            bar.advance(len(images) * len(draws))
    finally:
        client.cancel(list(blocks))
    return [path for _, _, path in blocks.values()]


def _same(job: Job) -> Job:
    return job


# ---- What runs on the workers

_opened: dict[str, Work] = {}
_one_at_a_time = threading.Lock()  # a net is not for several threads


def installed() -> str:
    """The version of this package on a worker."""
    return __version__


def draw_part(job: Job, images: range, draws: range, path: Path) -> None:
    """Write one part. Nets and images stay open until another job comes."""
    with _one_at_a_time, arguments_are_options(job.options), limits(**job.limits):
        if job.key not in _opened:
            _opened.clear()
            _opened[job.key] = _open(job)
        _opened[job.key].draw(path, images, draws)


def _open(job: Job) -> Work:
    # What is to be said of them, the other process has said.
    with _silent("bayescaffe"), _inside(job.folder):
        model = mixture([Model(**recipe) for recipe in job.models])
        source = open_images(**job.images) if job.images else model.test_images
        return Work(model, source, job.passes, job.class_names, job.data_sha256)


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[None]:
    """In that directory; the process goes back afterwards."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
