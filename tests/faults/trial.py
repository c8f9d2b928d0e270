"""One trial of a campaign: something goes wrong, and this is what became of it."""

import enum
import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
CAFFE = str(REPO / "build/caffe/tools/caffe")
BAYESCAFFE = (sys.executable, "-m", "bayescaffe")
MEMORY = 4 * 2**30
"""Bytes of address space: pycaffe, OpenBLAS and their threads take about 1.5 GB of it."""
SECONDS = 180
"""Much more than any command takes, as the machine may be busy."""


class Outcome(enum.Enum):
    """In the order of the table's columns. The last four are defects."""

    CLEAN_ERROR = "clean error"
    ACCEPTED = "accepted unchanged"
    ACCEPTED_CHANGED = "accepted changed"
    """Other data, and no reader can know: a pixel of a picture, a number of a prototxt."""
    WRONG = "wrong in silence"
    """A result that must not be, and nothing says so."""
    CRASH = "crash"
    HANG = "hang"
    OVER_MEMORY = "over memory"


DEFECTS = (Outcome.WRONG, Outcome.CRASH, Outcome.HANG, Outcome.OVER_MEMORY)


@dataclass(frozen=True)
class Found:
    """What became of trials."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)

    def add(self, name: str, outcome: Outcome, text: str) -> None:
        """One more trial. The name says how to find it again, under the seed of the run."""
        self.outcomes[outcome] += 1
        if outcome in DEFECTS:
            self.defects.append(f"{outcome.value}: {name}\n{text[-2000:]}")


@dataclass(frozen=True)
class Trial:
    """A fault to try."""

    name: str
    run: Callable[[], tuple[Outcome, str]]
    """Returns what became of it, and the words that were said."""

    def __call__(self) -> Found:
        found = Found()
        found.add(self.name, *self.run())
        return found


@dataclass(frozen=True)
class Done:
    """How a child process ended."""

    code: int
    """Negative: the signal that ended it. None of ours."""
    text: str
    timed_out: bool = False

    @property
    def outcome(self) -> Outcome:
        """Of a command that met a fault. One that succeeds is to be looked at by the campaign."""
        if self.timed_out:
            return Outcome.HANG
        if "MemoryError" in self.text or "bad_alloc" in self.text:
            return Outcome.OVER_MEMORY
        # A traceback is no answer to a user, whatever the exit code is.
        if self.code < 0 or "Traceback (most recent call last)" in self.text:
            return Outcome.CRASH
        return Outcome.ACCEPTED if self.code == 0 else Outcome.CLEAN_ERROR


def run(
    command: Sequence[str | os.PathLike],
    cwd: Path,
    *,
    kill_after: float | None = None,
    seconds: float = SECONDS,
    **environment: str,
) -> Done:
    """Run a command with limits of time and memory, and maybe kill it and its children."""
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **environment},
        preexec_fn=_limit,
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=seconds if kill_after is None else kill_after)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        return Done(process.returncode, text, timed_out=kill_after is None)
    return Done(process.returncode, text)


def address_space() -> int:
    """Bytes that this process has reserved, as RLIMIT_AS counts them."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
