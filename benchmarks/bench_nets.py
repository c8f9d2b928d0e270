"""Time the nets that users bring, ours beside PyTorch, upstream Caffe and the machine's limits.

    bench_nets.py [--nets alexnet,resnet18] [--batches 16,1,64] [--json FILE] [--into PAGE]
                  [--seconds S] [--again] [--quick]

For each net of reference_nets.py and each batch: a forward pass, a training step, and 10 draws of
Monte Carlo inference with all layers Bayesian and with only the last one. Each subject runs alone
in a process of its own. Before it is timed, its scores and the gradient of its first convolution
are compared with those of upstream Caffe's code with the same weights and images. The SGEMM peak
and the memory bandwidth are measured before each net and batch.

PyTorch is tried eagerly in both memory layouts and with torch.compile; the best one is the peer. At
a batch of 64, only the best of batch 16 is tried, if that was measured.

Each is timed for --seconds (default 4) after a warm-up. A call that takes longer is timed once, and
has no standard deviation. All nets and batches take an estimated hour and a half on two cores. The
JSON file is written after each net and batch; a second run at the same commit skips what it has,
unless --again is given. --into writes the tables into PAGE (BENCHMARKS.md) between two marks.
--quick checks that everything runs, but for torch.compile; its times mean nothing.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from bayescaffe.common import provenance
from bayescaffe.common.files import scratch_file
from bench import KEEP_MEMORY, caffe_net, markdown, sgemm_peak, versions
from nets import Net, prototxt
from reference_nets import REFERENCE_NETS, chosen_nets

REPO = Path(__file__).resolve().parents[1]
sys.path.append(str(REPO / "models/shared"))

from marked_part import MarkedPart  # noqa: E402

MARKS = MarkedPart("<!-- measured by bench_nets.py -->", "<!-- end of bench_nets.py -->")
STOCK, BAYES, LAST = "ours, stock", "ours, Bayesian", "ours, last layer Bayesian"
UPSTREAM = "upstream Caffe's CPU code"
TORCH = ("PyTorch", "PyTorch, channels last", "PyTorch, compiled")
# The paper's method, in the memory layouts of the first two.
BY_HAND = ("paper's method in PyTorch", "paper's method in PyTorch, channels last")
COMPILED = TORCH[2]
DRAWS = 10
# What is timed of each subject.
FORWARD, STEP, ALL, ONE = "forward", "step", "10 draws, all layers", "10 draws, last layer"
JOBS = {
    STOCK: (FORWARD, STEP),
    BAYES: (STEP, ALL),
    LAST: (ONE,),
    UPSTREAM: (FORWARD, STEP),
    **dict.fromkeys(TORCH, (FORWARD, STEP)),
    **dict.fromkeys(BY_HAND, (ALL, ONE)),
}
# The share of the cores that other processes may have before the tables tell it.
QUIET = 0.05
# Images for the comparison before timing.
CHECKED = 8
# How far a vector may be from upstream's, relative to its length. Gradients jump where rounding
# moves a number across 0 at a ReLU.
TOLERANCES = {"scores": 1e-4, "probabilities": 1e-4, "gradients": 0.02}
# Forward passes that a job is worth.
PASSES = {FORWARD: 1, STEP: 3, ALL: DRAWS, ONE: 1}


# ---- One subject, in a process of its own --------------------------------------------------------


def timed(call, warm_up=None) -> dict:
    """Seconds of each call: as many as fit into BENCH_SECONDS, at least one. The call before them,
    or `warm_up`, is not counted: it gets memory from the system, which is slow. And the share of
    the cores that other processes had meanwhile."""
    seconds = float(os.environ["BENCH_SECONDS"])
    (warm_up or call)()
    times: list[float] = []
    others = -others_seconds()
    while sum(times) < seconds:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    others += others_seconds()
    return {"times": times, "others": max(0.0, others / sum(times) / provenance.cores())}


def others_seconds() -> float:
    """Seconds that all cores have worked for other processes than this one."""
    numbers = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, numbers[:8])
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return busy - time.process_time()


def images_of(net: Net, count: int) -> np.ndarray:
    return np.random.default_rng(0).random((count, net.channels, net.size, net.size), np.float32)


def labels_of(count: int) -> np.ndarray:
    return np.arange(count) * 7 % 1000


def difference(what: str, found: np.ndarray, expected: np.ndarray) -> float:
    """The distance of two vectors, relative to their length; an error if it is too large."""
    distance = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
    if not distance < TOLERANCES[what]:
        raise SystemExit(f"its {what} differ from upstream Caffe's by {distance:.2g}")
    return distance


def load(net, blobs: list[np.ndarray]) -> None:
    own = [blob for params in net.params.values() for blob in params]
    for blob, values in zip(own, blobs, strict=True):
        blob.data[...] = values


def caffe_scores(net, x: np.ndarray) -> np.ndarray:
    net.blobs["data"].data[...] = x
    net.forward()
    (bottom,) = net.bottom_names["prob"]
    return net.blobs[bottom].data.copy()


def caffe_gradient(architecture: Net, blobs: list[np.ndarray], x: np.ndarray) -> np.ndarray:
    """By the weights of the first convolution. As in TEST: dropout is random, and means over a few
    images let the gradient of a deep net jump by percents where a ReLU rounds to the other side."""
    net = caffe_net(prototxt(architecture, len(x), bayes=False, train=True))
    load(net, blobs)
    net.blobs["data"].data[...] = x
    net.blobs["label"].data[...] = labels_of(len(x))
    net.forward()
    net.backward()
    return next(iter(net.params.values()))[0].diff.copy()


def reference(architecture: Net, path: str) -> None:
    """Write weights, and the scores and the gradient that every subject must reproduce."""
    x = images_of(architecture, CHECKED)
    net = caffe_net(prototxt(architecture, CHECKED, bayes=False, train=True), train=True)
    net.blobs["data"].data[...] = x
    # Batch normalisation takes its means and variances from these images.
    net.forward()
    blobs = [blob.data.copy() for params in net.params.values() for blob in params]
    del net
    test = caffe_net(prototxt(architecture, CHECKED, bayes=False, train=False))
    load(test, blobs)
    scores = caffe_scores(test, x)
    gradient = caffe_gradient(architecture, blobs, x)
    np.savez(
        path, scores=scores, gradient=gradient, **{f"w{i}": blob for i, blob in enumerate(blobs)}
    )


def read_reference(path: str) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    data = np.load(path)
    blobs = [data[f"w{i}"] for i in range(len(data.files) - 2)]
    return blobs, data["scores"], data["gradient"]


def check_caffe(architecture: Net, who: str, path: str) -> dict[str, float]:
    """How far it is from upstream's code."""
    blobs, scores, gradient = read_reference(path)
    x = images_of(architecture, CHECKED)
    stock = caffe_net(prototxt(architecture, CHECKED, bayes=False, train=False))
    load(stock, blobs)
    if who in (STOCK, UPSTREAM):
        own = caffe_gradient(architecture, blobs, x)
        return {
            "scores": difference("scores", caffe_scores(stock, x), scores),
            "gradients": difference("gradients", own, gradient),
        }
    net = bayesian(architecture, who, blobs)
    # A draw is the stock net with the weights of that draw.
    net.set_draw(3)
    net.forward()
    for layer, own in net.params.items():
        values = [blob.data for blob in own]
        if layer in net.posteriors():
            size = len(values) // 3
            values = [
                m * (1 + np.logaddexp(0, delta) * epsilon)
                for m, delta, epsilon in zip(
                    values[:size], values[size : 2 * size], values[2 * size :], strict=True
                )
            ]
        for blob, value in zip(stock.params[layer], values, strict=True):
            blob.data[...] = value
    stock.blobs["data"].data[...] = x
    found = net.sample([3], x)[0]
    return {"probabilities": difference("probabilities", found, stock.forward()["prob"])}


