"""Runs `caffe train`: shows how far it is, keeps its log and curve, resumes, and stops in time."""

import contextlib
import fcntl
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.processes import die_with_parent
from bayescaffe.common.pycaffe import caffe_tool
from bayescaffe.net.messages import read_message
from bayescaffe.training.log import RESUMED, CurveWriter, LogParser, parse_log, read_curve
from bayescaffe.training.snapshots import (
    Snapshot,
    list_states,
    newest_snapshot,
    read_snapshot,
    snapshot_prefix,
)

__all__ = ["TrainingResult", "parse_log", "read_curve", "train"]

logger = logging.getLogger(__name__)

LINE_SECONDS = 10
"""Where there is no terminal, a line at most so often."""
_CLAMP = -math.log(2.0**-126)
"""SoftmaxWithLoss takes no probability to be less than the least float: a loss of 87.34."""


@dataclass(frozen=True)
class TrainingResult:
    """What a training came to. Fields are None where the log does not tell."""

    iterations: int
    seconds: float
    """How long all iterations took, those before a resume included."""
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


def train(
    solver: str | os.PathLike,
    *,
    resume: bool = False,
    weights: str | os.PathLike | None = None,
    test_draws: int | None = None,
    gpu: str | int | None = None,
    out: str | os.PathLike | None = None,
    progress: bool = True,
) -> TrainingResult:
    """Train the net of a solver prototxt; its paths are relative to the current directory.

    `train.log` and `curve.csv` are written to `out` (default: beside the snapshots) meanwhile.

    resume      go on from the newest good snapshot; if there is none, start from scratch
    weights     a caffemodel to start from
    test_draws  test also the mean prediction of so many draws
    gpu         the number of the GPU to compute on, several ("0,1") or "all"; without, the CPU or
                what `solver_mode` of the solver says
    progress    show a live view on a terminal, a line every few seconds elsewhere

    Raises KeyboardInterrupt after Ctrl-C, when Caffe has written a snapshot to resume from.
    """
    solver = Path(solver)
    message = read_message(solver, "SolverParameter")
    if test_draws is not None and test_draws < 1:
        raise BayesCaffeError(f"the number of test draws is {test_draws}, but must be 1 or more")
    if weights is not None and not Path(weights).is_file():
        raise BayesCaffeError(f"{weights}: no such file; `weights` is a caffemodel to start from")
    prefix = snapshot_prefix(solver, message)
    folder = Path(out) if out is not None else prefix.parent
    # Caffe would miss the snapshots' folder only when it writes to it, which may be at the end.
    for path in (folder, prefix.parent):
        path.mkdir(parents=True, exist_ok=True)
    start = _starting_point(prefix, resume, weights)
    with _open_log(folder / "train.log", folder / "curve.csv", start, prefix) as (log, parser):
        run = _Run(solver, message, start, log, parser, folder, progress)
        if start and start.iteration >= message.max_iter:
            logger.info(
                "%s is of iteration %s; max_iter of %s is %s: nothing is left to do",
                *(start.state, start.iteration, solver, message.max_iter),
            )
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
        return run.watch(command)


def _starting_point(
    prefix: Path, resume: bool, weights: str | os.PathLike | None
) -> Snapshot | None:
    """The snapshot to go on from; says what the user may not expect."""
    if not resume:
        if states := list_states(prefix):
            logger.warning(
                "This training starts from scratch and overwrites snapshots of an earlier one "
                "(the newest is %s). --resume would go on from there.",
                states[0],
            )
        return None
    start = newest_snapshot(prefix, lambda why: logger.warning("Snapshot skipped: %s", why))
    if start is None:
        logger.warning(
            "No good snapshot %s_iter_*.solverstate to resume from: starting from %s",
            prefix,
            weights or "scratch",
        )
    elif weights is not None:
        logger.info("Resuming; the weights of %s were for the start only", weights)
    return start


