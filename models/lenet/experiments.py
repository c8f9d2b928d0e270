"""The paper's experiments, from data to tables: train, sample and analyse its eight nets.

Each step is a command of this package that writes a file, and is done when that file is there. So
whatever was interrupted goes on where it stopped, and several steps run side by side.
"""

import contextlib
import functools
import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import results
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_file
from bayescaffe.common.processes import die_with_parent
from bayescaffe.data.datasets import prepare
from bayescaffe.net.messages import read_message
from tqdm import tqdm

log = logging.getLogger(__name__)

KINDS = ("plain", "dropout", "exchanged", "reduced")
NETS = tuple(f"{family}-{kind}" for family in ("stock", "bayes") for kind in KINDS)
# Nets that also see images of another world, and whose passes are kept for a report.
SHOWN = ("plain", "dropout")
OTHER_WORLD = "fashion-mnist"
# Where the figures go, beside the tables that show them.
FIGURES = Path("docs/figures")
# Rough seconds of one core, for the time left: of an iteration, and of an image in a pass.
TRAINING, PASS = 9e-3, 46e-6


@dataclass(frozen=True)
class Settings:
    """What is reproduced, and where."""

    out: Path = Path("results")
    models: Path = Path("models/lenet")
    data: Path = Path("data")
    nets: Sequence[str] = NETS
    seeds: Sequence[int] = (1, 2, 3)
    passes: int = 100
    iterations: int | None = None
    """Of each training, if not as many as its solver says."""
    jobs: int = os.cpu_count() or 1
    """Commands that run side by side."""


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
    def net_file(self) -> Path:
        return self.settings.models / self.net / "train_test.prototxt"

    @property
    def methods(self) -> dict[str, list[str]]:
        """The ways to predict with it, and what they add to `bayescaffe sample`."""
        passes = ["--passes", str(self.settings.passes)]
        if self.is_bayesian:
            return {"bayes": passes}
        found = {"stock": ["--passes", "1"]}
        if self.kind != "plain":
            found["mc-dropout"] = [*passes, "--mc-dropout"]
        return found

    @property
    def is_shown(self) -> bool:
        return self.kind in SHOWN

    def draws(self, method: str, data: str = "test") -> Path:
        return self.folder / f"{method}.{data}.draws.npz"

    def analysis(self, method: str) -> Path:
        return self.folder / f"{method}.json"


@dataclass(frozen=True)
class Step:
    """A command that makes a file."""

    made: Path
    command: list[str]
    seconds: float
    """About how long it takes on one core."""
    keeps_output: bool = False
    """Whether the file is what the command prints."""
    uses_up: Sequence[Path] = ()
    """Files that nobody needs after it."""
    progress: Callable[[], float] = lambda: 0.0
    """The share that is done while it runs."""


def reproduce(
    settings: Settings, results_file: str | os.PathLike = "RESULTS.md", progress: bool = True
) -> Path:
    """Train, sample and analyse what is not done yet, then write the tables and the reports.

    Args:
        results_file: where the tables go.
        progress: show a progress bar if this runs on a terminal.
    """
    if settings.jobs < 1 or not settings.seeds or settings.passes < 1:
        raise BayesCaffeError(
            f"{settings.jobs} jobs, {len(settings.seeds)} seeds, {settings.passes} passes: "
            "at least one of each is needed"
        )
    for net in settings.nets:
        family, _, kind = net.partition("-")
        twin = f"{'stock' if family == 'bayes' else 'bayes'}-{kind}"
        if net not in NETS or twin not in settings.nets:
            raise BayesCaffeError(
                f"{net}: expected some of {', '.join(NETS)}, each with its twin (such as "
                "stock-plain with bayes-plain)"
            )
        if not (settings.models / net / "solver.prototxt").is_file():
            raise BayesCaffeError(
                f"{settings.models / net} has no solver.prototxt; run this from the top of the "
                "repository, or name the folder of the nets with --models"
            )
    for name in ("mnist", OTHER_WORLD):
        if not (settings.data / name / "test_lmdb").is_dir():
            prepare(name, settings.data / name, progress=progress)
    runs = [Run(settings, net, seed) for seed in settings.seeds for net in settings.nets]
    chains = [list(_steps(run)) for run in runs]
    _run_chains(chains, settings, progress)
    reports = _write_reports(settings)
    figures = _write_figures(settings, Path(results_file).parent / FIGURES)
    text = results.write(collect(settings), settings, reports, figures)
    with scratch_file(Path(results_file)) as scratch:
        scratch.write_text(text)
    return Path(results_file)


