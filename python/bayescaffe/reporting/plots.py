"""Figures. Each function draws on `ax`, or on a figure of its own, and returns the axes.

Figures of the paper:
    plot_softplus          tau over delta, with the start values and the floor
    plot_prior             the prior of weights and biases
    plot_initialisation    a weight around its mean, for each initial tau
    plot_training          loss and test error during training
    plot_boxplot           the draws of one image, for each class
    plot_gallery           images with true and predicted label, such as the wrong but certain ones
More figures:
    plot_reliability       accuracy over confidence
    plot_risk_coverage     error among the most confident images, over the share accepted
    plot_entropy           histograms of an uncertainty, for example of right and wrong images
    plot_curves            one quantity during training, for several nets or layers
    plot_tau               tau of each layer, of one or several nets
    plot_outcomes          correct and wrong, certain and uncertain
`paper_figures` writes all figures of the paper. The report embeds the same figures (svg.py).

Figures do not register with pyplot: none is left open and no display is needed. In a notebook, end
a cell with `plot_prior().figure` to show one. The colours are those of Okabe and Ito, which
colour-blind readers can tell apart. Dashes or markers differ as well, for print in greyscale.
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
from matplotlib.patches import PathPatch

from bayescaffe.common.files import scratch_file
from bayescaffe.stats import intervals

if TYPE_CHECKING:
    from bayescaffe.net.posterior import LayerPosterior
    from bayescaffe.stats.analysis import Analysis

BLUE, VERMILION, GREEN, PURPLE, ORANGE = "#0072B2", "#D55E00", "#009E73", "#AA4499", "#E69F00"
GREY, INK, PALE = "#8A8F98", "#22262B", "#E3E6EA"
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
    "grid.color": PALE,
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "bayescaffe",
}
POINTS = 401
"""Points of a curve; more cannot be told apart."""
DOTS = 100
"""Draws that a box plot shows as dots."""
# The initial tau of the paper's training, and the smallest tau of its implementation.
TAU_START = {"weights": 0.4, "biases": 0.1, "weights of fc1": 1.0, "biases of fc1": 0.2}
TAU_FLOOR = math.log1p(math.exp(-10))


def _figure(plot: Callable[..., Axes]) -> Callable[..., Axes]:
    """Apply our style to `plot`, and give it an axes of its own unless the caller has one."""

    @functools.wraps(plot)
    def with_axes(*args, ax: Axes | None = None, **options) -> Axes:
        with matplotlib.rc_context(STYLE):
            return plot(*args, ax=ax if ax is not None else Figure().add_subplot(), **options)

    return with_axes


@_figure
def plot_softplus(*, ax: Axes = None) -> Axes:
    """tau = ln(1 + exp(delta)): every delta gives a tau above 0."""
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
    """The normal densities of weights and biases before any data."""
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
    """The density of a weight around its mean m, for each initial tau."""
    x = np.linspace(-2, 4, 600)
    for name, tau in taus.items():
        flips = math.erfc(1 / (tau * math.sqrt(2))) / 2
        wrong_sign = f", {flips:.1%} below 0" if flips >= 0.0005 else ""
        ax.plot(x, _normal(x, 1, tau), label=f"{name}: τ = {tau:g}{wrong_sign}")
    ax.axvspan(-2, 0, color=GREY, alpha=0.12, linewidth=0)
    ax.text(-1.95, 0.03, "sign flipped", transform=ax.get_xaxis_transform())
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
    """Training loss (left, log scale) and test error (right) of a curve from `read_curve`.

    A horizontal line marks `final_error`, such as the error with 100 draws; the default is the last
    test error of the curve.
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
        right.yaxis.set_major_formatter(_percent)
        right.set_ylabel(f"test error (dotted: {final_error:.2%})", color=VERMILION)
    return ax


