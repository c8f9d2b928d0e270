"""Time `sample` on workers: 1, 2 and 4 of them, beside one process that has all cores.

    bench_workers.py [--workers 1,2,4] [--images N] [--draws N] [--repeats N] [--json FILE]
                     [--quick]

The net is LeNet of nets.py, all layers Bayesian, with weights as they are filled, on random images.
Workers are processes of this machine that share its cores, at least one thread each. More workers
than cores are oversubscribed, and the table says so. They are started before the clock is: what is
timed is a whole `sample`, with opening the net, merging and writing. Before that, the draws of all
ways are compared: they must have the same bits. --quick checks that everything runs; its times mean
nothing.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import caffe
import numpy as np
from bayescaffe import Model, sample
from bayescaffe.common import provenance
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_file
from bayescaffe.infer.workers import crew
from bench import markdown
from nets import NETS, prototxt

REPO = Path(__file__).resolve().parents[1]


def run(
    files: tuple[Path, Path], images: Path, draws: int, address: str | None, out: Path
) -> float:
    """The seconds of one `sample`."""
    began = time.perf_counter()
    sample(Model(*files), images, draws, out=out, dask=address, progress=False)
    return time.perf_counter() - began


def measure(folder: Path, workers: list[int], images: int, draws: int, repeats: int) -> dict:
    """Seconds of each number of workers; 0 is one process without any."""
    net = NETS["lenet"]
    files = (folder / "net.prototxt", folder / "net.caffemodel")
    files[0].write_text(prototxt(net, 100, bayes=True, train=False))
    caffe.set_random_seed(1)
    caffe.Net(str(files[0]), caffe.TEST).save(str(files[1]))
    random = np.random.default_rng(0)
    shape = (images, net.channels, net.size, net.size)
    np.save(folder / "images.npy", random.integers(0, 256, shape, np.uint8))
    expected, rows = None, []
    for count in (0, *workers):
        with crew(count, None) if count else contextlib.nullcontext() as team:
            address = team and team.client.scheduler.address
            # The first one also opens the net, and is the one that is compared.
            out = folder / f"{count}.npz"
            run(files, folder / "images.npy", draws, address, out)
            with np.load(out) as file:
                found = file["probabilities"]
            expected = found if expected is None else expected
            if not np.array_equal(found, expected):
                sys.exit(f"bench_workers: {count} workers have other bits than one process")
            times = [run(files, folder / "images.npy", draws, address, out) for _ in range(repeats)]
        rows.append(
            {
                "workers": count,
                "threads": provenance.cores() if not count else max(1, provenance.cores() // count),
                "oversubscribed": count > provenance.cores(),
                "mean": statistics.mean(times),
                "sd": statistics.stdev(times) if repeats > 1 else 0.0,
            }
        )
    for row in rows:
        row["ratio"] = rows[0]["mean"] / row["mean"]
    return {"images": images, "draws": draws, "ways": rows}


def table(result: dict) -> str:
    rows = [
        (
            ("one process" if not way["workers"] else f"{way['workers']}")
            + ", oversubscribed" * way["oversubscribed"],
            f"{way['threads']}",
            f"{way['mean']:.2f} ± {way['sd']:.2f}",
            f"{way['ratio']:.2f}",
        )
        for way in result["ways"]
    ]
    return markdown(("workers", "threads of each", "s", "speed by that of one process"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path("build/bench_workers.json"))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.images, options.draws, options.repeats = 200, 5, 1
    workers = [int(word) for word in options.workers.split(",")]
    results = {"commit": provenance.commit(REPO), "machine": provenance.machine()}
    print(f"Measured at commit `{results['commit']}` on {results['machine']}.\n")
    with tempfile.TemporaryDirectory() as folder:
        numbers = (options.images, options.draws, options.repeats)
        results["lenet"] = measure(Path(folder), workers, *numbers)
    print(f"**LeNet: {options.draws} draws of {options.images:,} images**\n\n", end="")
    print(table(results["lenet"]), flush=True)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    with scratch_file(options.json) as scratch:
        scratch.write_text(json.dumps(results, indent=2) + "\n")
    print(f"Written to {options.json}")


if __name__ == "__main__":
    try:
        main()
    except BayesCaffeError as error:
        sys.exit(f"bench_workers: {error}")
