"""The paper's experiments: train, sample and analyse its eight nets, then write RESULTS.md.

Each step is a `bayescaffe` command that makes a file. An interrupted reproduction continues where
it stopped, since steps whose files are there are not run again.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import results
from bayescaffe import BayesCaffeError, analyze, load_draws, open_images, plots, read_curve
from bayescaffe.common import provenance
from bayescaffe.common.files import scratch_file
from bayescaffe.data.datasets import prepare
from bayescaffe.net.messages import read_message
from marked_part import SUITE
from steps import Step, run_chains, run_step

log = logging.getLogger(__name__)

KINDS = ("plain", "dropout", "exchanged", "reduced")
NETS = tuple(f"{family}-{kind}" for family in ("stock", "bayes") for kind in KINDS)
# Nets that also see out-of-distribution images, and whose draws are kept for a report.
SHOWN = ("plain", "dropout")
OOD = "fashion-mnist"
# Where the figures go, seen from RESULTS.md.
FIGURES = Path("docs/figures")
# Rough seconds on one core, for the time left.
SECONDS_PER_ITERATION = 9e-3
SECONDS_PER_IMAGE_AND_DRAW = 46e-6


@dataclass(frozen=True)
class Settings:
    """What is reproduced, and where."""

    out: Path = Path("results")
    models: Path = Path("models/lenet")
    data: Path = Path("data")
    nets: Sequence[str] = NETS
    seeds: Sequence[int] = (1, 2, 3)
    draws: int = 100
    """Of each Bayesian net, and of each stock net with MC dropout."""
    iterations: int | None = None
    """Of each training; by default as many as its solver says."""
    jobs: int = provenance.cores()
    dask: str | None = None
    """The address of a scheduler, whose workers run the commands then."""
    """How many commands run side by side."""


@dataclass(frozen=True)
class Run:
    """One net, trained from one seed."""

    settings: Settings
    net: str
    seed: int

    @property
    def folder(self) -> Path:
        return self.settings.out / self.net / f"seed-{self.seed}"

    @property
    def kind(self) -> str:
        return self.net.split("-")[1]

    @property
    def is_bayesian(self) -> bool:
        return self.net.startswith("bayes")

    @property
    def is_shown(self) -> bool:
        return self.kind in SHOWN

    @property
    def net_file(self) -> Path:
        return self.settings.models / self.net / "train_test.prototxt"

    @property
    def curve(self) -> Path:
        return self.folder / "curve.csv"

    @property
    def methods(self) -> dict[str, int]:
        """The ways to predict with it, and how many draws each takes."""
        if self.is_bayesian:
            return {"bayes": self.settings.draws}
        if self.kind == "plain":
            return {"stock": 1}
        return {"stock": 1, "mc-dropout": self.settings.draws}

    def draws(self, method: str, data: str = "test") -> Path:
        return self.folder / f"{method}.{data}.draws.npz"

    def analysis(self, method: str) -> Path:
        return self.folder / f"{method}.json"


def reproduce(
    settings: Settings, results_file: str | os.PathLike = "RESULTS.md", progress: bool = True
) -> Path:
    """Train, sample and analyse what is not done yet, then write tables, figures and reports.

    Args:
        results_file: where the tables go; the figures go beside it.
        progress: show a progress bar if this runs on a terminal.
    """
    _check(settings)
    for name in ("mnist", OOD):
        if not (settings.data / name / "test_lmdb").is_dir():
            prepare(name, settings.data / name, progress=progress)
    runs = [Run(settings, net, seed) for seed in settings.seeds for net in settings.nets]
    run_chains([list(_steps(run)) for run in runs], settings.jobs, progress, settings.dask)
    reports = _write_reports(settings)
    figures = _write_figures(settings, Path(results_file).parent / FIGURES)
    text = results.write(collect(settings), settings, reports, figures)
    # The suite writes its own part of the page, which is kept.
    kept = SUITE.of(Path(results_file))
    with scratch_file(Path(results_file)) as scratch:
        scratch.write_text(f"{text}\n{kept}\n" if kept else text)
    return Path(results_file)


def collect(settings: Settings) -> dict[str, dict[int, dict]]:
    """What was found, by net and seed: an analysis for each method, `layers`, and `made`.

    `layers` is what `bayescaffe inspect` printed for a Bayesian net; `made` names the commit and
    the machine.
    """
    found: dict[str, dict[int, dict]] = {}
    for net in settings.nets:
        for seed in settings.seeds:
            run = Run(settings, net, seed)
            entry = {method: _read(run.analysis(method)) for method in run.methods}
            if run.is_bayesian:
                entry["layers"] = _read(run.folder / "layers.json")
            entry["made"] = _read(run.folder / "made.json")
            found.setdefault(net, {})[seed] = entry
    return found


def _check(settings: Settings) -> None:
    if settings.jobs < 1 or not settings.seeds or settings.draws < 1:
        raise BayesCaffeError(
            f"{settings.jobs} jobs, {len(settings.seeds)} seeds, {settings.draws} draws: "
            "at least one of each is needed"
        )
    for net in settings.nets:
        family, _, kind = net.partition("-")
        counterpart = f"{'stock' if family == 'bayes' else 'bayes'}-{kind}"
        if net not in NETS or counterpart not in settings.nets:
            raise BayesCaffeError(
                f"{net}: expected some of {', '.join(NETS)}, each with its counterpart (such as "
                "stock-plain with bayes-plain)"
            )
        if not (settings.models / net / "solver.prototxt").is_file():
            raise BayesCaffeError(
                f"{settings.models / net} has no solver.prototxt; run this from the top of the "
                "repository, or name the folder of the nets with --models"
            )


def _steps(run: Run) -> Iterator[Step]:
    """The steps of a run, in order. Prepares its folder."""
    solver, iterations = _prepare_folder(run)
    weights = run.folder / f"lenet_iter_{iterations}.caffemodel"
    yield Step(
        made=weights,
        command=["train", str(solver), "--resume", "--json"],
        seconds=SECONDS_PER_ITERATION * iterations,
        progress=lambda: _last_iteration(run.curve) / iterations,
    )
    if run.is_bayesian:
        yield Step(
            made=run.folder / "layers.json",
            command=["inspect", str(run.net_file), str(weights), "--json"],
            seconds=1,
            keeps_output=True,
        )
    for method in run.methods:
        yield from _sample_and_analyze(run, method, weights)


def _sample_and_analyze(run: Run, method: str, weights: Path) -> Iterator[Step]:
    passes, images = run.methods[method], 60_000 if run.kind == "exchanged" else 10_000
    test, ood = run.draws(method), run.draws(method, OOD)
    # The draws files, and the options that say which images they are of: by default the net's own.
    draws: dict[Path, list[str]] = {test: []}
    analysis = ["analyze", str(test), "--out", str(run.analysis(method))]
    if run.is_shown:
        draws[ood] = ["--data", str(run.settings.data / OOD / "test_lmdb")]
        analysis += ["--ood", str(ood)]
    for path, options in draws.items():
        command = ["sample", str(run.net_file), str(weights), "--passes", str(passes), *options]
        command += ["--mc-dropout"] if method == "mc-dropout" else []
        command += ["--seed", str(run.seed), "--out", str(path)]
        yield Step(path, command, SECONDS_PER_IMAGE_AND_DRAW * passes * images)
    is_kept = run.is_shown and run.seed == run.settings.seeds[0]
    yield Step(run.analysis(method), analysis, 2, uses_up=() if is_kept else tuple(draws))


def _prepare_folder(run: Run) -> tuple[Path, int]:
    """Write the run's own solver; clear the folder if it was made from another net or solver.

    Returns the solver and its number of iterations.
    """
    solver = read_message(run.settings.models / run.net / "solver.prototxt", "SolverParameter")
    solver.random_seed = run.seed
    if run.settings.iterations is not None:
        solver.max_iter = run.settings.iterations
    solver.snapshot_prefix = str(run.folder / "lenet")
    text = str(solver)
    inputs = hashlib.sha256((run.net_file.read_text() + text).encode()).hexdigest()
    made = run.folder / "made.json"
    with contextlib.suppress(OSError, ValueError):
        if _read(made)["inputs"] != inputs:
            log.info("%s was made from another net or solver: running it again", run.folder)
            shutil.rmtree(run.folder)
    run.folder.mkdir(parents=True, exist_ok=True)
    solver_file = run.folder / "solver.prototxt"
    with scratch_file(solver_file) as scratch:
        scratch.write_text(text)
    if not made.is_file():
        commit = provenance.commit(Path(__file__).parent)
        origin = {"inputs": inputs, "commit": commit, "machine": provenance.machine()}
        with scratch_file(made) as scratch:
            scratch.write_text(json.dumps(origin) + "\n")
    return solver_file, solver.max_iter


def _read(path: Path) -> dict:
    return json.loads(path.read_text())


def _last_iteration(curve: Path) -> int:
    try:
        return int(curve.read_text().splitlines()[-1].split(",")[0])
    except (OSError, ValueError, IndexError):
        return 0


def _write_reports(settings: Settings) -> list[Path]:
    """A page for each Bayesian net whose draws were kept, beside its stock counterpart."""
    written = []
    for kind in SHOWN:
        if f"bayes-{kind}" not in settings.nets:
            continue
        bayes, stock = (Run(settings, f"{f}-{kind}", settings.seeds[0]) for f in ("bayes", "stock"))
        page = settings.out / f"report-{kind}.html"
        command = ["report", str(bayes.draws("bayes")), "--out", str(page)]
        command += ["--title", f"Bayesian LeNet, {results.TITLES[kind]}"]
        command += ["--ood", str(bayes.draws("bayes", OOD))]
        for method in stock.methods:
            command += ["--baseline", f"{results.METHODS[method]}={stock.draws(method)}"]
        for run, name in ((bayes, "Bayesian"), (stock, "stock")):
            command += ["--curve", f"{name}={run.curve}"]
        run_step(Step(page, command, 1), provenance.cores())
        written.append(page)
    return written


def _write_figures(settings: Settings, folder: Path) -> list[Path]:
    """Write the paper's figures into `folder`. Returns their paths as seen from RESULTS.md."""
    shown = [f"{family}-{kind}" for kind in SHOWN for family in ("stock", "bayes")]
    runs = {net: Run(settings, net, settings.seeds[0]) for net in shown if net in settings.nets}
    options = {}
    if runs:
        run = runs.get("bayes-plain", runs.get("bayes-dropout"))
        draws = load_draws(run.draws("bayes"))
        options = {
            "curves": {net: read_curve(run.curve) for net, run in runs.items()},
            "analysis": analyze(draws, progress=False),
            "probabilities": draws.probabilities,
            "images": open_images(draws.meta["data"]).read,
        }
    written = plots.paper_figures(folder, formats=("png",), **options)
    return [FIGURES / path.name for path in written]
