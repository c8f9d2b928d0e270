"""The report: one HTML file that tells a person what the draws say and how far to trust them.

The file holds all it shows (styles, script, numbers, images) and asks the network for nothing. This
module works the numbers out. template/report.html has the text and the tables; report.js
draws the charts in the reader's browser, so that they fit the screen and the theme. The same input
gives the same bytes.
"""

import base64
import io
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bayescaffe import __version__
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_file

if TYPE_CHECKING:
    from bayescaffe.data.images import Images
    from bayescaffe.net.posterior import LayerPosterior
    from bayescaffe.stats.analysis import Analysis
    from bayescaffe.stats.draws import Draws

# What bounds the size of the file: images of each group, and what is shown of one.
GALLERY = 60
RIGHT_GALLERY = 24
SHOWN_CLASSES = 10
SHOWN_PASSES = 100
CURVE_POINTS = 400
HISTOGRAM_BINS = 30
SLIDER_STEPS = 200
PNG_SIDE, JPEG_SIDE = 64, 160

METRICS = {
    "error": ("Error", "images whose most probable class is wrong"),
    "single_draw_error": ("Error of a single pass", "mean over the passes"),
    "nll": ("Negative log-likelihood", "nats; punishes being sure and wrong"),
    "brier": ("Brier score", "squared distance of the probabilities from the truth"),
    "ece": ("Calibration error (ECE)", "how far probabilities are from how often it is right"),
    "aurc": ("AURC", "mean error over all shares of accepted images"),
}
MORE_METRICS = {
    "adaptive_ece": ("Adaptive ECE", "as ECE, with equally many images in each bin"),
    "excess_aurc": ("Excess AURC", "above the AURC of a perfect order of the images"),
    "aurc_epistemic": ("AURC by epistemic uncertainty", "images ordered by it, not by probability"),
}
MEASURES = {
    "entropy": "All uncertainty (entropy)",
    "aleatoric": "Of the image (aleatoric)",
    "epistemic": "Of the net (epistemic)",
}
OOD_SCORES = {
    "entropy": "entropy",
    "epistemic": "epistemic uncertainty",
    "confidence": "probability of the predicted class",
}
RISKS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001)


def report(
    out: str | os.PathLike,
    draws: "Draws",
    analysis: "Analysis",
    *,
    title: str = "What the net knows, and what it does not",
    curves: Mapping[str, Mapping[str, np.ndarray]] | None = None,
    layers: "Sequence[LayerPosterior] | None" = None,
    ood: "Analysis | None" = None,
    images: "Callable[[Sequence[int]], np.ndarray] | Images | None" = None,
    baselines: "Mapping[str, Analysis] | None" = None,
    class_names: Sequence[str] | None = None,
    command: str | None = None,
) -> Path:
    """Write the report on `draws` to the file `out` and return its path.

    Whatever is missing (labels, images, curves …) only leaves out its part of the page.

    Args:
        analysis: what `analyze` found in `draws`.
        curves: by name, what `read_curve` gave.
        layers: what `inspect` found in the net.
        ood: what `analyze` found in draws of other images, which the net was not trained for.
        images: the image source that was drawn from, or a function from indices to an array of
            images x channels x height x width; colours are blue, green, red, as is Caffe's custom.
        baselines: by name, analyses of other nets on the same images.
        class_names: by default those in the draws, else numbers.
        command: the command line that made this report, for its foot.
    """
    names = class_names or draws.meta.get("class_names") or range(analysis.classes)
    if len(names) != analysis.classes:
        raise BayesCaffeError(f"{len(names)} class names, expected {analysis.classes}")
    for name, other in (baselines or {}).items():
        if (other.images, other.classes) != (analysis.images, analysis.classes):
            raise BayesCaffeError(
                f"baseline {name}: {other.images} images of {other.classes} classes, expected the "
                f"report's {analysis.images} of {analysis.classes}"
            )
    page = _Page(draws, analysis, [str(name) for name in names], baselines or {}, images)
    parts = {
        "summary": page.summary(),
        "errors": page.errors(),
        "risk": page.risk(),
        "gallery": page.gallery(),
        "examples": page.examples(),
        "calibration": page.calibration(),
        "uncertainty": page.uncertainty(),
        "ood": None if ood is None else page.other_images(ood),
        "layers": page.layers(layers) if layers else None,
        "training": page.training(curves) if curves else None,
    }
    out = Path(out)
    with scratch_file(out) as scratch:
        scratch.write_text(_render(page, title, parts, command), encoding="utf-8")
    return out


