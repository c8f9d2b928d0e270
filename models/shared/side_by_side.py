"""Jobs side by side: in processes of this machine, or on the workers of a Dask cluster."""

import argparse
import contextlib
import logging
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from bayescaffe.common import provenance
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.processes import die_with_parent
from bayescaffe.infer.workers import call_pickled, crew

MODELS = Path(__file__).resolve().parents[1]
Submit = Callable[..., Future]
"""Takes a function and its arguments."""


def add_dask_argument(parser: argparse.ArgumentParser) -> None:
    """Add where jobs run."""
    parser.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="run the trainings on the workers of this Dask scheduler, tcp://host:port, each as "
        "one task; they must see this folder under the same name (--jobs is not used then)",
    )


@contextlib.contextmanager
def side_by_side(jobs: int, dask: str | None = None) -> Iterator[Submit]:
    """What runs functions: in so many processes, or on a Dask cluster. An error ends all; what runs
    on other machines then ends with the job that it is at."""
    with _on_cluster(dask) if dask else _in_processes(jobs) as submit:
        yield submit


@contextlib.contextmanager
def _in_processes(jobs: int) -> Iterator[Submit]:
    threads = max(1, provenance.cores() // jobs)
    with ProcessPoolExecutor(jobs, initializer=_start, initargs=(threads,)) as pool:
        try:
            yield lambda function, *arguments: pool.submit(_call, function, arguments)
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            if isinstance(error, BrokenProcessPool):
                raise BayesCaffeError("a process was ended; run it again to go on") from error
            raise


def _start(threads: int) -> None:
    """What a new process does first."""
    # Caffe reads it when it is loaded.
    os.environ["OMP_NUM_THREADS"] = str(threads)
    logging.getLogger("bayescaffe").setLevel(logging.WARNING)  # not every command of Caffe
    if die := die_with_parent():
        die()


def _call(function: Callable, arguments: tuple) -> object:
    try:
        return function(*arguments)
    except KeyboardInterrupt:
        # Once Caffe has written a snapshot. The pool would begin the next job.
        os._exit(130)


@contextlib.contextmanager
def _on_cluster(address: str) -> Iterator[Submit]:
    with crew(None, address) as team, team.client.get_executor(pure=False) as pool:
        paths = [path for path in sys.path if MODELS in Path(path).resolve().parents]

        def submit(function: Callable, *arguments: object) -> Future:
            # A worker can read it when it knows where the modules are.
            content = pickle.dumps((function, arguments))
            return pool.submit(call_pickled, os.getcwd(), paths, content)

        try:
            yield submit
        except BaseException as error:
            pool.shutdown(wait=False)  # cancels what has not begun
            if type(error).__name__ == "KilledWorker":
                raise BayesCaffeError(f"workers died again and again: {error}") from error
            raise
