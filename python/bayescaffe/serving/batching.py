"""Requests that come together are computed together, in a process that may crash.

While the worker computes, jobs wait. When it is done it gets all that wait, so the batches grow
with the load, and a single request waits for nobody.
"""

import asyncio
import contextlib
import json
import logging
import math
import pickle
import sys
from collections import deque
from dataclasses import dataclass
from typing import Any

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.serving.jobs import Job, RequestError
from bayescaffe.serving.worker import HEADER, Setup, message

log = logging.getLogger(__name__)

GATHER_SECONDS = 0.002
"""Clients that were answered together ask again together; so long is waited for the others."""
MOST_RETRY_SECONDS = 60
FAILED = RequestError(500, "the net could not compute this request; the log tells why")


class WorkerDied(Exception):
    """The worker ended before it answered."""


class Worker:
    """The process of worker.py, started anew if it has died."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._process: asyncio.subprocess.Process | None = None
        self.is_ready = False
        self.description: dict[str, Any] = {}

    async def start(self) -> None:
        """Start the process and wait until the net is loaded."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bayescaffe.serving.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            found = await self._exchange(self._setup)
        except WorkerDied:
            raise BayesCaffeError("the process that holds the net died as it started") from None
        if "error" in found:
            raise BayesCaffeError(found["error"])
        self.description, self.is_ready = found, True

    async def ask(self, jobs: list[Job]) -> list[dict[str, Any]]:
        """The answers to jobs of one key. Raises WorkerDied if there are none."""
        if not self.is_ready:
            await self.start()
        found = await self._exchange(jobs)
        if found is None:
            raise WorkerDied
        return found

    async def stop(self) -> None:
        """End the process."""
        self.is_ready = False
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _exchange(self, value: object) -> Any:
        process = self._process
        try:
            process.stdin.write(message(pickle.dumps(value)))
            await process.stdin.drain()
            header = await process.stdout.readexactly(HEADER)
            return json.loads(await process.stdout.readexactly(int.from_bytes(header, "big")))
        except (OSError, asyncio.IncompleteReadError) as error:
            await self.stop()
            raise WorkerDied from error
        except asyncio.CancelledError:  # the answer would be taken for that of the next jobs
            await self.stop()
            raise


@dataclass
class _Waiting:
    job: Job
    answer: asyncio.Future
    deadline: float


class Batcher:
    """The queue before the worker."""

    def __init__(
        self, worker: Worker, *, max_batch: int, queue: int, timeout: float, metrics: Any
    ) -> None:
        """Make an empty queue.

        Args:
            max_batch: the most images that are computed together.
            queue: the most images that wait.
            timeout: the seconds in which a request is answered or refused.
            metrics: is told of batches and crashes (`Metrics`).
        """
        self._worker, self._metrics = worker, metrics
        self._max_batch, self._limit, self._timeout = max_batch, queue, timeout
        self._queue: deque[_Waiting] = deque()
        self._came = asyncio.Event()
        self._image_seconds = 0.01
        self.images_waiting = 0

    async def submit(self, job: Job) -> list[dict[str, Any]]:
        """The answers for the images of a job. Raises RequestError."""
        if self.images_waiting + len(job.images) > self._limit:
            raise RequestError(503, "too many requests wait; try again later", self._retry())
        loop = asyncio.get_running_loop()
        waiting = _Waiting(job, loop.create_future(), loop.time() + self._timeout)
        self._queue.append(waiting)
        self.images_waiting += len(job.images)
        self._came.set()
        return await waiting.answer

    async def run(self) -> None:
        """Compute what waits, for ever."""
        several = False
        while True:
            await self._came.wait()
            if several:
                await asyncio.sleep(GATHER_SECONDS)
            batch = self._next_batch()
            several = len(batch) > 1
            if batch:
                await self._compute(batch)

    def _retry(self) -> dict[str, str]:
        seconds = math.ceil(self.images_waiting * self._image_seconds)
        return {"Retry-After": str(min(max(1, seconds), MOST_RETRY_SECONDS))}

    def _next_batch(self) -> list[_Waiting]:
        """The oldest job, and those behind it that can be computed with it."""
        now = asyncio.get_running_loop().time()
        batch: list[_Waiting] = []
        left: deque[_Waiting] = deque()
        images = 0
        for one in self._queue:
            count = len(one.job.images)
            if one.answer.done():  # whoever asked has gone
                self.images_waiting -= count
            elif now > one.deadline:
                self.images_waiting -= count
                text = f"not computed within {self._timeout:g} s; try again later"
                one.answer.set_exception(RequestError(503, text, self._retry()))
            elif not batch or (
                one.job.key == batch[0].job.key and images + count <= self._max_batch
            ):
                self.images_waiting -= count
                images += count
                batch.append(one)
            else:
                left.append(one)
        self._queue = left
        if not left:
            self._came.clear()
        return batch

    async def _compute(self, batch: list[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        images = sum(len(one.job.images) for one in batch)
        try:
            ask = self._worker.ask([one.job for one in batch])
            found = await asyncio.wait_for(ask, self._timeout)
        except asyncio.TimeoutError:
            log.error("bayescaffe: error: a batch took more than %g s", self._timeout)
            self._fail(batch, RequestError(504, f"not computed within {self._timeout:g} s"))
        except WorkerDied:
            if not self._worker.is_ready:
                log.error("bayescaffe: error: the process that computes died; starting another")
            if len(batch) == 1:
                self._fail(batch, FAILED)
            for one in batch if len(batch) > 1 else []:  # only one of them may be the cause
                await self._compute([one])
        except BayesCaffeError as error:
            log.error("bayescaffe: error: %s", error)
            self._fail(batch, FAILED)
        else:
            self._image_seconds = (loop.time() - start) / images
            self._metrics.batch(images)
            for one, told in zip(batch, found, strict=True):
                if one.answer.done():
                    continue
                if "error" in told:
                    one.answer.set_exception(RequestError(422, told["error"]))
                else:
                    one.answer.set_result(told["images"])
            return
        await self._restart()

    async def _restart(self) -> None:
        """Have a worker ready before the next request comes."""
        if self._worker.is_ready:
            return
        self._metrics.restarts.inc()
        try:
            await asyncio.wait_for(self._worker.start(), self._timeout)
        except (BayesCaffeError, asyncio.TimeoutError) as error:
            await self._worker.stop()
            log.error("bayescaffe: error: %s", error or "the net takes too long to load")

    def _fail(self, batch: list[_Waiting], error: RequestError) -> None:
        for one in batch:
            if not one.answer.done():
                one.answer.set_exception(error)
