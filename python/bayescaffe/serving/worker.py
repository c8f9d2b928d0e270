"""The process that computes: it holds the net, and answers jobs that come through a pipe.

What crashes here, such as a decoder of pictures, does not end the service. The service starts the
process as `python -m bayescaffe.serving.worker` and sends pickles: first what to serve, then lists
of jobs. It gets JSON, so that it need not trust what decoded a stranger's picture. A message is its
length in 8 bytes and its content. The process ends when its input ends.
"""

import contextlib
import json
import logging
import os
import pickle
import signal
import sys
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument, arguments_are_options
from bayescaffe.common.files import sha256
from bayescaffe.data.images import open_images
from bayescaffe.infer.explaining import what_would_change
from bayescaffe.infer.prediction import Prediction, as_decisions, decide, draw
from bayescaffe.infer.stages import as_rule
from bayescaffe.net.model import Model
from bayescaffe.serving.jobs import Job
from bayescaffe.stats import intervals
from bayescaffe.stats.decisions import DecisionRule
from bayescaffe.stats.draws import Draws
from bayescaffe.stats.stopping import StoppingRule

log = logging.getLogger(__name__)

HEADER = 8
"""Bytes of the length before each message."""


@dataclass(frozen=True)
class Setup:
    """What a worker needs to begin."""

    model: dict[str, Any]
    """The arguments of `Model`."""
    default: Job
    """What a request gets that asks for nothing else."""
    interval: str
    class_names: list[str] | None
    adaptive: str | None
    calibration: str | None
    options: dict[str, str]
    """How errors name arguments."""