def bayesian(architecture: Net, who: str, blobs: list[np.ndarray], batch: int = CHECKED):
    text = prototxt(architecture, batch, bayes=True, train=False, last_only=who == LAST)
    net = caffe_net(text)
    load_means(net, blobs)
    return net


def load_means(net, blobs: list[np.ndarray]) -> None:
    """Stock weights as the means of a Bayesian net."""
    rest = iter(blobs)
    posteriors = net.posteriors()
    for layer, own in net.params.items():
        count = len(own) // 3 if layer in posteriors else len(own)
        for blob in list(own)[:count]:
            blob.data[...] = next(rest)


def time_caffe(architecture: Net, who: str, job: str, batch: int, path: str) -> dict:
    import caffe

    blobs, *_ = read_reference(path)
    x = images_of(architecture, batch)
    if job == STEP:
        with tempfile.TemporaryDirectory() as folder:
            text = prototxt(architecture, batch, bayes=who == BAYES, train=True)
            Path(folder, "net").write_text(text)
            Path(folder, "solver").write_text(
                f'train_net: "{folder}/net" base_lr: 1e-5 lr_policy: "fixed" momentum: 0.9 '
                f'snapshot_prefix: "{folder}/x" random_seed: 1 display: 0'
            )
            solver = caffe.get_solver(f"{folder}/solver")
            load_means(solver.net, blobs)
            solver.net.blobs["data"].data[...] = x
            solver.net.blobs["label"].data[...] = labels_of(batch)
            return timed(lambda: solver.step(1))
    if job == FORWARD:
        net = caffe_net(prototxt(architecture, batch, bayes=False, train=False))
        load(net, blobs)
        net.blobs["data"].data[...] = x
        return timed(net.forward)
    net = bayesian(architecture, who, blobs, batch)
    # Each thread draws.
    return timed(lambda: net.sample(DRAWS, x), lambda: net.sample(provenance.cores(), x))


