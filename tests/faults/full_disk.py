"""Lets the n-th call of `write`, `fsync`, `rename` and others fail in each command.

The files that were there before must stay as they are, nothing else may remain, and the command
says which file it could not write. All commands are deterministic: a file that was written anew has
the content that it had.
"""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random

import caffe
from child import digest
from trial import BAYESCAFFE, CAFFE, Outcome, Trial, run
from world import ITERATIONS, SNAPSHOT, World, content, numbers, remove

CALLS = {
    "open": errno.ENOSPC,
    "write": errno.ENOSPC,
    "pwrite": errno.ENOSPC,
    "writev": errno.ENOSPC,
    "fsync": errno.EIO,
    "rename": errno.ENOSPC,
    "mmap": errno.ENOMEM,
}
ONCE = ("fsync", "rename")
"""Of these, one call fails and those behind it do not: they need no room on the disk."""
CANNOT_START = "Cannot write to snapshot prefix"
"""What Caffe says when it tries that before a training."""
LOGS = ("train.log", "curve.csv", "train.old.log", "curve.old.csv")
"""These tell times, and may end where the disk is full."""
FULL, SAMPLE = 12, 1
"""How many calls of a function are tried for each command: all, if there are no more."""


def commands(world: World) -> dict[str, Sequence[str]]:
    """Run in a folder that holds what they wrote before."""
    trained = (str(world.net), str(world.model))
    solver = "run.solver.prototxt"
    return {
        "caffe train": (CAFFE, "train", "-solver", solver),
        "caffe train, HDF5": (CAFFE, "train", "-solver", "hdf5.solver.prototxt"),
        "bayescaffe train": (*BAYESCAFFE, "train", solver, "--quiet"),
        "bayescaffe sample": (
            *(*BAYESCAFFE, "sample", *trained, "--passes", "8", "--quiet"),
            *("--out", "draws.npz"),
        ),
        "bayescaffe data": (*BAYESCAFFE, "data", "idx", str(world.idx), "--out", "data", "--force"),
        "bayescaffe analyze": (
            *(*BAYESCAFFE, "analyze", str(world.draws)),
            *("--csv", "images.csv", "--out", "figures.json"),
        ),
        "bayescaffe report": (*BAYESCAFFE, "report", str(world.draws), "--out", "report.html"),
        "bayescaffe convert": (
            *BAYESCAFFE,
            "convert",
            str(world.net),
            "--to-stock",
            "--out",
            "new",
        ),
        "bayescaffe pack": (*BAYESCAFFE, "pack", *trained, "--out", "packed.caffemodel"),
        "bayescaffe export": (
            *(*BAYESCAFFE, "export", *trained, "--draws", "0-1", "--to", "caffe", "--out", "caffe"),
        ),
    }


def jobs(world: World, seed: str, full: bool) -> Iterator[Trial]:
    """Every command, function and call that is to fail."""
    random = Random(f"{seed} full disk")
    library = world.folder / "failing_calls.so"
    source = Path(__file__).with_name("failing_calls.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    for name, command in commands(world).items():
        before = world.folder / f"before {name}"
        _prepare(world, before)
        done = run(command, before)
        if done.code:
            raise RuntimeError(f"{name} failed without a fault:\n{done.text}")
        counts = _count(library, command, before)
        for call, number in CALLS.items():
            count = counts[call]
            chosen = range(1, count + 1)
            most = FULL if full else SAMPLE
            if count > most:
                chosen = sorted(random.sample(chosen, most))
            for n in chosen:
                yield Trial(
                    f"{name}, {call} number {n} of {count} fails",
                    partial(_try, command, before, library, call, n, number),
                )


def _prepare(world: World, folder: Path) -> None:
    solver = world.new_training(folder)
    text = (
        solver.read_text()
        .replace(f"max_iter: {ITERATIONS}", f"max_iter: {2 * SNAPSHOT}")
        .replace(str(folder) + "/", "")
    )
    solver.write_text(text)
    (folder / "hdf5.solver.prototxt").write_text(text + "\nsnapshot_format: HDF5")


def _environment(library: Path, folder: Path) -> dict[str, str]:
    return {"LD_PRELOAD": str(library), "FAIL_UNDER": str(folder)}


def _count(library: Path, command: Sequence[str], before: Path) -> dict[str, int]:
    """How often a command calls each function: the largest numbers of its processes."""
    folder, told = before.with_name("count"), before.with_name("count.txt")
    told.write_text("")
    shutil.copytree(before, folder)
    run(command, folder, FAIL_COUNT=str(told), **_environment(library, folder))
    remove(folder)
    counts = dict.fromkeys(CALLS, 0)
    for line in told.read_text().splitlines():
        call, count = line.split()
        counts[call] = max(counts[call], int(count))
    return counts


def _try(
    command: Sequence[str], before: Path, library: Path, call: str, n: int, error: int
) -> tuple[Outcome, str]:
    folder = before.with_name(f"{before.name} {call} {n}")
    shutil.copytree(before, folder)
    expected = _kept(folder)
    once = {"FAIL_ONCE": "1"} if call in ONCE else {}
    done = run(
        command,
        folder,
        **once,
        FAIL_CALL=call,
        FAIL_AT=str(n),
        FAIL_ERRNO=str(error),
        **_environment(library, folder),
    )
    is_said = os.strerror(error) in done.text or CANNOT_START in done.text
    found = _kept(folder)
    names = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
    if is_said:
        # A caffemodel was written anew, but could not be packed with its net.
        names = [name for name in names if not _has_same_weights(before, folder, name)]
    if is_said and names and all(name.endswith(".tmp") for name in names):
        # Caffe was killed when its log could not be written. The next run removes what it left.
        run(command, folder)
        names = [name for name in names if (folder / name).exists()]
    if names:
        return Outcome.WRONG, f"changed, missing or left behind: {names}\n{done.text}"
    if done.outcome is Outcome.CLEAN_ERROR and not is_said:
        return Outcome.CRASH, f"does not say {os.strerror(error)!r}: {done.text}"
    remove(folder)
    if is_said and done.outcome is Outcome.ACCEPTED:  # all is there, and it warned
        return Outcome.CLEAN_ERROR, done.text
    return done.outcome, done.text


def _has_same_weights(before: Path, after: Path, name: str) -> bool:
    both = [folder / name for folder in (before, after)]
    is_model = name.endswith(".caffemodel") and all(path.exists() for path in both)
    return is_model and len({b"".join(numbers(path)) for path in both}) == 1


def _kept(folder: Path) -> dict[str, str]:
    found = {name: hash for name, hash in content(folder).items() if Path(name).name not in LOGS}
    return {name: _hdf5(folder / name) if name.endswith(".h5") else found[name] for name in found}


def _hdf5(path: Path) -> str:
    """What tells HDF5 files apart but for the times in them. A state that is good has the hash of
    its weights."""
    try:
        if ".solverstate" in path.name:
            return str(caffe.check_snapshot(str(path))[0])
        net = caffe.Net(str(path.with_name("run.net.prototxt")), caffe.TEST)
        net.copy_from(str(path))
    except caffe.Error as error:
        return str(error)
    return digest([[blob.data.copy() for blob in blobs] for blobs in net.params.values()])
