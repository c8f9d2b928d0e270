"""Time a training step and Monte Carlo inference, ours beside what a user would pick instead.

    bench.py [--nets lenet,quick,vgg,wide] [--json FILE] [--into PAGE] [--quick]

Everything is timed in one run on one machine, each subject alone in a process of its own. A
subject is timed only after its output was checked against upstream Caffe's. Prints Markdown tables
(mean ± sd, ratio to ours, share of the machine's SGEMM peak) and writes the numbers as JSON; both
name the commit and the machine. --into replaces everything below the mark in PAGE (BENCHMARKS.md)
with the tables. Takes about eight minutes on two cores. --quick checks that everything runs; its
times mean nothing.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

import numpy as np
import products
from bayescaffe.common import provenance
from bayescaffe.common.files import scratch_file
from nets import NETS, prototxt

REPO = Path(__file__).resolve().parent.parent
MARK = "<!-- `make bench` writes everything below this line. -->\n"
OURS, STOCK = "ours, Bayesian", "ours, stock"
UPSTREAM = "upstream Caffe's CPU code"
VMAP = "paper's method, vmap over draws"
CAFFE = {OURS: True, STOCK: False, UPSTREAM: False}  # whether Bayesian
TORCH = "PyTorch, deterministic"
BY_HAND = "paper's method in PyTorch"
PEERS = (TORCH, BY_HAND, "bayesian-torch", "blitz", "torchbnn")
PACKAGES = ("torch", "bayesian-torch", "blitz-bayesian-pytorch", "torchbnn")
# One image with 100 draws: what is drawn for each prediction, and what is kept for the next.
KEPT, FRESH = "ours: predict, draws kept", "ours: predict, draws anew"
COLD = "ours: a new process, `bayescaffe predict`"
TORCH_ONE = {  # whether draws are kept, and whether they are one batch (vmap) or a loop
    f"paper's method in PyTorch, draws {drawn}, {form}": (drawn == "kept", form == "vmap")
    for drawn in ("anew", "kept")
    for form in ("loop", "vmap")
}
ONE_IMAGE_DRAWS = 100
# PyTorch allocates blobs anew in each call, those of gradients in a thread of its own. This lets
# glibc keep their memory, as new memory from the system is slow.
KEEP_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
}
# How long one subject is timed; set for all processes of a run.
SECONDS = float(os.environ.setdefault("BENCH_SECONDS", "4"))
TOLERANCE = 1e-4


def timed(step, warm_up: int = 3, least: int = 5) -> list[float]:
    """Seconds of each call of `step`, after a warm-up: `least` calls, or as many as fit."""
    for _ in range(warm_up):
        step()
    times = []
    end = time.perf_counter() + SECONDS
    while len(times) < least or time.perf_counter() < end:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return times


def per_image(run, data, draws: int = 1) -> list[float]:
    """Seconds per image and draw, where `run` takes all images through `draws` networks."""
    images = draws * len(data["x"])
    return [seconds / images for seconds in timed(run, warm_up=1, least=2)]


def require_close(found: np.ndarray, expected: np.ndarray) -> None:
    difference = float(np.abs(found - expected).max())
    if not difference < TOLERANCE:
        raise SystemExit(f"its output differs from Caffe's by {difference:g}")


# ---- Caffe -------------------------------------------------------------------------------------


def caffe_net(text: str, train: bool = False):
    import caffe

    with tempfile.NamedTemporaryFile("w", suffix=".prototxt") as file:
        file.write(text)
        file.flush()
        caffe.set_random_seed(1)
        return caffe.Net(file.name, caffe.TRAIN if train else caffe.TEST)


def reference(name: str, path: Path) -> None:
    """Write weights, images and Caffe's output for them: what every subject must reproduce."""
    images, batch = NETS[name].images, NETS[name].images // 4
    net = caffe_net(prototxt(NETS[name], batch, bayes=False, train=False))
    shape = net.blobs["data"].data.shape
    x = np.random.default_rng(0).random((images, *shape[1:]), np.float32)
    net.blobs["data"].data[...] = x[:batch]
    prob = net.forward()["prob"].copy()
    weights = [blob.data.copy() for params in net.params.values() for blob in params]
    np.savez(path, x=x, prob=prob, **{f"w{i}": w for i, w in enumerate(weights)})