@_figure
def plot_boxplot(
    draws: np.ndarray,
    true: int | None = None,
    predicted: int | None = None,
    class_names: Sequence[str] | None = None,
    interval: tuple[np.ndarray, np.ndarray] | None = None,
    *,
    ax: Axes = None,
) -> Axes:
    """The class probabilities of one image in all draws (draws x classes), a row for each class.

    The box holds the middle half of the draws, its line is the median; dots are the first draws.
    Whiskers mark the credible `interval`: lower and upper ends per class, by default 95 %
    equal-tailed.
    Bold letters and colour mark the true class, also ✓, and the predicted class (by default the
    one with the highest mean), also ✗ if it is wrong.
    """
    draws = np.asarray(draws)
    classes = range(draws.shape[1])
    if predicted is None:
        predicted = int(draws.mean(0).argmax())
    names = [str(c) for c in classes] if class_names is None else list(class_names)
    lower, upper = interval or intervals.equal_tailed(draws, 0.95)
    first, median, third = np.quantile(draws, (0.25, 0.5, 0.75), axis=0)
    # Spread by the golden ratio: evenly, and the same each time.
    jitter = 0.6 * (np.arange(len(draws[:DOTS])) * 0.618034 % 1 - 0.5)
    labels = []
    for c in classes:
        is_true, is_predicted = c == true, c == predicted
        marked = VERMILION if true is not None else BLUE
        colour = GREEN if is_true else marked if is_predicted else GREY
        line = {"color": colour, "linewidth": 1.4, "linestyle": "-"}
        ax.bxp(
            [{"whislo": lower[c], "q1": first[c], "med": median[c], "q3": third[c],
              "whishi": upper[c]}],
            positions=[c], widths=0.66, orientation="horizontal", patch_artist=True,
            showfliers=False, manage_ticks=False, whiskerprops=line, capprops=line,
            boxprops={"edgecolor": colour, "facecolor": (colour, 0.28)},
            medianprops={**line, "linewidth": 3 if is_true or is_predicted else 2},
        )  # fmt: skip
        _dots(ax, draws[:DOTS, c], c + jitter, colour)
        mark = " ✓" if is_true else " ✗" if is_predicted and true is not None else ""
        labels.append(_short(names[c], 20) + mark)
    ax.set_yticks(classes, labels)
    for label in np.array(ax.get_yticklabels())[sorted({predicted, true} - {None})]:
        label.set_fontweight("bold")
    ax.grid(False, axis="y")
    ax.set(xlabel="probability in a draw", xlim=(-0.02, 1.02), ylim=(len(labels) - 0.4, -0.6))
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
    """Images (N x channels x height x width, bytes) in a grid, each with its predicted class."""
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
    """Accuracy over confidence, in bins. On the diagonal the net is calibrated.

    The size of a marker shows how many images are in its bin.
    """
    ax.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1.2)
    for index, (name, analysis) in enumerate(_named(models).items()):
        bins = [b for b in analysis.reliability if b["count"]]
        confidence, accuracy, count = (
            np.array([b[key] for b in bins]) for key in ("confidence", "accuracy", "count")
        )
        colour, marker = COLOURS[index % len(COLOURS)], "osD^vP"[index % 6]
        ax.plot(confidence, accuracy, color=colour, linestyle=DASHES[index % len(DASHES)])
        ax.scatter(confidence, accuracy, 12 + 180 * np.sqrt(count / count.sum()), color=colour,
                   marker=marker, alpha=0.75, linewidth=0)  # fmt: skip
        ax.plot([], [], color=colour, marker=marker, linestyle=DASHES[index % 6], label=name)
    _legend(ax)
    ax.set(xlabel="mean probability of the predicted class", ylabel="share correct")
    ax.set(xlim=(0, 1.02), ylim=(0, 1.04))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(_percent)
    return ax


@_figure
def plot_set_sizes(groups: Mapping[str, np.ndarray], *, ax: Axes = None) -> Axes:
    """Images by the number of classes in their set, one bar on the other for each group."""
    largest = max(int(sizes.max()) for sizes in groups.values() if len(sizes))
    x, bottom = np.arange(largest + 1), np.zeros(largest + 1)
    for (name, sizes), colour in zip(groups.items(), COLOURS, strict=False):
        counts = np.bincount(sizes, minlength=largest + 1)
        ax.bar(x, counts, 0.8, bottom, color=colour, label=f"{name} ({len(sizes):,})")
        bottom += counts
    _legend(ax)
    ax.set(xlabel="classes in the set", ylabel="images", ylim=(0, 1.3 * bottom.max()))
    ax.xaxis.get_major_locator().set_params(integer=True)
    return ax


@_figure
def plot_class_coverage(
    classes: Mapping[str, tuple[float, float, float]], level: float, *, ax: Axes = None
) -> Axes:
    """The coverage of each class and both ends of its interval, and the level of all."""
    share, lower, upper = np.array(list(classes.values())).T
    y = np.arange(len(share))[::-1]
    ax.axvline(level, color=GREY, linestyle=":", linewidth=1.2)
    ax.hlines(y, lower, upper, color=BLUE, linewidth=1.5)
    ax.plot(share, y, "o", color=BLUE, markersize=5)
    ax.set_yticks(y, [_short(name, 18) for name in classes])
    ax.set(xlabel="share of images whose class is in their set", ylim=(-0.7, len(y) - 0.3))
    ax.xaxis.set_major_formatter(_percent)
    return ax


