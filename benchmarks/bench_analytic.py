"""Measure `--passes analytic`: how near one pass comes to 1,000 draws, and what it costs.

    bench_analytic.py [--sets mnist fashion-mnist cifar10] [--seeds 1,2,3] [--data DIR] [--out DIR]
                      [--iterations N] [--images N] [--json FILE] [--into PAGE] [--quick]

The nets are those of bench_adaptive.py, trained if they are not there. For each, the first 1,000
test images get 1,000 draws. The analytic answer, and that of 100 other draws, are compared with
it. Prints two Markdown tables; --into writes them into a page between two marks. Takes about half
an hour on two cores if the nets are trained. --quick checks that everything runs.
"""

import json
import sys
import time

import bayescaffe
import numpy as np
from bayescaffe.common import provenance
from bayescaffe.net.analytic import ANALYTIC
from bayescaffe.stats.metrics import aurc, risk_coverage
from bench_adaptive import REPO, first_images, make_parser, trained
from marked_part import MarkedPart

MARKS = MarkedPart("<!-- measured by bench_analytic.py -->", "<!-- end of bench_analytic.py -->")
MANY, FEW = 1000, 100
FIGURES = {"error": "{:.2%}", "nll": "{:.4f}", "ece": "{:.2%}", "aurc": "{:.5f}"}
RESAMPLES = 1000


def measure(model: bayescaffe.Model, images: np.ndarray, labels: np.ndarray, many: int) -> dict:
    """A row of the tables."""
    channels = model.channels if model.channels in ("rgb", "bgr") else None

    def timed(passes: int | str, count: int = len(images)) -> tuple[np.ndarray, float]:
        """Draws, and the CPU seconds that they took."""
        began = time.process_time()
        options = {"channels": channels, "progress": False}
        found = bayescaffe.sample(model, images[:count], passes, **options)
        return found.probabilities, time.process_time() - began

    for passes in (ANALYTIC, 2):  # a warm-up
        timed(passes, 100)
    one, one_seconds = timed(ANALYTIC)
    draws, seconds = timed(many + FEW)
    by_many, by_few, by_one = (
        bayescaffe.analyze(bayescaffe.Draws(part, labels), progress=False)
        for part in (draws[:many], draws[many:], one)
    )
    return {
        "images": len(images),
        "many": many,
        "passes": one_seconds / (seconds / len(draws)),
        "faster": FEW * (seconds / len(draws)) / one_seconds,
        "analytic": compared(by_one, by_many),
        "few": compared(by_few, by_many),
        "figures": {
            name: [one.metrics[name] for one in (by_many, by_few, by_one)] for name in FIGURES
        },
        "epistemic": [float(one.epistemic.mean()) for one in (by_many, by_few, by_one)],
        "aurc_interval": aurc_interval(by_one, by_many),
    }


def compared(found: bayescaffe.Analysis, many: bayescaffe.Analysis) -> dict:
    """How often and by how much an answer is another one."""
    same = found.predicted == many.predicted
    rows = np.arange(many.images), many.predicted
    return {
        "classes": float(same.mean()),
        "verdicts": float((same & (found.certain == many.certain)).mean()),
        "lower": float(np.abs(found.lower - many.lower)[rows].mean()),
        "upper": float(np.abs(found.upper - many.upper)[rows].mean()),
    }


def aurc_interval(found: bayescaffe.Analysis, many: bayescaffe.Analysis) -> list[float]:
    """Of the difference of both AURCs, 95 %, by a bootstrap over images."""
    rng = np.random.default_rng(0)
    differences = []
    for _ in range(RESAMPLES):
        rows = rng.integers(0, many.images, many.images)
        one, other = (
            aurc(risk_coverage(each.confidence[rows], each.correct[rows])[1])
            for each in (found, many)
        )
        differences.append(one - other)
    return [float(end) for end in np.quantile(differences, (0.025, 0.975))]


def agreement(rows: list[dict]) -> str:
    lines = [
        "| 100 draws, **analytic** | same class | same class and verdict | lower end off by | "
        "upper end off by | price in draws | faster than 100 draws |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        few, one = row["few"], row["analytic"]
        cells = [
            *(f"{few[name]:.1%}, **{one[name]:.1%}**" for name in ("classes", "verdicts")),
            *(f"{few[name]:.4f}, **{one[name]:.4f}**" for name in ("lower", "upper")),
            f"{row['passes']:.1f}",
            f"{row['faster']:.0f} ×",
        ]
        lines.append(f"| {row['set']}, seed {row['seed']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def figures(rows: list[dict]) -> str:
    lines = [
        "| 1,000 draws, 100 draws, analytic | error | NLL | ECE | AURC | AURC, analytic − 1,000 "
        "draws | epistemic |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            ", ".join(form.format(value) for value in row["figures"][name])
            for name, form in FIGURES.items()
        ]
        cells.append("{:+.5f} to {:+.5f}".format(*row["aurc_interval"]))
        cells.append(", ".join(f"{value:.4f}" for value in row["epistemic"]))
        lines.append(f"| {row['set']}, seed {row['seed']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = make_parser(__doc__)
    parser.set_defaults(images=1000)
    args = parser.parse_args(argv)
    rows = []
    for row, path in trained(args):
        images, labels = first_images(args, row, quick=20)
        many = FEW if args.quick else MANY
        rows.append(row | measure(bayescaffe.Model(path), images, labels, many))
        print(rows[-1], file=sys.stderr, flush=True)
    where = f"commit `{provenance.commit(REPO)}` on {provenance.machine()}, {len(images):,} images"
    text = "\n\n".join(
        [f"Measured by `benchmarks/bench_analytic.py` at {where}.", agreement(rows), figures(rows)]
    )
    print(text)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    if args.into:
        MARKS.replace(args.into, text)


if __name__ == "__main__":
    main()