def check_bayesian(name: str, net, x: np.ndarray) -> None:
    """Check that a draw of the net is the stock net with that draw's weights."""
    found = net.sample([3], x)[0]
    net.set_draw(3)
    net.blobs["data"].data[...] = x
    net.forward()
    stock = caffe_net(prototxt(NETS[name], len(x), bayes=False, train=False))
    for layer, blobs in net.params.items():
        for i in (0, 1):
            m, delta, epsilon = (blobs[j].data for j in (i, 2 + i, 4 + i))
            stock.params[layer][i].data[...] = m * (1 + np.logaddexp(0, delta[0]) * epsilon)
    stock.blobs["data"].data[...] = x
    require_close(stock.forward()["prob"], found)


def check_stock(name: str, data) -> None:
    """Check that the stock net computes what upstream's code computed for the reference."""
    x = data["x"][: len(data["prob"])]
    net = caffe_net(prototxt(NETS[name], len(x), bayes=False, train=False))
    blobs = [blob for params in net.params.values() for blob in params]
    for i, blob in enumerate(blobs):
        blob.data[...] = data[f"w{i}"]
    net.blobs["data"].data[...] = x
    require_close(net.forward()["prob"], data["prob"])


def caffe_step(name: str, bayes: bool, data) -> list[float]:
    import caffe

    net = NETS[name]
    check_stock(name, data)
    if bayes:
        text = prototxt(net, 8, bayes=True, train=False)
        check_bayesian(name, caffe_net(text), data["x"][:8])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "net").write_text(prototxt(net, net.batch, bayes, train=True))
        Path(folder, "solver").write_text(
            f'train_net: "{folder}/net" base_lr: 0.001 lr_policy: "fixed" momentum: 0.9 '
            f'snapshot_prefix: "{folder}/x" random_seed: 1 display: 0'
        )
        solver = caffe.get_solver(f"{folder}/solver")
        solver.net.blobs["data"].data[...] = data["x"][: net.batch]
        solver.net.blobs["label"].data[...] = np.arange(net.batch) % 10
        return timed(lambda: solver.step(1))


def caffe_inference(name: str, bayes: bool, data) -> list[float]:
    """Inference of all images: for a Bayesian net many draws in one call, as a user would do it."""
    batches = np.split(data["x"], 4)
    check_stock(name, data)
    net = caffe_net(prototxt(NETS[name], len(batches[0]), bayes, train=False))
    if bayes:
        check_bayesian(name, net, batches[0])
        draws = NETS[name].draws if SECONDS >= 1 else 2
        return per_image(lambda: net.sample(draws, data["x"]), data, draws)

    def forward():
        for x in batches:
            net.blobs["data"].data[...] = x
            net.forward()

    return per_image(forward, data)


def caffe_scaling(images: int, draws: int, data) -> list[float]:
    """Seconds for `draws` draws of `images` images (the reference's, repeated)."""
    x = np.resize(data["x"], (images, *data["x"].shape[1:]))
    net = caffe_net(prototxt(NETS["lenet"], min(images, 500), bayes=True, train=False))
    net.sample(2, x)
    return timed(lambda: net.sample(draws, x), warm_up=0, least=2)


