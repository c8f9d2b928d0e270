"""Commands that make files. Each runs until its file is there, and several run side by side.

A command that was interrupted is simply run again: what is done is known by its file.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from bayescaffe.common import provenance
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_file
from bayescaffe.common.processes import die_with_parent
from side_by_side import side_by_side
from tqdm import tqdm


def not_begun() -> float:
    """The share that is done, if it cannot be told."""
    return 0.0


@dataclass(frozen=True)
class Step:
    """One `bayescaffe` command and the file that it makes."""

    made: Path
    command: list[str]
    seconds: float
    """How long it takes on one core, roughly."""
    keeps_output: bool = False
    """Whether the file is what the command prints."""
    uses_up: Sequence[Path] = ()
    """Files that are deleted afterwards."""
    progress: Callable[[], float] = not_begun
    """The share that is done while it runs."""

    def __str__(self) -> str:
        return f"{self.command[0]} {self.made.parent.parent.name}/{self.made.parent.name}"


def run_chains(
    chains: Sequence[Sequence[Step]], jobs: int, progress: bool = True, dask: str | None = None
) -> None:
    """Run what is not done yet: the steps of a chain in order, `jobs` chains side by side, or as
    many as the workers of a Dask scheduler take."""
    todo = [[step for step in chain if not _is_done(step, chain)] for chain in chains]
    # The longest chain first: otherwise it may run alone at the end, on one core.
    todo = sorted(filter(None, todo), key=lambda chain: -_seconds(chain))
    if not todo:
        return
    jobs = len(todo) if dask else min(jobs, len(todo))
    # With fewer chains than cores, each gets several threads. A worker has its own number.
    threads = None if dask else max(1, provenance.cores() // jobs)
    running: dict[int, Step] = {}
    done: list[Step] = []
    stop = threading.Event()

    def run_chain(number: int) -> None:
        for step in todo[number]:
            if stop.is_set():
                return
            running[number] = step
            if submit is None:
                run_step(step, threads, stop)
            else:
                _wait_for(submit(run_step, replace(step, progress=not_begun), threads), stop)
            done.append(running.pop(number))

    with (
        side_by_side(jobs, dask) if dask else contextlib.nullcontext() as submit,
        _bar(sum(map(_seconds, todo)), progress) as bar,
        ThreadPoolExecutor(jobs) as pool,
    ):
        pending = {pool.submit(run_chain, number) for number in range(len(todo))}
        try:
            while pending:
                finished, pending = wait(pending, timeout=1)
                for future in finished:
                    future.result()
                _show(bar, done, list(running.values()))
        except BaseException:
            stop.set()
            raise


def _wait_for(future: Future, stop: threading.Event) -> None:
    """Until it is done or `stop` is set."""
    while not stop.is_set() and not wait([future], timeout=0.5).done:
        pass
    if not stop.is_set():
        future.result()


def run_step(step: Step, threads: int | None, stop: threading.Event | None = None) -> None:
    """Run the command of a step; if `stop` is set meanwhile, interrupt it and return."""
    own_threads = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "bayescaffe", *step.command, "--quiet"]
    errors = step.made.parent / "errors.log"
    with (
        errors.open("w") as error_file,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE if step.keeps_output else subprocess.DEVNULL,
            stderr=error_file,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **own_threads},
            # The terminal sends Ctrl-C to its whole session, and we send it on. Two of them would
            # stop a training before it has written its snapshot.
            start_new_session=True,
            preexec_fn=die_with_parent(),
        ) as process,
    ):
        output = _wait(process, stop)
    if output is None:
        return
    if process.returncode:
        shown = f"bayescaffe {' '.join(step.command)}"
        raise BayesCaffeError(f"`{shown}` failed:\n{errors.read_text().strip()}")
    errors.unlink(missing_ok=True)
    if step.keeps_output:
        with scratch_file(step.made) as scratch:
            scratch.write_text(output)
    if not step.made.exists():
        raise BayesCaffeError(f"`bayescaffe {step.command[0]}` did not write {step.made}")
    for path in step.uses_up:
        path.unlink(missing_ok=True)


def _wait(process: subprocess.Popen, stop: threading.Event | None) -> str | None:
    """What the process printed, or None if it was interrupted because `stop` was set."""
    while True:
        try:
            return process.communicate(timeout=0.1)[0] or ""
        except subprocess.TimeoutExpired:
            if stop is not None and stop.is_set():
                process.send_signal(signal.SIGINT)
                process.communicate()
                return None


def _is_done(step: Step, chain: Sequence[Step]) -> bool:
    """Whether its file is there, or was used up by a later step whose file is there."""
    return step.made.exists() or any(
        step.made in later.uses_up and later.made.exists() for later in chain
    )


def _seconds(steps: Sequence[Step]) -> float:
    return sum(step.seconds for step in steps)


def _bar(seconds: float, progress: bool) -> tqdm:
    return tqdm(
        total=round(seconds),
        desc="reproduce",
        bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}, {remaining} left{postfix}",
        smoothing=0,
        disable=None if progress else True,  # None: only on a terminal
    )


def _show(bar: tqdm, done: Sequence[Step], running: Sequence[Step]) -> None:
    seconds = _seconds(done) + sum(step.seconds * step.progress() for step in running)
    bar.n = min(round(seconds), bar.total)
    bar.set_postfix_str(", ".join(sorted(map(str, running))), refresh=False)
    bar.refresh()
