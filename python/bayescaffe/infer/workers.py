"""`sample` and others in several processes, on one machine or many, with Dask.

A task of `sample` is some draws of some images. The worker that takes it opens the net and the
images by their names, once, and writes a part file into a folder that all see. No array goes
through the scheduler. At the end the parts are merged. Draws have names, so the bits are those of
one process.
"""

import contextlib
import logging
import math
import os
import pickle
import secrets
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
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
from bayescaffe.net.analytic import as_analytic
from bayescaffe.net.mixture import Mixture, mixture
from bayescaffe.net.model import Model
from bayescaffe.stats.draws import Draws
from bayescaffe.stats.merging import merge
from bayescaffe.stats.stopping import StoppingRule

log = logging.getLogger(__name__)

TASK_IMAGES = 1000
"""Of one task at most. The weights of a draw are drawn anew for each task, which takes as long as
a few images do."""
TASK_BYTES = 2**28
"""Of the probabilities of one task at most."""
TASKS_PER_WORKER = 4
"""At least, so that workers end at about the same time."""
CONNECT_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker needs to know once."""

    models: list[dict[str, Any]]
    """`Model.recipe` of each."""
    key: str = field(default_factory=lambda: secrets.token_hex(8))
    """No two jobs have the same."""
    folder: str = field(default_factory=os.getcwd)
    """The current directory, for names that are relative to it."""
    options: dict[str, str] = field(default_factory=lambda: dict(known_options()))
    """How errors call arguments."""
    limits: dict[str, int] = field(
        default_factory=lambda: {name: limit(name) for name in VARIABLES}
    )

    def open(self) -> Any:
        """What the tasks of this job have in common, opened on a worker."""
        return mixture([Model(**recipe) for recipe in self.models])


@dataclass(frozen=True, kw_only=True)
class DrawJob(Job):
    """Of `sample`."""

    images: dict[str, Any] | None
    """`Images.recipe`; None for the net's own images."""
    passes: int
    class_names: Sequence[str] | None
    data_sha256: str | None
    rule: StoppingRule | None
    is_analytic: bool

    def open(self) -> Work:
        model = super().open()
        if self.is_analytic:
            model, _ = as_analytic(model)
        source = open_images(**self.images) if self.images else model.test_images
        return Work(
            *(model, source, self.passes, self.class_names, self.data_sha256),
            *(self.rule, self.is_analytic),
        )


def draw_on_workers(
    work: Work,
    out: Path,
    workers: int | None,
    dask: str | None,
    parts: str | os.PathLike | None,
    progress: bool,
) -> Draws:
    """All draws of all images into the file `out`; `sample` tells of the arguments."""
    job, total = _job(work), len(work.source) * work.passes
    place = (out.parent if parts is None else Path(parts)).absolute()
    place.mkdir(parents=True, exist_ok=True)
    with scratch_folder(place / out.name) as folder:
        with (
            crew(workers, dask) as team,
            ProgressBar(total, "sampling", show=progress, scale=True) as bar,
        ):
            tasks = [
                (images, draws, folder / f"images-{span(images)}.draws-{span(draws)}.npz")
                for images, draws in _tasks(work, team.workers)
            ]
            names = [f"images {span(images)}, draws {span(draws)}" for images, draws, _ in tasks]
            for number, _ in team.run(draw_part, job, tasks, names):
                images, draws, _ = tasks[number]
                bar.advance(len(images) * len(draws))
        paths = [path for _, _, path in tasks]
        draws = merge(paths, out, progress)
        if parts is not None:
            for path in paths:
                path.rename(place / path.name)
        return draws


def recipes(model: Model | Mixture) -> list[dict[str, Any]]:
    """What makes a model again, or several."""
    return [one.recipe for one in (model.models if isinstance(model, Mixture) else [model])]


def _job(work: Work) -> DrawJob:
    if work.source.recipe is None and work.source is not work.model.test_images:
        raise BayesCaffeError(
            f"{argument('images')}: workers open images by name; give an LMDB, a folder, a list of "
            "files or an array file"
        )
    return DrawJob(
        models=recipes(work.model),
        images=work.source.recipe,
        passes=work.passes,
        class_names=work.class_names,
        data_sha256=work.data_sha256,
        rule=work.rule,
        is_analytic=work.is_analytic,
    )