def collect(settings: Settings) -> dict[str, dict[int, dict]]:
    """What the runs gave: by net and seed, the analyses by method, the layers and who made it."""
    found: dict[str, dict[int, dict]] = {}
    for net in settings.nets:
        for seed in settings.seeds:
            run = Run(settings, net, seed)
            entry = {m: json.loads(run.analysis(m).read_text()) for m in run.methods}
            if run.is_bayesian:
                entry["layers"] = json.loads((run.folder / "layers.json").read_text())
            entry["made"] = json.loads((run.folder / "made.json").read_text())
            found.setdefault(net, {})[seed] = entry
    return found


def _steps(run: Run) -> Iterator[Step]:
    """What is to be done for a run, in order; prepares its folder."""
    solver, iterations = _prepare_folder(run)
    images = 60_000 if run.kind == "exchanged" else 10_000
    prefix = run.folder / "lenet"
    weights = Path(f"{prefix}_iter_{iterations}.caffemodel")
    curve = run.folder / "curve.csv"
    yield Step(
        made=weights,
        command=["train", str(solver), "--resume", "--json"],
        seconds=TRAINING * iterations,
        progress=lambda: _last_iteration(curve) / iterations,
    )
    if run.is_bayesian:
        yield Step(
            made=run.folder / "layers.json",
            command=["inspect", str(run.net_file), str(weights), "--json"],
            seconds=1,
            keeps_output=True,
        )
    for method, options in run.methods.items():
        passes = int(options[1])
        test, other = run.draws(method), run.draws(method, OTHER_WORLD)
        # What each is made of, beside the net: its own test images if nothing is said.
        draws: dict[Path, list[str]] = {test: []}
        analyze = ["analyze", str(test), "--out", str(run.analysis(method))]
        if run.is_shown:
            draws[other] = ["--data", str(run.settings.data / OTHER_WORLD / "test_lmdb")]
            analyze += ["--ood", str(other)]
        for path, data in draws.items():
            command = ["sample", str(run.net_file), str(weights), *options, *data]
            command += ["--seed", str(run.seed), "--out", str(path)]
            yield Step(made=path, command=command, seconds=PASS * passes * images)
        keeps = run.is_shown and run.seed == run.settings.seeds[0]
        yield Step(
            made=run.analysis(method),
            command=analyze,
            seconds=2,
            uses_up=() if keeps else tuple(draws),
        )


def _prepare_folder(run: Run) -> tuple[Path, int]:
    """Writes the run's own solver; clears what was made from other nets or settings.

    Returns the solver and its number of iterations.
    """
    model = run.settings.models / run.net
    solver = read_message(model / "solver.prototxt", "SolverParameter")
    solver.random_seed = run.seed
    if run.settings.iterations is not None:
        solver.max_iter = run.settings.iterations
    solver.snapshot_prefix = str(run.folder / "lenet")
    text = str(solver)
    inputs = hashlib.sha256((run.net_file.read_text() + text).encode()).hexdigest()
    made = run.folder / "made.json"
    with contextlib.suppress(OSError, ValueError):
        if json.loads(made.read_text())["inputs"] != inputs:
            log.info("%s: made from another net or solver, so it is done again", run.folder)
            shutil.rmtree(run.folder)
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "solver.prototxt").write_text(text)
    if not made.is_file():
        made.write_text(json.dumps({"inputs": inputs, "commit": _commit()}) + "\n")
    return run.folder / "solver.prototxt", solver.max_iter