def caffe_one_image(who: str, data) -> list[float]:
    """Seconds for the prediction of one image, with a loaded model or in a new process."""
    from bayescaffe import Model, predict
    from PIL import Image

    image = (255 * data["x"][0, 0]).astype(np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        net_path, weights = f"{folder}/net.prototxt", f"{folder}/net.caffemodel"
        Path(net_path).write_text(prototxt(NETS["lenet"], 1, bayes=True, train=False))
        net = caffe_net(Path(net_path).read_text())
        net.save(weights)
        if who == COLD:
            Image.fromarray(image).save(f"{folder}/image.png")
            command = [sys.executable, "-m", "bayescaffe", "predict", net_path, weights]
            command += [f"{folder}/image.png", "--quiet"]
            return timed(lambda: subprocess.run(command, check=True, capture_output=True))
        model = Model(net_path, weights, **({"draw_memory": 0} if who == FRESH else {}))

        def run():
            return predict(model, image[None], ONE_IMAGE_DRAWS, progress=False)

        pixels = image[None, None].astype(np.float32)
        expected = net.sample(ONE_IMAGE_DRAWS, pixels).mean(axis=0)
        for _ in range(2):
            require_close(np.array([run()[0].probabilities]), expected)
        return timed(run)


# ---- PyTorch -----------------------------------------------------------------------------------


def torch_peer(name: str, who: str, data):
    import torch
    from peers import make_peers

    make = make_peers()[who]
    if isinstance(make, str):
        raise SystemExit(make)
    torch.manual_seed(1)
    flat = [torch.from_numpy(data[f"w{i}"]) for i in range(len(data.files) - 2)]
    weights = list(zip(flat[::2], flat[1::2], strict=True))
    exact = make(NETS[name])
    exact.set_means(weights, exact=True)
    with torch.no_grad():
        prob = exact(torch.from_numpy(data["x"][: len(data["prob"])])).softmax(1)
    require_close(prob.numpy(), data["prob"])
    peer = make(NETS[name])
    peer.set_means(weights, exact=False)
    return peer


def torch_step(name: str, who: str, data) -> list[float]:
    import torch

    net = NETS[name]
    peer = torch_peer(name, who, data)
    x = torch.from_numpy(data["x"][: net.batch])
    labels = torch.arange(net.batch) % 10
    optimizer = torch.optim.SGD(peer.parameters(), lr=0.001, momentum=0.9)

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(peer(x), labels) + 4e-8 * peer.kl()
        loss.backward()
        optimizer.step()

    return timed(step)


def torch_inference(name: str, who: str, data) -> list[float]:
    import torch

    peer = torch_peer(name, who, data)
    batches = torch.from_numpy(data["x"]).chunk(4)

    def forward():
        for x in batches:
            peer(x).softmax(1)

    with torch.inference_mode():
        return per_image(forward, data)


def vmap_inference(name: str, data) -> list[float]:
    import torch
    from peers import Plain

    by_hand = torch_peer(name, BY_HAND, data)
    plain = Plain(NETS[name])
    names = [parameter for parameter, _ in plain.named_parameters()]
    batches = torch.from_numpy(data["x"]).chunk(4)
    draws = 10

    def forward(parameters, x):
        return torch.func.functional_call(plain, parameters, (x,)).softmax(1)

    def ten_draws():
        for x in batches:
            samples = [
                [w for layer in by_hand.weighted() for w in layer.sample()] for _ in range(draws)
            ]
            stacked = dict(zip(names, map(torch.stack, zip(*samples, strict=True)), strict=True))
            torch.func.vmap(forward, in_dims=(0, None))(stacked, x)

    with torch.no_grad():
        return per_image(ten_draws, data, draws)


def torch_one_image(who: str, data) -> list[float]:
    """Seconds for the class probabilities of one image in each of many draws."""
    import torch
    from peers import Plain

    kept, vectorised = TORCH_ONE[who]
    by_hand = torch_peer("lenet", BY_HAND, data)
    plain = Plain(NETS["lenet"])
    names = [parameter for parameter, _ in plain.named_parameters()]
    means = [m for layer in by_hand.weighted() for m in (layer.m, layer.m_b)]
    deltas = [d for layer in by_hand.weighted() for d in (layer.delta, layer.delta_b)]
    x = torch.from_numpy(data["x"][:1])

    def forward(parameters):
        return torch.func.functional_call(plain, parameters, (x,)).softmax(1)

    def draw(*many):
        return {
            name: m * (1 + torch.nn.functional.softplus(delta) * torch.randn(*many, *m.shape))
            for name, m, delta in zip(names, means, deltas, strict=True)
        }

    with torch.no_grad():
        if vectorised:
            drawn = draw(ONE_IMAGE_DRAWS) if kept else None
            run_all = torch.func.vmap(forward)
            return timed(lambda: run_all(drawn or draw(ONE_IMAGE_DRAWS)))
        drawn = [draw() for _ in range(ONE_IMAGE_DRAWS)] if kept else [None] * ONE_IMAGE_DRAWS
        return timed(lambda: torch.stack([forward(one or draw()) for one in drawn]))


# ---- One run -----------------------------------------------------------------------------------


def sgemm_peak() -> list[float]:
    """FLOP/s of a large matrix product with all cores, the best that NumPy's BLAS can do."""
    n = 2048
    a, b = (np.random.default_rng(i).random((n, n), np.float32) for i in (0, 1))
    return [2 * n**3 / min(timed(lambda: a @ b))]


def run_subject(what: str, name: str, who: str, path: str) -> list[float]:
    if what == "peak":
        return sgemm_peak()
    if what == "reference":
        reference(name, Path(path))
        return []
    data = np.load(path)
    if what == "scaling":
        images, draws = map(int, who.split("x"))
        return caffe_scaling(images, draws, data)
    if what == "one image":
        return (torch_one_image if who in TORCH_ONE else caffe_one_image)(who, data)
    if who in CAFFE:
        return (caffe_step if what == "step" else caffe_inference)(name, CAFFE[who], data)
    if who == VMAP:
        return vmap_inference(name, data)
    return (torch_step if what == "step" else torch_inference)(name, who, data)


def in_own_process(what: str, name: str = "", who: str = "", path: str = "", threads: int = 0):
    """The times of a subject, or the last line of its error message."""
    subject = json.dumps([what, name, who, path])
    env = dict(os.environ)
    if who == UPSTREAM or what == "reference":
        env["BAYESCAFFE_ENGINE"] = "caffe"
    if who in (*PEERS, VMAP, *TORCH_ONE):
        env |= KEEP_MEMORY
    if threads:
        env["OMP_NUM_THREADS"] = str(threads)
    done = subprocess.run(
        [sys.executable, __file__, "--subject", subject],
        capture_output=True,
        text=True,
        env=env,
    )
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["failed without a message"])[-1]
    return json.loads(done.stdout.splitlines()[-1])


