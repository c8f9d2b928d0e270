"""Trains with `caffe train`: keeps its log and curve, resumes, and stops what has diverged."""

import contextlib
import fcntl
import functools
import itertools
import logging
import math
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from bayescaffe.common.errors import BayesCaffeError, argument
from bayescaffe.common.files import errors_name, scratch_file, without_links
from bayescaffe.common.pycaffe import caffe_tool
from bayescaffe.net.checking import Finding
from bayescaffe.net.messages import read_message
from bayescaffe.net.own_data import check_own_data
from bayescaffe.net.packing import is_packed, pack_snapshots
from bayescaffe.training.log import RESUMED, CurveWriter, LogParser
from bayescaffe.training.process import CaffeProcess
from bayescaffe.training.ranks import Ranks, find_mpirun, killed_rank
from bayescaffe.training.snapshots import (
    Snapshot,
    list_states,
    newest_snapshot,
    read_snapshot,
    snapshot_prefix,
    training_hash,
)
from bayescaffe.training.view import Share, TrainingView
from bayescaffe.training.watch import Watch

logger = logging.getLogger(__name__)

_CAFFE_DIVERGED = "; did the training diverge?"
"""How Caffe ends an error about numbers that are not finite."""
_DIVERGED = "the training diverged and was stopped"


class _CaffeFailed(BayesCaffeError):
    """Caffe failed, and may not if it is tried again."""

    def __init__(self, message: str, wrote_snapshot: bool) -> None:
        super().__init__(message)
        self.wrote_snapshot = wrote_snapshot


@dataclass(frozen=True)
class TrainingResult:
    """The outcome of a training. A field is None if the log has no such number."""

    iterations: int
    seconds: float
    """The time of all iterations, including those before a resume."""
    snapshot: Path | None
    """The trained weights, a caffemodel."""
    log: Path
    curve: Path
    loss: float | None
    kl: float | None
    """KL(q || p) of the whole net, in nats."""
    test_loss: float | None
    test_error: float | None
    """Of one draw."""
    test_draws: int | None
    mean_test_loss: float | None
    mean_test_error: float | None
    """Of the mean prediction of `test_draws` draws."""
    tau: dict[str, float]
    """By layer: the standard deviation of a weight as a multiple of its |mean|."""
    tau_bias: dict[str, float]
    findings: list[Finding]
    """What may be wrong, and what to change: in the files, and by the log at the end."""


def train(
    solver: str | os.PathLike,
    *,
    resume: bool = False,
    weights: str | os.PathLike | None = None,
    test_draws: int | None = None,
    gpu: str | int | None = None,
    cpu: bool = False,
    ranks: int | None = None,
    hosts: str | None = None,
    retries: int = 0,
    out: str | os.PathLike | None = None,
    progress: bool = True,
) -> TrainingResult:
    """Train the net of a solver prototxt. Its paths are relative to the current directory.

    The log `train.log` and the learning curve `curve.csv` grow while it runs.

    Args:
        resume: continue from the newest good snapshot, or start from scratch if there is none. One
            of another net or solver is not taken; caffe_bayes/README.md lists what may differ.
        weights: a caffemodel to start from.
        test_draws: at each test, also test the mean prediction of this many draws.
        gpu: the number of a GPU, several ("0,1") or "all"; by default `solver_mode` of the solver
            decides.
        cpu: use the CPU, whatever `solver_mode` of the solver is.
        ranks: train with this many processes, which mpirun starts; see docs/mpi.md.
        hosts: where to start them: names separated by commas, such as "a,b" or "a:4,b:4"; by
            default on this machine.
        retries: after a failure of Caffe, resume from the newest snapshot this many times.
        out: the folder of log and curve; by default that of the snapshots.
        progress: show a bar on a terminal or in a notebook, elsewhere a line every few seconds.

    Raises:
        BayesCaffeError: Caffe failed, or the training diverged.
        KeyboardInterrupt: after Ctrl-C, once Caffe has written a snapshot to resume from.
    """
    options = {"weights": weights, "test_draws": test_draws, "gpu": gpu, "cpu": cpu, "out": out}
    options |= {"ranks": ranks, "hosts": hosts, "retries": retries}
    return train_share(solver, None, resume=resume, progress=progress, **options)