def torch_subject(architecture: Net, who: str, blobs: list[np.ndarray]):
    """The module, and a function that puts images into its memory layout."""
    import torch
    from torch_nets import load_blobs, torch_net

    net = torch_net(architecture)
    load_blobs(net, blobs)
    layout = torch.channels_last if who in (TORCH[1], BY_HAND[1]) else torch.contiguous_format
    net = net.to(memory_format=layout)
    return net, lambda x: torch.from_numpy(x).contiguous(memory_format=layout)


def check_torch(architecture: Net, who: str, path: str) -> dict[str, float]:
    """How far it is from upstream's code."""
    import torch

    blobs, scores, gradient = read_reference(path)
    x = images_of(architecture, CHECKED)
    net, place = torch_subject(architecture, who, blobs)
    net.eval()
    with torch.inference_mode():
        own = net(place(x)).numpy()
    loss = torch.nn.functional.cross_entropy(net(place(x)), torch.from_numpy(labels_of(len(x))))
    loss.backward()
    found = next(net.parameters()).grad.numpy()
    return {
        "scores": difference("scores", own, scores),
        "gradients": difference("gradients", found, gradient),
    }


def time_torch(architecture: Net, who: str, job: str, batch: int, path: str) -> dict:
    import torch
    from torch_nets import draw_all, draw_last

    blobs, *_ = read_reference(path)
    net, place = torch_subject(architecture, who, blobs)
    x, labels = place(images_of(architecture, batch)), torch.from_numpy(labels_of(batch))
    if job != STEP:
        net.eval()
        if job != FORWARD:
            draw = draw_all if job == ALL else draw_last
            with torch.inference_mode():
                return timed(lambda: draw(net, x, DRAWS), lambda: draw(net, x, 1))
        run = torch.compile(net) if who == COMPILED else net
        with torch.inference_mode():
            return timed(lambda: run(x).softmax(1))
    run = torch.compile(net) if who == COMPILED else net
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-5, momentum=0.9)

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(run(x), labels).backward()
        optimizer.step()

    return timed(step)


def bandwidth() -> float:
    """Bytes per second that all cores together read and write, copying more than caches hold."""
    arrays = [[np.full(2**25, i, np.float32) for i in (0, 1)] for _ in range(provenance.cores())]

    def copy_all():
        threads = [threading.Thread(target=np.copyto, args=(b, a)) for a, b in arrays]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return sum(2 * a.nbytes for a, _ in arrays) / min(timed(copy_all)["times"])


def run_subject(name: str, who: str, job: str, batch: int, path: str):
    if job == "limits":
        return {"peak": sgemm_peak()[0], "bandwidth": bandwidth()}
    architecture = REFERENCE_NETS[name]
    if job == "reference":
        return reference(architecture, path)
    is_torch = who in (*TORCH, *BY_HAND)
    if job == "check":
        return (check_torch if is_torch else check_caffe)(architecture, who, path)
    return (time_torch if is_torch else time_caffe)(architecture, who, job, batch, path)


# ---- One run -------------------------------------------------------------------------------------


def in_own_process(name: str, who: str, job: str, batch: int = 0, path: str = ""):
    """What a subject returns, or a string: the last line of its error message."""
    env = dict(os.environ)
    if who == UPSTREAM or job == "reference":
        env["BAYESCAFFE_ENGINE"] = "caffe"
    if who in (*TORCH, *BY_HAND):
        env |= KEEP_MEMORY
    subject = json.dumps([name, who, job, batch, path])
    command = [sys.executable, __file__, "--subject", subject]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        # Some of PyTorch's lines are paragraphs.
        return (done.stderr.strip().splitlines() or ["failed without a message"])[-1][:100]
    return json.loads(done.stdout.splitlines()[-1])


