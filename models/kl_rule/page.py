"""The tables and the figure of docs/kl.md, from the lines of the runs."""

import math
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
from bayescaffe.common import provenance
from bayescaffe.common.files import scratch_file
from marked_part import KL_RULE
from plan import SCALES
from runs import DRAWS, Run, is_done, read_lines
from setups import SETUPS

FIGURE = "figures/kl-scale.png"
RESAMPLES = 2000
KINDS = {
    "bayes": "`convert`",
    "bayes-weights": "`convert --weights`",
    "bayes-solver": "`convert` of the net alone",
}


def write_page(page: Path, out: Path, names: Sequence[str] | None = None) -> None:
    """Put the tables between the two marks of the page, and the figure beside it."""
    lines = read_lines(out / "runs.jsonl")
    names = list(names or SETUPS)
    commit = provenance.commit(Path(__file__).parent)  # before this writes files
    (page.parent / FIGURE).parent.mkdir(exist_ok=True)
    with scratch_file(page.parent / FIGURE) as scratch:
        figure(lines, names).savefig(scratch, format="png", dpi=110)
    parts = [
        f"Measured by models/kl_rule on {provenance.machine()}; table written at commit {commit}; "
        f"{DRAWS} draws. Error and NLL on held-out images, one training each, by KL scale. The "
        "lowest of a row are bold; – was not run:",
        scales_table(lines, names),
        f"![NLL against the KL scale, and against the scale times the weights]({FIGURE})",
        "By the rule, beside the stock net of the same seed, with 95 % intervals of the "
        "differences (bootstrap of seeds and images), in points and nats:",
        defaults_table(lines, names, out),
    ]
    KL_RULE.replace(page, "\n\n".join(parts))


# ---- Tables -------------------------------------------------------------------------------------


def scales_table(lines: Sequence[dict], names: Sequence[str]) -> str:
    """Error and NLL of the stock net and at each scale, all of seed 1; the lowest are bold."""
    rows = [
        ["set-up", "images", "weights", "stock", *(f"{scale:g}" for scale in SCALES)],
        ["---"] * (4 + len(SCALES)),
    ]
    for name in names:
        found = [_one(lines, Run(name, "bayes", scale)) for scale in SCALES]
        known = [line for line in found if line]
        if not known:
            continue
        best = {
            key: min((line[key] for line in known if not line["failed"]), default=None)
            for key in ("error", "nll")
        }
        rows.append(
            [
                name,
                f"{known[0]['dataset_size']:,}",
                f"{max(line['weights'] or 0 for line in known):,}",
                _cell(_one(lines, Run(name, "stock")), {}),
                *(_cell(line, best) for line in found),
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(line: dict | None, best: dict) -> str:
    if line is None:
        return "–"
    if line["failed"]:
        return "diverged"
    texts = {"error": f"{line['error']:.2%}".replace("%", " %"), "nll": f"{line['nll']:.3f}"}
    marked = [f"**{text}**" if line[key] == best.get(key) else text for key, text in texts.items()]
    return "; ".join(marked)


def defaults_table(lines: Sequence[dict], names: Sequence[str], out: Path) -> str:
    """The stock net and `convert` by its rule, over the seeds, with intervals of the difference."""
    rows = [
        ["set-up", "how", "seeds", "scale", "stock error", "error", "difference", "NLL difference"],
        ["---"] * 8,
    ]
    ruled = [run_of(line) for line in lines if line["rule"] and is_done(run_of(line), [line])]
    for name in names:
        variants = {(run.kind, run.tau, run.layers) for run in ruled if run.setup == name}
        for kind, tau, layers in sorted(variants, key=lambda one: [str(part) for part in one]):
            pairs = [
                (_one(lines, run), stock)
                for run in ruled
                if (run.setup, run.kind, run.tau, run.layers) == (name, kind, tau, layers)
                and (stock := _one(lines, Run(name, "stock", seed=run.seed)))
            ]
            how = KINDS[kind]
            how += f", tau_init {tau:g}" if tau else ""
            how += ", Scale layers stock" if layers else ""
            if pairs:
                rows.append([name, how, *_compared(pairs, out)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _compared(pairs: list[tuple[dict, dict]], out: Path) -> list[str]:
    if any(line["failed"] for line, _ in pairs):
        return [str(len(pairs)), "–", "–", "diverged", "–", "–"]
    errors = np.array([[stock["error"], line["error"]] for line, stock in pairs]).mean(axis=0)
    texts = [
        str(len(pairs)),
        f"{pairs[0][0]['kl_scale']:.2g}",
        *(f"{100 * error:.2f} %" for error in errors),
    ]
    for unit, number in ((100, 0), (1, 1)):
        gaps = [
            np.subtract(*(_per_image(run_of(one).folder(out))[number] for one in pair))
            for pair in pairs
        ]
        low, high = interval(gaps, np.random.default_rng(0))
        mean = np.mean([gap.mean() for gap in gaps])
        texts.append(f"{unit * mean:+.3g} ({unit * low:+.3g} to {unit * high:+.3g})")
    return texts


def interval(gaps: Sequence[np.ndarray], rng: np.random.Generator) -> tuple[float, float]:
    """The 95 % bootstrap interval of the mean gap: seeds are resampled, and images within each."""
    means = []
    for _ in range(RESAMPLES):
        chosen = rng.integers(len(gaps), size=len(gaps))
        means.append(np.mean([rng.choice(gaps[k], len(gaps[k])).mean() for k in chosen]))
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def _per_image(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Of each held-out image: whether it is wrong, and its negative log-likelihood."""
    with np.load(folder / "predictive.npz") as file:
        probabilities, labels = file["probabilities"], file["labels"]
    of_label = probabilities[np.arange(len(labels)), labels]
    wrong = (probabilities.argmax(axis=1) != labels).astype(float)
    return wrong, -np.log(np.maximum(of_label, np.finfo(np.float32).tiny))


def _one(lines: Sequence[dict], run: Run) -> dict | None:
    return next((line for line in lines if run_of(line) == run), None)


def run_of(line: dict) -> Run:
    """The run that a line tells of."""
    return Run(**{field.name: line[field.name] for field in fields(Run)})


# ---- Figure -------------------------------------------------------------------------------------


def figure(lines: Sequence[dict], names: Sequence[str]):
    """NLL by that of the stock net, against the scale, and against scale times weights."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = drawing.subplots(1, 2, sharey=True)
    for name in names:
        stock = _one(lines, Run(name, "stock"))
        found = [
            line
            for line in sorted(lines, key=lambda line: line["scale"] or 0)
            if (line["setup"], line["kind"], line["seed"]) == (name, "bayes", 1)
            and line["scale"]
            and not line["failed"]
            and line["tau"] is line["layers"] is None
        ]
        if not stock or not found:
            continue
        ratios = [math.log2(line["nll"] / stock["nll"]) for line in found]
        left.plot([line["scale"] for line in found], ratios, "o-", label=name)
        costs = [line["scale"] * line["weights"] for line in found]
        right.plot(costs, ratios, "o-", label=name)
    for axes, label in ((left, "KL scale"), (right, "KL scale × number of weights")):
        axes.set(xscale="log", xlabel=label, ylim=(-1.2, 1.2))
        axes.axhline(0, color="black", linewidth=0.8)
        axes.grid(alpha=0.3)
    left.set_ylabel("NLL by the stock net's: doublings")
    right.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return drawing