def train_share(
    solver: str | os.PathLike,
    share: Share | None,
    *,
    resume: bool,
    ranks: int | None,
    hosts: str | None,
    retries: int,
    **options,
) -> TrainingResult:
    """`train`, as one of several trainings if there is a `share`."""
    if retries < 0:
        raise BayesCaffeError(f"{argument('retries', retries)}: must be 0 or more")
    if hosts is not None and ranks is None:
        raise BayesCaffeError(f"{argument('hosts', hosts)} needs {argument('ranks')}")
    together = None if ranks is None else Ranks(ranks, hosts)
    for retry in range(1, retries + 1):
        try:
            return _train_once(solver, share, resume=resume, ranks=together, **options)
        except _CaffeFailed as error:
            # Without a snapshot of its own there may be one of an earlier training.
            resume = resume or error.wrote_snapshot
            logger.warning("%s\nTrying again: %d of %d", error, retry, retries)
    return _train_once(solver, share, resume=resume, ranks=together, **options)


def _train_once(
    solver: str | os.PathLike,
    share: Share | None,
    *,
    resume: bool,
    weights: str | os.PathLike | None,
    test_draws: int | None,
    gpu: str | int | None,
    cpu: bool,
    ranks: Ranks | None,
    out: str | os.PathLike | None,
    progress: bool,
) -> TrainingResult:
    solver = Path(solver)
    message = read_message(solver, "SolverParameter")
    if test_draws is not None and test_draws < 1:
        raise BayesCaffeError(f"{argument('test_draws', test_draws)}: must be 1 or more")
    if cpu and gpu is not None:
        raise BayesCaffeError(
            f"{argument('cpu', True)} and {argument('gpu', gpu)} exclude each other; choose one"
        )
    if ranks:
        find_mpirun()  # before the log of an earlier training is put aside
    if weights is not None and not Path(weights).is_file():
        raise BayesCaffeError(
            f"{argument('weights', str(weights))}: no such file; expected a caffemodel"
        )
    _check_data(message)
    prefix = snapshot_prefix(solver, message)
    folder = Path(out) if out is not None else prefix.parent
    # Without its folder Caffe fails only when it writes the first snapshot, which may be the last.
    for path in (folder, prefix.parent):
        path.mkdir(parents=True, exist_ok=True)
    start = _starting_point(solver, prefix, resume, weights)
    watch = Watch(solver, message, start.model if start else weights)
    with _open_log(folder / "train.log", folder / "curve.csv", start, prefix) as (log, parser):
        run = _Run(solver, message, start, log, parser, folder, watch)
        if start and start.iteration >= message.max_iter:
            logger.info(
                "%s has reached iteration %s, and max_iter of %s is %s: nothing is left to do",
                *(start.state, start.iteration, solver, message.max_iter),
            )
            run.pack()
            return run.result(start.iteration, start.model)
        command = [str(caffe_tool()), "train", "-solver", str(solver)]
        if start:
            command += ["-snapshot", str(start.state)]
        elif weights is not None:
            command += ["-weights", str(weights)]
        if test_draws is not None:
            command += ["-test_draws", str(test_draws)]
        if gpu is not None:
            command += ["-gpu", str(gpu)]
        if cpu:
            command.append("-cpu")
        for finding in watch.before:
            logger.warning("%s", finding)
        try:
            return run.run(command, ranks, progress, share)
        finally:
            run.pack()


def _check_data(message) -> None:
    """Raise if the LMDBs of the net do not fit together."""
    nets = {}
    for path in dict.fromkeys((message.net, message.train_net, *message.test_net)):
        with contextlib.suppress(BayesCaffeError, OSError):  # Caffe tells what is wrong with it
            nets[path] = read_message(path, "NetParameter")
    check_own_data(nets)