class Clock:
    """Tells how much time is left, from the work that was done and the time that it took."""

    def __init__(self, plan: list[tuple[str, int]], seconds: float):
        self.start, self.done, self.seconds = time.monotonic(), 0.0, seconds
        self.total = sum(
            self.cost(name, batch, job)
            for name, batch in plan
            for who, jobs in JOBS.items()
            if who != BY_HAND[1]
            for job in jobs
        )

    def cost(self, name: str, batch: int, job: str) -> float:
        """Seconds, roughly: the process, then the work at 70 GFLOP/s or the time box."""
        work = PASSES[job] * batch * REFERENCE_NETS[name].flops() / 70e9
        return 5 + (work if work > self.seconds else self.seconds)

    def tell(self, name: str, batch: int, who: str, job: str, result) -> None:
        self.done += self.cost(name, batch, job)
        spent = time.monotonic() - self.start
        left = max(0.0, spent * (self.total / self.done - 1)) / 60
        text = result if isinstance(result, str) else f"{mean_of(result) * 1e3:.1f} ms"
        print(f"{name}, batch {batch}, {job}, {who}: {text} ({left:.0f} min left)", file=sys.stderr)


def mean_of(times) -> float:
    """NaN if the subject is missing."""
    return float(np.mean(times)) if isinstance(times, list) else math.nan


def best_of(times: dict, subjects: tuple[str, ...]) -> str:
    """The fastest subject; the first one if none was timed."""
    found = [who for who in subjects if isinstance(times.get(who), list)]
    return min(found, key=lambda who: mean_of(times[who])) if found else subjects[0]


def measure(
    name: str, batch: int, results: dict, checked: dict, clock: Clock, compiles: bool, commit: str
) -> dict:
    """All subjects of a net and a batch.

    Args:
        results: earlier ones; they tell which form of PyTorch is worth a large batch.
        checked: by net and subject, what the comparison found; an error if it is a string.
    """
    limits = in_own_process(name, "", "limits")
    if isinstance(limits, str):
        raise SystemExit(f"bench_nets: the machine's limits: {limits}")
    times: dict[str, dict] = {job: {} for job in PASSES}
    others = 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/reference.npz"
        if failed := in_own_process(name, "", "reference", path=path):
            raise SystemExit(f"bench_nets: {name}: {failed}")
        for who, jobs in JOBS.items():
            layout = best_of(times[FORWARD], TORCH[:2])
            if who in BY_HAND and who != BY_HAND[TORCH.index(layout)]:
                continue
            if who == COMPILED and not compiles:
                continue
            for job in jobs:
                small = results.get(f"{name} 16", {}).get("times", {}).get(job)
                if batch > 16 and small and who in TORCH and who != best_of(small, TORCH):
                    continue
                key = (name, who)
                if key not in checked:
                    checked[key] = in_own_process(name, who, "check", path=path)
                found = checked[key]
                if not isinstance(found, str):
                    found = in_own_process(name, who, job, batch, path)
                if not isinstance(found, str):
                    others = max(others, found["others"])
                    found = found["times"]
                times[job][who] = found
                clock.tell(name, batch, who, job, found)
    return {
        "commit": commit,
        "machine": provenance.machine(),
        "torch": versions()["torch"],
        **limits,
        "differences": {who: found for (net, who), found in checked.items() if net == name},
        "others": others,
        "times": times,
    }


# ---- Tables --------------------------------------------------------------------------------------

AIMS = {
    "forward / PyTorch": ("at most", 0.7),
    "step / PyTorch": ("at most", 0.7),
    "Bayesian step / stock step": ("at most", 1.1),
    "pass of 10 draws / PyTorch's forward": ("at most", 0.6),
    "10 draws, last layer / by hand in PyTorch": ("at most", 0.6),
    "share of the SGEMM peak": ("at least", 0.5),
    "share of the bandwidth": ("", 0),
}


def figures(name: str, batch: int, record: dict) -> list[float]:
    """What is compared with the aims; NaN if a subject is missing."""
    times = record["times"]
    ours = {job: mean_of(times[job].get(STOCK)) for job in (FORWARD, STEP)}
    peer = {job: mean_of(times[job].get(best_of(times[job], TORCH))) for job in (FORWARD, STEP)}
    by_hand = mean_of(times[ONE].get(best_of(times[ONE], BY_HAND)))
    net = REFERENCE_NETS[name]
    return [
        ours[FORWARD] / peer[FORWARD],
        ours[STEP] / peer[STEP],
        mean_of(times[STEP].get(BAYES)) / ours[STEP],
        mean_of(times[ALL].get(BAYES)) / DRAWS / peer[FORWARD],
        mean_of(times[ONE].get(LAST)) / by_hand,
        batch * net.flops() / ours[FORWARD] / record["peak"],
        net.bytes(batch) / ours[FORWARD] / record["bandwidth"],
    ]


