"""Time training on ranks: two of one thread, beside one of one thread and one of two.

    bench_scale.py [--nets lenet,vgg,vgg:64] [--ranks 2] [--seconds S] [--repeats N] [--json FILE]
                   [--quick]

The nets are those of nets.py, all layers Bayesian, on random images, with the same batch whatever
the number of ranks is. Before they are timed, two ranks are compared with one process that has as
many draws of a batch. Each is timed for about --seconds (default 10), --repeats times (default 3),
in turns. vgg:64 is the net with another batch. The efficiency of N ranks is the time of one rank of
one thread divided by N times theirs. Twice as many ranks are timed, too; where there are more of
them than cores, the table says so, and N is the number of cores.
One rank with the batch of one of N tells what a rank computes on its own. From these times,
scale_model.py says what more ranks would take.
--quick checks that everything runs; its times mean nothing.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import lmdb
import numpy as np
from bayescaffe.common import provenance
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_file
from bayescaffe.common.pycaffe import caffe_tool
from bayescaffe.training.log import LogParser
from bayescaffe.training.ranks import Ranks
from bench import markdown
from caffe.proto import caffe_pb2
from nets import NETS, Net, prototxt

REPO = Path(__file__).resolve().parents[1]
# How far weights may be apart after the iterations of the comparison, relative to the largest.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Way:
    """A number of ranks, and of threads of each."""

    ranks: int
    threads: int
    share: int = 1
    """The batch is divided by this."""

    def __str__(self) -> str:
        return f"{self.ranks} × {self.threads}" + f", batch / {self.share}" * (self.share > 1)


def write_images(folder: Path, net: Net, count: int) -> None:
    random = np.random.default_rng(0)
    shape = (net.channels, net.size, net.size)
    with lmdb.open(str(folder), map_size=2**30) as env, env.begin(write=True) as records:
        for i in range(count):
            datum = caffe_pb2.Datum(channels=shape[0], height=shape[1], width=shape[2])
            datum.data = random.integers(0, 256, shape, np.uint8).tobytes()
            datum.label = i % 10
            records.put(f"{i:08}".encode(), datum.SerializeToString())


def write_solver(folder: Path, net: Net, draws: int, quarter: int, share: int = 1) -> Path:
    """The solver of a training of four times `quarter` iterations."""
    batch = net.batch // share
    _data, _label, *layers = prototxt(net, batch, bayes=True, train=True).splitlines()
    data = (
        'layer { name: "data" type: "Data" top: "data" top: "label" transform_param { scale: '
        f'0.004 }} data_param {{ source: "{folder / "images"}" batch_size: {batch} '
        "backend: LMDB } }"
    )
    text = "\n".join([data, *layers])
    text = text.replace("bayes_param {", f"bayes_param {{ draws_per_batch: {draws}")
    (folder / "net.prototxt").write_text(text)
    path = folder / "solver.prototxt"
    path.write_text(
        f'net: "{folder / "net.prototxt"}" base_lr: 0.001 lr_policy: "fixed" momentum: 0.9 '
        f"random_seed: 1 max_iter: {4 * quarter} display: {quarter} "
        f'snapshot_prefix: "{folder / "net"}"\n'
    )
    return path


def run(solver: Path, way: Way) -> float:
    """Train; return the seconds of an iteration, those of the first and last quarter left out."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(way.threads)}
    environment |= {"OPENBLAS_NUM_THREADS": str(way.threads), "GLOG_minloglevel": "0"}
    command = [str(caffe_tool()), "train", "-solver", str(solver)]
    if way.ranks > 1:
        command = Ranks(way.ranks).command(command, environment)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"bench_scale: {' '.join(command)}: {done.stderr}")
    parser = LogParser()
    for line in done.stderr.splitlines():
        parser.feed(line)
    parser.end()
    first, last = parser.rows[1], parser.rows[3]
    # Times are rounded to milliseconds.
    seconds = max(1e-3, last["seconds"] - first["seconds"])
    return seconds / (last["iteration"] - first["iteration"])


