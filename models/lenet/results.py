"""RESULTS.md: the paper's tables beside ours, and measurements that the paper does not have.

Every number and every verdict is computed from the analyses that `write` is given.
"""

import statistics
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

import paper
from comparison import Measure, bold_best, compare, mean_sd, signed

TITLES = {
    "plain": "without dropout",
    "dropout": "with dropout",
    "exchanged": "dropout, exchanged data",
    "reduced": "dropout, 250 neurons",
}
METHODS = {"stock": "stock", "mc-dropout": "MC dropout", "bayes": "Bayesian"}
CAPTIONS = {
    "softplus": "τ = ln(1 + exp δ): training changes δ, so τ stays positive",
    "prior": "The prior of weights and biases",
    "initialisation": "The distribution of weights and biases around their means at the start",
    "training-stock-plain": "Training of the stock net without dropout",
    "training-stock-dropout": "Training of the stock net with dropout",
    "training-bayes-plain": "Training of the Bayesian net without dropout",
    "training-bayes-dropout": "Training of the Bayesian net with dropout",
    "boxplots": "The draws of two images: one classified correctly, one wrongly",
    "wrong-but-certain": "The images that the net classifies wrongly although it is certain",
}


def _metric(title: str, name: str, factor: float, digits: int) -> Measure:
    return Measure(title, lambda analysis: factor * analysis["metrics"][name], digits)


def _score(title: str, name: str, score: str) -> Measure:
    return Measure(
        f"{title}, {score}",
        lambda analysis: 100 * analysis["ood"]["scores"][score][name],
        digits=1,
        larger_is_better=name == "auroc",
        needs_draws=score == "epistemic",
    )


ERROR = _metric("error, %", "error", 100, 2)
SINGLE_DRAW = _metric("one draw", "single_draw_error", 100, 2)
CALIBRATION = (
    ERROR,
    _metric("NLL", "nll", 1, 4),
    _metric("Brier", "brier", 1, 4),
    _metric("ECE, %", "ece", 100, 2),
    _metric("adaptive ECE, %", "adaptive_ece", 100, 2),
    _metric("AURC, ‰", "aurc", 1000, 3),
)
OOD = (
    *(
        _score(title, name, score)
        for score in ("entropy", "epistemic", "confidence")
        for title, name in (("AUROC", "auroc"), ("FPR95", "fpr95"))
    ),
    Measure("certain, %", lambda a: 100 * a["ood"]["certain"] / a["ood"]["images"], digits=1),
)

Found = dict[str, dict[int, dict]]


def write(found: Found, settings, reports: Sequence[Path], figures: Sequence[Path] = ()) -> str:
    """The text of RESULTS.md, from what `experiments.collect` found."""
    kinds = [kind for kind in TITLES if f"bayes-{kind}" in found and f"stock-{kind}" in found]
    sections = [_head(found, settings), _errors(found, kinds)]
    if "plain" in kinds:
        sections.append(_certainty(found))
    sections += [_layers(found, kinds), _calibration(found, kinds), _ood(found, kinds)]
    if figures:
        sections.append(_figures(figures, settings))
    if reports:
        listed = "\n".join(f"- `{path}`" for path in reports)
        sections.append(f"## Reports\n\nWritten together with this page:\n\n{listed}")
    return "\n\n".join(filter(None, sections)) + "\n"


