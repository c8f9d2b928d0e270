"""Damages every kind of file that bayescaffe reads, and counts how its readers take it.

    .venv/bin/python tests/faults/flip_files.py                      100 trials of each kind
    .venv/bin/python tests/faults/flip_files.py --trials 1000 --seed 7 lmdb 'lmdb, Data layer'

A trial changes a few bytes of a good file, or cuts it, or overwrites a part of it, and reads it in
a child process with limited memory and time. Allowed are an error for the user (a BayesCaffeError,
a caffe.Error, an OSError) and acceptance, as no reader can notice all damage. What was read is
compared with what the good file gives: it is the same ("accepted unchanged") or not. A signal, a
hang, any other exception and too much memory are defects: the exit code is then 1, and their files
are kept with --keep.

The same seed makes the same damage, whatever else is tried.
"""

import argparse
import contextlib
import gzip
import io
import json
import random
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import bayescaffe
import caffe
import numpy as np
from bayescaffe.common.pycaffe import read_binary
from bayescaffe.data.idx import load_set
from bayescaffe.net.messages import read_mean, read_message, read_weights
from bayescaffe.reporting import page, plots, svg
from bayescaffe.training.log import parse_log
from bayescaffe.training.snapshots import read_snapshot
from child import Told, attempt, run_command
from conftest import input_net, small_net, write_digits, write_solver
from PIL import Image
from trial import DEFECTS, Found, Outcome
from world import World, content, numbers

FULL, SAMPLE = 244, 3
"""Trials of each kind: 10,000 of 42 kinds."""
# Children are forks, so what is slow to import is imported here.
IMPORTED = (page, plots, svg)


@dataclass(frozen=True)
class Kind:
    """One kind of file, and one of its readers."""

    file: str
    """The one to damage, in the folder of good files."""
    read: Callable[[Path], object]
    """Reads it, given the folder with the damaged file; others in it are good."""
    unpack: Callable[[bytes], bytes] = bytes
    """What is damaged of the file, if its checksums are to be right."""
    pack: Callable[[bytes], bytes] = bytes
    """The file of that."""


# ---- good files --------------------------------------------------------------------------------


def make_files(folder: Path) -> None:
    """Write a small good file of each kind."""
    source = np.random.default_rng(0)
    write_digits(folder / "idx", train=40, test=20, size=12, classes=4)
    bayescaffe.data.prepare_idx(folder / "idx", folder, progress=False)
    shutil.copytree(folder / "idx", folder / "idx.gz")
    for path in (folder / "idx.gz").iterdir():
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        path.unlink()
    _make_pictures(folder, source)
    _make_arrays(folder, source)
    _make_nets(folder)


def _make_pictures(folder: Path, source: np.random.Generator) -> None:
    for name in ("one", "two"):
        (folder / "pictures" / name).mkdir(parents=True)
        for number in range(3):
            pixels = source.integers(0, 256, (40, 30, 3), np.uint8)
            Image.fromarray(pixels).save(folder / f"pictures/{name}/{number}.png")
    for kind in ("png", "jpg", "webp", "gif", "tiff", "bmp"):
        Image.fromarray(pixels).save(folder / f"picture.{kind}")
    files = sorted((folder / "pictures").rglob("*.png"))
    names = [(str(path.relative_to(folder)), path.parent.name) for path in files]
    (folder / "list.csv").write_text("".join(f"{name},{kind}\n" for name, kind in names))
    (folder / "list.txt").write_text("".join(f"{name} {len(kind) % 2}\n" for name, kind in names))
    bayescaffe.data.from_folder(
        folder / "pictures", folder / "big", size=(80, 60), val=0.5, progress=False
    )


def _make_arrays(folder: Path, source: np.random.Generator) -> None:
    images = source.integers(0, 256, (9, 12, 12), np.uint8)
    np.save(folder / "images.npy", images)
    np.savez_compressed(folder / "images.npz", images=images, labels=np.arange(9))
    np.save(folder / "labels.npy", np.arange(9) % 3)
    probabilities = source.dirichlet(np.ones(3), (60, 20)).astype(np.float32)
    meta = {
        "seed": 1,
        "names": [f"{k}.png" for k in range(20)],
        "class_names": ["a", "b", "c"],
        "weights_sha256": "0",
        "models": [{"net": "net", "weights": name, "weights_sha256": "0"} for name in "ab"],
        "model_of_draw": [draw % 2 for draw in range(60)],
        "is_random": True,
    }
    bayescaffe.save_draws(folder / "draws.npz", probabilities, np.arange(20) % 3, meta)
    rule = bayescaffe.stopping_rule(bayescaffe.Draws(probabilities), error=0.3)
    rule.save(folder / "rule.json")
    held_out = bayescaffe.Draws(probabilities, probabilities.mean(axis=0).argmax(axis=1))
    bayescaffe.calibrate_decisions(held_out, 0.9, 0.3).save(folder / "calibration.json")
    counts = np.where(np.arange(20) % 3, 8, 60)
    np.savez(
        folder / "adaptive.npz",
        probabilities=probabilities[:8],
        probabilities_8=probabilities[8:, counts > 8],
        draw_counts=counts,
        meta=np.array(json.dumps({**meta, "passes": 60, "stopping_rule": rule.as_dict()})),
    )
    text = np.array(json.dumps(meta))
    np.savez_compressed(folder / "packed.npz", probabilities=probabilities, meta=text)


