"""One run: the stock net, or a Bayesian form of it, trained and measured on held-out images."""

import json
import os
import re
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import bayescaffe
import numpy as np
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_file
from bayescaffe.net.posterior import inspect
from bayescaffe.stats.metrics import nll
from setups import SETUPS, Setup, prepare

DRAWS = 10
RULE = "0.017 (60000 / n)^(2/3) / W, noise per image"
"""Of `convert`. Runs by another one are not comparable."""


@dataclass(frozen=True, order=True)
class Run:
    """What is trained; what is not said is as `bayescaffe convert` has it."""

    setup: str
    kind: str = "bayes"
    """`stock`; `bayes`; `bayes-weights`, which starts from the weights of the stock run; or
    `bayes-solver`, which starts from a net without a solver."""
    scale: float | None = None
    """kl_weight / dataset_size."""
    seed: int = 1
    tau: float | None = None
    """tau_init."""
    layers: str | None = None
    """The layers that are made Bayesian."""

    @property
    def rule(self) -> str | None:
        """What the KL scale depends on besides."""
        return None if self.kind == "stock" or self.scale else RULE

    @property
    def name(self) -> str:
        parts = [self.kind]
        if self.scale is not None:
            parts.append(f"{self.scale:g}")
        if self.tau is not None:
            parts.append(f"tau{self.tau:g}")
        if self.layers is not None:
            parts.append(re.sub(r"\W+", "_", self.layers))
        return "-".join([*parts, f"seed{self.seed}"])

    def folder(self, out: Path) -> Path:
        return out / "runs" / self.setup / self.name


def read_lines(path: Path) -> list[dict]:
    """What the runs so far have found."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def is_done(run: Run, lines: list[dict]) -> bool:
    """Whether a line tells of the run, and, if it uses the rule, of today's rule."""
    wanted = asdict(run) | {"rule": run.rule}
    return any(wanted.items() <= line.items() for line in lines)


def measure(run: Run, known: Path, out: Path) -> dict:
    """Train and sample; the outcome, also of a training that failed, for a line of JSON.

    The mean predictive probabilities stay in predictive.npz, in the folder of the run.
    """
    setup = SETUPS[run.setup]
    started = time.monotonic()
    found = asdict(run) | {"rule": run.rule, "dataset_size": None, "weights": None, "failed": None}
    shutil.rmtree(run.folder(out), ignore_errors=True)
    data = prepare(setup, run.seed, known, out / "data")
    try:
        found |= _trained(run, setup, data, out)
    except BayesCaffeError as error:
        found["failed"] = str(error).splitlines()[0]
    return found | {"seconds": round(time.monotonic() - started, 1)}


def _trained(run: Run, setup: Setup, data: Path, out: Path) -> dict:
    folder = run.folder(out)
    folder.mkdir(parents=True)
    net, solver = folder / "net.prototxt", folder / "solver.prototxt"
    net.write_text(setup.net(data))
    solver.write_text(f"{setup.solver(folder)}random_seed: {run.seed}\n")
    found = {}
    if run.kind != "stock":
        weights = None
        if run.kind == "bayes-weights":
            stock = Run(run.setup, "stock", seed=run.seed).folder(out)
            weights = next(stock.glob("*.caffemodel"))
        given = net if run.kind == "bayes-solver" else solver
        layers = run.layers and run.layers.split(",")
        done = bayescaffe.convert(given, weights, layers=layers, out=folder / "bayes")
        net, solver = done.nets[0], done.solver
        found["dataset_size"] = done.dataset_size
        _edit(net, run, done.dataset_size)
    trained = bayescaffe.train(solver, progress=False)
    found |= {"loss": trained.loss, "kl": trained.kl, "tau_end": trained.tau}
    if run.kind != "stock":
        layers = inspect(net, trained.snapshot)
        found["weights"] = sum(layer.weights + layer.biases for layer in layers)
        found["kl_scale"] = layers[0].kl_scale
    images = data / "held_out" if setup.is_drawn else None
    passes = 1 if run.kind == "stock" else DRAWS
    draws = bayescaffe.sample(net, images, passes, weights=trained.snapshot, progress=False)
    mean = np.asarray(draws.probabilities).mean(axis=0)
    with scratch_file(folder / "predictive.npz") as scratch, scratch.open("wb") as file:
        np.savez(file, probabilities=mean, labels=draws.labels)
    _tidy(folder, keep=run.kind == "stock")
    error = float((mean.argmax(axis=1) != draws.labels).mean())
    return found | {"error": error, "nll": nll(mean, draws.labels), "images": len(mean)}


def _edit(net: Path, run: Run, dataset_size: int) -> None:
    """Write what the run says into the Bayesian net."""
    text = net.read_text()
    if run.scale is not None:
        value = f"{run.scale * dataset_size:.6g}"
        text = re.sub(r"\bkl_weight: \S+", f"kl_weight: {value}", text)
    if run.tau is not None:
        text = re.sub(r"\btau_init: \S+", f"tau_init: {run.tau:g}", text)
    net.write_text(text)


def _tidy(folder: Path, keep: bool) -> None:
    for path in folder.rglob("*.solverstate"):
        os.remove(path)
    if not keep:
        for path in folder.rglob("*.caffemodel"):
            os.remove(path)
