"""Cuts small files at every byte: caffemodels, solver states and draws files.

A file that ends early must be refused, wherever it ends. One that is accepted is a defect, even if
all numbers are there.
"""

import contextlib
import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import bayescaffe
import caffe
import numpy as np
from bayescaffe.net.messages import read_weights
from bayescaffe.stats.draws import load_draws, save_draws
from bayescaffe.training.snapshots import read_snapshot
from child import attempts
from conftest import write_digits, write_solver
from flip_files import read_good
from trial import Found, Outcome
from world import World

AT_ONCE = 200
"""Places that one child process tries."""
SHARE = 0.02
"""Of the bytes of a file, for a sample."""

NET = """
layer {
  name: "data" type: "Data" top: "data" top: "label"
  data_param { source: "FOLDER/train_lmdb" batch_size: 4 backend: LMDB }
}
layer {
  name: "out" type: "BayesInnerProduct" bottom: "data" top: "out"
  inner_product_param { num_output: 2 weight_filler { type: "xavier" } }
  bayes_param { kl_weight: 0 }
}
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "out" bottom: "label" top: "loss" }
"""


def make_files(folder: Path) -> None:
    """Write a file of each kind, a few kilobytes each."""
    write_digits(folder / "idx", train=8, test=4, size=4, classes=2)
    bayescaffe.data.prepare_idx(folder / "idx", folder, progress=False)
    net = NET.replace("FOLDER", str(folder))
    for name, options in (("run", {}), ("hdf5", {"snapshot_format": "HDF5"})):
        solver = write_solver(folder, net, 2, name, snapshot=2, **options)
        with contextlib.redirect_stdout(io.StringIO()):
            bayescaffe.train(solver, out=folder / f"{name} log", progress=False)
    probabilities = np.random.default_rng(0).dirichlet(np.ones(3), (5, 4)).astype(np.float32)
    save_draws(folder / "draws.npz", probabilities, np.arange(4) % 3, {"seed": 1})
    np.savez_compressed(folder / "packed.npz", probabilities=probabilities, meta=np.array("{}"))


def load_net(name: str, folder: Path) -> None:
    net = caffe.Net(str(folder / "run.net.prototxt"), caffe.TEST)
    net.copy_from(str(folder / name))


def restore(name: str, folder: Path) -> None:
    solver = caffe.get_solver(str(folder / f"{name}.solver.prototxt"))
    solver.restore(str(next(folder.glob(f"{name}_iter_2.solverstate*"))))


def check(name: str, folder: Path) -> None:
    """What `bayescaffe train --resume` asks before it takes a snapshot."""
    read_snapshot(next(folder.glob(f"{name}_iter_2.solverstate*")))


MODEL, HDF5_MODEL = "run_iter_2.caffemodel", "hdf5_iter_2.caffemodel.h5"
STATE, HDF5_STATE = "run_iter_2.solverstate", "hdf5_iter_2.solverstate.h5"
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "caffemodel, Python": (MODEL, lambda folder: read_weights(folder / MODEL)),
    "caffemodel, Caffe": (MODEL, partial(load_net, MODEL)),
    "caffemodel, resumed": (MODEL, partial(check, "run")),
    "caffemodel, HDF5": (HDF5_MODEL, partial(load_net, HDF5_MODEL)),
    "solverstate": (STATE, partial(check, "run")),
    "solverstate, Caffe": (STATE, partial(restore, "run")),
    "solverstate, HDF5": (HDF5_STATE, partial(restore, "hdf5")),
    "draws": ("draws.npz", lambda folder: load_draws(folder / "draws.npz")),
    "draws, compressed": ("packed.npz", lambda folder: load_draws(folder / "packed.npz")),
}
"""By name: the file to cut, and what reads it in its folder."""


def cut(path: Path, content: bytes, read: Callable[[Path], object]) -> None:
    path.write_bytes(content)
    read(path.parent)


def try_reader(name: str, share: float, seed: str) -> Found:
    """Cut the file of a reader at every byte, or at a share of them."""
    found = Found()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_files(folder)
        file, read = READERS[name]
        path, whole = folder / file, (folder / file).read_bytes()
        read_good(name, partial(cut, path, whole, read))
        places = sorted(
            Random(f"{seed} {name}").sample(range(len(whole)), round(share * len(whole)))
        )
        for start in range(0, len(places), AT_ONCE):
            some = places[start : start + AT_ONCE]
            calls = [partial(cut, path, whole[:place], read) for place in some]
            for place, told in zip(some, attempts(calls), strict=True):
                is_accepted = told.outcome is Outcome.ACCEPTED
                found.add(
                    f"{name}, cut to {place} of {len(whole)} bytes",
                    Outcome.WRONG if is_accepted else told.outcome,
                    "accepted" if is_accepted else told.text,
                )
    return found


def jobs(world: World, seed: str, full: bool) -> Iterator[Callable[[], Found]]:
    """One for each reader."""
    for name in READERS:
        yield partial(try_reader, name, 1 if full else SHARE, seed)