def _make_nets(folder: Path) -> None:
    net = small_net(folder, "kl_weight: 0")
    solver = write_solver(folder, net, 4, snapshot=4)
    with contextlib.redirect_stdout(io.StringIO()):
        bayescaffe.train(solver, progress=False)
    (folder / "deploy.prototxt").write_text(input_net(net, 1))
    stock = caffe.Net(str(folder / "run.net.prototxt"), caffe.TEST)
    stock.save_hdf5(str(folder / "net.caffemodel.h5"))
    shutil.copy(folder / "run_iter_4.caffemodel", folder / "packed.caffemodel")
    layer = (
        """layer { name: "d" type: "%s" top: "d" top: "l" %s { source: "%s" batch_size: 5 %s } }"""
    )
    for name, kind, field, more in (
        ("data", "Data", "data_param", "backend: LMDB"),
        ("pictures", "ImageData", "image_data_param", ""),
    ):
        (folder / f"{name}.prototxt.in").write_text(layer % (kind, field, "SOURCE", more))


def member(name: str) -> Callable[[bytes], bytes]:
    """One array of an .npz."""
    return lambda content: zipfile.ZipFile(io.BytesIO(content)).read(f"{name}.npy")


def archive(members: dict[str, np.ndarray], name: str) -> Callable[[bytes], bytes]:
    """An .npz of these arrays, one of which is given in place of the one of its name."""

    def pack(content: bytes) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as packed:
            for key, array in members.items():
                good = io.BytesIO()
                np.save(good, array)
                packed.writestr(f"{key}.npy", content if key == name else good.getvalue())
        return file.getvalue()

    return pack


EVEN = np.full((60, 20, 3), 1 / 3, np.float32)
DRAWS = {"probabilities": EVEN, "meta": np.array("{}")}
ADAPTIVE = {
    "probabilities": EVEN[:8],
    "probabilities_8": EVEN[8:, ::3],
    "draw_counts": np.empty(0),
    "meta": np.array("{}"),
}


# ---- readers -----------------------------------------------------------------------------------


def read_all(images: bayescaffe.Images) -> list:
    """All images, in order and by index."""
    take = images.in_order()
    found = [take(1) for _ in range(len(images))]
    return [found, images.read(range(len(images))), images.names, images.labels]


def read_images(name: str, **options: object) -> Callable[[Path], list]:
    def read(folder: Path) -> list:
        images = bayescaffe.open_images(folder / name, **options)
        images.fit(images.shape or (3, 20, 20))
        return read_all(images)

    return read


def read_picture_layer(name: str) -> Callable[[Path], list]:
    """A picture by Caffe's ImageData."""
    read_listed = read_layer("pictures.prototxt.in", "one.txt", 5)

    def read(folder: Path) -> list:
        (folder / "one.txt").write_text(f"{folder / name} 0\n" * 5)
        return read_listed(folder)

    return read


