"""The program `caffe` as a child process that stops cleanly and never outlives its parent."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from typing import TextIO

from bayescaffe.common.processes import die_with_parent
from bayescaffe.training.ranks import Ranks


class CaffeProcess:
    """One run of the program `caffe`."""

    def __init__(self, command: list[str], ranks: Ranks | None = None) -> None:
        self._command = command
        self._ranks = ranks
        # mpirun passes SIGUSR1 on to Caffe, and SIGTERM makes it end all ranks.
        self._stop = signal.SIGUSR1 if ranks else signal.SIGINT
        self._kill = signal.SIGTERM if ranks else signal.SIGKILL
        self._process: subprocess.Popen | None = None
        self.interrupts = 0
        """How often the user pressed Ctrl-C, or sent another signal to stop."""
        self.exit_code: int | None = None
        """What `subprocess` calls the return code; None while it runs."""

    @contextlib.contextmanager
    def running(self) -> Iterator[TextIO]:
        """Start Caffe, yield its log, and wait for its end; an exception kills it.

        Ctrl-C, SIGTERM and SIGHUP make Caffe write a snapshot and stop; a second one kills it.
        """
        # The log is parsed, so the user's settings of glog must not change it.
        plain = {name: os.environ[name] for name in os.environ if not name.startswith("GLOG_")}
        environment = {**plain, "GLOG_minloglevel": "0", "GLOG_logtostderr": "1"}
        command = self._command
        if self._ranks:
            command = self._ranks.command(command, environment)
        with (
            self._signals_passed_on(),
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=environment,
                # Away from the terminal, whose Ctrl-C would reach it beside the one passed on.
                start_new_session=True,
                preexec_fn=die_with_parent(),
            ) as self._process,
        ):
            try:
                if self.interrupts:
                    self._process.send_signal(self._stop)
                yield self._process.stdout
                self.exit_code = self._process.wait()
            finally:
                self._process.send_signal(self._kill)

    @contextlib.contextmanager
    def _signals_passed_on(self) -> Iterator[None]:
        def pass_on(number, frame) -> None:
            self.interrupts += 1
            if self._process:
                self._process.send_signal(self._stop if self.interrupts == 1 else self._kill)

        old = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
                    old[number] = signal.signal(number, pass_on)
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
