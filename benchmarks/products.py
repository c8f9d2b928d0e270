"""Compare the engine's products and convolutions with OpenBLAS and oneDNN.

    products.py [--json FILE]

Runs build/bench_product, which verifies and times everything in one process, by one thread and by
two; on a CPU with AVX-512 once more, held back to AVX2. Prints Markdown tables. A ratio is a peer's
time divided by ours, the median over the turns of the run: below 1 the peer is faster. `make bench`
prints the same tables.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ("OpenBLAS", "oneDNN", "oneDNN, own layout")
AVX2 = {
    "BAYESCAFFE_ISA": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
}


def measure() -> dict[str, list[dict]]:
    """What bench_product prints, one dict for each thing that it timed, by instruction set."""
    settings = {"": {}}
    if "avx512f" in Path("/proc/cpuinfo").read_text():
        settings["held back to AVX2"] = AVX2
    threads = ["1", "2"] if len(os.sched_getaffinity(0)) > 1 else ["1"]
    results = {}
    for name, environment in settings.items():
        command = [str(ROOT / "build/bench_product"), *threads]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        if done.returncode:
            sys.exit(f"bench: bench_product failed with exit code {done.returncode}")
        results[name] = [json.loads(line) for line in done.stdout.splitlines()]
    return results


def tables(results: dict[str, list[dict]]) -> Iterator[tuple[str, str]]:
    """A title and a Markdown table for each kind of work, instruction set and number of threads."""
    for setting, rows in results.items():
        # Of any library, at any product: these are timed with one thread.
        peak_of_one = max(
            r["flops"] / min(map(min, r["seconds"].values())) / r["threads"]
            for r in rows
            if "OpenBLAS" in r["seconds"]
        )
        for threads in dict.fromkeys(r["threads"] for r in rows):
            now = [r for r in rows if r["threads"] == threads]
            peak = threads * peak_of_one
            for kind in dict.fromkeys(r["kind"] for r in now):
                title = f"{kind}, {threads} thread{'s' * (threads > 1)}"
                title += f", peak {peak / 1e9:.0f} GFLOP/s" + f", {setting}" * bool(setting)
                yield title, table([r for r in now if r["kind"] == kind], peak)


def table(rows: list[dict], peak: float) -> str:
    peers = [p for p in PEERS if p in rows[0]["seconds"]]
    lines = [
        "| | ours, µs | share of peak |" + "".join(f" {p} / ours |" for p in peers),
        "|---|---|---|" + "---|" * len(peers),
    ]
    for r in rows:
        ours = r["seconds"]["ours"]
        mean, sd = statistics.mean(ours), statistics.stdev(ours)
        line = (
            f"| {r['what']} | {mean * 1e6:.0f} ± {sd * 1e6:.0f} | {r['flops'] / mean / peak:.0%} |"
        )
        for peer in peers:
            ratio = statistics.median(p / o for p, o in zip(r["seconds"][peer], ours, strict=True))
            line += f" {ratio:.2f} |"
        lines.append(line)
    if "oneDNN" not in rows[0]["seconds"]:
        lines.append("\nWithout oneDNN, which `make bench-peers` installs.")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, default=ROOT / "build/products.json")
    options = parser.parse_args()
    results = measure()
    for title, text in tables(results):
        print(f"**{title}**\n\n{text}", flush=True)
    options.json.write_text(json.dumps(results, indent=1) + "\n")
    print(f"Written to {options.json}")


if __name__ == "__main__":
    main()
