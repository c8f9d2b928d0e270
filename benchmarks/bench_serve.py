"""Load the service: one client and 64 clients, beside `net.sample` and PyTorch with FastAPI.

    bench_serve.py [--seconds 10] [--clients 64] [--draws 100] [--json FILE] [--quick]

Starts `bayescaffe serve` with an untrained Bayesian LeNet on a free port of the loopback, and first
checks that its answers have the numbers of `Model.sample`, alone and together. Then clients send
PNGs of digits, each the next when it has the answer of the last; they run in a process of their
own. The throughput is compared with that of `net.sample` with kept draws and as many images at once
as there are clients. Where torch and fastapi are installed (`make bench-peers`), a service of these
two does 100 passes of the same net: once as a user would write it, with weights drawn anew for each
pass, and once with drawn weights that are kept and computed as one batch (vmap). It answers one
image at a time. Nothing but the loopback is used, and clients send nothing after --seconds.
"""

import argparse
import asyncio
import importlib.util
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parent))

REPO = Path(__file__).resolve().parents[1]
SIZE = 28
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def digits(count: int) -> list[bytes]:
    """Pictures of that size, as PNG."""
    from PIL import Image

    random = np.random.default_rng(0)
    found = []
    for _ in range(count):
        content = io.BytesIO()
        pixels = random.integers(0, 256, (7, 7), np.uint8).repeat(4, 0).repeat(4, 1)
        Image.fromarray(pixels).save(content, "PNG")
        found.append(content.getvalue())
    return found


# ---- The clients, in a process of their own


async def client(port: int, requests: list[bytes], end: float, found: dict[str, list]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    number = 0
    while time.perf_counter() < end:
        start = time.perf_counter()
        writer.write(requests[number % len(requests)])
        number += 1
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
        status = int(head.split()[1])
        found["seconds" if status == 200 else "refused"].append(time.perf_counter() - start)
    writer.close()


def run_clients(port: int, clients: int, seconds: float) -> dict[str, Any]:
    requests = [
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        for body in digits(16)
    ]
    found: dict[str, Any] = {"seconds": [], "refused": []}

    async def run() -> None:
        start = time.perf_counter()
        end = start + seconds
        turns = [requests[n % 16 :] + requests[: n % 16] for n in range(clients)]
        await asyncio.gather(*(client(port, turn, end, found) for turn in turns))
        # With the last answers, which come after the end.
        found["elapsed"] = time.perf_counter() - start

    asyncio.run(run())
    return found


# ---- The peer


PEERS = ("draws anew", "draws kept")


def run_peer(port: int, draws: int, kind: str) -> None:
    """PyTorch and FastAPI: the passes of one image at a time, in FastAPI's pool of threads."""
    import threading

    import torch
    import uvicorn
    from fastapi import FastAPI, Request
    from nets import NETS
    from PIL import Image
    from starlette.concurrency import run_in_threadpool
    from torch_nets import draw_all, drawn, torch_net

    net, lock, app = torch_net(NETS["lenet"]).eval(), threading.Lock(), FastAPI()

    with torch.inference_mode():
        kept = [drawn(net) for _ in range(draws)]
        stacked = {name: torch.stack([one[name] for one in kept]) for name in kept[0]}

    def pass_of(weights: dict, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, weights, (x,)).softmax(1)

    def passes(x: torch.Tensor) -> torch.Tensor:
        if kind == "draws kept":
            return torch.func.vmap(pass_of, in_dims=(0, None))(stacked, x)
        return draw_all(net, x, draws)

    def compute(body: bytes) -> dict:
        pixels = np.asarray(Image.open(io.BytesIO(body)).convert("L"), np.float32) / 256
        # Threads that compute at once only hinder each other on two cores.
        with lock, torch.inference_mode():
            found = passes(torch.from_numpy(pixels)[None, None])[:, 0].numpy()
        low, high = np.quantile(found, [0.025, 0.975], axis=0)
        mean = found.mean(0)
        return {
            "label": int(mean.argmax()),
            "probabilities": mean.tolist(),
            "intervals": np.stack([low, high], 1).tolist(),
        }

    async def predict(request):
        return await run_in_threadpool(compute, await request.body())

    predict.__annotations__ = {"request": Request}
    app.post("/predict")(predict)
    app.get("/healthz")(lambda: {"status": "ok"})
    uvicorn.run(app, port=port, log_level="error")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


# ---- Measuring


def measure(name: str, port: int, clients: int, seconds: float) -> dict:
    """Warm up, then load; figures of one row."""

    def load(duration: float) -> dict:
        command = [sys.executable, __file__, "--port", str(port), "--clients", str(clients)]
        done = subprocess.check_output([*command, "--seconds", str(duration)], text=True)
        return json.loads(done)

    load(min(1.0, seconds))
    found = load(seconds)
    times = 1e3 * np.array(found["seconds"])
    p50, p99 = np.quantile(times, [0.5, 0.99]) if len(times) else (np.nan, np.nan)
    return {
        "name": name,
        "clients": clients,
        "answered": len(times),
        "refused": len(found["refused"]),
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "images_per_second": len(times) / found["elapsed"],
    }


def verify(url: str, model, draws: int) -> None:
    """The answers are those of `Model.sample`, for one image and for several together."""
    from PIL import Image

    contents = digits(4)
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(one)))[None] for one in contents])
    expected = model.sample(pixels, draws).mean(0)
    with OPENER.open(urllib.request.Request(url + "predict", contents[0])) as answer:
        alone = json.load(answer)["images"][0]["probabilities"]
    body = json.dumps({"images": pixels[:, 0].tolist()}).encode()
    headers = {"Content-Type": "application/json"}
    with OPENER.open(urllib.request.Request(url + "predict", body, headers)) as answer:
        together = [one["probabilities"] for one in json.load(answer)["images"]]
    for found, right in ((alone, expected[0]), (together, expected)):
        if not np.allclose(found, right, atol=1e-5):
            raise SystemExit("bench_serve: the service answers other numbers than Model.sample")