def _head(found: Found, settings) -> str:
    made = [run["made"] for runs in found.values() for run in runs.values()]
    places = sorted({f"commit {one['commit']} on {one['machine']}" for one in made})
    length = f", trainings of {settings.iterations} iterations" if settings.iterations else ""
    if len(settings.seeds) > 1:
        seeds = (
            f"the mean ± standard deviation over the seeds {', '.join(map(str, settings.seeds))}"
        )
        rule = """**Ahead** and **behind** rest on a paired t-test over the seeds: the 95 %
            confidence interval of the mean difference, printed in parentheses, does not contain 0.
            Otherwise no difference is shown, bold or not. The tests are not corrected for their
            number: of 20 comparisons of equal methods, one is expected to show a difference."""
    else:
        seeds = f"from seed {settings.seeds[0]} only"
        rule = "One seed: no test, so no net is called ahead or behind."
    return _section(
        "# Results",
        f"""`{_command(settings)}` trained and measured the paper's nets and wrote this page. The
        runs were made at {" and at ".join(places)}. Numbers are {seeds}{length}, with
        {settings.draws} draws of each Bayesian or MC dropout net.
        [models/lenet](models/lenet/README.md) describes the nets,
        [docs/metrics.md](docs/metrics.md) the metrics.""",
        _bullets(
            """**Bold** is the best mean of our methods in each comparison; means that print the
            same are all bold. The paper's numbers are never bold.""",
            rule,
        ),
    )


def _errors(found: Found, kinds: Sequence[str]) -> str:
    rows, words = [], []
    for kind in kinds:
        analyses = _analyses(found, kind, "bayes")
        stock = ERROR.of(_analyses(found, kind, "stock"))
        bayes, single = ERROR.of(analyses), SINGLE_DRAW.of(analyses)
        ours = bold_best([stock, bayes, single], ERROR)
        rows.append(
            [
                TITLES[kind],
                _paper(paper.STOCK_ERROR, kind),
                ours[0],
                _paper(paper.BAYES_ERROR, kind),
                *ours[1:],
            ]
        )
        words.append(f"*{TITLES[kind]}*: {_error_verdict(kind, stock, bayes)}")
    return _section(
        "## Test errors",
        """The paper's tables 1 and 2, in %. "One draw" is the mean error of single draws of the
        Bayesian net.""",
        _table(["net", "stock, paper", "stock", "Bayesian, paper", "Bayesian", "one draw"], rows),
        "The error of the Bayesian net minus that of its stock counterpart, in points:",
        _bullets(*words),
    )


def _error_verdict(kind: str, stock: Sequence[float], bayes: Sequence[float]) -> str:
    difference = compare(bayes, stock)
    verdict = {
        "ahead": "the Bayesian net is ahead of its stock counterpart",
        "behind": "the Bayesian net is behind its stock counterpart",
    }.get(difference.verdict(), difference.verdict())
    words = f"{difference.text(2)}; {verdict}."
    if kind in paper.BAYES_ERROR:
        gap = statistics.fmean(bayes) - paper.BAYES_ERROR[kind]
        words += f" Our Bayesian net minus the paper's: {signed(gap, 2)}."
    return words


def _certainty(found: Found) -> str:
    analyses = _analyses(found, "plain", "bayes")
    tables, level = [analysis["table"] for analysis in analyses], analyses[0]["level"]

    def cell(name: str) -> str:
        return f"{mean_sd([table[name] for table in tables], 0)} (paper {paper.CERTAINTY[name]:,})"

    rows = [
        [word, cell(f"{word}_certain"), cell(f"{word}_uncertain")] for word in ("correct", "wrong")
    ]
    return _section(
        "## Certain and uncertain predictions",
        f"""The paper's table 5, for the Bayesian net without dropout. A prediction is certain if
        the {100 * level:.0f} % credible interval of its class overlaps that of no other class.""",
        _table(("", "certain", "uncertain"), rows),
        f"""{100 * _flagged(tables):.0f} % of the wrong predictions are uncertain (paper:
        {100 * _flagged([paper.CERTAINTY]):.0f} %). A person who reviews all uncertain predictions
        reviews {_reviewed(tables):.0f} of 10,000 images (paper:
        {_reviewed([paper.CERTAINTY]):.0f}).""",
    )


def _flagged(tables: Sequence[dict[str, int]]) -> float:
    """The share of the wrong predictions that are uncertain; 1 if none is wrong."""
    wrong = sum(table["wrong_certain"] + table["wrong_uncertain"] for table in tables)
    return sum(table["wrong_uncertain"] for table in tables) / wrong if wrong else 1


