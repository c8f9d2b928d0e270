"""Measure adaptive sampling: what it saves, and how often its answer is another one.

    bench_adaptive.py [--sets mnist fashion-mnist cifar10] [--seeds 1,2,3] [--data DIR] [--out DIR]
                      [--iterations N] [--images N] [--error E] [--json FILE] [--into PAGE]
                      [--train-only] [--quick] [--together FILE …]

For each set and seed, a Bayesian net is trained (LeNet of models/lenet/bayes-plain for 3,000
iterations; for CIFAR-10 upstream's cifar10_quick, converted, for 1,500). All 10,000 test images get
100 draws. One half of them, chosen at random, calibrates a stopping rule; the other half is then
sampled with it, and each of its answers is compared with that of the 100 draws.

Prints two Markdown tables: what is saved, and by how much the figures of `bayescaffe analyze`
differ. --into writes them into a page between two marks. What is trained stays in --out, and a
second run uses it. --together adds the rows that other runs wrote with --json; --sets without a
name measures nothing else. Takes about an hour on two cores. --quick checks that everything runs:
small nets and few images.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import bayescaffe
import numpy as np
from bayescaffe.cli.arguments import seeds
from bayescaffe.common import provenance
from bayescaffe.data.images import open_images

REPO = Path(__file__).resolve().parents[1]
sys.path.append(str(REPO / "models/shared"))

from marked_part import MarkedPart  # noqa: E402
from stock_nets import quick  # noqa: E402

MARKS = MarkedPart("<!-- measured by bench_adaptive.py -->", "<!-- end of bench_adaptive.py -->")
PASSES = 100
FIGURES = ("error", "nll", "ece", "aurc")


@dataclass(frozen=True)
class Task:
    """A net and how it is trained."""

    name: str
    net: str
    iterations: int
    base_lr: float
    decay: float = 0
    policy: str = 'lr_policy: "inv" gamma: 0.0001 power: 0.75'


def tasks(data: Path) -> dict[str, Task]:
    """By the name of the set."""
    text = (REPO / "models/lenet/bayes-plain/train_test.prototxt").read_text()
    nets = {
        name: text.replace("data/mnist", f"{data}/{name}") for name in ("mnist", "fashion-mnist")
    }
    colour = quick(data / "cifar10").replace("val_lmdb", "test_lmdb")
    return {
        **{name: Task(name, net, 3000, 0.01) for name, net in nets.items()},
        "cifar10": Task("cifar10", colour, 1500, 0.01, 0.004),
    }


def train(task: Task, chosen: list[int], folder: Path) -> dict[int, Path]:
    """Train what is not trained yet; return the caffemodels by seed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "net.prototxt").write_text(task.net)
    solver = folder / "solver.prototxt"
    solver.write_text(
        f'net: "{folder}/net.prototxt" base_lr: {task.base_lr} {task.policy} momentum: 0.9\n'
        f"weight_decay: {task.decay} max_iter: {task.iterations} display: 100 snapshot: 250\n"
        f'snapshot_prefix: "{folder}/net" solver_mode: CPU\n'
    )
    if "Bayes" not in task.net:
        solver = bayescaffe.convert(solver, out=folder / "bayes").solver
    trained = bayescaffe.train_seeds(solver, chosen, resume=True, progress=False)
    return {seed: result.snapshot for seed, result in trained.items()}


def measure(
    model: bayescaffe.Model, images: np.ndarray, labels: np.ndarray, seed: int, error: float
) -> dict:
    """Calibrate with one half of the images, and compare on the other; a row of the tables."""

    def sample(rows: np.ndarray, **options) -> tuple[bayescaffe.Draws, float]:
        """The draws of some images, and the CPU seconds that they took."""
        if model.channels in ("rgb", "bgr"):
            options["channels"] = model.channels
        began = time.process_time()
        draws = bayescaffe.sample(
            model, images[rows], labels=labels[rows], progress=False, **options
        )
        return draws, time.process_time() - began

    order = np.random.default_rng(seed).permutation(len(images))
    held_out, rest = np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])
    sample(rest[:100], passes=PASSES)  # a warm-up
    calibration, _ = sample(held_out, passes=PASSES)
    rule = bayescaffe.stopping_rule(calibration, error)
    few, few_seconds = sample(rest, adaptive=rule)
    all_draws, all_seconds = sample(rest, passes=PASSES)
    verify(few, all_draws)
    ours, theirs = bayescaffe.analyze(few), bayescaffe.analyze(all_draws)
    classes, verdicts = ours.predicted != theirs.predicted, ours.certain != theirs.certain
    return {
        "images": len(rest),
        "calibrated": rule.disagreements,
        "settled": float((few.draw_counts < PASSES).mean()),
        "mean_draws": ours.mean_draws,
        "fewer": PASSES / ours.mean_draws,
        "faster": all_seconds / few_seconds,
        "classes": int(classes.sum()),
        "another": int((classes | verdicts).sum()),
        "figures": {name: [theirs.metrics[name], ours.metrics[name]] for name in FIGURES},
        "epistemic": [float(one.epistemic.mean()) for one in (theirs, ours)],
        "table": [theirs.table, ours.table],
    }