def _starting_point(
    solver: Path, prefix: Path, resume: bool, weights: str | os.PathLike | None
) -> Snapshot | None:
    """The snapshot to resume from, if any. Logs what the user may not expect."""
    states = list_states(prefix)
    if not resume:
        if states:
            logger.warning(
                "Starting from scratch: this overwrites the snapshots of an earlier training. "
                "The newest is %s; %s continues from it.",
                *(states[0], argument("resume", True)),
            )
        return None
    start = None
    if states:
        skipped = functools.partial(logger.warning, "Snapshot skipped: %s")
        start = newest_snapshot(prefix, skipped, training_hash(solver))
    if start is None:
        logger.warning(
            "There is no good snapshot %s_iter_*.solverstate to resume from: starting from %s",
            prefix,
            weights or "scratch",
        )
    elif weights is not None:
        logger.info("Resuming: the weights of %s are not needed", weights)
    return start


@contextlib.contextmanager
def _closing(log: TextIO) -> Iterator[TextIO]:
    try:
        yield log
    finally:
        # Each line was written at once, so an error would be one that was told.
        with contextlib.suppress(OSError):
            log.close()


@contextlib.contextmanager
def _open_log(
    path: Path, curve: Path, start: Snapshot | None, prefix: Path
) -> Iterator[tuple[TextIO, LogParser]]:
    """Open the log for appending; yield it and a parser that has read what is in it.

    The log and the curve of another training are kept as train.old.log and curve.old.csv.
    """
    parser = LogParser()
    with _closing(open(path, "a+", opener=without_links)) as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BayesCaffeError(f"{path}: another training is writing to it") from None
        log.seek(0)
        lines = log.readlines()
        if start and f'snapshot_prefix: "{prefix}"\n' in lines:
            if not lines[-1].endswith("\n"):  # the earlier run was killed
                log.write("\n")
            for line in lines:
                parser.feed(line)
            parser.end()
        else:
            for old in (path, curve):
                if old.is_file() and old.stat().st_size:
                    with scratch_file(old.with_name(f"{old.stem}.old{old.suffix}")) as kept:
                        shutil.copyfile(old, kept)
            log.truncate(0)
        yield log, parser