@_figure
def plot_risk_coverage(
    models: "Mapping[str, Analysis] | Analysis", start: float = 0, *, ax: Axes = None
) -> Axes:
    """The error among the most confident images, over the share accepted, from `start` to 1."""
    for name, analysis in _named(models).items():
        coverage, risk = (analysis.risk_coverage[key] for key in ("coverage", "risk"))
        shown = np.unique(np.searchsorted(coverage, np.linspace(start, 1, POINTS) - 1e-9))
        ax.plot(coverage[shown], risk[shown], label=name, drawstyle="steps-post")
    ax.set(xlabel="accepted: the most confident images", ylabel="error among them")
    ax.set(xlim=(start, 1), ylim=(0, None))
    ax.xaxis.set_major_formatter(_percent)
    ax.yaxis.set_major_formatter(_percent)
    _legend(ax)
    return ax


@_figure
def plot_entropy(
    groups: Mapping[str, np.ndarray],
    measure: str = "predictive entropy",
    bins: int = 30,
    *,
    ax: Axes = None,
) -> Axes:
    """Histograms of an uncertainty (in nats): the share of each group's images, on a log scale.

    For example {"right": a.entropy[a.correct], "wrong": a.entropy[~a.correct]}.
    """
    groups = {name: np.asarray(values) for name, values in groups.items() if len(values)}
    top = max((values.max() for values in groups.values()), default=0) or 1.0
    edges = np.linspace(0, top, bins + 1)
    smallest = 1.0
    for index, (name, values) in enumerate(groups.items()):
        share = np.histogram(values, edges)[0] / len(values)
        smallest = min(smallest, 1 / len(values))
        ax.stairs(
            share, edges, color=COLOURS[index % 6], linewidth=1.6, baseline=1e-9,
            linestyle=DASHES[index % 6], label=f"{name} ({len(values):,})",
        )  # fmt: skip
        ax.stairs(share, edges, color=COLOURS[index % 6], alpha=0.13, fill=True, baseline=1e-9)
    ax.set(xlabel=f"{measure} (nats)", ylabel="share of the images", yscale="log")
    # Within less than a decade, Matplotlib labels what lies between 10% and 100% in its own way.
    ax.set(xlim=(0, top), ylim=(min(smallest / 2, 0.08), 1.3))
    ax.yaxis.set_major_formatter(_percent)
    _legend(ax, fewest=1)
    return ax


@_figure
def plot_curves(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    ylabel: str,
    log: bool = False,
    *,
    ax: Axes = None,
) -> Axes:
    """A quantity over iterations: for each name, iterations and values.

    Points that are not finite, or not positive on a log scale, are left out. On a linear scale
    values are shares; a dotted line marks the last one.
    """
    seen = []
    for index, (name, (x, y)) in enumerate(curves.items()):
        x, y = np.asarray(x, float)[: len(y)], np.asarray(y, float)
        measured = np.flatnonzero(np.isfinite(y) & ((y > 0) | (not log)))
        if not len(measured):
            continue
        chosen = np.unique(np.linspace(0, len(measured) - 1, POINTS).round().astype(int))
        x, y = x[measured[chosen]], y[measured[chosen]]
        colour = COLOURS[index % len(COLOURS)]
        ax.plot(x, y, color=colour, linestyle=DASHES[index % len(DASHES)], label=name)
        if not log:
            ax.axhline(y[-1], color=colour, linestyle=":", linewidth=1)
        seen.append(y)
    ax.set(xlabel="iteration", ylabel=ylabel, yscale="log" if log else "linear", xlim=(0, None))
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.yaxis.set_major_formatter("{x:g}" if log else _percent)
    if seen:
        values = np.concatenate(seen)
        # The first tests are of a net that has learned nothing; they may leave the figure.
        top = 1.1 * min(values.max(), 1.5 * np.quantile(values, 0.9))
        ax.set_ylim(_decades(values) if log else (0, top or 0.01))
    _legend(ax)
    return ax