@contextlib.contextmanager
def _open_log(
    path: Path, curve: Path, start: Snapshot | None, prefix: Path
) -> Iterator[tuple[TextIO, LogParser]]:
    """Yield the log, to append to, and a parser that has read what is in it.

    A log and a curve of another training are kept as train.old.log and curve.old.csv.
    """
    parser = LogParser()
    with path.open("a+") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BayesCaffeError(f"{path}: another training is writing to it") from None
        log.seek(0)
        lines = log.readlines()
        if start and f'snapshot_prefix: "{prefix}"\n' in lines:
            if not lines[-1].endswith("\n"):  # it was killed
                log.write("\n")
            for line in lines:
                parser.feed(line)
            parser.end()
        else:
            for old in (path, curve):
                if old.is_file() and old.stat().st_size:
                    shutil.copyfile(old, old.with_name(f"{old.stem}.old{old.suffix}"))
            log.truncate(0)
        yield log, parser


class _Run:
    """One run of `caffe train`, and what is known of it."""

    def __init__(
        self,
        solver: Path,
        message,
        start: Snapshot | None,
        log: TextIO,
        parser: LogParser,
        folder: Path,
        progress: bool,
    ) -> None:
        self.solver = solver
        self.message = message
        self.start = start
        self.log = log
        self.parser = parser
        self.log_path = folder / "train.log"
        self.curve_path = folder / "curve.csv"
        self.progress = progress
        self.process: subprocess.Popen | None = None
        self.interrupts = 0

    def watch(self, command: list[str]) -> TrainingResult:
        """Run Caffe to its end, and read its log as it comes."""
        first = self.start.iteration if self.start else 0
        if self.start:
            self._keep(RESUMED.format(path=self.start.state, iteration=first) + "\n")
        curve = CurveWriter(self.curve_path, self.parser.rows)
        logger.info("$ %s", " ".join(command))
        view = _View(first, self.message.max_iter, self.progress)
        with contextlib.closing(view), self._caffe(command) as process:
            for line in process.stdout:
                for row in self._keep(line):
                    curve.add(row)
                    view.show(self.parser)
                    self._judge(row, view)
        for row in self.parser.end():
            curve.add(row)
        if self.interrupts:
            self._report_interrupt()
            raise KeyboardInterrupt
        if process.returncode:
            raise BayesCaffeError(self._failure(process.returncode))
        models = self.parser.models
        return self.result(self.message.max_iter, models[-1] if models else None)

    def result(self, iterations: int, model: Path | None) -> TrainingResult:
        """What the log tells of a training that is done."""
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
        )

    def _keep(self, line: str) -> list[dict[str, float]]:
        self.log.write(line)
        self.log.flush()
        return self.parser.feed(line)

    @contextlib.contextmanager
    def _caffe(self, command: list[str]) -> Iterator[subprocess.Popen]:
        """Caffe, running. It ends with this block, and with this process if that is killed."""
        # Its log is what this reads, whatever the user's environment says of logging.
        plain = {name: os.environ[name] for name in os.environ if not name.startswith("GLOG_")}
        with (
            self._signals_passed_on(),
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={**plain, "GLOG_minloglevel": "0", "GLOG_logtostderr": "1"},
                # Away from the terminal, whose Ctrl-C would reach it beside the one passed on.
                start_new_session=True,
                preexec_fn=die_with_parent(),
            ) as self.process,
        ):
            try:
                if self.interrupts:
                    self.process.send_signal(signal.SIGINT)
                yield self.process
                self.process.wait()
            finally:
                self.process.kill()

    @contextlib.contextmanager
    def _signals_passed_on(self) -> Iterator[None]:
        """Let Ctrl-C and kill make Caffe write a snapshot and stop; a second one stops it now."""

        def pass_on(number, frame) -> None:
            self.interrupts += 1
            if self.process and self.interrupts == 1:
                self.process.send_signal(signal.SIGINT)
            elif self.process:
                self.process.kill()

        old = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
                    old[number] = signal.signal(number, pass_on)
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def _judge(self, row: dict[str, float], view: "_View") -> None:
        """Stop a training that has diverged, and warn of one that is about to."""
        wrong = next((name for name in row if not math.isfinite(row[name])), None)
        if wrong and not self.interrupts:
            raise BayesCaffeError(self._divergence(row, wrong))
        first = next((each["loss"] for each in self.parser.rows if "loss" in each), 0.0)
        loss = row.get("loss", 0.0)
        if loss > 10 * max(first, 1.0):
            text = f"the loss was {first:.4g} at the start and is {loss:.4g}"
            if abs(loss - _CLAMP) < 0.01:
                text += ", that of a probability of 0 for each right answer"
            view.warn(f"Iteration {row['iteration']}: {text}. {self._remedy()}")

    def _divergence(self, row: dict[str, float], column: str) -> str:
        good = self._last_good()
        name = column.replace(":", " of ").replace("_", " ")
        return (
            f"{self.solver}: the training diverged and was stopped: {name} is {row[column]} at "
            f"iteration {row['iteration']}. {self._remedy()}\n"
            + (f"last good snapshot: {good.state}" if good else "no snapshot was written before")
            + f"\nlog: {self.log_path}"
        )

    def _last_good(self) -> Snapshot | None:
        for state in reversed(self.parser.states):
            with contextlib.suppress(BayesCaffeError, OSError):
                return read_snapshot(state)
        return self.start

    def _remedy(self) -> str:
        return (
            f"Try a smaller base_lr than {self.message.base_lr:g} (a Bayesian net often needs a "
            "smaller one than its stock twin) or a smaller tau_init."
        )

    def _failure(self, code: int) -> str:
        said = [error.removeprefix("caffe: error: ") for error in self.parser.errors]
        if not said:
            said = [f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"]
        return "\n".join(
            [f"{self.solver}: caffe train failed: {said[0]}", *said[1:], f"log: {self.log_path}"]
        )

    def _report_interrupt(self) -> None:
        good = self._last_good()
        logger.warning(
            "Interrupted. %s\nlog: %s",
            f"Snapshot: {good.state}; `bayescaffe train {self.solver} --resume` goes on from it."
            if good
            else "No snapshot was written.",
            self.log_path,
        )


class _View:
    """What the user sees while a training runs."""

    def __init__(self, first: int, last: int, progress: bool) -> None:
        self._first, self._last = first, last
        self._begin = time.monotonic()
        self._next_line = self._begin
        self._has_warned = False
        self._lines = progress and not sys.stderr.isatty()
        is_bar = progress and not self._lines
        self._bar = tqdm(
            total=last, initial=first, unit="it", disable=not is_bar, dynamic_ncols=True
        )
        self._taus = tqdm(
            bar_format="{desc}", position=1, leave=False, disable=not is_bar, dynamic_ncols=True
        )

    def show(self, parser: LogParser) -> None:
        """Show the state of the training as the log has it."""
        iteration = parser.rows[-1]["iteration"]
        taus = ", ".join(f"{layer} {tau:.3g}" for layer, tau in parser.taus().items())
        text = ", ".join(_figures(parser))
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(iteration - self._bar.n)
        self._taus.set_description_str(f"tau: {taus}" if taus else "")
        now = time.monotonic()
        if self._lines and now >= self._next_line:
            self._next_line = now + LINE_SECONDS
            done = iteration - self._first
            left = (now - self._begin) / done * (self._last - iteration) if done else None
            text += f", tau: {taus}" if taus else ""
            text += f", {tqdm.format_interval(left)} left" if left is not None else ""
            logger.info("Iteration %d of %d: %s", iteration, self._last, text)

    def warn(self, text: str) -> None:
        """Say something once without spoiling the view."""
        if not self._has_warned:
            self._has_warned = True
            with tqdm.external_write_mode(file=sys.stderr):
                logger.warning("Warning: %s", text)

    def close(self) -> None:
        """Leave the last state on the screen."""
        self._taus.close()
        self._bar.close()


def _figures(parser: LogParser) -> Iterator[str]:
    loss, kl = parser.latest("loss"), parser.latest("kl_term")
    if loss is not None:
        yield f"loss {loss:.4f}" + (f" + KL {kl:.4f}" if kl is not None else "")
    if (error := parser.latest("test_error")) is not None:
        yield f"test error {error:.2%}"
    if (error := parser.latest("mean_test_error")) is not None:
        yield f"of {parser.draws} draws {error:.2%}"