def verify(few: bayescaffe.Draws, all_draws: bayescaffe.Draws) -> None:
    """Raise if a draw of adaptive sampling is not the same draw."""
    for rows, found in few.parts():
        if not np.array_equal(found, all_draws.probabilities[: len(found), rows]):
            raise RuntimeError("a draw differs from the one without a stopping rule")


def small(task: Task) -> Task:
    """A task that is over in seconds."""
    net = re.sub(r"num_output: (20|50|500|32|64)\b", "num_output: 4", task.net)
    return Task(task.name, net, 20, task.base_lr, task.decay)


def sources(rows: list[dict]) -> str:
    commits = " and ".join(dict.fromkeys(f"`{row['commit']}`" for row in rows))
    machines = " and ".join(dict.fromkeys(row["machine"] for row in rows))
    return f"Measured by `benchmarks/bench_adaptive.py` at commit {commits} on {machines}."


def savings(rows: list[dict]) -> str:
    lines = [
        "| | iterations | settled | draws per image | fewer draws | faster | another class | "
        "another class or verdict | at most |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['set']}, seed {row['seed']} | {row['iterations']:,} | {row['settled']:.1%} | "
        f"{row['mean_draws']:.1f} | {row['fewer']:.1f} × | {row['faster']:.1f} × | "
        f"{row['classes']} of {row['images']:,} | {row['another']} "
        f"({row['another'] / row['images']:.2%}) | {row['error']:.1%} |"
        for row in rows
    ]
    return "\n".join(lines)


def differences(rows: list[dict]) -> str:
    lines = [
        "| 100 draws → adaptive | error | NLL | ECE | AURC | epistemic | right: certain, uncertain "
        "| wrong: certain, uncertain |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            "{:.2%} → {:.2%}".format(*row["figures"]["error"]),
            *("{:.4f} → {:.4f}".format(*row["figures"][name]) for name in ("nll", "ece")),
            "{:.5f} → {:.5f}".format(*row["figures"]["aurc"]),
            "{:.4f} → {:.4f}".format(*row["epistemic"]),
        ]
        for kind in ("correct", "wrong"):
            counts = [f"{t[f'{kind}_certain']}, {t[f'{kind}_uncertain']}" for t in row["table"]]
            cells.append(" → ".join(counts))
        lines.append(f"| {row['set']}, seed {row['seed']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def make_parser(description: str) -> argparse.ArgumentParser:
    """A parser with the options that choose nets and images."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", nargs="*", default=["mnist", "fashion-mnist", "cifar10"])
    parser.add_argument("--seeds", type=seeds, default=[1, 2, 3])
    parser.add_argument("--data", type=Path, default=REPO / "data", metavar="DIR")
    parser.add_argument("--out", type=Path, default=REPO / "build/adaptive", metavar="DIR")
    parser.add_argument("--iterations", type=int, metavar="N", help="of each training")
    parser.add_argument("--images", type=int, metavar="N", help="the first N test images only")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--into", type=Path, metavar="PAGE")
    parser.add_argument("--quick", action="store_true")
    return parser


def trained(args: argparse.Namespace) -> Iterator[tuple[dict, Path]]:
    """The caffemodels of the chosen sets and seeds, each with what begins its row of a table."""
    known = tasks(args.data.resolve())
    for name in args.sets:
        task = small(known[name]) if args.quick else known[name]
        task = replace(task, iterations=args.iterations or task.iterations)
        for seed, path in train(task, args.seeds, args.out.resolve() / name).items():
            yield {"set": name, "seed": seed, "iterations": task.iterations}, path


def first_images(args: argparse.Namespace, row: dict, quick: int) -> tuple[np.ndarray, np.ndarray]:
    """The first test images of a row's set, all of them unless told, and their labels."""
    source = open_images(args.data / row["set"] / "test_lmdb")
    return source.in_order()(quick if args.quick else args.images or len(source))


def main(argv: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--error", type=float, default=0.001, metavar="E")
    parser.add_argument(
        "--together", type=Path, nargs="+", default=[], metavar="FILE", help="of --json, to add"
    )
    parser.add_argument("--train-only", action="store_true", help="stop before the measurement")
    args = parser.parse_args(argv)
    rows = []
    for row, path in trained(args):
        if args.train_only:
            continue
        images, labels = first_images(args, row, quick=200)
        found = measure(bayescaffe.Model(path), images, labels, row["seed"], args.error)
        rows.append(row | {"error": args.error} | found)
        print(rows[-1], file=sys.stderr, flush=True)
    origin = {"commit": provenance.commit(REPO), "machine": provenance.machine()}
    found = [{**row, **origin} for row in rows]
    for path in args.together:
        found += json.loads(path.read_text())
    text = "\n\n".join([sources(found), savings(found), differences(found)])
    print(text)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    if args.into:
        MARKS.replace(args.into, text)


if __name__ == "__main__":
    main()
