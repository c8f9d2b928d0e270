"""The log of `caffe train` as numbers: a learning curve, snapshots, errors.

The same parser reads a log while the training runs and afterwards.
"""

import contextlib
import csv
import io
import math
import os
import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import numpy as np

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_file, without_links
from bayescaffe.common.reading import open_regular

COLUMNS = (
    "iteration",
    "seconds",
    "loss",
    "kl",
    "kl_term",
    "lr",
    "test_loss",
    "test_error",
    "mean_test_loss",
    "mean_test_error",
)
"""The columns of every curve. Bayesian nets add `tau:LAYER` and `tau_b:LAYER` after them, the
medians where outputs or weights have their own.

loss is the training loss, averaged over `average_loss` iterations; kl is KL(q || p) of the whole
net in nats, and kl_term is its share of the objective; test_* belong to one draw, mean_test_* to
the mean prediction of several draws."""

RESUMED = "# bayescaffe train: resumed from {path} at iteration {iteration}"

# I20261116 07:59:35.963258 18020 solver.cpp:241] message
_LINE = re.compile(r"[IWEF](\d{4}|\d{8}) (\d\d:\d\d:\d\d\.\d{6}) +\d+ [^\s\]]+:\d+\] (.*)")
_RESUMED = re.compile(r"# bayescaffe train: resumed from .* at iteration (\d+)")
_ITERATION = re.compile(r"Iteration (\d+)[ ,]")
_LOSS = re.compile(r"Iteration \d+(?: \(.*\))?, loss = (\S+)")
_LR = re.compile(r"Iteration \d+, lr = (\S+)")
_TESTING = re.compile(r"Iteration \d+, Testing net \(#(\d+)\)")
_TEST_OUTPUT = re.compile(r" +Test net output #\d+: (.+) = (\S+?)(?: \(\* \S+ = (\S+) loss\))?")
_MEAN = re.compile(r" +Mean of (\d+) draws: error = (\S+), loss = (\S+)")
_KL = re.compile(r" +KL = (\S+), which adds (\S+) to the objective")
# Several taus are their median and, in brackets, their range.
_TAU = re.compile(r" +(.+): tau = (\S+?)(?: \(.+?\))?(?:, tau_b = (\S+?)(?: \(.+?\))?)?")
_SNAPSHOT = re.compile(r"Snapshotting (solver state )?to (?:binary proto|HDF5) file (.+)")
_ERROR = re.compile(r"caffe: error: |ERROR: ")  # of Caffe, and of its command line
_ACCURACY = re.compile(r"acc|top.?1", re.IGNORECASE)
_TOP_FIVE = re.compile(r"top.?5", re.IGNORECASE)