class Answers:
    """A loaded net, and what it answers."""

    def __init__(self, setup: Setup) -> None:
        self._model = model = Model(**setup.model)
        self._setup = setup
        self._names = model.names_for(setup.class_names)
        self._stopping = None
        default = setup.default
        if setup.adaptive:
            self._stopping = as_rule(setup.adaptive, model, default.draws)
            stopping = self._stopping
            if (stopping.level, stopping.interval) != (default.level, setup.interval):
                raise BayesCaffeError(
                    f"{argument('adaptive')}: the stopping rule is for {stopping.interval} "
                    f"intervals at level {stopping.level:g}"
                )
        elif model.is_random and (few := intervals.too_few_draws(default.draws, default.level)):
            log.warning("%s", few)
        self._decisions = None
        if setup.calibration:
            passes = model.distinct_draws or default.draws
            self._decisions = as_decisions(setup.calibration, model, passes, self._stopping)
            default.rule.check_calibrated(self._decisions)
        # Draws the weights that are kept, so that the first request need not wait for it.
        self._draws(np.zeros((1, *model.image_shape), np.uint8), default)

    def description(self) -> dict[str, Any]:
        """What the service tells of the net: no path."""
        model = self._model
        return {
            "image_shape": list(model.image_shape),
            "channels": model.channels,
            "classes": model.classes,
            "class_names": list(self._names) if self._names else None,
            "seed": model.seed,
            "random": model.is_random,
            "weights_sha256": sha256(model.weights),
            "adaptive": self._stopping is not None,
            "calibration": self._promise(),
        }

    def _promise(self) -> dict[str, Any] | None:
        """What the calibration keeps."""
        if self._decisions is None:
            return None
        names = ("method", "coverage", "error", "confidence", "threshold")
        return {name: getattr(self._decisions, name) for name in names}

    def answer(self, jobs: list[Job]) -> list[dict[str, Any]]:
        """For each job, of one key, {"images": [...]} or {"error": ...}."""
        found: list[dict[str, Any]] = [{} for _ in jobs]
        pixels, names, owners = [], [], []
        for number, job in enumerate(jobs):
            try:
                read = self._read(job)
            except BayesCaffeError as error:
                found[number] = {"error": str(error)}
                continue
            found[number] = {"images": []}
            pixels += read
            names += job.names
            owners += [number] * len(read)
        if not names:
            return found
        job = jobs[0]
        draws, decisions = self._draws(np.stack(pixels), job), self._decisions_for(job)
        interval = self._setup.interval
        decided = decide(draws, names, job.level, interval, job.rule, self._names, decisions)
        for row, (number, one) in enumerate(zip(owners, decided, strict=True)):
            told = asdict(one) | {"aleatoric": one.entropy - one.epistemic}
            found[number]["images"].append(told | self._more(draws, row, one, jobs[number]))
        return found

    def _read(self, job: Job) -> list[np.ndarray]:
        pixels = []
        for name, image in zip(job.names, job.images, strict=True):
            is_array = isinstance(image, np.ndarray)
            try:
                source = open_images(
                    [image],
                    channels=job.channels if is_array else None,
                    invert=job.invert and not is_array,
                )
                self._model.fit(source)
                pixels.append(source.read([0])[0])
            except BayesCaffeError as error:
                # Readers call it "-" or "array"; the request has a name for it.
                reason = str(error).removeprefix("-: ").removeprefix("array: ")
                raise BayesCaffeError(f"{name}: {reason}") from error
        return pixels

    def _draws(self, pixels: np.ndarray, job: Job) -> Draws:
        passes = self._model.distinct_draws or job.draws
        return draw(self._model, pixels, passes, self._stopping_for(job))

    def _stopping_for(self, job: Job) -> StoppingRule | None:
        """The stopping rule, if it is for the draws and the level of a job."""
        rule = self._stopping
        return rule if rule and (job.draws, job.level) == (rule.passes, rule.level) else None

    def _decisions_for(self, job: Job) -> DecisionRule | None:
        """The calibration, unless the job has other draws or a threshold of its own."""
        default = self._setup.default
        is_same = (job.draws, job.rule.accept_above) == (default.draws, default.rule.accept_above)
        is_same = is_same and self._stopping_for(job) is self._stopping
        return self._decisions if is_same else None

    def _more(self, draws: Draws, row: int, prediction: Prediction, job: Job) -> dict[str, Any]:
        """What only some jobs ask for: the draws of an image, and what would change its answer."""
        more: dict[str, Any] = {}
        if not (job.include_draws or job.explain):
            return more
        own = draws.of_image(row)
        if job.include_draws:
            more["draw_probabilities"] = np.round(own.astype(float), 5).tolist()
        if job.explain:
            alone = Draws(own[:, np.newaxis])
            more["changes"] = what_would_change(
                *(alone, prediction, self._setup.interval, job.rule), self._decisions_for(job)
            )
        return more


def read_message(file: BinaryIO) -> bytes | None:
    """The next message; None at the end."""
    header = file.read(HEADER)
    if len(header) < HEADER:
        return None
    size = int.from_bytes(header, "big")
    content = file.read(size)
    return content if len(content) == size else None


def message(content: bytes) -> bytes:
    """A message as it is sent."""
    return len(content).to_bytes(HEADER, "big") + content


def main() -> None:
    """Serve jobs from standard input."""
    # Ctrl-C and a service manager signal all processes. This one ends when the service does.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(format="%(message)s")
    # What libraries print must not get among the messages.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def send(value: object) -> None:
        out.write(message(json.dumps(value).encode()))
        out.flush()

    setup: Setup = pickle.loads(read_message(sys.stdin.buffer))
    try:
        with arguments_are_options(setup.options):
            answers = Answers(setup)
    except (BayesCaffeError, OSError) as error:
        send({"error": str(error)})
        return
    send(answers.description())
    with (
        # Of the service's options, only this one is about an image.
        arguments_are_options({k: v for k, v in setup.options.items() if k == "max_pixels"}),
        contextlib.suppress(BrokenPipeError),
    ):
        while (content := read_message(sys.stdin.buffer)) is not None:
            try:
                found = answers.answer(pickle.loads(content))
            except Exception:  # the next jobs may work
                log.exception("bayescaffe: error: a request failed")
                found = None
            send(found)


if __name__ == "__main__":
    main()