def _tasks(work: Work, workers: int) -> list[tuple[range, range]]:
    """Images and draws of each task."""
    images, draws = len(work.source), work.passes
    if work.keeps_draws_together:
        at_most = min(TASK_IMAGES, max(1, TASK_BYTES // (4 * work.model.classes * draws)))
        pieces = max(math.ceil(images / at_most), TASKS_PER_WORKER * workers)
        return [(one, range(draws)) for one in split(images, min(images, pieces))]
    of_images = split(images, math.ceil(images / TASK_IMAGES))
    at_most = max(1, TASK_BYTES // (4 * work.model.classes * len(of_images[-1])))
    pieces = max(math.ceil(TASKS_PER_WORKER * workers / len(of_images)), math.ceil(draws / at_most))
    of_draws = split(draws, min(draws, pieces))
    return [(one, other) for one in of_images for other in of_draws]


def split(count: int, pieces: int) -> list[range]:
    """Ranges of about the same length."""
    edges = [count * piece // pieces for piece in range(pieces + 1)]
    return [range(*both) for both in zip(edges, edges[1:], strict=False)]


class Crew:
    """The workers of a cluster."""

    def __init__(self, distributed, client) -> None:
        self._distributed, self.client = distributed, client
        self._before = _addresses(client)
        self.workers = len(self._before)
        """How many there were at first."""

    def run(
        self, function: Callable, job: Job, tasks: Sequence[tuple], names: Sequence[str]
    ) -> Iterator[tuple[int, Any]]:
        """Call function(job, *task) for each task; yield its number and what it returns, as they
        are done. Errors name what was computed by `names`."""
        # A task of its own, so that it travels to each worker once, and again if one is lost.
        known = self.client.submit(_same, job, key=f"bayescaffe-{job.key}")
        number_of = {
            self.client.submit(function, known, *task, pure=False): number
            for number, task in enumerate(tasks)
        }
        try:
            for future in self._distributed.as_completed(list(number_of), loop=self.client.loop):
                try:
                    yield number_of[future], future.result()
                except self._distributed.KilledWorker as error:
                    raise BayesCaffeError(
                        f"workers died again and again while they computed "
                        f"{names[number_of[future]]}; the last was {error.last_worker.address}. Is "
                        "memory short?"
                    ) from error
        finally:
            self.client.cancel(list(number_of))

    def tell_losses(self) -> None:
        if lost := len(self._before - _addresses(self.client)):
            log.warning("%d worker%s died; the tasks were computed again", lost, "s" * (lost > 1))


@contextlib.contextmanager
def crew(workers: int | None, dask: str | None) -> Iterator[Crew]:
    """So many workers, or those of the scheduler at an address; those that die are told of."""
    name = argument("workers", workers) if dask is None else argument("dask", dask)
    distributed = import_optional("distributed", name)
    with _cluster(distributed, workers, dask) as client:
        team = Crew(distributed, client)
        yield team
        team.tell_losses()


@contextlib.contextmanager
def _cluster(distributed, workers: int | None, dask: str | None) -> Iterator[Any]:
    """A client of the scheduler at an address, or of one with so many workers of its own."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(silent("distributed"))
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
def silent(name: str) -> Iterator[None]:
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


def _same(job: Job) -> Job:
    return job


# ---- What runs on the workers

_opened: dict[str, Any] = {}
one_at_a_time = threading.Lock()  # a net is not for several threads


def installed() -> str:
    """The version of this package on a worker."""
    return __version__


def draw_part(job: DrawJob, images: range, draws: range, path: Path) -> None:
    """Write one part."""
    with opened(job) as work:
        work.draw(path, images, draws)


@contextlib.contextmanager
def opened(job: Job) -> Iterator[Any]:
    """What `Job.open` gives. It stays open until another job comes."""
    with one_at_a_time, arguments_are_options(job.options), limits(**job.limits):
        if job.key not in _opened:
            _opened.clear()
            # What is to be said of it, the other process has said.
            with silent("bayescaffe"), inside(job.folder):
                _opened[job.key] = job.open()
        yield _opened[job.key]


def call_pickled(folder: str, paths: list[str], content: bytes) -> object:
    """Call a function that is pickled with its arguments, in that folder. `paths` are where its
    modules are."""
    with one_at_a_time, silent("bayescaffe"), inside(folder):
        sys.path += [path for path in paths if path not in sys.path]
        function, arguments = pickle.loads(content)
        return function(*arguments)


@contextlib.contextmanager
def inside(folder: str) -> Iterator[None]:
    """In that directory; the process goes back afterwards."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
