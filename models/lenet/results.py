"""RESULTS.md: the paper's tables beside ours, and what goes past the paper.

Every figure and every verdict is made from the analyses that it is given.
"""

import platform
import statistics
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

# Test errors in %, tau of weights and of biases, and the certain/uncertain table, as printed in
# K. Posch, J. Steinbrener, J. Pilz: Variational Inference to Measure Model Uncertainty in Deep
# Neural Networks (2019), tables 1 to 5.
PAPER_FREQ = {"plain": 0.90, "dropout": 0.75, "exchanged": 1.94}
PAPER_BAYES = {"plain": 0.85, "dropout": 0.71, "exchanged": 1.64}
PAPER_TAU = {
    "dropout": {
        "conv1": (0.003905073, 0.01703058),
        "conv2": (0.000045391, 0.1021243),
        "fc1": (0.7580626, 0.1471348),
        "fc2": (0.02509901, 0.00004402),
    },
    "reduced": {
        "conv1": (0.003570068, 0.01361556),
        "conv2": (0.000045395, 0.1025237),
        "fc1": (0.5672782, 0.1359651),
        "fc2": (0.01789308, 0.00004324),
    },
}
PAPER_TABLE = {
    "correct_certain": 9609,
    "correct_uncertain": 297,
    "wrong_certain": 14,
    "wrong_uncertain": 80,
}
TITLES = {
    "plain": "without dropout",
    "dropout": "with dropout",
    "exchanged": "dropout, exchanged data",
    "reduced": "dropout, 250 neurons",
}
METHODS = {"stock": "ordinary", "mc-dropout": "MC dropout", "bayes": "Bayesian"}
# Of `bayescaffe analyze`: how it is called here, by how much to multiply, and decimals.
MEASURES = {
    "error": ("error, %", 100, 2),
    "nll": ("NLL", 1, 4),
    "brier": ("Brier", 1, 4),
    "ece": ("ECE, %", 100, 2),
    "adaptive_ece": ("adaptive ECE, %", 100, 2),
    "aurc": ("AURC, ‰", 1000, 3),
}
CAPTIONS = {
    "softplus": "τ = ln(1 + exp δ), the uncertainty that is learned by way of δ",
    "prior": "The prior of weights and of biases",
    "initialisation": "Weights and biases about their means when training starts",
    "training-stock-plain": "Training of the ordinary net, without dropout",
    "training-stock-dropout": "Training of the ordinary net, with dropout",
    "training-bayes-plain": "Training of the Bayesian net, without dropout",
    "training-bayes-dropout": "Training of the Bayesian net, with dropout",
    "boxplots": "The passes of two images: one that is right, one that is wrong",
    "wrong-but-certain": "The images of which the net is certain, and wrong",
}
SCORES = ("entropy", "epistemic", "confidence")

Found = dict[str, dict[int, dict]]


def write(found: Found, settings, reports: Sequence[Path], figures: Sequence[Path] = ()) -> str:
    """The text of RESULTS.md, from what `reproduction.collect` found."""
    kinds = [kind for kind in TITLES if f"bayes-{kind}" in found and f"stock-{kind}" in found]
    sections = [_head(found, settings), _errors(found, kinds)]
    if "plain" in kinds:
        sections.append(_certainty(found))
    sections += [_layers(found, kinds), _beyond(found, kinds), _other_world(found, kinds)]
    if figures:
        sections.append(_figures(figures, settings))
    if reports:
        listed = "\n".join(f"- `{path}`" for path in reports)
        sections.append(f"## Reports\n\nWritten along with this, one page each:\n\n{listed}")
    return "\n\n".join(filter(None, sections)) + "\n"


def _head(found: Found, settings) -> str:
    commits = sorted({run["made"]["commit"] for runs in found.values() for run in runs.values()})
    seeds = ", ".join(map(str, settings.seeds))
    length = f" of {settings.iterations} iterations" if settings.iterations else ""
    return _section(
        "# Results",
        f"""Written by `{_command(settings)}` at commit {", ".join(commits)}: every figure below is
        from that run, trainings{length} from the seeds {seeds}, mean ± standard deviation over
        them, {settings.passes} passes. {_machine()} The nets and how their options were chosen:
        [models/lenet](models/lenet/README.md); what the figures mean:
        [docs/metrics.md](docs/metrics.md).""",
    )


def _section(title: str, *blocks: str) -> str:
    """A title and what follows it: tables and lists as they are, other text filled."""
    filled = [block if block[:2] in ("| ", "- ") else _fill(block) for block in blocks]
    return "\n\n".join([title, *filled])


def _fill(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 118, break_on_hyphens=False)


def _command(settings) -> str:
    seeds = len(settings.seeds)
    return (
        "models/lenet/reproduce.py"
        + (f" --seeds {seeds}" if seeds != 3 else "")
        + (f" --iterations {settings.iterations}" if settings.iterations else "")
    )


def _machine() -> str:
    name = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    return f"CPU: {name}."


