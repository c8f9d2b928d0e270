"""Calls functions in forks of this process, with limits of memory and time.

A fork has all that was imported, so a trial takes milliseconds. The process that forks must have no
other threads that work.
"""

import contextlib
import hashlib
import io
import json
import os
import resource
import select
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import caffe
import numpy as np
from bayescaffe import cli
from bayescaffe.common.errors import BayesCaffeError
from tqdm import tqdm
from trial import Outcome, address_space

tqdm.get_lock()  # which forks cannot give back, if they make one of their own

MEMORY = 2**29
"""Bytes that a child may take beyond what its parent has."""
SECONDS = 180
"""Without a word from a child; much more than any trial takes, as the machine may be busy."""
USER_ERRORS = (BayesCaffeError, OSError, caffe.Error)
"""What a command line or a program is told by. Any other exception is a defect."""


class Wrong(Exception):
    """A call went well, but what it gave is wrong."""


@dataclass(frozen=True)
class Told:
    """What became of a call."""

    outcome: Outcome
    text: str = ""
    """Of the error."""
    digest: str = ""
    """Of what was returned."""
    peak: int = 0
    """Bytes of memory that it took at most, beyond what the child had taken before."""


def attempt(call: Callable[[], object], memory: int = MEMORY) -> Told:
    """Call one function in a child process."""
    return next(attempts([call], memory))


def attempts(calls: Sequence[Callable[[], object]], memory: int = MEMORY) -> Iterator[Told]:
    """Call functions in one child process, and in another one behind each that ends it."""
    done = 0
    while done < len(calls):
        for told in _one_child(calls[done:], memory):
            yield told
            done += 1


def _one_child(calls: Sequence[Callable[[], object]], memory: int) -> Iterator[Told]:
    """What a child tells, until it has done all or one ends it."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _be_child(calls, writing, memory)
    os.close(writing)
    told, count, is_alive = b"", 0, True
    with open(reading, "rb", buffering=0) as pipe:
        while True:
            is_alive = bool(select.select([pipe], [], [], SECONDS)[0])
            chunk = pipe.read(2**16) if is_alive else b""
            if not chunk:
                break
            *lines, told = (told + chunk).split(b"\n")
            for line in lines:
                found = json.loads(line)
                yield Told(Outcome(found.pop("outcome")), **found)
                count += 1
    if not is_alive:
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if not is_alive:
        yield Told(Outcome.HANG, f"longer than {SECONDS} s")
    elif count < len(calls):
        how = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else status >> 8
        yield Told(Outcome.CRASH, f"the process ended: {how}")


def _be_child(calls: Sequence[Callable[[], object]], writing: int, memory: int) -> None:
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        limit = address_space() + memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for call in calls:
            line = asdict(_called(call))
            line["outcome"] = line["outcome"].value
            with open(writing, "w", closefd=False) as pipe:
                pipe.write(json.dumps(line) + "\n")
    finally:
        os._exit(0)  # whatever happened: no child goes on as its parent


def _called(call: Callable[[], object]) -> Told:
    before = _highest_memory()
    found, text = "", ""
    try:
        found = digest(call())
        outcome = Outcome.ACCEPTED
    except USER_ERRORS as error:
        text = str(error)
        is_memory = "bad_alloc" in text or "Cannot allocate" in text
        outcome = Outcome.OVER_MEMORY if is_memory else Outcome.CLEAN_ERROR
    except Wrong as error:
        outcome, text = Outcome.WRONG, str(error)
    except BaseException as error:
        is_memory = isinstance(error, MemoryError) or "bad_alloc" in str(error)
        outcome = Outcome.OVER_MEMORY if is_memory else Outcome.CRASH
        text = traceback.format_exc()
    return Told(outcome, text[:60_000], found, _highest_memory() - before)


def _highest_memory() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def digest(value: object) -> str:
    """A hash of arrays, and of lists and dicts of them."""
    found = hashlib.sha256()

    def feed(part: object) -> None:
        if isinstance(part, np.ndarray):
            found.update(f"{part.dtype} {part.shape} ".encode() + part.tobytes())
        elif isinstance(part, dict):
            feed(sorted(part))
            feed([part[key] for key in sorted(part)])
        elif isinstance(part, (list, tuple)):
            found.update(f"{len(part)} parts ".encode())
            for each in part:
                feed(each)
        else:
            found.update(f"{part!r} ".encode(errors="surrogatepass"))

    feed(value)
    return found.hexdigest()


def run_command(*arguments: object) -> str:
    """What a command of `bayescaffe` prints. Its error is raised, so that it is told apart from
    others."""
    args = cli.build_parser().parse_args([str(one) for one in (*arguments, "--quiet")])
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        args.run(args)
    return printed.getvalue()


def run_whole_command(*arguments: object) -> tuple[int, str]:
    """The exit code of a command of `bayescaffe`, and all that a terminal gets to see."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = cli.main([str(one) for one in arguments])
    return code, printed.getvalue()
