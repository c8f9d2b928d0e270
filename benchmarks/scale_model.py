"""What more ranks would take: a model of the cost of an iteration, fitted on bench_scale.py.

    scale_model.py [build/bench_scale.json]

An iteration of N ranks, each with B images, takes

    B · image + weights · weight + max(0, sums - OVERLAP · B · image)

`image` and `weight` are seconds of one core, from one rank with two sizes of the batch: what grows
with the batch, and what does not. The sums are an all-reduce of 4 bytes for each weight in messages
of a megabyte, on a ring for its bytes and a tree for its latency:

    sums = 2 (N - 1) / N · bytes / bandwidth + messages · 2 log2(N) · LATENCY

OVERLAP is the share of the computing that the sums can hide behind: the backward pass. Nets that
were not timed have the seconds for a floating-point operation and for a weight of the VGG-like one.
The efficiency is the time of one rank divided by N times that of N ranks, which share its batch.
"""

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path

from bench import markdown
from nets import NETS, Net
from reference_nets import REFERENCE_NETS

OVERLAP = 2 / 3
LATENCY = 20e-6
"""Seconds of a message between two hosts."""
MESSAGE = 2**20
"""Bytes that are summed at once, at least."""
BANDWIDTHS = {"10 Gb/s": 1.25e9, "100 Gb/s": 12.5e9}
RANKS = (8, 64, 512)


@dataclass(frozen=True)
class Cost:
    """Seconds of one core for a net."""

    image: float
    weights: float
    """For all weights: drawing, KL, update."""
    bytes: int
    """Of the gradients."""

    def iteration(self, ranks: int, batch: int, bandwidth: float) -> float:
        """Seconds of an iteration of ranks that share a batch."""
        images = batch / ranks
        messages = math.ceil(self.bytes / MESSAGE)
        sums = 2 * (ranks - 1) / ranks * self.bytes / bandwidth
        sums += messages * 2 * math.log2(ranks) * LATENCY
        seen = max(0.0, sums - OVERLAP * images * self.image)
        return images * self.image + self.weights + seen

    def efficiency(self, ranks: int, batch: int, bandwidth: float) -> float:
        """The time of one rank divided by the sum of the times of all."""
        one, each = (self.iteration(n, batch, bandwidth) for n in (1, ranks))
        return one / (ranks * each)


def fitted(record: dict, weights: int) -> Cost:
    """The cost of a net that bench_scale.py has timed."""
    alone = [way for way in record["ways"] if way["ranks"] == way["threads"] == 1]
    part, whole = sorted(alone, key=lambda way: way["batch"])
    image = (whole["mean"] - part["mean"]) / (whole["batch"] - part["batch"])
    return Cost(image, max(0.0, whole["mean"] - whole["batch"] * image), 4 * weights)


def like(known: Cost, of: Net, net: Net) -> Cost:
    """The cost of another net, at the same speed."""
    return Cost(
        known.image * net.flops() / of.flops(),
        known.weights * net.weights() / of.weights(),
        4 * net.weights(),
    )


def predicted(record: dict, cost: Cost) -> tuple[float, float]:
    """Seconds of an iteration of the ranks that were timed: by the model, and measured."""
    timed = next(way for way in record["ways"] if way["ranks"] > 1)
    # In one machine, bytes are no limit.
    return cost.iteration(timed["ranks"], timed["batch"], math.inf), timed["mean"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("json", type=Path, nargs="?", default=Path("build/bench_scale.json"))
    results = json.loads(parser.parse_args().json.read_text())
    timed = {name: fitted(results[name], NETS[name].weights()) for name in NETS if name in results}
    rows = []
    for name, cost in timed.items():
        model, measured = predicted(results[name], cost)
        microseconds = (1e6 * cost.image, 1e6 * cost.weights)
        rows.append(
            (
                name,
                *(f"{x:,.0f}" for x in microseconds),
                f"{1e3 * model:.2f}",
                f"{1e3 * measured:.2f}",
            )
        )
    head = ("net", "µs an image", "µs for the weights", "two ranks, model, ms", "measured, ms")
    print(markdown(head, rows))
    nets = {"LeNet": (timed["lenet"], 512)}
    for name, batch in (("googlenet", 1024), ("resnet50", 4096)):
        nets[name] = (like(timed["vgg"], NETS["vgg"], REFERENCE_NETS[name]), batch)
    rows = [
        (
            name,
            f"{batch:,}",
            network,
            f"{cost.bytes / 2**20:.1f}",
            f"{cost.iteration(1, batch, bandwidth):,.2f}",
            *(f"{cost.efficiency(ranks, batch, bandwidth):.2f}" for ranks in RANKS),
        )
        for name, (cost, batch) in nets.items()
        for network, bandwidth in BANDWIDTHS.items()
    ]
    head = ("net", "batch", "network", "MiB of gradients", "s of one rank")
    head += tuple(f"{ranks} ranks" for ranks in RANKS)
    print(markdown(head, rows))


if __name__ == "__main__":
    main()
