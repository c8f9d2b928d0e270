"""The service: HTTP in, predictions out.

serve("lenet.caffemodel", port=8080)    # until it is interrupted
"""

import asyncio
import contextlib
import hmac
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bayescaffe import __version__
from bayescaffe.common.checks import DEFAULT_PASSES, check_passes
from bayescaffe.common.errors import BayesCaffeError, argument, known_options
from bayescaffe.common.packages import import_optional
from bayescaffe.common.reading import read_text
from bayescaffe.infer.prediction import Rule
from bayescaffe.serving.batching import Batcher, Worker
from bayescaffe.serving.jobs import Job, RequestError, images_of_json, read_options
from bayescaffe.serving.metrics import Metrics
from bayescaffe.serving.openapi import describe
from bayescaffe.serving.worker import Setup
from bayescaffe.stats.analysis import analyze
from bayescaffe.stats.draws import load_draws

log = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "::1", "localhost")
OPEN = ("/", "/page.css", "/page.js", "/docs", "/openapi.json", "/healthz")
"""What needs no token: nothing of the net or its answers."""
PAGE_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        b"img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
]
RAW = ("", "application/octet-stream", "application/x-www-form-urlencoded")
"""A body of these types is an image file; the last is what `curl --data-binary` says of any."""
LARGE_BODY = 2**16
"""JSON of more bytes is read in a thread, so that others need not wait for it."""