class LogParser:
    """Turns the lines of a log, given one by one, into the rows of a curve.

    A row has the columns that were measured at one iteration. A resumed training repeats
    iterations; the rows of the earlier run from there on are dropped.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.draws: int | None = None
        """The number of draws behind the mean_test_* columns."""
        self.models: list[Path] = []
        self.states: list[Path] = []
        """The caffemodels and solver states that the latest run wrote, the newest last."""
        self.errors: list[str] = []
        """The error message of the latest run, line by line."""
        self._row: dict[str, float] = {}
        self._completed: list[dict[str, float]] = []
        self._latest: dict[str, float] = {}
        self._row_time: datetime | None = None
        self._start: datetime | None = None
        self._before = 0.0
        self._is_first_test = True

    def latest(self, column: str) -> float | None:
        """The value that was measured last."""
        return self._latest.get(column)

    def taus(self, kind: str = "tau") -> dict[str, float]:
        """tau (or tau_b) by layer, as measured last."""
        found = (name.split(":", 1) for name in self._latest)
        return {rest[0]: self._latest[f"{kind}:{rest[0]}"] for head, *rest in found if head == kind}

    def feed(self, line: str) -> list[dict[str, float]]:
        """Take one line; return the rows that it completes."""
        self._completed = []
        line = line.rstrip("\n")
        if found := _RESUMED.fullmatch(line):
            self._start_run()
            self._go_back(int(found[1]))
        elif found := _LINE.fullmatch(line):
            date, clock, message = found.groups()
            # A line with a number that is none is damaged; those around it may be good.
            with contextlib.suppress(ValueError):
                self._read(message, datetime.fromisoformat(f"{_iso(date)} {clock}"))
        elif self.errors or _ERROR.match(line):  # a message may have several lines
            self.errors.append(line)
        return self._completed

    def end(self) -> list[dict[str, float]]:
        """Tell that the log ends here; return the row that this completes."""
        self._completed = []
        self._complete()
        return self._completed

    def _complete(self) -> None:
        row, self._row = self._row, {}
        if len(row) > 1 and "iteration" in row:
            elapsed = self._row_time - self._start
            row["seconds"] = round(self._before + elapsed.total_seconds(), 3)
            self.rows.append(row)
            self._latest.update(row)
            self._completed.append(row)

    def _start_run(self) -> None:
        self._complete()
        self._start = None
        self.models, self.states, self.errors = [], [], []

    def _go_back(self, iteration: int) -> None:
        if self.rows and self.rows[-1]["iteration"] >= iteration:
            self.rows[:] = [row for row in self.rows if row["iteration"] < iteration]
            self._latest = {name: value for row in self.rows for name, value in row.items()}

    def _read(self, message: str, when: datetime) -> None:
        if found := _ITERATION.match(message):
            iteration = int(found[1])
            if iteration != self._row.get("iteration"):
                self._complete()
                self._go_back(iteration)
                self._row = {"iteration": iteration}
            if self._start is None:
                self._start = when
                self._before = self.rows[-1]["seconds"] if self.rows else 0.0
        if message.startswith(("Iteration ", "    ")):
            self._row_time = when
        row = self._row
        if found := _LOSS.fullmatch(message):
            row["loss"] = float(found[1])
        elif found := _LR.fullmatch(message):
            row["lr"] = float(found[1])
            self._complete()  # the last line of an iteration
        elif found := _TESTING.fullmatch(message):
            self._is_first_test = found[1] == "0"
        elif found := _KL.fullmatch(message):
            row["kl"], row["kl_term"] = float(found[1]), float(found[2])
        elif found := _TAU.fullmatch(message):
            row[f"tau:{found[1]}"] = float(found[2])
            if found[3]:
                row[f"tau_b:{found[1]}"] = float(found[3])
        elif found := _SNAPSHOT.fullmatch(message):
            (self.states if found[1] else self.models).append(Path(found[2]))
        elif message == "Starting Optimization":
            self._start_run()
        elif message.startswith("Optimization "):  # done, or stopped early
            self._complete()
        elif self._is_first_test:
            self._read_test(message)

    def _read_test(self, message: str) -> None:
        row = self._row
        if found := _TEST_OUTPUT.fullmatch(message):
            name, value, loss = found.groups()
            if loss:
                row["test_loss"] = row.get("test_loss", 0.0) + float(loss)
            elif _ACCURACY.search(name) and not _TOP_FIVE.search(name):
                # Rounded, as 1 - 0.9888 is 0.011199999999999988.
                row["test_error"] = round(1 - float(value), 9)
        elif found := _MEAN.fullmatch(message):
            self.draws = int(found[1])
            row["mean_test_error"], row["mean_test_loss"] = float(found[2]), float(found[3])


def parse_log(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """The curve in a log of `bayescaffe train` or `caffe train`, as `read_curve` gives it."""
    parser = LogParser()
    with open_regular(path) as file:
        for line in io.TextIOWrapper(file, errors="replace"):
            parser.feed(line)
    parser.end()
    if not parser.rows:
        raise BayesCaffeError(f"{path}: found no iteration; is it a log of caffe train?")
    names = columns(parser.rows)
    return {
        name: np.array([row.get(name, math.nan) for row in parser.rows], float) for name in names
    }


def read_curve(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """The columns of a curve.csv by name, NaN where nothing was measured."""
    with open_regular(path) as file:
        lines = io.TextIOWrapper(file, newline="", errors="replace")
        header, *rows = list(csv.reader(lines)) or [[]]
    if "iteration" not in header:
        raise BayesCaffeError(f"{path}: not a curve; its first line has no column 'iteration'")
    # A training that was killed may leave part of a line.
    if rows and len(rows[-1]) < len(header):
        rows.pop()
    try:
        table = [[float(cell) if cell else math.nan for cell in row] for row in rows]
        array = np.array(table, float).reshape(len(rows), len(header))
    except ValueError as error:
        raise BayesCaffeError(f"{path}: not a curve: {error}") from error
    return dict(zip(header, array.T, strict=True))


def columns(rows: Iterable[dict[str, float]]) -> list[str]:
    """The header of the rows of a curve."""
    return list(dict.fromkeys([*COLUMNS, *(name for row in rows for name in row)]))


class CurveWriter:
    """Writes the rows of a parser to curve.csv, each as soon as it is complete."""

    def __init__(self, path: Path, rows: list[dict[str, float]]) -> None:
        self._path = path
        self._rows = rows
        self._rewrite()

    def add(self, row: dict[str, float]) -> None:
        """Write `row`, which is the last of the parser's rows."""
        if set(row) <= set(self._header):
            with open(self._path, "a", newline="", opener=without_links) as file:
                csv.writer(file, lineterminator="\n").writerow(self._cells(row))
        else:
            self._rewrite()

    def _rewrite(self) -> None:
        self._header = columns(self._rows)
        # What an earlier version left when it was killed.
        self._path.with_name(self._path.name + ".tmp").unlink(missing_ok=True)
        with scratch_file(self._path) as scratch, scratch.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self._header)
            writer.writerows(map(self._cells, self._rows))

    def _cells(self, row: dict[str, float]) -> list[float | str]:
        return [row.get(name, "") for name in self._header]


def _iso(date: str) -> str:
    # Older versions of glog leave out the year; 2000 has every date.
    date = date if len(date) == 8 else "2000" + date
    return f"{date[:4]}-{date[4:6]}-{date[6:]}"