def row(who: str, result, ours: float, flops: float, peak: float, unit: float) -> dict:
    if isinstance(result, str):
        return {"who": who, "missing": result}
    mean, sd = float(np.mean(result)), float(np.std(result))
    return {
        "who": who,
        "mean": mean * unit,
        "sd": sd * unit,
        "ratio": mean / ours,
        "peak": flops / mean / peak,
    }


def markdown(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def table(unit: str, rows: list[dict]) -> str:
    cells = []
    for r in rows:
        if "missing" in r:
            cells.append((r["who"], "–", "–", r["missing"]))
        else:
            # Three significant figures of the mean.
            digits = max(0, 2 - math.floor(math.log10(r["mean"])))
            time_text = f"{r['mean']:.{digits}f} ± {r['sd']:.{digits}f}"
            cells.append((r["who"], time_text, f"{r['ratio']:.2f}", f"{r['peak']:.0%}"))
    return markdown(("", unit, "ratio to ours", "share of SGEMM peak"), cells)


def best(rows: list[dict], *who: str) -> float:
    """The smallest mean of the named subjects; NaN if all are missing."""
    return min((r["mean"] for r in rows if r["who"] in who and "mean" in r), default=math.nan)


def aims(results: dict) -> str:
    """What we want to reach, and what this run measured."""
    bayesian_peers = (*PEERS[1:], VMAP)
    rows = []

    def ratio(words: str, key: str, *who: str, aim: float) -> None:
        if key in results:
            value = best(results[key], OURS) / best(results[key], *who)
            rows.append((words, f"at most {aim}", "–" if math.isnan(value) else f"{value:.2f}"))

    ratio("LeNet, training step: ours Bayesian / PyTorch", "lenet step", TORCH, aim=0.55)
    ratio(
        "LeNet, training step: ours Bayesian / best Bayesian peer",
        "lenet step", *bayesian_peers, aim=0.36,
    )  # fmt: skip
    ratio("LeNet, training step: ours Bayesian / ours stock", "lenet step", STOCK, aim=1.25)
    ratio("LeNet, inference: ours Bayesian / PyTorch", "lenet inference", TORCH, aim=0.35)
    ratio(
        "LeNet, inference: ours Bayesian / best Bayesian peer",
        "lenet inference", *bayesian_peers, aim=0.32,
    )  # fmt: skip
    for r in results.get("lenet inference", []):
        if r["who"] == OURS:
            share = f"{r['peak']:.0%}"
            rows.append(("LeNet, inference: share of the SGEMM peak", "at least 45%", share))
    ratio("wide, training step: ours Bayesian / ours stock", "wide step", STOCK, aim=1.1)
    for who, aim in ((KEPT, 12), (COLD, 500)):
        words = f"LeNet, one image, {ONE_IMAGE_DRAWS} draws, ms: {who.removeprefix('ours: ')}"
        if "lenet one image" in results:
            milliseconds = best(results["lenet one image"], who)
            rows.append((words, f"at most {aim}", f"{milliseconds:.1f}"))
    for name in ("quick", "vgg"):
        ratio(f"{name}, training step: ours Bayesian / PyTorch", f"{name} step", TORCH, aim=0.9)
        ratio(f"{name}, inference: ours Bayesian / PyTorch", f"{name} inference", TORCH, aim=0.9)
    return markdown(("", "aim", "measured"), rows)


# ---- Where the numbers come from ---------------------------------------------------------------


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def origin(results: dict) -> str:
    """The paragraph that names the commit and the machine of a run."""
    peers = ", ".join(f"{name} {version}" for name, version in results["peers"].items())
    return (
        f"Measured by `make bench` at commit `{results['commit']}` on {results['machine']}. SGEMM "
        f"peak: {results['peak'] / 1e9:.0f} GFLOP/s. Peers: {peers}.\n"
    )


def write_into(page: Path, text: str) -> None:
    """Replace what follows the mark in a page."""
    before, mark, _ = page.read_text().partition(MARK)
    if not mark:
        sys.exit(f"bench: {page} has no line {MARK.strip()!r}")
    with scratch_file(page) as scratch:
        scratch.write_text(f"{before}{mark}\n{text}")


def scaling(path: str, quick: bool) -> list[dict]:
    """What Monte Carlo inference of a Bayesian LeNet costs by draws, images and threads."""
    rows = []
    for draws, images, threads in (
        (10, 500, 2),
        (100, 500, 2),
        (1000, 500, 2),
        (100, 1, 2),
        (100, 100, 2),
        (100, 10000, 2),
        (100, 500, 1),
    ):
        if quick and draws * images > 10000:
            continue
        times = in_own_process("scaling", "lenet", f"{images}x{draws}", path, threads)
        if isinstance(times, str):
            sys.exit(f"bench: {draws} draws of {images} images: {times}")
        mean, sd = float(np.mean(times)), float(np.std(times))
        rows.append(
            {"draws": draws, "images": images, "threads": threads, "mean": mean * 1e3,
             "sd": sd * 1e3, "each": mean / draws / images * 1e6}
        )  # fmt: skip
    return rows


def scaling_table(rows: list[dict]) -> str:
    return markdown(
        ("draws", "images", "threads", "ms", "µs per image and draw"),
        [
            (f"{r['draws']:,}", f"{r['images']:,}", str(r["threads"]),
             f"{r['mean']:.{0 if r['mean'] >= 100 else 1}f} ± {r['sd']:.2g}", f"{r['each']:.1f}")
            for r in rows
        ],
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"))
    parser.add_argument("--into", type=Path, help="page to write the tables into")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--subject", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        os.environ["BENCH_SECONDS"] = "0.01"
    if options.quick and options.into:
        parser.error("--into with --quick: these times mean nothing")
    if options.subject:
        print(json.dumps(run_subject(*json.loads(options.subject))))
        return

    peak = in_own_process("peak")
    if isinstance(peak, str):
        sys.exit(f"bench: the machine's SGEMM peak: {peak}")
    (peak,) = peak
    results = {
        "commit": provenance.commit(REPO),
        "machine": provenance.machine(),
        "peers": versions(),
        "peak": peak,
    }
    tables = []

    def show(title: str, text: str) -> None:
        tables.append(f"**{title}**\n\n{text}")
        print(f"{tables[-1]}\n", flush=True)

    print(origin(results))
    if not options.quick:
        results["noise"] = subprocess.check_output([REPO / "build/bench_noise"], text=True)
        show("Noise, on one core", f"```\n{results['noise']}```\n")
        results["products"] = products.measure()
        for title, text in products.tables(results["products"]):
            show(title, text)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.nets.split(","):
            net, path = NETS[name], f"{folder}/{name}.npz"
            failed = in_own_process("reference", name, path=path)
            if failed:
                sys.exit(f"bench: {name}: {failed}")
            size = f"{net.images} images, ours {net.draws} draws"
            for what, title, subjects, flops, unit, label in (
                ("step", f"training step, batch {net.batch}", (OURS, STOCK, UPSTREAM, *PEERS),
                 3 * net.batch * net.flops(), 1e3, "ms"),
                ("inference", f"inference, per image and draw ({size})",
                 (OURS, STOCK, UPSTREAM, *PEERS[:3], VMAP), net.flops(), 1e6, "µs"),
            ):  # fmt: skip
                found = {who: in_own_process(what, name, who, path) for who in subjects}
                if isinstance(found[OURS], str):
                    sys.exit(f"bench: {name}: {OURS}: {found[OURS]}")
                ours = float(np.mean(found[OURS]))
                rows = [row(who, r, ours, flops, peak, unit) for who, r in found.items()]
                results[f"{name} {what}"] = rows
                show(f"{name}: {title}", table(label, rows))
            if name == "lenet":
                subjects = (KEPT, FRESH, COLD, *TORCH_ONE)
                found = {who: in_own_process("one image", name, who, path) for who in subjects}
                if isinstance(found[KEPT], str):
                    sys.exit(f"bench: {name}: {KEPT}: {found[KEPT]}")
                ours, flops = float(np.mean(found[KEPT])), ONE_IMAGE_DRAWS * net.flops()
                rows = [row(who, r, ours, flops, peak, 1e3) for who, r in found.items()]
                results["lenet one image"] = rows
                show(f"lenet: one image, {ONE_IMAGE_DRAWS} draws", table("ms", rows))
                results["lenet scaling"] = scaling(path, options.quick)
                title = "lenet: Monte Carlo inference by draws, images and threads"
                show(title, scaling_table(results["lenet scaling"]))
    print(aims(results))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    with scratch_file(options.json) as scratch:
        scratch.write_text(json.dumps(results, indent=2) + "\n")
    print(f"Written to {options.json}")
    if options.into:
        write_into(options.into, "\n".join([origin(results), aims(results), *tables]))
        print(f"Written into {options.into}")


if __name__ == "__main__":
    main()