def weights(folder: Path, iterations: int) -> list[np.ndarray]:
    content = (folder / f"net_iter_{iterations}.caffemodel").read_bytes()
    net = caffe_pb2.NetParameter.FromString(content)
    return [np.array(b.data) for layer in net.layer for b in layer.blobs if len(b.data)]


def verify(folder: Path, net: Net, ranks: int) -> float:
    """The largest difference between ranks and one process, relative to the largest weight."""
    quarter = 2
    found = []
    for draws, way in ((ranks, Way(1, 1)), (1, Way(ranks, 1))):
        run(write_solver(folder, net, draws, quarter), way)
        found.append(weights(folder, 4 * quarter))
    worst = max(
        float(np.abs(a - b).max() / np.abs(a).max()) for a, b in zip(*found, strict=True) if a.any()
    )
    if worst > TOLERANCE:
        sys.exit(f"bench_scale: {ranks} ranks differ from one process by {worst:.2g}")
    return worst


def measure(folder: Path, net: Net, ranks: int, seconds: float, repeats: int) -> dict:
    """Seconds of an iteration in each way."""
    ways = (Way(1, 1), Way(1, ranks), Way(ranks, 1), Way(2 * ranks, 1), Way(1, 1, share=ranks))
    cores = len(os.sched_getaffinity(0))
    result = {
        "batch": net.batch,
        "weights": net.weights(),
        "difference": verify(folder, net, ranks),
    }
    times: dict[Way, list[float]] = {way: [] for way in ways}
    quarters = {
        way: max(2, round(seconds / 2 / run(write_solver(folder, net, 1, 2, way.share), way)))
        for way in ways
    }
    for _ in range(repeats):
        for way in ways:
            times[way].append(run(write_solver(folder, net, 1, quarters[way], way.share), way))
    single = statistics.mean(times[ways[0]])
    result["ways"] = [
        {
            "ranks": way.ranks,
            "threads": way.threads,
            "batch": net.batch // way.share,
            "mean": statistics.mean(times[way]),
            "sd": statistics.stdev(times[way]) if repeats > 1 else 0.0,
            "cores": min(way.ranks * way.threads, cores),
            "efficiency": single
            / (min(way.ranks * way.threads, cores) * statistics.mean(times[way])),
        }
        for way in ways
    ]
    return result


def table(result: dict) -> str:
    rows = [
        (
            f"{way['ranks']}" + f" on {way['cores']} cores" * (way["cores"] < way["ranks"]),
            f"{way['threads']}",
            f"{way['batch']}",
            f"{1e3 * way['mean']:.2f} ± {1e3 * way['sd']:.2f}",
            f"{way['efficiency']:.2f}" if way["batch"] == result["batch"] else "–",
        )
        for way in result["ways"]
    ]
    return markdown(("ranks", "threads of each", "batch of all", "ms", "efficiency"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nets", default="lenet,vgg,vgg:64")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path("build/bench_scale.json"))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.repeats = 0.01, 1
    results = {"commit": provenance.commit(REPO), "machine": provenance.machine()}
    print(f"Measured at commit `{results['commit']}` on {results['machine']}.\n")
    for name in options.nets.split(","):
        base, _, batch = name.partition(":")
        net = replace(NETS[base], batch=int(batch)) if batch else NETS[base]
        with tempfile.TemporaryDirectory() as folder:
            write_images(Path(folder) / "images", net, 10 * net.batch)
            results[name] = measure(
                Path(folder), net, options.ranks, options.seconds, options.repeats
            )
        print(f"**{base}: training step, batch {net.batch}**\n\n{table(results[name])}", flush=True)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    with scratch_file(options.json) as scratch:
        scratch.write_text(json.dumps(results, indent=2) + "\n")
    print(f"Written to {options.json}")


if __name__ == "__main__":
    try:
        main()
    except BayesCaffeError as error:
        sys.exit(f"bench_scale: {error}")
