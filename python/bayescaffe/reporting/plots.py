"""Figures, each a function that draws on `ax` (or on a figure of its own) and returns the axes.

Figures of the paper:
    plot_softplus          tau over delta, with the start values and the floor
    plot_prior             the prior of weights and biases
    plot_initialisation    a weight around its mean, for each tau of the start
    plot_training          loss and test error while training
    plot_boxplot           the passes of one image over the classes
    plot_gallery           images with true and predicted label, such as the wrong but certain ones
Beyond it:
    plot_reliability       accuracy over confidence
    plot_risk_coverage     error of the most confident images, over how many are accepted
    plot_entropy           histograms of an uncertainty: right and wrong, or one set and another
    plot_tau               tau of each layer, before and after if you like
    plot_outcomes          correct and wrong, certain and uncertain
All of the paper's at once: `paper_figures`.

The figures they make do not register with pyplot: nothing is left open and no display is needed. In
a notebook, end a cell with `plot_prior().figure` to show one. Colours are those of Okabe and Ito,
which colour-blind people can tell apart; dashes or marks differ as well, for print in grey.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

if TYPE_CHECKING:
    from bayescaffe.net.posterior import LayerPosterior
    from bayescaffe.stats.analysis import Analysis

BLUE, VERMILION, GREEN, PURPLE, ORANGE = "#0072B2", "#D55E00", "#009E73", "#AA4499", "#E69F00"
GREY, INK = "#8A8F98", "#22262B"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, INK)
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (5, 2, 1, 2)), (0, (8, 3)), (0, (3, 1, 1, 1)))
STYLE = {
    "figure.figsize": (5, 3.4),
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": "medium",
    "axes.titlelocation": "left",
    "axes.prop_cycle": matplotlib.cycler(color=COLOURS, linestyle=DASHES),
    "grid.color": "#E3E6EA",
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "bayescaffe",
}
# tau that a training of the paper starts with, and where its implementation stopped it.
TAU_START = {"weights": 0.4, "biases": 0.1, "weights of fc1": 1.0, "biases of fc1": 0.2}
TAU_FLOOR = math.log1p(math.exp(-10))


def _figure(plot: Callable[..., Axes]) -> Callable[..., Axes]:
    """Give `plot` an axes of its own where the caller has none, and our style either way."""

    @functools.wraps(plot)
    def with_axes(*args, ax: Axes | None = None, **options) -> Axes:
        with matplotlib.rc_context(STYLE):
            return plot(*args, ax=ax if ax is not None else Figure().add_subplot(), **options)

    return with_axes


@_figure
def plot_softplus(*, ax: Axes = None) -> Axes:
    """tau = ln(1 + exp(delta)): any delta gives a tau above 0."""
    delta = np.linspace(-11, 2.5, 400)
    ax.plot(delta, np.logaddexp(0, delta), color=BLUE)
    for index, (name, tau) in enumerate(TAU_START.items()):
        at = math.log(math.expm1(tau))
        ax.plot(at, tau, "osD^"[index], color=COLOURS[1 + index % 4], label=f"{name}: τ = {tau:g}")
    ax.axhline(TAU_FLOOR, color=GREY, linestyle=":", label=f"floor: τ = {TAU_FLOOR:.2g} (δ = −10)")
    ax.set(xlabel="δ", ylabel="τ = ln(1 + exp δ)", xlim=(-11, 2.5), yscale="log", ylim=(1e-5, 5))
    ax.legend(
        title="at the start", alignment="left", fontsize="small",
        loc="lower right", bbox_to_anchor=(1.02, 0.12),
    )  # fmt: skip
    return ax


@_figure
def plot_prior(weight_std: float = 5, bias_std: float = 10, *, ax: Axes = None) -> Axes:
    """The normal densities that weights and biases have before any data."""
    reach = 3 * max(weight_std, bias_std)
    x = np.linspace(-reach, reach, 400)
    for name, std in (("weights", weight_std), ("biases", bias_std)):
        (line,) = ax.plot(x, _normal(x, 0, std), label=f"{name}: N(0, {std:g}²)")
        ax.fill_between(x, _normal(x, 0, std), color=line.get_color(), alpha=0.1, linewidth=0)
    ax.set(xlabel="value", ylabel="prior density", xlim=(-reach, reach), ylim=(0, None))
    ax.legend()
    return ax


@_figure
def plot_initialisation(taus: Mapping[str, float] = TAU_START, *, ax: Axes = None) -> Axes:
    """The density of a weight around its mean m, for each start value of tau."""
    x = np.linspace(-2, 4, 600)
    for name, tau in taus.items():
        flips = math.erfc(1 / (tau * math.sqrt(2))) / 2
        wrong_sign = f", {flips:.1%} below 0" if flips >= 0.0005 else ""
        ax.plot(x, _normal(x, 1, tau), label=f"{name}: τ = {tau:g}{wrong_sign}")
    ax.axvspan(-2, 0, color=GREY, alpha=0.12, linewidth=0)
    ax.text(-1.95, 0.03, "sign turned", transform=ax.get_xaxis_transform())
    ax.set(xlabel="weight / m", ylabel="density", xlim=(-2, 4), ylim=(0, 1.45 * ax.get_ylim()[1]))
    ax.legend(loc="upper right", fontsize="small")
    return ax


@_figure
def plot_training(
    curve: Mapping[str, np.ndarray],
    final_error: float | None = None,
    title: str | None = None,
    *,
    ax: Axes = None,
) -> Axes:
    """Training loss (left, log) and test error (right) of a curve that `read_curve` read.

    A horizontal line marks `final_error`, the error achieved, for instance that of 100 passes; by
    default the last one in the curve.
    """
    iteration = np.asarray(curve["iteration"])
    shown = np.isfinite(curve["loss"])
    ax.plot(iteration[shown], curve["loss"][shown], color=BLUE, linewidth=1, label="training loss")
    ax.set(xlabel="iteration", ylabel="training loss", yscale="log", title=title)
    ax.yaxis.label.set_color(BLUE)
    errors = np.asarray(curve["test_error"])
    tested = np.isfinite(errors)
    if tested.any():
        if final_error is None:
            final_error = errors[tested][-1]
        right = ax.twinx()
        right.spines["right"].set_visible(True)
        right.grid(False)
        right.plot(
            iteration[tested], errors[tested], "s-", color=VERMILION, markersize=3.5, linewidth=1.2
        )
        right.axhline(final_error, color=VERMILION, linestyle=":", linewidth=1.2)
        top = 1.15 * max(np.quantile(errors[tested], 0.9), final_error)
        right.set_ylim(0, top or 0.01)
        right.yaxis.set_major_formatter(PercentFormatter(1))
        right.set_ylabel(f"test error (dotted: {final_error:.2%})", color=VERMILION)
    return ax


@_figure
def plot_boxplot(
    passes: np.ndarray,
    true: int | None = None,
    predicted: int | None = None,
    class_names: Sequence[str] | None = None,
    *,
    ax: Axes = None,
) -> Axes:
    """What the passes (passes x classes) give one image: a box of probabilities for each class.

    Box and line: quartiles and median; whiskers reach 1.5 boxes further; circles are the rest.
    Marked by colour and by name: the true and the predicted class (by default the highest mean).
    """
    passes = np.asarray(passes)
    classes = passes.shape[1]
    if predicted is None:
        predicted = int(passes.mean(0).argmax())
    names = [str(c) for c in range(classes)] if class_names is None else list(class_names)
    boxes = ax.boxplot(
        passes,
        positions=range(classes),
        widths=0.6,
        patch_artist=True,
        medianprops={"color": INK, "linewidth": 1.6, "linestyle": "-"},
        flierprops={"marker": "o", "markersize": 3, "markeredgecolor": GREY, "alpha": 0.6},
    )
    labels = list(names)
    for index, box in enumerate(boxes["boxes"]):
        is_true, is_predicted = index == true, index == predicted
        colour = GREEN if is_true else VERMILION if is_predicted and true is not None else BLUE
        box.set(edgecolor=colour, facecolor=colour, linestyle="-")
        box.set_alpha(0.75 if is_true or is_predicted else 0.25)
        if is_true:
            labels[index] += "\ntrue"
        if is_predicted:
            # Always on the third line, so that it does not meet the "true" of a neighbour.
            labels[index] += "\npredicted" if is_true else "\n\npredicted"
    long = max(map(len, names)) > 3
    ax.set_xticks(
        range(classes), labels, rotation=45 if long else 0, ha="right" if long else "center"
    )
    ax.grid(False, axis="x")
    ax.set(ylabel="probability in a pass", ylim=(-0.03, 1.03))
    if true is not None:
        ax.set_title("right" if true == predicted else "wrong")
    return ax


@_figure
def plot_gallery(
    images: np.ndarray,
    predicted: Sequence[int],
    true: Sequence[int] | None = None,
    confidence: Sequence[float] | None = None,
    class_names: Sequence[str] | None = None,
    columns: int = 7,
    *,
    ax: Axes = None,
) -> Axes:
    """Images (N x channels x height x width, bytes) in a grid; below each, what it is taken for."""
    rows = max(1, math.ceil(len(images) / columns))
    name = (lambda c: str(c)) if class_names is None else (lambda c: class_names[c])
    if len(ax.figure.axes) == 1:
        ax.figure.set_size_inches(1.15 * columns, 1.5 * rows)
    for index, image in enumerate(images):
        row, column = divmod(index, columns)
        pixels = image[0] if len(image) == 1 else np.moveaxis(image, 0, -1)
        place = (column + 0.05, column + 0.95, row + 0.95, row + 0.05)
        options = {"cmap": "gray_r", "vmin": 0, "vmax": 255} if len(image) == 1 else {}
        ax.imshow(pixels, extent=place, interpolation="nearest", **options)
        text = f"{name(true[index])} → " if true is not None else ""
        text += name(predicted[index])
        text += f"  {confidence[index]:.2f}" if confidence is not None else ""
        ax.text(column + 0.5, row + 1.0, text, ha="center", va="top", fontsize="small")
    ax.set(xlim=(0, columns), ylim=(rows + 0.25, 0), aspect="equal")
    ax.axis("off")
    return ax


@_figure
def plot_reliability(models: "Mapping[str, Analysis] | Analysis", *, ax: Axes = None) -> Axes:
    """How often the net is right, over how sure it says it is; on the diagonal it is calibrated.

    The size of a mark tells how many images are in its bin.
    """
    ax.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1.2, label="calibrated")
    for index, (name, analysis) in enumerate(_named(models).items()):
        bins = [b for b in analysis.reliability if b["count"]]
        confidence, accuracy, count = (
            np.array([b[key] for b in bins]) for key in ("confidence", "accuracy", "count")
        )
        colour = COLOURS[index % len(COLOURS)]
        ax.plot(confidence, accuracy, color=colour, linestyle=DASHES[index % len(DASHES)])
        size = 12 + 180 * np.sqrt(count / count.sum())
        ax.scatter(confidence, accuracy, size, color=colour, alpha=0.75, label=name,
                   marker="osD^vP"[index % 6], edgecolor="white", linewidth=0.6)  # fmt: skip
    legend = ax.legend(loc="upper left")
    for handle in legend.legend_handles[1:]:
        handle.set_sizes([36])
    ax.set(xlabel="mean probability of the predicted class", ylabel="fraction right")
    ax.set(xlim=(0, 1.02), ylim=(0, 1.04))
    return ax


@_figure
def plot_risk_coverage(models: "Mapping[str, Analysis] | Analysis", *, ax: Axes = None) -> Axes:
    """The error among the most confident images, over the fraction of images accepted."""
    for name, analysis in _named(models).items():
        curve = analysis.risk_coverage
        ax.plot(curve["coverage"], curve["risk"], label=name, drawstyle="steps-post")
    ax.set(xlabel="accepted: the most confident images", ylabel="error among them")
    ax.set(xlim=(0, 1), ylim=(0, None))
    ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    if isinstance(models, Mapping):
        ax.legend()
    return ax


@_figure
def plot_entropy(
    groups: Mapping[str, np.ndarray],
    measure: str = "predictive entropy",
    bins: int = 30,
    *,
    ax: Axes = None,
) -> Axes:
    """Histograms of an uncertainty (in nats), each group's share of images on a log scale.

    For instance {"right": a.entropy[a.correct], "wrong": a.entropy[~a.correct]}.
    """
    groups = {name: np.asarray(values) for name, values in groups.items() if len(values)}
    top = max((values.max() for values in groups.values()), default=0) or 1.0
    edges = np.linspace(0, top, bins + 1)
    smallest = 1.0
    for index, (name, values) in enumerate(groups.items()):
        share = np.histogram(values, edges)[0] / len(values)
        smallest = min(smallest, 1 / len(values))
        ax.stairs(
            share, edges, color=COLOURS[index % 6], linewidth=1.6, baseline=None,
            linestyle=DASHES[index % 6], label=f"{name} ({len(values):,})",
        )  # fmt: skip
        ax.stairs(share, edges, color=COLOURS[index % 6], alpha=0.13, fill=True, baseline=1e-9)
    ax.set(xlabel=f"{measure} (nats)", ylabel="share of the images", yscale="log")
    ax.set(xlim=(0, top), ylim=(smallest / 2, 1.3))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    if groups:
        ax.legend()
    return ax


@_figure
def plot_tau(
    models: "Mapping[str, Sequence[LayerPosterior]] | Sequence[LayerPosterior]", *, ax: Axes = None
) -> Axes:
    """tau of the weights (filled) and of the biases (open) of each layer, on a log scale."""
    models = models if isinstance(models, Mapping) else {"": models}
    layers = list(dict.fromkeys(layer.name for model in models.values() for layer in model))
    width = 0.8 / (2 * len(models))
    for index, (name, model) in enumerate(models.items()):
        colour = COLOURS[index % len(COLOURS)]
        at = np.array([layers.index(layer.name) for layer in model]) - 0.4 + 2 * index * width
        tau = [layer.tau for layer in model]
        bias = [layer.tau_bias if layer.tau_bias is not None else math.nan for layer in model]
        prefix = f"{name}, " if name else ""
        ax.bar(at, tau, 0.92 * width, align="edge", color=colour, label=f"{prefix}weights")
        ax.bar(
            at + width, bias, 0.92 * width, align="edge", facecolor="none", edgecolor=colour,
            linewidth=1.2, hatch="///", label=f"{prefix}biases",
        )  # fmt: skip
    ax.set_xticks(range(len(layers)), layers)
    ax.grid(False, axis="x")
    ax.set(ylabel="τ", yscale="log")
    bottom, top = ax.get_ylim()
    ax.set_ylim(bottom / 2, 2 * top)
    ax.legend(ncols=2)
    return ax


@_figure
def plot_outcomes(table: Mapping[str, int], *, ax: Axes = None) -> Axes:
    """The 2 x 2 table correct/wrong by certain/uncertain, `analysis.table`, as four tiles."""
    if len(ax.figure.axes) == 1:
        ax.figure.set_size_inches(4, 2.4)
    rows, columns = ("correct", "wrong"), ("certain", "uncertain")
    colours = ((GREEN, BLUE), (VERMILION, ORANGE))
    total = sum(table.values()) or 1
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            count = table[f"{row}_{column}"]
            ax.add_patch(
                matplotlib.patches.Rectangle((x + 0.02, y + 0.03), 0.96, 0.94, alpha=0.22,
                                             facecolor=colours[y][x], linewidth=0)
            )  # fmt: skip
            ax.text(x + 0.5, y + 0.45, f"{count:,}", ha="center", va="center", fontsize="x-large")
            ax.text(x + 0.5, y + 0.75, f"{count / total:.2%}", ha="center", va="center")
    ax.set(xlim=(0, 2), ylim=(2, 0))
    ax.set_xticks([0.5, 1.5], columns)
    ax.set_yticks([0.5, 1.5], rows)
    ax.tick_params(length=0, labeltop=True, labelbottom=False)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    return ax


def paper_figures(
    out: str | Path,
    *,
    curves: Mapping[str, Mapping[str, np.ndarray]] | None = None,
    analysis: "Analysis | None" = None,
    probabilities: np.ndarray | None = None,
    images: Callable[[np.ndarray], np.ndarray] | None = None,
    formats: Sequence[str] = ("svg", "png"),
) -> list[Path]:
    """Write the paper's figures into the directory `out`, as far as there is data for them.

    `curves` maps a name to what `read_curve` gave; `probabilities` are the draws that `analysis`
    is of; `images` gives the pixels of the images with the indices it is passed.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    written = []

    def save(name: str, figure: Figure) -> None:
        for suffix in formats:
            path = out / f"{name}.{suffix}"
            with matplotlib.rc_context(STYLE):
                # Without the date, the same data give the same bytes.
                figure.savefig(path, dpi=160, metadata={"Date": None} if suffix == "svg" else None)
            written.append(path)

    save("softplus", plot_softplus().figure)
    save("prior", plot_prior().figure)
    save("initialisation", plot_initialisation().figure)
    for name, curve in (curves or {}).items():
        save(f"training-{name}", plot_training(curve, title=name).figure)
    if analysis is None or analysis.correct is None:
        return written
    if probabilities is not None and not analysis.correct.all() and analysis.correct.any():
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(9, 3.4))
            for ax, index in zip(figure.subplots(1, 2), right_and_wrong(analysis), strict=True):
                passes = np.asarray(probabilities[:, index])
                plot_boxplot(passes, analysis.labels[index], analysis.predicted[index], ax=ax)
        save("boxplots", figure)
    chosen = np.flatnonzero(~analysis.correct & analysis.certain)
    if images is not None and len(chosen):
        chosen = chosen[np.argsort(-analysis.confidence[chosen], kind="stable")][:35]
        gallery = plot_gallery(
            images(chosen),
            analysis.predicted[chosen],
            analysis.labels[chosen],
            analysis.confidence[chosen],
        )
        save("wrong-but-certain", gallery.figure)
    return written


def right_and_wrong(analysis: "Analysis") -> tuple[int, int]:
    """Two images that show what passes tell: the most certain right one, and the wrong one whose
    passes disagree most. The analysis must hold a right and a wrong image."""
    right, wrong = np.flatnonzero(analysis.correct), np.flatnonzero(~analysis.correct)
    return (
        int(right[analysis.confidence[right].argmax()]),
        int(wrong[analysis.epistemic[wrong].argmax()]),
    )


def _normal(x: np.ndarray, mean: float, std: float) -> np.ndarray:
    return np.exp(-0.5 * ((x - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))


def _named(models: "Mapping[str, Analysis] | Analysis") -> "Mapping[str, Analysis]":
    return models if isinstance(models, Mapping) else {"this net": models}