SECTIONS = {
    "summary": "Summary",
    "errors": "Errors",
    "risk": "When to ask a human",
    "gallery": "Mistakes",
    "examples": "Single images",
    "calibration": "Calibration",
    "uncertainty": "Uncertainty",
    "ood": "Other images",
    "layers": "Layers",
    "training": "Training",
}


def _render(page: "_Page", title: str, parts: dict[str, Any], command: str | None) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("bayescaffe.reporting", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=percent, count="{:,}".format)

    def file(name: str) -> Markup:
        return Markup(environment.loader.get_source(environment, name)[0].rstrip())

    data = json.dumps(page.data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return environment.get_template("report.html").render(
        title=title,
        css=file("report.css"),
        script=file("report.js"),
        # With `<` as it is, a class named "</script>" would end the script.
        data=Markup(data.replace("<", "\\u003c")),
        sections=[(key, name) for key, name in SECTIONS.items() if parts[key]],
        a=page.analysis,
        names=page.names,
        has_intervals=page.has_intervals,
        level=page.level,
        interval="highest-density" if page.analysis.interval == "hdi" else "equal-tailed",
        box_caption=page.box_caption(),
        origin=page.origin(command),
        **parts,
    )


def percent(value: float, digits: int = 2) -> str:
    return f"{100 * value:.{digits}f}%"


class _Page:
    """What the parts of the page need. A part puts the numbers of its charts into `data`."""

    def __init__(self, draws, analysis, names, baselines, images) -> None:
        self.draws, self.analysis, self.names = draws, analysis, names
        self.models: Mapping[str, Analysis] = {"this net": analysis, **baselines}
        self.read_images = getattr(images, "read", images)
        # Passes of a net without anything random are all equal.
        self.has_intervals = analysis.draws > 1 and draws.meta.get("is_random", True)
        self.level = f"{100 * analysis.level:g}%"
        self.data: dict[str, Any] = {
            "class_names": names,
            "has_intervals": self.has_intervals,
            "total": analysis.images,
            "level": analysis.level,
            "histograms": {},
            "images": {},
        }

    def summary(self) -> dict[str, Any]:
        a = self.analysis
        again = f"{a.draws:,} times, each time with weights drawn anew from what training learned,"
        times = again if self.has_intervals else "once"
        text = [f"The net was run {times} on {_images(a.images)} of {a.classes:,} classes."]
        tiles = []

        def tile(number: str, name: str, more: str) -> None:
            tiles.append({"number": number, "name": name, "more": more})

        if a.correct is not None:
            error, wrong = a.metrics["error"], int((~a.correct).sum())
            what = "mean of the passes" if self.has_intervals else "answer"
            text.append(f"The {what} is wrong on {wrong:,} of them ({percent(error)}).")
            others = [
                f"{name}: {percent(model.metrics['error'])}"
                for name, model in list(self.models.items())[1:]
                if model.metrics
            ]
            tile(percent(error), "error", ", ".join(others) or _images(wrong))
        if self.has_intervals:
            certain = int(a.certain.sum())
            meets = f"{certain:,} answers whose {self.level} interval meets no other"
            tile(percent(certain / a.images, 1), "certain", meets)
        if self.has_intervals and a.table is not None:
            bad = a.table["wrong_certain"]
            wrong = (
                f"{bad:,} of those {'is' if bad == 1 else 'are'} wrong" if bad else "all are right"
            )
            text.append(f"It calls {certain:,} of its answers certain, and {wrong}.")
            rate = f"1 in {certain / bad:,.0f} certain answers" if bad else "no certain answer"
            tile(f"{bad:,}", "wrong but certain", rate)
        if handed := self._to_a_human():
            share, target = handed
            text.append(
                f"Handing the least confident {percent(share, 1)} to a human would have left an "
                f"error of {target} among the rest."
            )
            tile(percent(share, 1), "to a human", f"for an error of {target} in the rest")
        return {"text": " ".join(text), "tiles": tiles}

    def _to_a_human(self) -> tuple[float, str] | None:
        """The share of images to hand over to at least halve the error, and the error then."""
        a = self.analysis
        if a.risk_coverage is None:
            return None
        for target in RISKS:
            reached = np.flatnonzero(a.risk_coverage["risk"] <= target)
            if target <= a.metrics["error"] / 2 and len(reached):
                return 1 - float(a.risk_coverage["coverage"][reached[-1]]), f"{100 * target:g}%"
        return None

    def errors(self) -> dict[str, Any] | None:
        a = self.analysis
        if a.correct is None:
            return None
        models = {name: model.metrics for name, model in self.models.items() if model.metrics}
        deviation = math.sqrt(a.metrics["error"] * (1 - a.metrics["error"]) / a.images)
        stars = "; ★ is the best" if len(models) > 1 else ""
        right, wrong = int(a.correct.sum()), int((~a.correct).sum())
        both = right and wrong
        more = {key: (key, "") for key in a.metrics if key not in METRICS} | MORE_METRICS
        return {
            "head": list(models),
            "rows": _metric_rows(METRICS, list(models.values())),
            "more": _metric_rows(more, list(models.values())),
            "caption": f"Lower is better{stars}. By chance of the images, an error has a standard "
            f"error of {percent(deviation)}.",
            "wrong": wrong,
            "found": a.table["wrong_uncertain"] / wrong if both else None,
            "doubted": a.table["correct_uncertain"] / right if both else None,
        }

    def risk(self) -> dict[str, Any] | None:
        a = self.analysis
        if a.risk_coverage is None or a.correct.all():
            return None
        coverage, error = a.risk_coverage["coverage"], a.metrics["error"]
        # Where the error is next to nothing, there is nothing to see.
        rises = coverage[np.argmax(a.risk_coverage["risk"] > 0.05 * error)]
        start = max(1 / a.images, min(0.9, math.floor(10 * rises) / 10 - 0.1))
        steps = np.searchsorted(coverage, np.linspace(start, 1, SLIDER_STEPS + 1) - 1e-9)
        shown = [
            {"name": name, "risk": _short(model.risk_coverage["risk"][steps])}
            for name, model in self.models.items()
            if model.risk_coverage is not None
        ]
        self.data["risk"] = {
            "coverage": _short(coverage[steps]),
            "accepted": (steps + 1).tolist(),
            "threshold": _short(np.sort(a.confidence)[::-1][steps]),
            "models": shown,
        }
        rows = [
            [percent(coverage[steps[k]], 1), *(percent(model["risk"][k]) for model in shown)]
            for k in range(0, SLIDER_STEPS + 1, SLIDER_STEPS // 20)
        ]
        return {
            "label": f"Error over the share of images accepted, from {percent(start, 0)} to 100%. "
            f"With all accepted it is {percent(error)}.",
            "numbers": _table("Risk", ["accepted", *(model["name"] for model in shown)], rows),
            "steps": SLIDER_STEPS,
            "start": SLIDER_STEPS * 9 // 10,
        }

    def calibration(self) -> dict[str, Any] | None:
        a = self.analysis
        if a.reliability is None:
            return None
        keys = ("count", "confidence", "accuracy")
        self.data["reliability"] = [
            {
                "name": name,
                "bins": [
                    {key: _short(one[key]) for key in keys}
                    for one in model.reliability
                    if one["count"]
                ],
            }
            for name, model in self.models.items()
            if model.reliability is not None
        ]
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
        return {
            "label": "Share of right answers over the probability of the predicted class, in bins; "
            f"calibration error {percent(a.metrics['ece'])}.",
            "numbers": _table("Bins", ["bin", "images", "mean probability", "right"], rows),
        }

    def uncertainty(self) -> list[dict[str, Any]]:
        a = self.analysis
        found = []
        for key, name in MEASURES.items():
            values = getattr(a, key)
            groups = {"all": values}
            if a.correct is not None:
                groups = {"right": values[a.correct], "wrong": values[~a.correct]}
            label = self._histogram(key, groups, name)
            found.append({"key": key, "name": name, "label": label, "mean": float(values.mean())})
        return found if self.has_intervals else found[:1]

    def _histogram(self, key: str, groups: Mapping[str, np.ndarray], name: str) -> str:
        """Put a histogram into the data; return a sentence that describes it."""
        groups = {group: values for group, values in groups.items() if len(values)}
        top = max(float(values.max()) for values in groups.values()) or 1.0
        edges = np.linspace(0, top, HISTOGRAM_BINS + 1)
        self.data["histograms"][key] = {
            "edges": _short(edges),
            "groups": [
                {
                    "name": group,
                    "total": len(values),
                    "counts": np.histogram(values, edges)[0].tolist(),
                }
                for group, values in groups.items()
            ],
        }
        medians = "; ".join(f"{group}: median {np.median(v):.3g}" for group, v in groups.items())
        return f"Histogram, {name}, in nats. {medians}."

    def other_images(self, ood: "Analysis") -> dict[str, Any]:
        a = self.analysis
        groups = {"these images": a.entropy, "other images": ood.entropy}
        scores = None
        if a.ood is not None:
            rows = [
                [name, f"{score['auroc']:.3f}", percent(score["fpr95"], 1)]
                for key, name in OOD_SCORES.items()
                if (score := a.ood["scores"].get(key))
            ]
            scores = _table("Scores", ["told apart by", "AUROC", "false alarms at 95%"], rows)
        return {
            "images": ood.images,
            "certain": float(ood.certain.mean()),
            "label": self._histogram("ood", groups, "entropy"),
            "scores": scores,
        }

    def layers(self, layers: "Sequence[LayerPosterior]") -> dict[str, Any]:
        self.data["tau"] = [
            {"name": layer.name, "tau": _short(layer.tau), "tau_bias": _short(layer.tau_bias)}
            for layer in layers
        ]
        top = max(layers, key=lambda layer: layer.tau)
        rows = [
            [
                layer.name,
                f"{layer.weights:,}",
                f"{layer.tau:.3g}",
                f"{layer.biases:,}",
                "–" if layer.tau_bias is None else f"{layer.tau_bias:.3g}",
            ]
            for layer in layers
        ]
        return {
            "label": "τ of each layer: " + "; ".join(f"{x.name} {x.tau:.3g}" for x in layers),
            "numbers": _table("Layers", ["layer", "weights", "τ", "biases", "τ of biases"], rows),
            "top": top,
            # w < 0 where w ~ N(1, tau^2)
            "flips": math.erfc(1 / (top.tau * math.sqrt(2))) / 2,
        }

    def training(self, curves: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, Any] | None:
        plots, rows = [], []

        def add(chart: str, name: str, lines: dict[str, dict], write: Callable) -> None:
            lines = {line: points for line, points in lines.items() if points["y"]}
            if not lines:
                return
            self.data.setdefault("curves", {})[chart] = [
                {"name": line, **points} for line, points in lines.items()
            ]
            ends = {line: write(points["y"][-1]) for line, points in lines.items()}
            rows.extend([line, name, end] for line, end in ends.items())
            told = "; ".join(f"{line} {end}" for line, end in ends.items())
            plots.append({"chart": chart, "label": f"{name} over iterations. At the end: {told}."})

        def of(key: str) -> dict[str, dict]:
            return {n: _line(curve, key, key == "loss") for n, curve in curves.items()}

        first, curve = next(iter(curves.items()))
        taus = {key[4:]: _line(curve, key, True) for key in curve if key.startswith("tau:")}
        add("test_error", "Test error", of("test_error"), percent)
        add("loss", "Training loss", of("loss"), "{:.4g}".format)
        add("taus", f"τ of the layers of {first}", taus, "{:.3g}".format)
        if not plots:
            return None
        return {"plots": plots, "numbers": _table("At the end", ["", "", "at the end"], rows)}

    # Single images

    def gallery(self) -> dict[str, Any] | None:
        a = self.analysis
        groups = {name: rows for name, rows in self._groups().items() if len(rows)}
        if not groups:
            return None
        limit = {name: RIGHT_GALLERY if name.startswith("right") else GALLERY for name in groups}
        shown = {name: rows[: limit[name]].tolist() for name, rows in groups.items()}
        images = self._described([index for rows in shown.values() for index in rows])
        left_out = [
            f"{len(shown[name])} of {len(rows):,} {name}"
            for name, rows in groups.items()
            if len(rows) > len(shown[name])
        ]
        columns = [
            {"key": "confidence", "name": "probability", "first": "descending"},
            {"key": "entropy", "name": "entropy", "first": "descending"},
        ]
        if self.has_intervals:
            columns.append({"key": "epistemic", "name": "epistemic", "first": "descending"})
        if a.labels is not None:
            columns.append({"key": "true", "name": "true label", "first": "ascending"})
        columns.append({"key": "index", "name": "index", "first": "ascending"})
        return {
            "groups": [
                {"name": name, "size": len(groups[name]), "images": [images[i] for i in rows]}
                for name, rows in shown.items()
            ],
            "columns": columns,
            "sort": "entropy" if a.labels is None else "confidence",
            "left_out": "; ".join(left_out),
        }

    def _groups(self) -> dict[str, np.ndarray]:
        """Indices of the images of the gallery, the most telling first."""
        a = self.analysis
        if a.correct is None:
            return {"uncertain": np.argsort(-a.entropy, kind="stable")}
        order = np.argsort(-a.confidence, kind="stable")
        right, certain = a.correct[order], a.certain[order]
        if not self.has_intervals:
            return {"wrong": order[~right]}
        return {
            "wrong but certain": order[~right & certain],
            "wrong and uncertain": order[~right & ~certain],
            "right but uncertain": order[right & ~certain][::-1],
        }

    def examples(self) -> list[dict[str, Any]]:
        """A few telling images, each with a heading."""
        a = self.analysis
        if not self.has_intervals:
            return []
        if a.correct is None:
            wanted = [
                ("Certain", a.certain, a.confidence),
                ("Uncertain", ~a.certain, a.epistemic),
            ]
        else:
            wanted = [
                ("Right and certain", a.correct & a.certain, a.confidence),
                ("Right, but uncertain", a.correct & ~a.certain, a.epistemic),
                ("Wrong, and the passes disagree", ~a.correct & ~a.certain, a.epistemic),
                ("Wrong, and sure of it", ~a.correct & a.certain, a.confidence),
            ]
        found = {
            heading: int(np.flatnonzero(mask)[score[mask].argmax()])
            for heading, mask, score in wanted
            if mask.any()
        }
        images = self._described(list(found.values()))
        return [{**images[index], "heading": heading} for heading, index in found.items()]

    def box_caption(self) -> str:
        a = self.analysis
        first = f" (the first {SHOWN_PASSES} of {a.draws:,})" if a.draws > SHOWN_PASSES else ""
        text = (
            f"A dot is one pass{first}, the box holds the middle half, the whiskers are the "
            f"{self.level} credible interval."
        )
        if a.labels is not None:
            text += " ✓ is the true class."
        if a.classes > SHOWN_CLASSES:
            text += f" Shown are {SHOWN_CLASSES} of {a.classes:,} classes."
        return text

    def _described(self, indices: list[int]) -> dict[int, dict[str, Any]]:
        """What the page says of images; what a chart needs goes into the data."""
        pictures = self._pictures(indices)
        described = {}
        for index in indices:
            image, classes = self._image(index)
            self.data["images"][str(index)] = {**image, "classes": classes}
            described[index] = {**image, "index": index, "picture": pictures.get(index)}
        return described

    def _image(self, index: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """What is known of one image, and the boxes of its classes."""
        a = self.analysis
        predicted = int(a.predicted[index])
        true = None if a.labels is None else int(a.labels[index])
        telling = [predicted] if true in (None, predicted) else [predicted, true]
        others = [c for c in np.argsort(-a.mean[index], kind="stable").tolist() if c not in telling]
        classes = sorted((telling + others)[:SHOWN_CLASSES])
        passes = np.asarray(self.draws.probabilities[:, index])[:, classes]
        quartiles = np.quantile(passes, (0.25, 0.5, 0.75), axis=0)
        boxes = [
            {
                "class": c,
                "box": _short(np.array([a.lower[index, c], *quartiles[:, k], a.upper[index, c]])),
                # In thousandths, which the eye cannot tell from more.
                "passes": np.rint(1000 * passes[:SHOWN_PASSES, k]).astype(int).tolist(),
            }
            for k, c in enumerate(classes)
        ]
        told = "; ".join(
            "{}: median {:.2f}, interval {:.2f} to {:.2f}".format(
                self.names[one["class"]], one["box"][2], one["box"][0], one["box"][4]
            )
            for one in boxes
            if one["class"] in telling or one["box"][4] >= 0.005
        )
        taken = f"taken for {self.names[predicted]}"
        is_wrong = true not in (None, predicted)
        names = self.draws.meta.get("names")
        image = {
            "true": true,
            "predicted": predicted,
            "certain": bool(a.certain[index]),
            "name": str(names[index]) if names else None,
            "alt": f"Image {index}, a {self.names[true]} {taken}"
            if is_wrong
            else f"Image {index}, {taken}",
            "label": f"Probabilities of the passes. {told}.",
        }
        for key in ("confidence", "entropy", "aleatoric", "epistemic"):
            image[key] = _short(float(getattr(a, key)[index]))
        return image, boxes

    def _pictures(self, indices: list[int]) -> dict[int, str]:
        """Data URIs of images."""
        if self.read_images is None or not indices:
            return {}
        pixels = np.asarray(self.read_images(indices))
        if pixels.ndim != 4 or len(pixels) != len(indices) or pixels.shape[1] not in (1, 3):
            raise BayesCaffeError(
                f"images of shape {pixels.shape}, expected {len(indices)} x 1 or 3 channels x "
                "height x width"
            )
        if pixels.dtype != np.uint8:
            low, high = float(pixels.min()), float(pixels.max())
            pixels = (255 * (pixels - low) / ((high - low) or 1)).astype(np.uint8)
        return {index: _data_uri(image) for index, image in zip(indices, pixels, strict=True)}

    def origin(self, command: str | None) -> list[tuple[str, str]]:
        """Where the numbers come from, for the foot of the page."""
        meta = self.draws.meta
        facts = {"passes": f"{self.analysis.draws:,}", "seed": meta.get("seed")}
        for key in ("net", "weights"):
            digest = meta.get(f"{key}_sha256")
            if meta.get(key) is not None:
                facts[key] = f"{meta[key]} (SHA-256 {digest[:16]}…)" if digest else meta[key]
        facts["data"] = meta.get("data")
        facts["drawn"] = meta.get("created")
        drawn_by = meta.get("version")
        other = f", draws by {drawn_by}" if drawn_by not in (None, __version__) else ""
        facts["made by"] = f"bayescaffe {__version__}{other}"
        facts["command"] = command
        return [(name, str(value)) for name, value in facts.items() if value is not None]


def _images(count: int) -> str:
    return "1 image" if count == 1 else f"{count:,} images"


def _table(name: str, head: list[str], rows: list[list[str]]) -> dict[str, Any]:
    return {"name": name, "head": head, "rows": rows}


def _metric_rows(named: Mapping[str, tuple[str, str]], models: list[dict]) -> list[dict[str, Any]]:
    """Rows of the error table, for the metrics that the first model has."""
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


def _line(curve: Mapping[str, np.ndarray], key: str, positive: bool) -> dict[str, list]:
    """The measured points of a column, or as many of them as a chart can show."""
    y = np.asarray(curve.get(key, []), float)
    x = np.asarray(curve["iteration"], float)[: len(y)]
    measured = np.isfinite(y) & ((y > 0) | (not positive))
    x, y = x[measured], y[measured]
    chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), CURVE_POINTS)).round().astype(int))
    return {"x": _short(x[chosen]), "y": _short(y[chosen])}


def _short(value: Any) -> Any:
    """Numbers for JSON, with the digits that a chart can show; None for what is no number."""
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, np.ndarray):
        return [_short(one) for one in value.tolist()]
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _data_uri(image: np.ndarray) -> str:
    """An image, channels x height x width, as an address that holds it: PNG, or JPEG if large."""
    from PIL import Image

    # From blue, green, red.
    picture = Image.fromarray(image[0] if len(image) == 1 else np.moveaxis(image[::-1], 0, -1))
    kind = "png" if max(picture.size) <= PNG_SIDE else "jpeg"
    picture.thumbnail((JPEG_SIDE, JPEG_SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, kind, optimize=True)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
