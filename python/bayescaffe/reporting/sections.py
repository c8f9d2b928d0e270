"""The sections of the report about all images: each function gives the template its numbers.

A section that lacks its data is None, and the page leaves it out.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bayescaffe.reporting import plots
from bayescaffe.reporting.subject import Subject, percent, short, table
from bayescaffe.reporting.svg import COLOURS, Chart
from bayescaffe.stats.analysis import Analysis

if TYPE_CHECKING:
    from bayescaffe.net.posterior import LayerPosterior

SLIDER_STEPS = 200
MOST_CLASSES = 20
"""How many classes the coverage is drawn of: those with the lowest."""
METRICS = {
    "error": ("Error", "share of images with a wrong prediction"),
    "single_draw_error": ("Error of a single draw", "mean over the draws"),
    "nll": ("Negative log-likelihood", "in nats; penalises confident mistakes"),
    "brier": ("Brier score", "squared error of the probabilities"),
    "ece": ("Calibration error (ECE)", "gap between confidence and accuracy"),
    "aurc": ("AURC", "mean error over all shares of accepted images"),
}
MORE_METRICS = {
    "adaptive_ece": ("Adaptive ECE", "ECE with equal numbers of images in each bin"),
    "excess_aurc": ("Excess AURC", "AURC minus the AURC of a perfect ranking"),
    "aurc_epistemic": ("AURC by epistemic uncertainty", "images ranked by it, not by probability"),
}
MEASURES = {
    "entropy": "Total (entropy)",
    "aleatoric": "Of the image (aleatoric)",
    "epistemic": "Of the net (epistemic)",
}
OOD_SCORES = {
    "entropy": "entropy",
    "epistemic": "epistemic uncertainty",
    "confidence": "probability of the predicted class",
}
RISKS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001)


def summary(subject: Subject) -> dict[str, Any]:
    """The findings in a few sentences and large numbers."""
    a = subject.analysis
    images = _images(a.images)
    text = [f"This report covers {images} of {a.classes:,} classes, classified by {subject.nets}."]
    tiles = []

    def tile(number: str, name: str, more: str) -> None:
        tiles.append({"number": number, "name": name, "more": more})

    if a.correct is not None:
        error, wrong = a.metrics["error"], int((~a.correct).sum())
        what = "mean prediction" if subject.has_intervals else "prediction"
        text.append(f"The {what} is wrong for {wrong:,} of them ({percent(error)}).")
        others = [
            f"{name}: {percent(model.metrics['error'])}"
            for name, model in subject.baselines.items()
            if model.metrics
        ]
        tile(percent(error), "error", ", ".join(others) or _images(wrong))
    if subject.has_intervals:
        certain = int(a.certain.sum())
        overlaps = f"{certain:,} predictions whose {subject.level} interval overlaps no other"
        tile(percent(certain / a.images, 1), "certain", overlaps)
    if subject.has_intervals and a.table is not None:
        bad = a.table["wrong_certain"]
        wrong = f"{bad:,} of these {'is' if bad == 1 else 'are'}" if bad else "none of these is"
        text.append(f"The net is certain about {certain:,} predictions, and {wrong} wrong.")
        rate = f"1 in {certain / bad:,.0f} certain predictions" if bad else "no certain prediction"
        tile(f"{bad:,}", "wrong but certain", rate)
    if handed := _to_a_human(a):
        share, target = handed
        text.append(
            f"Handing the least confident {percent(share, 1)} to a human would leave an error of "
            f"at most {target} among the rest."
        )
        tile(percent(share, 1), "to a human", f"for an error of at most {target} in the rest")
    return {"text": " ".join(text), "tiles": tiles}


def _to_a_human(a: Analysis) -> tuple[float, str] | None:
    """The share of images to hand over to at least halve the error, and the error then."""
    if a.risk_coverage is None:
        return None
    for target in RISKS:
        reached = np.flatnonzero(a.risk_coverage["risk"] <= target)
        if target <= a.metrics["error"] / 2 and len(reached):
            return 1 - float(a.risk_coverage["coverage"][reached[-1]]), f"{100 * target:g}%"
    return None


def errors(subject: Subject) -> dict[str, Any] | None:
    """The table of certain and wrong predictions, and the metrics of all nets."""
    a = subject.analysis
    if a.correct is None:
        return None
    models = {name: model.metrics for name, model in subject.models.items() if model.metrics}
    deviation = math.sqrt(a.metrics["error"] * (1 - a.metrics["error"]) / a.images)
    stars = "; ★ marks the best" if len(models) > 1 else ""
    right, wrong = int(a.correct.sum()), int((~a.correct).sum())
    both = right and wrong
    more = {key: (key, "") for key in a.metrics if key not in METRICS} | MORE_METRICS
    return {
        "head": list(models),
        "rows": _metric_rows(METRICS, list(models.values())),
        "more": _metric_rows(more, list(models.values())),
        "caption": f"Lower is better{stars}. With this number of images, the error has a standard "
        f"error of {percent(deviation)}.",
        "wrong": wrong,
        "found": a.table["wrong_uncertain"] / wrong if both else None,
        "doubted": a.table["correct_uncertain"] / right if both else None,
    }


def _metric_rows(named: Mapping[str, tuple[str, str]], models: list[dict]) -> list[dict[str, Any]]:
    """Rows for the metrics that the first model has."""
    rows = []
    for key, (name, meaning) in named.items():
        if key not in models[0]:
            continue
        values = [metrics.get(key) for metrics in models]
        best = min(value for value in values if value is not None)
        write = percent if key.endswith("error") else "{:.3g}".format
        cells = [
            {
                "text": "–" if value is None else write(value),
                "best": len(models) > 1 and value == best,
            }
            for value in values
        ]
        rows.append({"name": name, "meaning": meaning, "cells": cells})
    return rows


def risk(subject: Subject) -> dict[str, Any] | None:
    """The risk-coverage curve, and in `slider` what its slider shows."""
    a = subject.analysis
    if a.risk_coverage is None or a.correct.all():
        return None
    coverage, error = a.risk_coverage["coverage"], a.metrics["error"]
    # The curve starts a little before the error becomes visible.
    rises = coverage[np.argmax(a.risk_coverage["risk"] > 0.05 * error)]
    start = max(1 / a.images, min(0.9, math.floor(10 * rises) / 10 - 0.1))
    steps = np.searchsorted(coverage, np.linspace(start, 1, SLIDER_STEPS + 1) - 1e-9)
    models = {n: model for n, model in subject.models.items() if model.risk_coverage is not None}
    risks = {name: model.risk_coverage["risk"][steps] for name, model in models.items()}
    chart = Chart(plots.plot_risk_coverage, models, start)
    places = {name: chart.positions(coverage[steps], y).round(1) for name, y in risks.items()}
    rows = [
        [percent(coverage[steps[k]], 1), *(percent(values[k]) for values in risks.values())]
        for k in range(0, SLIDER_STEPS + 1, SLIDER_STEPS // 20)
    ]
    label = (
        f"Error over the share of accepted images, from {percent(start, 0)} to 100%. With all "
        f"images accepted it is {percent(error)}."
    )
    return {
        "chart": chart.markup("risk", label),
        "numbers": table("Risk", ["accepted", *risks], rows),
        "steps": SLIDER_STEPS,
        "start": SLIDER_STEPS * 9 // 10,
        "slider": {
            "coverage": short(coverage[steps]),
            "accepted": (steps + 1).tolist(),
            "threshold": short(np.sort(a.confidence)[::-1][steps]),
            "x": places["this net"][:, 0].tolist(),
            "ends": chart.positions([1, 1], chart.ax.get_ylim())[:, 1].round(1).tolist(),
            "models": [
                {
                    "name": name,
                    "risk": short(values),
                    "y": places[name][:, 1].tolist(),
                    "colour": COLOURS[plots.COLOURS[index % len(plots.COLOURS)]],
                }
                for index, (name, values) in enumerate(risks.items())
            ],
        },
    }


def calibration(subject: Subject) -> dict[str, Any] | None:
    """The reliability diagram."""
    a = subject.analysis
    if a.reliability is None:
        return None
    models = {n: model for n, model in subject.models.items() if model.reliability is not None}
    rows = [
        [
            f"{one['lower']:.2f}–{one['upper']:.2f}",
            f"{one['count']:,}",
            percent(one["confidence"], 1),
            percent(one["accuracy"], 1),
        ]
        for one in a.reliability
        if one["count"]
    ]
    label = (
        "Share of correct predictions over the probability of the predicted class, in bins; "
        f"calibration error {percent(a.metrics['ece'])}."
    )
    return {
        "chart": Chart(plots.plot_reliability, models).markup("reliability", label),
        "numbers": table("Bins", ["bin", "images", "mean probability", "correct"], rows),
    }


def decisions(subject: Subject) -> dict[str, Any] | None:
    """Sets of classes and accepted images, if there is a calibration of decisions."""
    a = subject.analysis
    if a.decisions is None:
        return None
    told = a.decisions.summary(a.labels, a.predicted)
    sizes = a.decisions.sets.sum(axis=1)
    groups, by_class = {"images": sizes}, {}
    if a.labels is not None:
        covered = a.decisions.sets[np.arange(a.images), a.labels]
        groups = {"class in the set": sizes[covered], "class not in it": sizes[~covered]}
        named = zip(subject.names, told["class_coverage"], strict=True)
        by_class = {name: one for name, one in named if one["images"]}
    counted = "; ".join(f"{k}: {n:,}" for k, n in enumerate(told["set_sizes"]) if n)
    label = f"Images by the number of classes in their set: {counted}"
    rows = [
        [name, f"{one['images']:,}", percent(one["coverage"]), _range(one["interval"])]
        for name, one in by_class.items()
    ]
    lowest = sorted(by_class, key=lambda name: by_class[name]["coverage"])[:MOST_CLASSES]
    shown = {
        name: (one["coverage"], *one["interval"])
        for name, one in by_class.items()
        if name in lowest
    }
    chart = None
    if shown:
        height = 70 + 22 * len(shown)
        drawn = Chart(plots.plot_class_coverage, shown, told["level"], height=height)
        what = f"Coverage of each class; {percent(told['level'])} was asked for."
        chart = drawn.markup("class-coverage", what)
    ends = ("coverage_interval", "accepted_error_interval")
    return {
        **told,
        **{key: _range(told[key]) if told[key] else None for key in ends},
        "empty": told["set_sizes"][0],
        "is_cut": len(by_class) > MOST_CLASSES,
        "chart": Chart(plots.plot_set_sizes, groups).markup("set-sizes", label),
        "class_chart": chart,
        "numbers": table("Classes", ["class", "images", "coverage", "95% interval"], rows),
    }


def _range(ends: Sequence[float]) -> str:
    return f"{percent(ends[0])} to {percent(ends[1])}"


def uncertainty(subject: Subject) -> list[dict[str, Any]]:
    """Histograms of each kind of uncertainty."""
    a = subject.analysis
    found = []
    measures = list(MEASURES.items()) if subject.has_intervals else list(MEASURES.items())[:1]
    if a.between_models is not None:
        measures.append(("between_models", "Between the models"))
    for key, name in measures:
        values = getattr(a, key)
        groups = {"all": values}
        if a.correct is not None:
            groups = {"right": values[a.correct], "wrong": values[~a.correct]}
        chart = _histogram(key, groups, key.replace("_", " "))
        found.append({"key": key, "name": name, "chart": chart, "mean": float(values.mean())})
    return found


def _histogram(key: str, groups: Mapping[str, np.ndarray], measure: str) -> str:
    groups = {group: values for group, values in groups.items() if len(values)}
    medians = "; ".join(f"{group}: median {np.median(v):.3g}" for group, v in groups.items())
    label = f"Histogram of {measure}, in nats. {medians}."
    return Chart(plots.plot_entropy, groups, measure).markup(key, label)


def out_of_distribution(subject: Subject, ood: Analysis) -> dict[str, Any]:
    """How uncertain the net is about out-of-distribution images."""
    a = subject.analysis
    groups = {"in-distribution": a.entropy, "out-of-distribution": ood.entropy}
    scores = None
    if a.ood is not None:
        rows = [
            [name, f"{score['auroc']:.3f}", percent(score["fpr95"], 1)]
            for key, name in OOD_SCORES.items()
            if (score := a.ood["scores"].get(key))
        ]
        scores = table("Scores", ["score", "AUROC", "FPR at 95%"], rows)
    return {
        "images": ood.images,
        "certain": float(ood.certain.mean()),
        "chart": _histogram("ood", groups, "entropy"),
        "scores": scores,
    }


def layers(layers: "Sequence[LayerPosterior]") -> dict[str, Any]:
    """tau of each layer."""
    top = max(layers, key=lambda layer: layer.tau)
    rows = [
        [
            layer.name,
            f"{layer.weights:,}",
            layer.tau_text,
            f"{layer.biases:,}",
            layer.tau_bias_text if layer.biases else "–",
        ]
        for layer in layers
    ]
    label = "τ of each layer: " + "; ".join(f"{x.name} {x.tau:.3g}" for x in layers)
    return {
        "chart": Chart(plots.plot_tau, layers, height=70 + 42 * len(layers)).markup("tau", label),
        "numbers": table("Layers", ["layer", "weights", "τ", "biases", "τ of biases"], rows),
        "top": top,
        "flips": 1 - top.sign_certainty,
    }


def training(curves: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, Any] | None:
    """Test error, loss and tau during training."""
    charts, rows = [], []

    def add(key: str, name: str, lines: dict, log: bool, write: Callable) -> None:
        ends = {}
        for line, (_, y) in lines.items():
            measured = np.asarray(y)[np.isfinite(y)]
            if len(measured):
                ends[line] = write(measured[-1])
        if ends:
            rows.extend([line, name, end] for line, end in ends.items())
            told = "; ".join(f"{line} {end}" for line, end in ends.items())
            label = f"{name} over iterations. At the end: {told}."
            shown = {line: lines[line] for line in ends}
            chart = Chart(plots.plot_curves, shown, name, log=log).markup(key, label)
            charts.append({"key": key, "chart": chart})

    def of(key: str) -> dict:
        return {
            name: (curve["iteration"], curve[key]) for name, curve in curves.items() if key in curve
        }

    first, curve = next(iter(curves.items()))
    taus = {key[4:]: (curve["iteration"], curve[key]) for key in curve if key.startswith("tau:")}
    add("test_error", "test error", of("test_error"), False, percent)
    add("loss", "training loss", of("loss"), True, "{:.4g}".format)
    add("taus", f"τ of the layers of {first}", taus, True, "{:.3g}".format)
    if not charts:
        return None
    return {"charts": charts, "numbers": table("At the end", ["", "", "at the end"], rows)}


def _images(count: int) -> str:
    return "1 image" if count == 1 else f"{count:,} images"