def _analyses(found: Found, kind: str, method: str) -> list[dict]:
    """What `bayescaffe analyze` said of one way to predict, seed by seed."""
    net = f"{'bayes' if method == 'bayes' else 'stock'}-{kind}"
    return [run[method] for run in found[net].values()]


def _measures(found: Found, kind: str, method: str, name: str = "error") -> list[float]:
    return [analysis["metrics"][name] for analysis in _analyses(found, kind, method)]


def _errors_of(found: Found, kind: str, method: str, name: str = "error") -> list[float]:
    return [100 * value for value in _measures(found, kind, method, name)]


def _mean_sd(values: Sequence[float], digits: int = 2) -> str:
    text = f"{statistics.fmean(values):.{digits}f}"
    return f"{text} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else text


def _table(head: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def _errors(found: Found, kinds: Sequence[str]) -> str:
    rows, words = [], []
    for kind in kinds:
        stock, bayes = _errors_of(found, kind, "stock"), _errors_of(found, kind, "bayes")
        gain = [f - b for f, b in zip(stock, bayes, strict=True)]
        single = _errors_of(found, kind, "bayes", "single_draw_error")
        rows.append(
            [
                TITLES[kind],
                _paper(PAPER_FREQ, kind),
                _mean_sd(stock),
                _paper(PAPER_BAYES, kind),
                f"**{_mean_sd(bayes)}**",
                _mean_sd(single),
                _mean_sd(gain),
            ]
        )
        words.append(f"- *{TITLES[kind]}*: {_verdict(kind, stock, bayes, gain)}")
    head = (
        "net",
        "ordinary, paper",
        "ordinary",
        "Bayesian, paper",
        "Bayesian",
        "one pass",
        "decrease",
    )
    return _section(
        "## Test errors",
        """In %, the paper's tables 1 and 2. "Decrease" is ordinary less Bayesian, seed by seed;
        "one pass" is the mean error of single draws of the Bayesian net.""",
        _table(head, rows),
        "\n".join(words),
    )


def _paper(figures: dict[str, float], kind: str) -> str:
    return f"{figures[kind]:.2f}" if kind in figures else "–"


def _verdict(kind: str, stock: list[float], bayes: list[float], gain: list[float]) -> str:
    mean, ours = statistics.fmean(gain), statistics.fmean(bayes)
    ahead = sum(g > 0 for g in gain)
    seeds = "the seed" if len(gain) == 1 else f"{ahead} of {len(gain)} seeds"
    if mean > 0:
        words = f"the Bayesian net is ahead of its twin by {mean:.2f} points (in {seeds})"
    else:
        words = f"the Bayesian net is behind its twin by {-mean:.2f} points (ahead in {seeds})"
    if kind in PAPER_BAYES:
        gap = ours - PAPER_BAYES[kind]
        reached = round(gap, 2) <= 0
        words += (
            f"; it reaches the paper's {PAPER_BAYES[kind]:.2f} %"
            if reached
            else f"; it misses the paper's {PAPER_BAYES[kind]:.2f} % by {gap:.2f}"
        )
    return words + "."


def _certainty(found: Found) -> str:
    analyses = _analyses(found, "plain", "bayes")
    tables, level = [analysis["table"] for analysis in analyses], analyses[0]["level"]

    def cell(name: str) -> str:
        return f"{_mean_sd([t[name] for t in tables], 0)} (paper {PAPER_TABLE[name]:,})"

    rows = [
        [word, cell(f"{word}_certain"), cell(f"{word}_uncertain")] for word in ("correct", "wrong")
    ]
    wrong = sum(t["wrong_certain"] + t["wrong_uncertain"] for t in tables)
    caught = sum(t["wrong_uncertain"] for t in tables) / wrong if wrong else 1
    asked = statistics.fmean(t["correct_uncertain"] + t["wrong_uncertain"] for t in tables)
    return _section(
        "## Certain or not",
        f"""The paper's table 5, of the net without dropout: a prediction is certain where the
        {level:.0%} credible interval of its class overlaps that of no other class.""",
        _table(("", "certain", "uncertain"), rows),
        f"""Of the wrong predictions {caught:.0%} are uncertain (paper: {80 / 94:.0%}); a person who
        looks at all uncertain ones looks at {asked:.0f} images of 10,000 (paper: 377).""",
    )


def _layers(found: Found, kinds: Sequence[str]) -> str:
    rows = []
    for layer in _layer_names(found, kinds):
        for field, place, word in (("tau", 0, ""), ("tau_bias", 1, ", biases")):
            row = [layer + word]
            for kind in kinds:
                row.append(_mean_sd(_taus(found, kind, layer, field), 3))
                if kind in PAPER_TAU:
                    row.append(f"{PAPER_TAU[kind][layer][place]:.2g}")
            rows.append(row)
    head = [""]
    for kind in kinds:
        head.append(TITLES[kind])
        if kind in PAPER_TAU:
            head.append("paper")
    words = [_largest(found, kinds)]
    if {"dropout", "reduced"} <= set(kinds):
        full = statistics.fmean(_taus(found, "dropout", "fc1", "tau"))
        half = statistics.fmean(_taus(found, "reduced", "fc1", "tau"))
        errors = [statistics.fmean(_errors_of(found, k, "bayes")) for k in ("dropout", "reduced")]
        words.append(
            f"With half the neurons the τ of fc1 {'falls' if half < full else 'rises'} from "
            f"{full:.2f} to {half:.2f} (paper: 0.76 to 0.57), and the error goes from "
            f"{errors[0]:.2f} % to {errors[1]:.2f} %."
        )
    return _section(
        "## Uncertainty of the layers",
        """τ, the standard deviation of a weight as a multiple of its mean: the paper's tables 3 and
        4. Its conv2 stands at the floor of its implementation, 0.0000454; ours has the same.""",
        _table(head, rows),
        " ".join(words),
    )


def _layer_names(found: Found, kinds: Sequence[str]) -> list[str]:
    run = next(iter(found[f"bayes-{kinds[0]}"].values()))
    return [layer["name"] for layer in run["layers"]["layers"]]


def _taus(found: Found, kind: str, layer: str, field: str) -> list[float]:
    layers = [run["layers"]["layers"] for run in found[f"bayes-{kind}"].values()]
    return [entry[field] for run in layers for entry in run if entry["name"] == layer]


def _largest(found: Found, kinds: Sequence[str]) -> str:
    factors = []
    for kind in kinds:
        means = {
            layer: statistics.fmean(_taus(found, kind, layer, "tau"))
            for layer in _layer_names(found, kinds)
        }
        second = max(value for layer, value in means.items() if layer != "fc1")
        factors.append(means["fc1"] / second)
    if min(factors) > 1:
        return (
            f"The τ of fc1 is the largest in every net, at least {min(factors):.1f} times the next."
        )
    return "The τ of fc1 is not the largest in every net."


def _beyond(found: Found, kinds: Sequence[str]) -> str:
    rows = []
    for kind in kinds:
        methods = _methods(found, kind)
        of_kind = [[TITLES[kind], METHODS[method]] for method in methods]
        for name, (_, factor, digits) in MEASURES.items():
            values = [[factor * v for v in _measures(found, kind, m, name)] for m in methods]
            best = min(statistics.fmean(v) for v in values)
            for row, v in zip(of_kind, values, strict=True):
                text = _mean_sd(v, digits)
                row.append(f"**{text}**" if statistics.fmean(v) == best else text)
        rows += of_kind
    head = ["net", "method", *(title for title, _, _ in MEASURES.values())]
    return _section(
        "## Past the paper: calibration and selective prediction",
        """Smaller is better throughout; the best mean of each net is bold. "MC dropout" is the
        ordinary net that goes on dropping in its passes. AURC is the area under the risk–coverage
        curve: the error among the predictions that are kept, averaged over how many are kept, the
        most confident first.""",
        _table(head, rows),
    )


def _figures(paths: Sequence[Path], settings) -> str:
    pictures = []
    for path in paths:
        words = CAPTIONS.get(path.stem, path.stem.replace("-", ": ", 1).replace("-", " "))
        pictures.append(f"![{words}]({path})\n\n*{words}*")
    return "\n\n".join(
        [f"## The paper's figures\n\nOf seed {settings.seeds[0]}, where they need data.", *pictures]
    )


def _methods(found: Found, kind: str) -> list[str]:
    stock = next(iter(found[f"stock-{kind}"].values()))
    return [method for method in METHODS if method == "bayes" or method in stock]


def _other_world(found: Found, kinds: Sequence[str]) -> str:
    rows = []
    for kind in kinds:
        for method in _methods(found, kind):
            other = [analysis["ood"] for analysis in _analyses(found, kind, method)]
            if None in other:
                continue
            row = [TITLES[kind], METHODS[method]]
            for score in SCORES:
                for figure in ("auroc", "fpr95"):
                    values = [100 * ood["scores"][score][figure] for ood in other]
                    one_pass = method == "stock" and score == "epistemic"
                    row.append("–" if one_pass else _mean_sd(values, 1))
            row.append(_mean_sd([100 * ood["certain"] / ood["images"] for ood in other], 1))
            rows.append(row)
    if not rows:
        return ""
    head = ["net", "method"]
    for score in SCORES:
        head += [f"AUROC, {score}", "FPR95"]
    head.append("certain, %")
    return _section(
        "## Past the paper: images of another world",
        """Nets trained on MNIST see the 10,000 test images of Fashion-MNIST. How well does a score
        tell them from MNIST's test images? AUROC in %, 100 is perfect and 50 chance; FPR95, the
        share of MNIST that is rejected where 95 % of Fashion-MNIST is, in %, smaller is better.
        "Certain" is the share of Fashion-MNIST for which the net claims to be certain; an ordinary
        net has one pass, which has no epistemic part, and is certain of everything.""",
        _table(head, rows),
    )