@_figure
def plot_tau(
    models: "Mapping[str, Sequence[LayerPosterior]] | Sequence[LayerPosterior]", *, ax: Axes = None
) -> Axes:
    """tau of the weights (filled) and of the biases (open) of each layer, on a log scale.

    Where outputs or weights have their own, the bar is their median, and a line is their range.
    """
    models = models if isinstance(models, Mapping) else {"": models}
    layers = list(dict.fromkeys(layer.name for model in models.values() for layer in model))
    height = 0.8 / (2 * len(models))
    for index, (name, model) in enumerate(models.items()):
        colour = COLOURS[index % len(COLOURS)]
        at = np.array([layers.index(layer.name) for layer in model]) - 0.4 + 2 * index * height
        tau = [layer.tau for layer in model]
        bias = [layer.tau_bias if layer.tau_bias is not None else math.nan for layer in model]
        prefix = f"{name}, " if name else ""
        ax.barh(at, tau, 0.9 * height, align="edge", color=colour, label=f"{prefix}weights")
        ax.barh(
            at + height, bias, 0.9 * height, align="edge", facecolor="none", edgecolor=colour,
            linewidth=1.4, label=f"{prefix}biases",
        )  # fmt: skip
        for y, layer in zip(at, model, strict=True):
            for shift, low, high in (
                (0.45, layer.tau_low, layer.tau_high),
                (1.45, layer.tau_bias_low, layer.tau_bias_high),
            ):
                if low != high:
                    ax.plot([low, high], [y + shift * height] * 2, color=GREY, linewidth=1)
    ax.set_yticks(range(len(layers)), [_short(layer, 20) for layer in layers])
    ax.grid(False, axis="y")
    ax.set(xlabel="τ", xscale="log", ylim=(len(layers) - 0.5, -0.5))
    values = [
        value
        for model in models.values()
        for layer in model
        for value in (layer.tau_low, layer.tau_high, layer.tau_bias_low, layer.tau_bias_high)
        if value
    ]
    ax.set_xlim(_decades(values))
    ax.xaxis.set_major_formatter("{x:g}")
    _legend(ax)
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

    Args:
        curves: by name, the result of `read_curve`.
        probabilities: the draws that were analysed.
        images: a function from indices to the pixels of these images.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    written = []

    def save(name: str, figure: Figure) -> None:
        for suffix in formats:
            path = out / f"{name}.{suffix}"
            # Without the date, the same data gives the same bytes.
            metadata = {"Date": None} if suffix == "svg" else None
            with matplotlib.rc_context(STYLE), scratch_file(path) as scratch:
                figure.savefig(scratch, format=suffix, dpi=160, metadata=metadata)
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
                draws = np.asarray(probabilities[:, index])
                plot_boxplot(draws, analysis.labels[index], analysis.predicted[index], ax=ax)
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
    """Indices of the right image with the highest confidence and of the wrong image whose draws
    disagree most. The analysis must have a right and a wrong image."""
    right, wrong = np.flatnonzero(analysis.correct), np.flatnonzero(~analysis.correct)
    return (
        int(right[analysis.confidence[right].argmax()]),
        int(wrong[analysis.epistemic[wrong].argmax()]),
    )


def _normal(x: np.ndarray, mean: float, std: float) -> np.ndarray:
    return np.exp(-0.5 * ((x - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))


def _named(models: "Mapping[str, Analysis] | Analysis") -> "Mapping[str, Analysis]":
    return models if isinstance(models, Mapping) else {"this net": models}


def _legend(ax: Axes, fewest: int = 2) -> None:
    """A legend above the axes, if there are at least `fewest` things to name."""
    handles, labels = ax.get_legend_handles_labels()
    labels = [_short(label, 28) for label in labels]
    if len(labels) >= fewest:
        # As many in a row as fit: a key and its gaps are as wide as nine letters.
        columns = max(1, 46 // (max(map(len, labels)) + 9))
        ax.legend(
            handles, labels, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2,
            ncols=min(columns, len(labels)), handlelength=2.4, columnspacing=1.2, borderpad=0,
        )  # fmt: skip


def _percent(share: float, _: int) -> str:
    return f"{100 * share:.4g}%"


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """Limits of a log scale around `values`: powers of ten, since these have labels."""
    low, high = math.floor(np.log10(min(values))), math.ceil(np.log10(max(values)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def _short(name: str, length: int) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"


def _dots(ax: Axes, x: np.ndarray, y: np.ndarray, colour: str) -> None:
    """A dot for each point, all in one path: in SVG a tenth of what separate markers take."""
    points = np.column_stack([x, y])
    path = matplotlib.path.Path(
        np.stack([points, points + [1e-4, 0]], axis=1).reshape(-1, 2),
        [matplotlib.path.Path.MOVETO, matplotlib.path.Path.LINETO] * len(points),
    )
    path.should_simplify = False
    ax.add_patch(
        PathPatch(path, fill=False, edgecolor=colour, linewidth=3, capstyle="round", alpha=0.3)
    )
