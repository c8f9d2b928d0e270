"""Time what safe files cost: a snapshot of LeNet, and the check of an LMDB when it is opened.

    bench_files.py [--old DIR] [--folder DIR] [--rounds N] [--json FILE] [--quick]

--old names the folder `build/caffe-src/python` of another build, which is then timed in turn with
this one. Files lie in memory (/dev/shm), so that the time for syncing a disk is not in the figures;
--folder puts them elsewhere. Each figure is taken after the file was read back and compared, and
after a warm-up. Prints a Markdown table (mean ± sd, in milliseconds). Takes about three minutes and
1.1 GB. --quick checks that everything runs; its times mean nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from bayescaffe.common import provenance
from bench import REPO, timed
from nets import NETS, prototxt

FORMATS = {"BINARYPROTO": "", "HDF5": ".h5"}
# Bytes of a record's data, and how many there are.
LMDBS = {"795-byte records, 0.5 GB": (784, 670_000), "150 kB records, 1 GB": (150_000, 7_000)}
OURS, OLD = "this build", "old build"


# ---- what is timed, each in a process of its own ------------------------------------------------


def snapshot(folder: Path, bayes: bool, snapshot_format: str) -> list[float]:
    """Seconds of `solver.snapshot()`, which writes a caffemodel and a solver state."""
    import caffe

    (folder / "net").write_text(prototxt(NETS["lenet"], 64, bayes, train=True))
    (folder / "solver").write_text(
        f'train_net: "{folder}/net" base_lr: 0.001 lr_policy: "fixed" momentum: 0.9 '
        f'snapshot_prefix: "{folder}/x" snapshot_format: {snapshot_format} random_seed: 1'
    )
    solver, other = (caffe.get_solver(f"{folder}/solver") for _ in range(2))
    solver.step(1)
    solver.snapshot()
    other.restore(f"{folder}/x_iter_1.solverstate{FORMATS[snapshot_format]}")
    for name, blobs in solver.net.params.items():
        for blob, read in zip(list(blobs)[:4], list(other.net.params[name])[:4], strict=True):
            if not np.array_equal(blob.data, read.data):
                raise SystemExit(f"{name} is not what was saved")
    return timed(solver.snapshot)


def open_lmdb(folder: Path) -> list[float]:
    """Seconds until a net has the first record of an LMDB, with all checks before."""
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
    return timed(first)


def check_lmdb(folder: Path) -> list[float]:
    """Seconds of the check alone."""
    import caffe

    path = str(folder / "lmdb")
    if caffe.lmdb_fault(path):
        raise SystemExit(f"{path}: {caffe.lmdb_fault(path)}")
    return timed(lambda: caffe.lmdb_fault(path))


SUBJECTS = {"snapshot": snapshot, "open_lmdb": open_lmdb, "check_lmdb": check_lmdb}


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


def measure(build: Path | None, subject: str, *arguments: object) -> list[float] | None:
    """The times of a subject, run with the pycaffe of a build; None if that lacks it."""
    environment = {**os.environ, "GLOG_minloglevel": "2"}
    if build is not None:
        environment["PYTHONPATH"] = str(build)
    command = [sys.executable, __file__, "--subject", json.dumps([subject, *arguments])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if "has no attribute 'lmdb_fault'" in done.stderr:
        return None
    if done.returncode:
        raise SystemExit(f"{subject} of {build or REPO} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def rows(builds: dict[str, Path | None], folder: Path, rounds: int, quick: bool) -> dict:
    """The times of each subject by build, which take turns."""
    cases: dict[str, list] = {
        f"snapshot, {'Bayesian' if bayes else 'stock'} LeNet, {kind}": ["snapshot", bayes, kind]
        for bayes in (False, True)
        for kind in FORMATS
    }
    found: dict = {}

    def take(name: str, place: Path, subject: str, *arguments: object) -> None:
        for _ in range(rounds):
            for build, path in builds.items():
                times = measure(path, subject, str(place), *arguments)
                if times is not None:
                    found.setdefault(name, {}).setdefault(build, []).extend(times)

    for name, (subject, *arguments) in cases.items():
        with tempfile.TemporaryDirectory(dir=folder) as place:
            take(name, Path(place), subject, *arguments)
    for name, (size, count) in LMDBS.items():
        with tempfile.TemporaryDirectory(dir=folder) as place:
            write_lmdb(Path(place, "lmdb"), size, count // 1000 if quick else count)
            take(f"check of an LMDB, {name}", Path(place), "check_lmdb")
            take(f"opening an LMDB, {name}", Path(place), "open_lmdb")
    return found


def table(found: dict, builds: list[str]) -> str:
    """In Markdown, in milliseconds."""

    def cell(times: list[float] | None) -> str:
        return f"{1e3 * np.mean(times):.2f} ± {1e3 * np.std(times):.2f}" if times else "–"

    lines = [["ms", *builds], ["---"] * (1 + len(builds))]
    lines += [
        [name, *(cell(times.get(build)) for build in builds)] for name, times in found.items()
    ]
    if OLD in builds:
        lines[0].append("longer")
        lines[1].append("---")
        for line, times in zip(lines[2:], found.values(), strict=True):
            means = [1e3 * np.mean(times[build]) for build in (OURS, OLD) if build in times]
            line.append(f"{means[0] - means[1]:+.2f}" if len(means) == 2 else "–")
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--old", type=Path, metavar="DIR", help="python folder of another build")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), metavar="DIR")
    parser.add_argument("--rounds", type=int, default=2, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--subject", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.subject:
        name, folder, *arguments = json.loads(args.subject)
        print(json.dumps(SUBJECTS[name](Path(folder), *arguments)))
        return
    if args.quick:
        os.environ["BENCH_SECONDS"] = "0.01"
    builds = {OURS: None, **({OLD: args.old.resolve()} if args.old else {})}
    found = rows(builds, args.folder, 1 if args.quick else args.rounds, args.quick)
    print(f"commit {provenance.commit(REPO)}, {provenance.machine()}\n")
    print(table(found, list(builds)))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