def read_layer(net: str, source: str, records: int) -> Callable[[Path], list]:
    """All records of a data layer of Caffe."""

    def read(folder: Path) -> list:
        text = (folder / net).read_text().replace("SOURCE", str(folder / source))
        (folder / "layer.prototxt").write_text(text)
        built = caffe.Net(str(folder / "layer.prototxt"), caffe.TEST)
        return [
            {name: blob.copy() for name, blob in built.forward().items()}
            for _ in range(records // 5 + 1)
        ]

    return read


def read_idx(name: str) -> Callable[[Path], object]:
    return lambda folder: load_set(folder / name)


def blobs_of(net: caffe.Net) -> list:
    return [[blob.data.copy() for blob in blobs] for blobs in net.params.values()]


def weights_of(path: Path) -> list:
    return [[layer.name, layer.type, layer.blobs] for layer in read_weights(path)]


def restore(folder: Path) -> list:
    state = folder / "run_iter_4.solverstate"
    read_snapshot(state)
    solver = caffe.get_solver(str(folder / "run.solver.prototxt"))
    solver.restore(str(state))
    return [list(numbers(state)), solver.iter, blobs_of(solver.net)]


def load_hdf5(folder: Path) -> list:
    net = caffe.Net(str(folder / "deploy.prototxt"), caffe.TEST)
    net.copy_from(str(folder / "net.caffemodel.h5"))
    return blobs_of(net)


def check(name: str, kind: str) -> Callable[[Path], list]:
    return lambda folder: [
        run_command("check", folder / name),
        str(read_message(folder / name, kind)),
    ]


def inspect(weights: str, *net: str) -> Callable[[Path], list]:
    return lambda folder: [
        run_command("inspect", *(folder / one for one in (*net, weights))),
        weights_of(folder / weights),
        str(read_binary(folder / weights, "NetParameter", "caffemodel").inference),
    ]


def analyze(name: str) -> Callable[[Path], list]:
    def read(folder: Path) -> list:
        said = run_command("analyze", folder / name, "--csv", folder / "x.csv")
        return [said, (folder / "x.csv").read_text()]

    return read


def report(folder: Path) -> str:
    run_command("report", folder / "draws.npz", "--out", folder / "x.html")
    return (folder / "x.html").read_text()


def make_set(source: str) -> Callable[[Path], dict]:
    def read(folder: Path) -> dict:
        run_command(
            "data", "folder", folder / source, "--out", folder / "out", "--size", 8, "--force"
        )
        return content(folder / "out")

    return read


def prepare_again(folder: Path) -> list:
    run_command("data", "idx", folder / "idx", "--out", folder)
    return read_images("train_lmdb")(folder)


KINDS = {
    "draws": Kind("draws.npz", analyze("draws.npz")),
    **{
        f"draws, {name}": Kind(
            "draws.npz", analyze("draws.npz"), member(name), archive(DRAWS, name)
        )
        for name in ("probabilities", "meta")
    },
    "draws, adaptive": Kind("adaptive.npz", analyze("adaptive.npz")),
    "draws, adaptive, counts": Kind(
        "adaptive.npz",
        analyze("adaptive.npz"),
        member("draw_counts"),
        archive(ADAPTIVE, "draw_counts"),
    ),
    "stopping rule": Kind(
        "rule.json", lambda f: bayescaffe.StoppingRule.load(f / "rule.json").as_dict()
    ),
    "calibration of decisions": Kind(
        "calibration.json", lambda f: bayescaffe.DecisionRule.load(f / "calibration.json").as_dict()
    ),
    "draws, compressed": Kind("packed.npz", analyze("packed.npz")),
    "report": Kind("draws.npz", report, member("meta"), archive(DRAWS, "meta")),
    "prototxt of a net": Kind("run.net.prototxt", check("run.net.prototxt", "NetParameter")),
    "prototxt of a solver": Kind(
        "run.solver.prototxt", check("run.solver.prototxt", "SolverParameter")
    ),
    "caffemodel": Kind(
        "run_iter_4.caffemodel", inspect("run_iter_4.caffemodel", "run.net.prototxt")
    ),
    "caffemodel with its net": Kind("packed.caffemodel", inspect("packed.caffemodel")),
    "caffemodel, HDF5": Kind("net.caffemodel.h5", load_hdf5),
    "weights alone": Kind(
        "run_iter_4.caffemodel", lambda f: weights_of(f / "run_iter_4.caffemodel")
    ),
    "solverstate": Kind("run_iter_4.solverstate", restore),
    "lmdb": Kind("train_lmdb/data.mdb", read_images("train_lmdb")),
    "lmdb, Data layer": Kind(
        "train_lmdb/data.mdb", read_layer("data.prototxt.in", "train_lmdb", 40)
    ),
    "lmdb, large records": Kind("big/train_lmdb/data.mdb", read_images("big/train_lmdb")),
    "lmdb, large, Data layer": Kind(
        "big/train_lmdb/data.mdb", read_layer("data.prototxt.in", "big/train_lmdb", 3)
    ),
    "description": Kind("train_lmdb/dataset.json", read_images("train_lmdb")),
    "record of a set": Kind("dataset.json", prepare_again),
    "mean image": Kind("mean.binaryproto", lambda f: read_mean(f / "mean.binaryproto")),
    "idx": Kind("idx/train-images-idx3-ubyte", read_idx("idx")),
    "idx, labels": Kind("idx/t10k-labels-idx1-ubyte", read_idx("idx")),
    "idx, gzip": Kind("idx.gz/train-images-idx3-ubyte.gz", read_idx("idx.gz")),
    "idx, in gzip": Kind(
        "idx.gz/train-labels-idx1-ubyte.gz", read_idx("idx.gz"), gzip.decompress, gzip.compress
    ),
    **{
        f"picture, {kind}": Kind(f"picture.{kind}", read_images(f"picture.{kind}"))
        for kind in ("png", "jpg", "webp", "gif", "tiff", "bmp")
    },
    **{
        f"picture, {kind}, ImageData": Kind(
            f"picture.{kind}", read_picture_layer(f"picture.{kind}")
        )
        for kind in ("png", "jpg")
    },
    "npy": Kind("images.npy", read_images("images.npy")),
    "npz": Kind("images.npz", read_images("images.npz")),
    "npy, labels": Kind(
        "labels.npy",
        lambda f: bayescaffe.open_images(f / "images.npy", labels=f / "labels.npy").labels,
    ),
    "list, csv": Kind("list.csv", make_set("list.csv")),
    "list, txt": Kind("list.txt", read_images("list.txt")),
    "curve": Kind("curve.csv", lambda f: bayescaffe.read_curve(f / "curve.csv")),
    "log": Kind("train.log", lambda f: parse_log(f / "train.log")),
}


# ---- trials ------------------------------------------------------------------------------------


def damaged(content: bytes, source: random.Random) -> bytes:
    """The content with one of these: one to four bytes changed, cut off, a part overwritten."""
    changed = bytearray(content)
    way = source.random()
    if way < 0.7:
        for _ in range(source.choice((1, 1, 1, 2, 4))):
            changed[source.randrange(len(changed))] ^= source.randrange(1, 256)
    elif way < 0.85:
        del changed[source.randrange(len(changed)) :]
    else:
        start = source.randrange(len(changed))
        size = min(source.randrange(1, 64), len(changed) - start)
        changed[start : start + size] = source.randbytes(size)
    return bytes(changed)


def try_kind(name: str, good: Path, trials: int, seed: object, keep: Path | None = None) -> Found:
    """Damage the file of a kind so many times; return the outcomes."""
    kind = KINDS[name]
    source = random.Random(zlib.crc32(f"{seed} {name}".encode()))
    found = Found()
    content = (good / kind.file).read_bytes()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(shutil.copytree(good, Path(scratch, "files")))
        expected = read_good(name, partial(kind.read, folder))
        for number in range(trials):
            (folder / kind.file).write_bytes(kind.pack(damaged(kind.unpack(content), source)))
            told = attempt(partial(kind.read, folder))
            outcome = told.outcome
            if outcome is Outcome.ACCEPTED and told.digest != expected.digest:
                outcome = Outcome.ACCEPTED_CHANGED
            found.add(f"{name}, trial {number}", outcome, told.text)
            if outcome in DEFECTS and keep:
                keep.mkdir(exist_ok=True)
                place = f"{name.replace(' ', '_')}-{number}-{Path(kind.file).name}"
                shutil.copy(folder / kind.file, keep / place)
    return found


def read_good(name: str, read: Callable[[], object]) -> Told:
    """What a reader makes of a good file: twice the same, or damage could not be told."""
    first, second = attempt(read), attempt(read)
    for told in (first, second):
        if told.outcome is not Outcome.ACCEPTED:
            raise RuntimeError(f"{name}: without damage: {told.outcome.value}: {told.text}")
    if first.digest != second.digest:
        raise RuntimeError(f"{name}: without damage, what is read differs from time to time")
    return first


def jobs(world: World, seed: str, full: bool) -> Iterator[Callable[[], Found]]:
    """One for each kind."""
    good = world.folder / "files"
    good.mkdir()
    make_files(good)
    trials = FULL if full else SAMPLE
    for name in KINDS:
        yield partial(try_kind, name, good, trials, seed)


def show(name: str, cells: list[object]) -> None:
    print(f"{name:26}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run from the command line; 1 if there is a defect."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--trials", type=int, default=100, help="of each kind (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="of the damage (default: 0)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep files that show defects")
    args = parser.parse_args(argv)
    total: Counter = Counter()
    with tempfile.TemporaryDirectory() as good:
        good = Path(good)
        make_files(good)
        show("", ["tried", *(outcome.value for outcome in Outcome)])
        for name in args.kinds or KINDS:
            found = try_kind(name, good, args.trials, args.seed, args.keep)
            total += found.outcomes
            show(name, [args.trials, *(found.outcomes[outcome] for outcome in Outcome)])
            for defect in found.defects:
                print(defect, file=sys.stderr)
    show("all", [total.total(), *(total[outcome] for outcome in Outcome)])
    return int(any(total[outcome] for outcome in DEFECTS))


if __name__ == "__main__":
    sys.exit(main())