def _reviewed(tables: Sequence[dict[str, int]]) -> float:
    """The uncertain predictions, averaged over the seeds."""
    return statistics.fmean(
        table["correct_uncertain"] + table["wrong_uncertain"] for table in tables
    )


def _layers(found: Found, kinds: Sequence[str]) -> str:
    layers = _layer_names(found, kinds)
    head = [""]
    for kind in kinds:
        head += [TITLES[kind]] + ["paper"] * (kind in paper.TAU)
    rows = []
    for layer in layers:
        for place, (field, word) in enumerate((("tau", ""), ("tau_bias", ", biases"))):
            row = [layer + word]
            for kind in kinds:
                row.append(mean_sd(_taus(found, kind, layer, field), 3))
                if kind in paper.TAU:
                    row.append(f"{paper.TAU[kind][layer][place]:.2g}")
            rows.append(row)
    return _section(
        "## Uncertainty of the layers",
        """τ is the standard deviation of a weight as a multiple of its mean (the paper's tables 3
        and 4). The paper's conv2 is at the lower limit of its implementation, 0.0000454; our layers
        have the same limit.""",
        _table(head, rows),
        f"{_largest(found, kinds, layers)} {_fewer_neurons(found, kinds)}",
    )


def _largest(found: Found, kinds: Sequence[str], layers: Sequence[str]) -> str:
    factors = []
    for kind in kinds:
        means = {layer: statistics.fmean(_taus(found, kind, layer, "tau")) for layer in layers}
        factors.append(means.pop("fc1") / max(means.values()))
    if min(factors) > 1:
        return f"fc1 has the largest τ in every net, at least {min(factors):.1f} times the next."
    return "fc1 does not have the largest τ in every net."


def _fewer_neurons(found: Found, kinds: Sequence[str]) -> str:
    if not {"dropout", "reduced"} <= set(kinds):
        return ""
    full, half = (_taus(found, kind, "fc1", "tau") for kind in ("dropout", "reduced"))
    errors = [ERROR.of(_analyses(found, kind, "bayes")) for kind in ("dropout", "reduced")]
    tau, error = compare(half, full), compare(errors[1], errors[0])
    in_paper = paper.TAU["reduced"]["fc1"][0] - paper.TAU["dropout"]["fc1"][0]
    return f"""250 neurons in fc1 instead of 500 change its τ by {tau.text(2)}, in the paper by
        {signed(in_paper, 2)}, and the error by {error.text(2)} points."""


def _calibration(found: Found, kinds: Sequence[str]) -> str:
    return _section(
        "## Beyond the paper: calibration and selective prediction",
        """Smaller is better in every column. "MC dropout" is the stock net with dropout left on at
        test time. AURC is the area under the risk–coverage curve: the error among the accepted
        predictions, averaged over how many are accepted, the most confident first.""",
        *_compare_methods(found, kinds, CALIBRATION),
    )


def _ood(found: Found, kinds: Sequence[str]) -> str:
    seen = [
        kind
        for kind in kinds
        if all(analysis["ood"] is not None for analysis in _analyses(found, kind, "bayes"))
    ]
    if not seen:
        return ""
    return _section(
        "## Beyond the paper: out-of-distribution images",
        """The nets are trained on MNIST and see the 10,000 test images of Fashion-MNIST. How well
        does a score tell these from the test images of MNIST? AUROC, in %: 100 is perfect, 50 is
        chance. FPR95, in %: the share of MNIST that is rejected if 95 % of Fashion-MNIST is;
        smaller is better. "Certain" is the share of Fashion-MNIST for which the net is certain;
        smaller is better. A stock net gives one draw: it has no epistemic uncertainty and is
        always certain.""",
        *_compare_methods(found, seen, OOD),
    )