def sample_throughput(model, images: int, draws: int, seconds: float) -> float:
    """Images per second of `net.sample` in this process, with kept draws."""
    pixels = np.random.default_rng(0).integers(0, 256, (images, 1, SIZE, SIZE), np.uint8)
    model.sample(pixels, draws)
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        model.sample(pixels, draws)
        calls += 1
    return images * calls / (time.perf_counter() - start)


def wait_for(url: str) -> None:
    for _ in range(600):
        try:
            OPENER.open(url + "healthz", timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("bench_serve: the peer does not start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="one second and two clients")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--peer", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--kind", choices=PEERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.port:
        print(json.dumps(run_clients(args.port, args.clients, args.seconds)))
        return
    if args.peer:
        run_peer(args.peer, args.draws, args.kind)
        return
    if args.quick:
        args.seconds, args.clients = 1.0, 2

    import caffe
    from bayescaffe.common import provenance
    from bayescaffe.net.model import Model
    from bench import KEEP_MEMORY
    from nets import NETS, prototxt

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        net, weights = Path(folder, "net.prototxt"), Path(folder, "net.caffemodel")
        net.write_text(prototxt(NETS["lenet"], 1, bayes=True, train=False))
        caffe.set_random_seed(1)
        caffe.Net(str(net), caffe.TEST).save(str(weights))
        model = Model(net, weights, scale=1 / 256)
        sampled = sample_throughput(model, args.clients, args.draws, args.seconds)
        command = [sys.executable, "-m", "bayescaffe", "serve", net, weights, "--port", "0"]
        command += ["--scale", str(1 / 256), "--passes", str(args.draws), "--json"]
        service = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
        try:
            url = json.loads(service.stdout.readline())["url"]
            verify(url, model, args.draws)
            port = int(url.rstrip("/").rsplit(":", 1)[1])
            for clients in (1, args.clients):
                rows.append(measure("bayescaffe serve", port, clients, args.seconds))
        finally:
            service.terminate()
            service.wait()
    missing = [name for name in ("torch", "fastapi") if importlib.util.find_spec(name) is None]
    for kind in () if missing else PEERS:
        port = free_port()
        command = [sys.executable, __file__, "--peer", str(port), "--kind", kind]
        peer = subprocess.Popen(
            [*command, "--draws", str(args.draws)], env={**os.environ, **KEEP_MEMORY}
        )
        try:
            wait_for(f"http://127.0.0.1:{port}/")
            for clients in (1, args.clients):
                rows.append(measure(f"PyTorch + FastAPI, {kind}", port, clients, args.seconds))
        finally:
            peer.terminate()
            peer.wait()

    print(
        f"Measured at commit `{provenance.commit(REPO)}` on {provenance.machine()}.\n\n"
        f"LeNet, {args.draws} draws; net.sample of {args.clients} images: {sampled:.1f} images/s\n"
    )
    print("| | clients | p50, ms | p99, ms | images/s | share of net.sample | refused |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        row["share"] = row["images_per_second"] / sampled
        print(
            f"| {row['name']} | {row['clients']} | {row['p50_ms']:.1f} | {row['p99_ms']:.1f} | "
            f"{row['images_per_second']:.1f} | {row['share']:.0%} | {row['refused']} |"
        )
    if missing:
        print(f"\nPyTorch + FastAPI: not measured, {' and '.join(missing)} not installed")
    print("\naims: one client p50 at most 20 ms; the clients together at least 70 % of net.sample")
    if args.json:
        args.json.write_text(json.dumps({"net_sample": sampled, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
