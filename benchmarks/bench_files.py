"""Time what safe files cost: a snapshot of LeNet, and the check of an LMDB when it is opened.
Also a training step and Monte Carlo inference, which are to cost what they did before.

    bench_files.py [--old DIR] [--only TEXT] [--folder DIR] [--rounds N]
                   [--seconds S] [--json FILE] [--quick]

--old names the folder `build/caffe-src/python` of another build. Both then run in turn, call by
call, so that whatever else the machine does slows down both. "new / old" is the median of the
ratios of two calls that follow each other, and its 95 % interval over rounds, each of which has new
processes. --only keeps the rows whose names contain TEXT.

Files lie in memory (/dev/shm), so that the time for syncing a disk is not in the figures; --folder
puts them elsewhere. Each figure is taken after the file was read back and compared, and after a
warm-up. Prints a Markdown table (mean ± sd, in milliseconds). Takes about six minutes and 1.1 GB.
--quick checks that everything runs; its times mean nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from bayescaffe.common import provenance
from bench import REPO
from nets import NETS, prototxt
from scipy import stats

WARM_UP = 3  # calls
STEPS = 5  # in each call of `steps`
FORMATS = {"BINARYPROTO": "", "HDF5": ".h5"}
# Bytes of a record's data, and how many there are.
LMDBS = {"795-byte records, 0.5 GB": (784, 670_000), "150 kB records, 1 GB": (150_000, 7_000)}
OURS, OLD = "this build", "old build"


# ---- what is timed, each in a process of its own ------------------------------------------------
# Each function prepares, and returns the call that is timed.

Call = Callable[[], object]


def lenet_solver(folder: Path, bayes: bool, snapshot_format: str = "BINARYPROTO"):
    import caffe

    (folder / "net").write_text(prototxt(NETS["lenet"], 64, bayes, train=True))
    (folder / "solver").write_text(
        f'train_net: "{folder}/net" base_lr: 0.001 lr_policy: "fixed" momentum: 0.9 '
        f'snapshot_prefix: "{folder}/x" snapshot_format: {snapshot_format} random_seed: 1'
    )
    return caffe.get_solver(f"{folder}/solver")


def images(count: int) -> np.ndarray:
    return np.random.default_rng(1).random((count, 1, 28, 28), np.float32)


def steps(folder: Path, bayes: bool) -> Call:
    """Some training steps."""
    solver = lenet_solver(folder, bayes)
    solver.net.blobs["data"].data[:] = images(64)
    return lambda: solver.step(STEPS)


def sample(folder: Path, draws: int, count: int) -> Call:
    """Monte Carlo inference."""
    import caffe

    (folder / "net").write_text(prototxt(NETS["lenet"], 100, True, train=False))
    net, inputs = caffe.Net(f"{folder}/net", caffe.TEST), images(count)
    return lambda: net.sample(draws, inputs)


def snapshot(folder: Path, bayes: bool, snapshot_format: str) -> Call:
    """`solver.snapshot()`, which writes a caffemodel and a solver state."""
    solver, other = (lenet_solver(folder, bayes, snapshot_format) for _ in range(2))
    solver.step(1)
    solver.snapshot()
    other.restore(f"{folder}/x_iter_1.solverstate{FORMATS[snapshot_format]}")
    for name, blobs in solver.net.params.items():
        for blob, read in zip(list(blobs)[:4], list(other.net.params[name])[:4], strict=True):
            if not np.array_equal(blob.data, read.data):
                raise SystemExit(f"{name} is not what was saved")
    return solver.snapshot


def open_lmdb(folder: Path) -> Call:
    """A net opens an LMDB, with all checks, and has its first record."""
    import caffe

    (folder / "net").write_text(
        f"""layer {{ name: "data" type: "Data" top: "data" top: "label"
                     data_param {{ source: "{folder}/lmdb" batch_size: 1 backend: LMDB }} }}"""
    )

    def first() -> float:
        net = caffe.Net(f"{folder}/net", caffe.TEST)
        return float(net.forward()["label"][0])

    if first() != 7:
        raise SystemExit("the first record is another one")
    return first


def check_lmdb(folder: Path) -> Call:
    """The check alone."""
    import caffe

    path = str(folder / "lmdb")
    if caffe.lmdb_fault(path):
        raise SystemExit(f"{path}: {caffe.lmdb_fault(path)}")
    return lambda: caffe.lmdb_fault(path)


SUBJECTS = {
    "steps": steps,
    "sample": sample,
    "snapshot": snapshot,
    "open_lmdb": open_lmdb,
    "check_lmdb": check_lmdb,
}


def write_lmdb(path: Path, size: int, count: int) -> None:
    import lmdb
    from caffe.proto import caffe_pb2

    datum = caffe_pb2.Datum(channels=1, height=1, width=size, label=7, data=bytes(size))
    content = datum.SerializeToString()
    # Without syncing, as nobody needs the file after a crash.
    with lmdb.open(str(path), map_size=2**32, sync=False) as file, file.begin(write=True) as change:
        for number in range(count):
            change.put(b"%08d" % number, content, append=True)


# ---- tables ------------------------------------------------------------------------------------


class Subject:
    """A subject that runs with the pycaffe of a build, in a process of its own."""

    def __init__(self, build: Path | None, *subject: object):
        environment = {**os.environ, "GLOG_minloglevel": "2"}
        if build is not None:
            environment["PYTHONPATH"] = str(build)
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--subject", json.dumps(subject)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.is_there = self._answer() != "none"
        for _ in range(WARM_UP * self.is_there):
            self.seconds()

    def _answer(self) -> str:
        answer = self.process.stdout.readline().strip()
        if not answer:
            raise SystemExit(f"failed: {self.process.args}")
        return answer

    def seconds(self) -> float:
        """Of one call."""
        print(file=self.process.stdin, flush=True)
        return float(self._answer())

    def end(self) -> None:
        self.process.communicate()


def serve(name: str, folder: str, *arguments: object) -> None:
    """Be the process: a line for each line, with the seconds of a call."""
    try:
        call = SUBJECTS[name](Path(folder), *arguments)
    except AttributeError as error:
        if "lmdb_fault" not in str(error):
            raise
        print("none", flush=True)  # this build has no such check
        return
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        call()
        print(time.perf_counter() - start, flush=True)


def rows(builds: dict[str, Path | None], args: argparse.Namespace) -> dict:
    """The times of each subject by build and round. The builds take turns."""
    cases: dict[str, list] = {
        f"{STEPS} training steps, stock LeNet": ["steps", False],
        f"{STEPS} training steps, Bayesian LeNet": ["steps", True],
        "100 draws of one image, Bayesian LeNet": ["sample", 100, 1],
        "20 draws of 500 images, Bayesian LeNet": ["sample", 20, 500],
    }
    for bayes in (False, True):
        for kind in FORMATS:
            name = f"snapshot, {'Bayesian' if bayes else 'stock'} LeNet, {kind}"
            cases[name] = ["snapshot", bayes, kind]
    found: dict = {}

    def take(name: str, place: str, subject: str, *arguments: object) -> None:
        for _ in range(args.rounds):
            processes = {
                build: Subject(path, subject, place, *arguments) for build, path in builds.items()
            }
            times: dict = {build: [] for build, process in processes.items() if process.is_there}
            end = time.monotonic() + args.seconds
            while time.monotonic() < end or len(times[OURS]) < 2:
                # The first of a turn is the second of the next, in case that matters.
                for build in list(times)[:: -1 if len(times[OURS]) % 2 else 1]:
                    times[build].append(processes[build].seconds())
            for process in processes.values():
                process.end()
            for build, seconds in times.items():
                found.setdefault(name, {}).setdefault(build, []).append(seconds)

    for name, (subject, *arguments) in cases.items():
        if args.only in name:
            with tempfile.TemporaryDirectory(dir=args.folder) as place:
                take(name, place, subject, *arguments)
    for kind, (size, count) in LMDBS.items():
        names = {
            f"check of an LMDB, {kind}": "check_lmdb",
            f"opening an LMDB, {kind}": "open_lmdb",
        }
        if any(args.only in name for name in names):
            with tempfile.TemporaryDirectory(dir=args.folder) as place:
                write_lmdb(Path(place, "lmdb"), size, count // 1000 if args.quick else count)
                for name, subject in names.items():
                    if args.only in name:
                        take(name, place, subject)
    return found


def compared(times: dict[str, list[list[float]]]) -> list[str]:
    """How much longer the new build takes, and the ratio of the two."""
    if len(times) < 2:
        return ["–", "–"]
    longer = np.subtract(*(1e3 * np.mean(np.concatenate(times[build])) for build in (OURS, OLD)))
    ratios = np.array(
        [np.median(np.divide(new, old)) for new, old in zip(times[OURS], times[OLD], strict=True)]
    )
    width = np.nan
    if len(ratios) > 1:
        width = stats.t.ppf(0.975, len(ratios) - 1) * stats.sem(ratios)
    return [f"{longer:+.2f}", f"{ratios.mean():.3f} ± {width:.3f}"]


def table(found: dict, builds: list[str]) -> str:
    """In Markdown, in milliseconds."""

    def cell(rounds: list[list[float]] | None) -> str:
        if rounds is None:
            return "–"
        times = 1e3 * np.concatenate(rounds)
        return f"{times.mean():.2f} ± {times.std():.2f}"

    lines = [["ms", *builds]]
    lines += [
        [name, *(cell(times.get(build)) for build in builds)] for name, times in found.items()
    ]
    if OLD in builds:
        lines[0] += ["longer", "new / old"]
        for line, times in zip(lines[1:], found.values(), strict=True):
            line += compared(times)
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--old", type=Path, metavar="DIR", help="python folder of another build")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose names contain it")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), metavar="DIR")
    parser.add_argument("--rounds", type=int, default=4, metavar="N")
    parser.add_argument("--seconds", type=float, default=8, help="of a round")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--subject", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.subject:
        serve(*json.loads(args.subject))
        return
    if args.quick:
        args.rounds, args.seconds = 1, 0
    builds = {OURS: None, **({OLD: args.old.resolve()} if args.old else {})}
    found = rows(builds, args)
    print(f"commit {provenance.commit(REPO)}, {provenance.machine()}\n")
    print(table(found, list(builds)))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