def aim_table(batch: int, records: dict[str, dict]) -> str:
    rows = [("aim", *(f"{word} {aim:g}".strip(" 0") or "–" for word, aim in AIMS.values()))]
    for name, record in records.items():
        cells = []
        for value, (word, aim) in zip(figures(name, batch, record), AIMS.values(), strict=True):
            missed = value > aim if word == "at most" else value < aim
            text = "–" if math.isnan(value) else f"{value:.2f}"
            cells.append(f"**{text}**" if missed else text)
        rows.append((name, *cells))
    return markdown(("", *AIMS), rows)


def time_table(job: str, records: dict[str, dict]) -> str:
    subjects = [who for who in JOBS if any(who in r["times"][job] for r in records.values())]
    rows = []
    for name, record in records.items():
        cells = []
        for who in subjects:
            found = record["times"][job].get(who)
            if isinstance(found, str):
                cells.append(found)
            elif found is None:
                cells.append("–")
            else:
                mean, sd = 1e3 * np.mean(found), 1e3 * np.std(found)
                digits = max(0, 2 - math.floor(math.log10(mean)))
                spread = f" ± {sd:.{digits}f}" if len(found) > 1 else ""
                cells.append(f"{mean:.{digits}f}{spread}")
        rows.append((name, *cells))
    return markdown((f"{job}, ms", *subjects), rows)


def report(results: dict) -> str:
    """The tables, the batches in the order of their size."""
    parts = []
    for batch in sorted({int(key.split()[1]) for key in results}):
        records = {
            name: results[f"{name} {batch}"]
            for name in REFERENCE_NETS
            if f"{name} {batch}" in results
        }
        origins = {}
        for name, r in records.items():
            limits = f"{r['peak'] / 1e9:.0f} GFLOP/s and {r['bandwidth'] / 1e9:.1f} GB/s"
            if r["others"] > QUIET:
                limits += f" (other processes had up to {r['others']:.0%} of the cores)"
            origin = f"at commit `{r['commit']}` on {r['machine']}, torch {r['torch']}"
            origins.setdefault(origin, []).append(f"{name} {limits}")
        parts.append(f"### Batch {batch}")
        parts += [f"Measured {origin}: {', '.join(nets)}." for origin, nets in origins.items()]
        parts.append(aim_table(batch, records))
        parts += [time_table(job, records) for job in PASSES]
    return "\n\n".join(part.strip() for part in parts)


def missing(wanted: list[tuple[str, int]], results: dict, commit: str) -> list[tuple[str, int]]:
    """The nets and batches that were not measured at this commit."""
    return [
        (name, batch)
        for name, batch in wanted
        if results.get(f"{name} {batch}", {}).get("commit") != commit
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nets", type=chosen_nets, default=list(REFERENCE_NETS))
    parser.add_argument("--batches", default="16,1,64")
    parser.add_argument("--json", type=Path, default=Path("build/bench_nets.json"))
    parser.add_argument("--into", type=Path, help="page to write the tables into")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--again", action="store_true", help="measure what the file has")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--subject", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.subject:
        print(json.dumps(run_subject(*json.loads(options.subject))))
        return
    if options.quick and options.into:
        parser.error("--into with --quick: these times mean nothing")
    os.environ["BENCH_SECONDS"] = str(0.01 if options.quick else options.seconds)
    results = json.loads(options.json.read_text()) if options.json.exists() else {}
    commit = provenance.commit(REPO)
    wanted = [(name, int(batch)) for batch in options.batches.split(",") for name in options.nets]
    plan = wanted if options.again else missing(wanted, results, commit)
    clock, checked = Clock(plan, options.seconds), {}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    for name, batch in plan:
        results[f"{name} {batch}"] = measure(
            name, batch, results, checked, clock, not options.quick, commit
        )
        with scratch_file(options.json) as scratch:
            scratch.write_text(json.dumps(results, indent=2) + "\n")
    text = report(results)
    print(text)
    if options.into:
        MARKS.replace(options.into, text)
        print(f"Written into {options.into}", file=sys.stderr)


if __name__ == "__main__":
    main()
