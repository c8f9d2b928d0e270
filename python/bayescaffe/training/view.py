"""What the user sees while a training runs: a bar on a terminal, lines elsewhere."""

import logging
import sys
import time
from collections.abc import Iterator

from tqdm import tqdm

from bayescaffe.training.log import LogParser

logger = logging.getLogger(__name__)

LINE_SECONDS = 10
"""The least time between two lines where there is no terminal."""


class TrainingView:
    """The progress of one training, from iteration `first` to iteration `last`."""

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
        """Show the newest numbers of the log."""
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
        """Print a warning above the bar; only the first one of a training."""
        if not self._has_warned:
            self._has_warned = True
            with tqdm.external_write_mode(file=sys.stderr):
                logger.warning("Warning: %s", text)

    def close(self) -> None:
        """Leave the last numbers on the screen."""
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