@dataclass(frozen=True)
class Limits:
    """What one request, and all together, may take."""

    max_passes: int = 1000
    """Draws of one request."""
    max_images: int = 64
    """Images of one request, and of one batch."""
    max_body: int = 2**24
    """Bytes of a request."""
    queue: int = 256
    """Images that wait; more are refused with 503."""
    timeout: float = 30
    """Seconds for the body, for waiting and for computing, each."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise BayesCaffeError(f"{argument(name, value)}: expected more than 0")


def serve(
    net: str | os.PathLike,
    weights: str | os.PathLike | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    passes: int | None = None,
    level: float = 0.95,
    interval: str = "equal-tailed",
    rule: Rule | None = None,
    adaptive: str | os.PathLike | None = None,
    calibration: str | os.PathLike | None = None,
    class_names: Sequence[str] | None = None,
    invert: bool = False,
    token_file: str | os.PathLike | None = None,
    reference: str | os.PathLike | None = None,
    limits: Limits | None = None,
    ready: Callable[[str], object] | None = None,
    **model: Any,
) -> None:
    """Answer requests until the process gets SIGTERM or Ctrl-C; what has come is still answered.

    Args:
        net, weights: as `Model` takes them.
        host, port: where to listen; port 0 takes a free one.
        passes: the draws of a request that does not say it; by default 100.
        level, interval, rule, class_names, invert: as `predict` takes them.
        adaptive: a file of a stopping rule; it holds for requests with the default draws and level.
        calibration: a file of `calibrate_decisions`; it holds for requests with the default draws
            and no threshold of their own (and the default level, if `adaptive` is given).
        token_file: a file with the bearer token that requests must have.
        reference: a draws file of the test set, for the drift signal.
        limits: what a request may take.
        ready: is told the address when requests can come.
        model: other arguments of `Model`, such as seed and draw_memory.
    """
    for package in ("starlette", "uvicorn", "python_multipart", "prometheus_client"):
        import_optional(package, "bayescaffe serve")
    limits = limits or Limits()
    passes = DEFAULT_PASSES if passes is None else passes
    check_passes(passes)
    default = Job(passes, level, rule or Rule(), invert)
    limits = replace(limits, max_passes=max(passes, limits.max_passes))
    if not 0 < level < 1:
        raise BayesCaffeError(f"{argument('level', level)}: the level is between 0 and 1")
    setup = Setup(
        model={"net": Path(net), "weights": None if weights is None else Path(weights), **model},
        default=default,
        interval=interval,
        class_names=None if class_names is None else list(class_names),
        adaptive=None if adaptive is None else os.fspath(adaptive),
        calibration=None if calibration is None else os.fspath(calibration),
        options=dict(known_options()),
    )
    token = None if token_file is None else read_token(token_file)
    if token is None and host not in LOOPBACK:
        log.warning(
            "%s: others may reach this service, and it has no token; %s sets one",
            *(argument("host", host), argument("token_file")),
        )
    service = Service(setup, limits, token)
    # After uvicorn has drained, it sends itself the signal again: then this ends the process.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with _listen(host, port) as listener:
            asyncio.run(service.run(listener, reference, ready))
    finally:
        signal.signal(signal.SIGTERM, before)


def read_token(path: str | os.PathLike) -> str:
    """The token in a file, which is one line."""
    try:
        token = read_text(path, "ascii").strip()
    except UnicodeDecodeError as error:
        raise BayesCaffeError(f"{path}: is no token: {error}") from error
    if not token or any(character.isspace() for character in token):
        raise BayesCaffeError(f"{path}: expected one line with a token and no blanks in it")
    return token


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        *kind, _, address = found
        # With its protocol named, asyncio sends answers at once and not after 40 ms (TCP_NODELAY).
        listener = socket.socket(*kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, OverflowError, UnicodeError) as error:
        raise BayesCaffeError(
            f"{argument('host', host)}, {argument('port', port)}: cannot listen there: {error}"
        ) from error
    return listener


def uncertain_share(path: str | os.PathLike, level: float, interval: str, sha256: str) -> float:
    """The share of the images of a draws file that the net is not certain of."""
    draws = load_draws(path)
    known = [one["weights_sha256"] for one in draws.models]
    if any(one not in (None, sha256) for one in known):
        raise BayesCaffeError(
            f"{argument('reference')} {path}: has draws of other weights than those that are served"
        )
    return 1 - float(analyze(draws, level, interval, progress=False).certain.mean())


class Service:
    """The net's process, the queue before it, and the application."""

    def __init__(self, setup: Setup, limits: Limits, token: str | None) -> None:
        self._setup, self._limits, self._token = setup, limits, token
        self._worker = Worker(setup)

    async def run(
        self,
        listener: socket.socket,
        reference: str | os.PathLike | None,
        ready: Callable[[str], object] | None,
    ) -> None:
        """Load the net, and serve until a signal comes."""
        import uvicorn

        limits, setup = self._limits, self._setup
        try:
            await self._worker.start()
            share = None
            if reference is not None:
                sha256 = self._worker.description["weights_sha256"]
                share = uncertain_share(reference, setup.default.level, setup.interval, sha256)
            self._metrics = Metrics(lambda: self._batcher.images_waiting, share)
            self._batcher = Batcher(
                self._worker,
                max_batch=limits.max_images,
                queue=limits.queue,
                timeout=limits.timeout,
                metrics=self._metrics,
            )
            config = uvicorn.Config(
                self._app(),
                log_level="warning",
                access_log=False,
                server_header=False,
                lifespan="off",
                timeout_graceful_shutdown=int(2 * limits.timeout) + 1,
            )
            server = uvicorn.Server(config)
            batches = asyncio.create_task(self._batcher.run())
            batches.add_done_callback(lambda _: setattr(server, "should_exit", True))
            if ready:
                listener.listen(1024)
                host, port = listener.getsockname()[:2]
                ready(f"http://{f'[{host}]' if ':' in host else host}:{port}/")
            try:
                await server.serve(sockets=[listener])
            finally:
                batches.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await batches
        finally:
            await self._worker.stop()

    def _app(self) -> Callable:
        from jinja2 import Environment, PackageLoader
        from starlette.applications import Starlette
        from starlette.responses import HTMLResponse, JSONResponse, Response
        from starlette.routing import Route

        templates = Environment(
            loader=PackageLoader("bayescaffe.serving", "template"), autoescape=True
        )
        document = describe(self._limits.max_passes, self._token is not None)

        def file(name: str, kind: str, **values: Any) -> Callable:
            text = templates.get_template(name).render(**values)

            async def answer(_) -> Response:
                return Response(text, media_type=kind)

            return answer

        async def model(_) -> JSONResponse:
            return JSONResponse(self.description())

        async def openapi(_) -> JSONResponse:
            return JSONResponse(document)

        async def metrics(_) -> Response:
            return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

        async def health(_) -> JSONResponse:
            is_ready = self._worker.is_ready
            status = {"status": "ok" if is_ready else "starting"}
            return JSONResponse(status, 200 if is_ready else 503)

        async def predict(request) -> Response:
            return JSONResponse(await self._predict(request))

        def refused(_, error: RequestError) -> JSONResponse:
            return JSONResponse({"error": str(error)}, error.status, error.headers)

        def unknown(_, error) -> JSONResponse:
            return JSONResponse({"error": error.detail}, error.status_code, error.headers)

        def failed(_, error: Exception) -> JSONResponse:
            return JSONResponse({"error": "the service failed; its log tells why"}, 500)

        html = HTMLResponse.media_type
        routes = {
            "/": file("page.html", html),
            "/page.css": file("page.css", "text/css"),
            "/page.js": file("page.js", "text/javascript"),
            "/docs": file("docs.html", html, document=document),
            "/openapi.json": openapi,
            "/model": model,
            "/metrics": metrics,
            "/healthz": health,
        }
        from starlette.exceptions import HTTPException

        app = Starlette(
            routes=[
                *(Route(path, answer, methods=["GET"]) for path, answer in routes.items()),
                Route("/predict", predict, methods=["POST"]),
            ],
            exception_handlers={
                RequestError: refused,
                HTTPException: unknown,
                Exception: failed,
            },
        )
        return Gate(app, self._token, self._metrics, {*routes, "/predict"})

    def description(self) -> dict[str, Any]:
        """The answer of GET /model."""
        default = self._setup.default
        return {
            **self._worker.description,
            "version": __version__,
            "draws": default.draws,
            "level": default.level,
            "interval": self._setup.interval,
            "rule": asdict(default.rule),
            "invert": default.invert,
            "limits": asdict(self._limits),
        }

    async def _predict(self, request) -> dict[str, Any]:
        start = time.perf_counter()
        try:
            job = await asyncio.wait_for(self._job(request), self._limits.timeout)
        except asyncio.TimeoutError:
            text = f"the body did not come within {self._limits.timeout:g} s"
            raise RequestError(408, text) from None
        images = await self._batcher.submit(job)
        for image in images:
            self._metrics.answer(image, job.key == self._setup.default.key)
        self._metrics.seconds.observe(time.perf_counter() - start)
        return {
            "images": images,
            "level": job.level,
            "interval": self._setup.interval,
            "rule": asdict(job.rule),
        }

    async def _job(self, request) -> Job:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        body = await self._body(request)
        options: dict[str, Any] = dict(request.query_params)
        if kind == "application/json":
            if len(body) > LARGE_BODY:
                images, names, more = await asyncio.to_thread(images_of_json, body)
            else:
                images, names, more = images_of_json(body)
            options |= more
        elif kind == "multipart/form-data":
            images, names, more = await self._parts(request, body)
            options |= more
        elif kind.startswith("image/") or kind in RAW:
            images, names = [body], ["image"]
        else:
            raise RequestError(
                415,
                f"content-type {kind!r}: expected image/*, application/octet-stream, "
                "multipart/form-data or application/json",
            )
        job = read_options(options, self._setup.default, self._limits.max_passes)
        most = min(self._limits.max_images, self._limits.queue)
        if len(images) > most:
            raise RequestError(413, f"{len(images)} images; at most {most} are allowed")
        if not images or any(isinstance(one, bytes) and not one for one in images):
            raise RequestError(400, "there is no image in the body")
        return replace(job, images=images, names=names)

    async def _body(self, request) -> bytes:
        limit = self._limits.max_body
        error = RequestError(
            413,
            f"the body has more than the {limit} bytes that are allowed",
            {"Connection": "close"},
        )
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length) > limit:
            raise error
        chunks, size = [], 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise error
            chunks.append(chunk)
        return b"".join(chunks)

    async def _parts(self, request, body: bytes) -> tuple[list, list[str], dict[str, Any]]:
        from starlette.formparsers import MultiPartException, MultiPartParser

        async def stream() -> AsyncIterator[bytes]:
            yield body

        most = self._limits.max_images
        parser = MultiPartParser(request.headers, stream(), max_files=most, max_fields=20)
        try:
            form = await parser.parse()
        except (MultiPartException, KeyError, ValueError) as error:
            text = getattr(error, "message", "it cannot be read")
            raise RequestError(
                413 if text.startswith("Too many files") else 400, f"the body is no form: {text}"
            ) from None
        images, names, options = [], [], {}
        for name, value in form.multi_items():
            if isinstance(value, str):
                options[name] = value
            else:
                images.append(await value.read())
                names.append(value.filename or f"image {len(names)}")
        await form.close()
        return images, names, options


class Gate:
    """What every request passes: the token, the count, the headers of the answer."""

    def __init__(self, app: Callable, token: str | None, metrics: Metrics, paths: set[str]) -> None:
        self._app, self._token, self._metrics, self._paths = app, token, metrics, paths

    async def __call__(self, scope: dict, receive: Callable, send: Callable) -> None:
        """As ASGI has it."""
        if scope["type"] != "http":
            return
        # A name that nobody serves must not become a label of its own.
        path = scope["path"] if scope["path"] in self._paths else "other"

        async def counted(message: dict) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(path, message["status"]).inc()
                message["headers"] = [*message["headers"], *PAGE_HEADERS]
            await send(message)

        if self._is_allowed(scope):
            await self._app(scope, receive, counted)
            return
        from starlette.responses import JSONResponse

        refused = JSONResponse(
            {"error": "the bearer token is missing or wrong"}, 401, {"WWW-Authenticate": "Bearer"}
        )
        await refused(scope, receive, counted)

    def _is_allowed(self, scope: dict) -> bool:
        if self._token is None or scope["path"] in OPEN:
            return True
        given = dict(scope["headers"]).get(b"authorization", b"")
        kind, _, token = given.partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(
            token.strip(), self._token.encode()
        )