@functools.cache
def _commit() -> str:
    """The commit that is checked out here, with a word if files differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (" with changes" if changed else "")


def _last_iteration(curve: Path) -> int:
    try:
        return int(curve.read_text().splitlines()[-1].split(",")[0])
    except (OSError, ValueError, IndexError):
        return 0


def _write_reports(settings: Settings) -> list[Path]:
    """A page for each Bayesian net whose passes were kept, beside its ordinary twin."""
    written = []
    for kind in SHOWN:
        if f"bayes-{kind}" not in settings.nets:
            continue
        bayes, stock = (Run(settings, f"{f}-{kind}", settings.seeds[0]) for f in ("bayes", "stock"))
        page = settings.out / f"report-{kind}.html"
        command = ["report", str(bayes.draws("bayes")), "--out", str(page)]
        command += ["--title", f"Bayesian LeNet, {results.TITLES[kind]}"]
        command += ["--ood", str(bayes.draws("bayes", OTHER_WORLD))]
        for method in stock.methods:
            command += ["--baseline", f"{results.METHODS[method]}={stock.draws(method)}"]
        for run, name in ((bayes, "Bayesian"), (stock, "ordinary")):
            command += ["--curve", f"{name}={run.folder / 'curve.csv'}"]
        _run_step(Step(page, command, 1), dict(os.environ), threading.Event())
        written.append(page)
    return written


def _write_figures(settings: Settings, folder: Path) -> list[Path]:
    """The paper's figures; returns their names, as seen from the tables."""
    from bayescaffe.data.images import open_images
    from bayescaffe.reporting.plots import paper_figures
    from bayescaffe.stats.analysis import analyze
    from bayescaffe.stats.draws import load_draws
    from bayescaffe.training.train import read_curve

    shown = [f"{family}-{kind}" for kind in SHOWN for family in ("stock", "bayes")]
    runs = {net: Run(settings, net, settings.seeds[0]) for net in shown if net in settings.nets}
    options = {}
    if runs:
        run = runs.get("bayes-plain", runs.get("bayes-dropout"))
        draws = load_draws(run.draws("bayes"))
        options = {
            "curves": {net: read_curve(r.folder / "curve.csv") for net, r in runs.items()},
            "analysis": analyze(draws, progress=False),
            "probabilities": draws.probabilities,
            "images": open_images(draws.meta["data"]).read,
        }
    written = paper_figures(folder, formats=("png",), **options)
    return [FIGURES / path.name for path in written]


def _run_chains(chains: list[list[Step]], settings: Settings, progress: bool) -> None:
    """Run the steps of each chain in order, and chains side by side."""
    # The last step of a chain stands for what its files were used up for.
    todo = [[step for step in chain if _is_needed(step, chain)] for chain in chains]
    # The longest first, so that no core is left with one at the end.
    todo = sorted(filter(None, todo), key=lambda chain: -sum(step.seconds for step in chain))
    total = sum(step.seconds for chain in todo for step in chain)
    if not todo:
        return
    # With fewer trainings than cores, each has several.
    threads = max(1, (os.cpu_count() or 1) // min(settings.jobs, len(todo)))
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    stop = threading.Event()
    running: dict[int, Step] = {}
    done: list[Step] = []

    def run_chain(number: int) -> None:
        for step in todo[number]:
            if stop.is_set():
                return
            running[number] = step
            _run_step(step, environment, stop)
            done.append(running.pop(number))

    with (
        tqdm(
            total=round(total),
            desc="reproduce",
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}, {remaining} left{postfix}",
            smoothing=0,
            disable=None if progress else True,
        ) as bar,
        ThreadPoolExecutor(settings.jobs) as pool,
    ):
        futures = [pool.submit(run_chain, number) for number in range(len(todo))]
        try:
            pending = set(futures)
            while pending:
                finished, pending = wait(pending, timeout=1)
                for future in finished:
                    future.result()
                now = list(running.values())
                share = sum(step.seconds for step in done)
                share += sum(step.seconds * step.progress() for step in now)
                bar.n = min(round(share), round(total))
                bar.set_postfix_str(", ".join(sorted(_label(step) for step in now)), refresh=False)
                bar.refresh()
        except BaseException:
            stop.set()
            raise


def _label(step: Step) -> str:
    return f"{step.command[0]} {step.made.parent.parent.name}/{step.made.parent.name}"


def _is_needed(step: Step, chain: list[Step]) -> bool:
    if step.made.exists():
        return False
    return not any(step.made in later.uses_up and later.made.exists() for later in chain)


def _run_step(step: Step, environment: dict[str, str], stop: threading.Event) -> None:
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
            env=environment,
            # A training takes a second Ctrl-C, the terminal's beside ours, for impatience.
            start_new_session=True,
            preexec_fn=die_with_parent(),
        ) as process,
    ):
        while True:
            try:
                output, _ = process.communicate(timeout=0.1)
                break
            except subprocess.TimeoutExpired:
                if stop.is_set():
                    # A training writes a snapshot and stops.
                    process.send_signal(signal.SIGINT)
                    process.communicate()
                    return
    if process.returncode:
        shown = f"bayescaffe {' '.join(step.command)}"
        raise BayesCaffeError(f"`{shown}` failed:\n{errors.read_text().strip()}")
    errors.unlink(missing_ok=True)
    if step.keeps_output:
        with scratch_file(step.made) as scratch:
            scratch.write_text(output)
    if not step.made.exists():
        raise BayesCaffeError(f"bayescaffe {step.command[0]} did not write {step.made}")
    for path in step.uses_up:
        path.unlink(missing_ok=True)