class _Run:
    """One run of `caffe train` and what its log says."""

    def __init__(
        self,
        solver: Path,
        message,
        start: Snapshot | None,
        log: TextIO,
        parser: LogParser,
        folder: Path,
        watch: Watch,
    ) -> None:
        self.solver = solver
        self.message = message
        self.start = start
        self.log = log
        self.parser = parser
        self.log_path = folder / "train.log"
        self.curve_path = folder / "curve.csv"
        os.utime(self.log_path)
        self.start_time = self.log_path.stat().st_mtime_ns
        self.watch = watch

    def run(
        self, command: list[str], ranks: Ranks | None, progress: bool, share: Share | None
    ) -> TrainingResult:
        """Run Caffe to its end; keep, parse and show its log line by line."""
        first = self.start.iteration if self.start else 0
        if self.start:
            self._keep(RESUMED.format(path=self.start.state, iteration=first) + "\n")
        curve = CurveWriter(self.curve_path, self.parser.rows)
        logger.info("$ %s", " ".join(command))
        caffe = CaffeProcess(command, ranks)
        killed, has_begun = [], False
        view = TrainingView(first, self.message.max_iter, progress, share)
        with contextlib.closing(view), caffe.running() as lines:
            for line in lines:
                has_begun = has_begun or "] Starting Optimization" in line
                if ranks and (found := killed_rank(line)):
                    killed.append(found)
                for row in self._keep(line):
                    curve.add(row)
                    view.show(self.parser)
                    if not caffe.interrupts:
                        self._stop_if_diverged(row)
                    for finding in self.watch.news(self.parser.rows):
                        view.warn(finding)
        for row in self.parser.end():
            curve.add(row)
        if caffe.interrupts:
            self._report_interrupt()
            raise KeyboardInterrupt
        if caffe.exit_code:
            message = self._failure(caffe.exit_code, killed)
            if has_begun and _DIVERGED not in message:
                raise _CaffeFailed(message, any(map(self._is_new, self.parser.states)))
            raise BayesCaffeError(message)
        models = self.parser.models
        return self.result(self.message.max_iter, models[-1] if models else None)

    def result(self, iterations: int, model: Path | None) -> TrainingResult:
        """The outcome of a finished training, from its log."""
        latest = self.parser.latest
        return TrainingResult(
            iterations=iterations,
            seconds=latest("seconds") or 0.0,
            snapshot=model,
            log=self.log_path,
            curve=self.curve_path,
            loss=latest("loss"),
            kl=latest("kl"),
            test_loss=latest("test_loss"),
            test_error=latest("test_error"),
            test_draws=self.parser.draws,
            mean_test_loss=latest("mean_test_loss"),
            mean_test_error=latest("mean_test_error"),
            tau=self.parser.taus("tau"),
            tau_bias=self.parser.taus("tau_b"),
            findings=self.watch.findings(self.parser.rows),
        )

    def pack(self) -> None:
        """Let the snapshots carry their net, unless it is no classifier.

        Among them are those of an earlier run that was killed before it came to this.
        """
        nets = (*self.message.test_net, self.message.net, self.message.train_net)
        net = next(filter(None, nets), None)
        if net is None:
            return
        models = dict.fromkeys((*filter(self._is_new, self.parser.models), *self._left_over()))
        try:
            with contextlib.suppress(BayesCaffeError):
                pack_snapshots(net, list(models))
        except OSError as error:
            logger.warning("The snapshots do not carry their net: %s", error)

    def _is_new(self, path: Path) -> bool:
        """Whether this run has written a file, and not only said that it would."""
        return path.is_file() and path.stat().st_mtime_ns >= self.start_time

    def _left_over(self) -> Iterator[Path]:
        """The caffemodels of the training that this run resumes which do not carry their net."""
        if self.start is None or self.start.training is None:
            return
        for state in list_states(snapshot_prefix(self.solver, self.message)):
            model = state.with_suffix(".caffemodel")
            with contextlib.suppress(BayesCaffeError, OSError):
                if not is_packed(model) and read_snapshot(state).training == self.start.training:
                    yield model

    def _keep(self, line: str) -> list[dict[str, float]]:
        with errors_name(self.log_path):
            self.log.write(line)
            self.log.flush()
        return self.parser.feed(line)

    def _stop_if_diverged(self, row: dict[str, float]) -> None:
        column = next((name for name in row if not math.isfinite(row[name])), None)
        if column is None:
            return
        name = column.replace(":", " of ").replace("_", " ")
        what = f"{name} is {row[column]} at iteration {row['iteration']}"
        raise BayesCaffeError(self._divergence(what))

    def _divergence(self, what: str) -> str:
        good = self._last_good()
        return (
            f"{self.solver}: {_DIVERGED}: {what}. "
            f"{self.watch.remedy(self.parser.rows)}\n"
            + (f"last good snapshot: {good.state}" if good else "no snapshot was written before")
            + f"\nlog: {self.log_path}"
        )

    def _last_good(self) -> Snapshot | None:
        for state in reversed(self.parser.states):
            with contextlib.suppress(BayesCaffeError, OSError):
                return read_snapshot(state)
        return self.start

    def _failure(self, code: int, killed: list[str]) -> str:
        # mpirun adds paragraphs between lines of dashes.
        errors = itertools.takewhile(lambda line: not line.startswith("-----"), self.parser.errors)
        said = [error.removeprefix("caffe: error: ") for error in errors] or killed[:1]
        said = list(dict.fromkeys(said))
        if not said:
            said = [f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"]
        # Caffe says so also of weights that it is given, before the first row.
        if self.parser.rows and said[0].endswith(_CAFFE_DIVERGED):
            return self._divergence(said[0].removesuffix(_CAFFE_DIVERGED))
        if self.message.solver_mode == self.message.GPU and "CUDA device" in said[0]:
            said[0] += f"; {argument('cpu', True)} computes on the CPU, though solver_mode is GPU"
        return "\n".join(
            [f"{self.solver}: caffe train failed: {said[0]}", *said[1:], f"log: {self.log_path}"]
        )

    def _report_interrupt(self) -> None:
        good = self._last_good()
        logger.warning(
            "Interrupted. %s\nlog: %s",
            f"Snapshot: {good.state}; {argument('resume', True)} continues from it."
            if good
            else "No snapshot was written.",
            self.log_path,
        )