def _figures(paths: Sequence[Path], settings) -> str:
    pictures = []
    for path in paths:
        words = CAPTIONS.get(path.stem, path.stem)
        pictures.append(f"![{words}]({path})\n\n*{words}*")
    first = settings.seeds[0]
    return "\n\n".join([f"## The paper's figures\n\nResults are those of seed {first}.", *pictures])


def _compare_methods(
    found: Found, kinds: Sequence[str], measures: Sequence[Measure]
) -> tuple[str, str, str]:
    """What each method scores, and the differences between the Bayesian nets and the others."""
    scores, differences = [], []
    for kind in kinds:
        columns = [_numbers(found, kind, measure) for measure in measures]
        cells = [
            bold_best(list(numbers.values()), measure)
            for numbers, measure in zip(columns, measures, strict=True)
        ]
        for place, method in enumerate(_methods(found, kind)):
            name = [TITLES[kind], METHODS[method]]
            scores.append(name + [column[place] for column in cells])
            if method != "bayes":
                differences.append(
                    name
                    + [
                        _difference(numbers["bayes"], numbers[method], measure)
                        for numbers, measure in zip(columns, measures, strict=True)
                    ]
                )
    titles = [measure.title for measure in measures]
    return (
        _table(["net", "method", *titles], scores),
        "The Bayesian net minus the other method:",
        _table(["net", "Bayesian minus", *titles], differences),
    )


def _numbers(found: Found, kind: str, measure: Measure) -> dict[str, list[float] | None]:
    """What each method scores, seed by seed; None where the measure does not apply to it."""
    return {
        method: None
        if measure.needs_draws and method == "stock"
        else measure.of(_analyses(found, kind, method))
        for method in _methods(found, kind)
    }


def _difference(ours: list[float], theirs: list[float] | None, measure: Measure) -> str:
    if theirs is None:
        return "–"
    difference = compare(ours, theirs)
    text, verdict = difference.text(measure.digits), difference.verdict(measure.larger_is_better)
    return f"{text} {verdict}" if verdict in ("ahead", "behind") else text


def _paper(numbers: dict[str, float], kind: str) -> str:
    return f"{numbers[kind]:.2f}" if kind in numbers else "–"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def _analyses(found: Found, kind: str, method: str) -> list[dict]:
    """What `bayescaffe analyze` wrote about one method, seed by seed."""
    net = f"{'bayes' if method == 'bayes' else 'stock'}-{kind}"
    return [run[method] for run in found[net].values()]


def _methods(found: Found, kind: str) -> list[str]:
    stock = next(iter(found[f"stock-{kind}"].values()))
    return [method for method in METHODS if method == "bayes" or method in stock]


def _layer_names(found: Found, kinds: Sequence[str]) -> list[str]:
    run = next(iter(found[f"bayes-{kinds[0]}"].values()))
    return [layer["name"] for layer in run["layers"]["layers"]]


def _taus(found: Found, kind: str, layer: str, field: str) -> list[float]:
    layers = [run["layers"]["layers"] for run in found[f"bayes-{kind}"].values()]
    return [entry[field] for run in layers for entry in run if entry["name"] == layer]


def _command(settings) -> str:
    seeds = len(settings.seeds)
    return (
        "models/lenet/reproduce.py"
        + (f" --seeds {seeds}" if seeds != 3 else "")
        + (f" --iterations {settings.iterations}" if settings.iterations else "")
    )


def _section(title: str, *blocks: str) -> str:
    """A title and what follows it: tables and lists as they are, other text filled."""
    filled = [block if block[:2] in ("| ", "- ") else _fill(block) for block in blocks]
    return "\n\n".join([title, *filled])


def _bullets(*items: str) -> str:
    return "\n".join(_fill(item, first="- ", others="  ") for item in items)


def _fill(text: str, first: str = "", others: str = "") -> str:
    return textwrap.fill(
        " ".join(text.split()),
        118,
        initial_indent=first,
        subsequent_indent=others,
        break_on_hyphens=False,
    )
