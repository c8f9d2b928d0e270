"""The report: one HTML file that tells a person what the draws say and how far to trust them.

The file holds all it shows (styles, script, numbers, images) and asks the network for nothing. Text
and tables are written here; the charts are drawn by report_template/report.js in the reader's
browser, so that they fit the screen and the theme. The same input gives the same bytes.
"""

import base64
import html
import io
import json
import math
import os
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bayescaffe import __version__
from bayescaffe.errors import BayesCaffeError
from bayescaffe.scratch import scratch_file

if TYPE_CHECKING:
    from bayescaffe.analysis import Analysis
    from bayescaffe.draws import Draws
    from bayescaffe.images import Images
    from bayescaffe.posterior import LayerPosterior

# What bounds the size of the file.
GALLERY = {"wrong but certain": 60, "wrong": 60, "wrong and uncertain": 60, "right but uncertain": 24,
           "least certain": 60}  # fmt: skip
SHOWN_CLASSES = 10
SHOWN_PASSES = 100
CURVE_POINTS = 400
HISTOGRAM_BINS = 30
SLIDER_STEPS = 200
SMALL_IMAGE, LARGE_IMAGE = 64, 160

METRICS = {
    "error": ("Error", "images whose most probable class is wrong"),
    "single_pass_error": ("Error of a single pass", "mean over the passes"),
    "nll": ("Negative log-likelihood", "nats; punishes being sure and wrong"),
    "brier": ("Brier score", "squared distance of the probabilities from the truth"),
    "ece": ("Calibration error (ECE)", "how far probabilities are from how often it is right"),
    "adaptive_ece": ("Adaptive ECE", "the same with equally many images in each bin"),
    "aurc": ("AURC", "mean error over all shares of accepted images"),
    "excess_aurc": ("Excess AURC", "above the AURC of a perfect order of the images"),
    "aurc_epistemic": ("AURC by epistemic uncertainty", "images ordered by it, not by probability"),
}
MAIN_METRICS = ("error", "single_pass_error", "nll", "brier", "ece", "aurc")
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


def write_report(
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
    names = [str(name) for name in names]
    if len(names) != analysis.classes:
        raise BayesCaffeError(f"{len(names)} class names, expected {analysis.classes}")
    for name, other in (baselines or {}).items():
        if other.images != analysis.images or other.classes != analysis.classes:
            raise BayesCaffeError(
                f"baseline {name}: {other.images} images of {other.classes} classes, expected the "
                f"report's {analysis.images} of {analysis.classes}"
            )
    page = _Page(
        draws, analysis, names, dict(curves or {}), list(layers or []), ood, images,
        dict(baselines or {}),
    )  # fmt: skip
    text = page.html(title, command)
    out = Path(out)
    with scratch_file(out) as scratch:
        scratch.write_text(text, encoding="utf-8")
    return out


class Html(str):
    """Text that is markup already. All other text is escaped where it becomes part of the page."""


def tag(name: str, *children: Any, **attributes: Any) -> Html:
    """An element; `class_`, `data_key` … stand for class, data-key; None leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in ("img", "br", "input"):
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(parts: Iterable[Any], separator: str = "") -> Html:
    """Parts of a page in a row; None is nothing."""
    texts = (p if isinstance(p, Html) else html.escape(str(p)) for p in parts if p is not None)
    return Html(separator.join(texts))


def percent(value: float, digits: int = 2) -> str:
    return f"{100 * value:.{digits}f}%"


def images_of(count: int) -> str:
    return "1 image" if count == 1 else f"{count:,} images"


class _Page:
    """The parts of the page. A part puts the numbers of its charts into `data`."""

    def __init__(self, draws, analysis, names, curves, layers, ood, images, baselines) -> None:
        self.draws, self.analysis, self.names = draws, analysis, names
        self.curves, self.layers, self.ood, self.baselines = curves, layers, ood, baselines
        self.images = getattr(images, "read", images)
        # Passes of a net without anything random are all equal.
        self.has_intervals = analysis.passes > 1 and draws.meta.get("is_random", True)
        self.level = f"{100 * analysis.level:g}%"
        self.data: dict[str, Any] = {
            "class_names": names,
            "has_intervals": self.has_intervals,
            "total": analysis.images,
            "level": analysis.level,
            "histograms": {},
            "images": {},
            "box_caption": self._box_caption(),
        }

    def html(self, title: str, command: str | None) -> str:
        self.groups = self._groups()
        self.examples = self._examples()
        chosen = [index for _, index in self.examples]
        chosen += [index for group in self.groups.values() for index in group]
        self.pictures = self._pictures(list(dict.fromkeys(chosen)))
        for index in chosen:
            self.data["images"][str(index)] = self._image(index)

        sections = [
            ("summary", "Summary", self._summary(title)),
            ("outcomes", "Errors", self._errors()),
            ("risk", "When to ask a human", self._risk()),
            ("gallery", "Mistakes", self._gallery()),
            ("examples", "Single images", self._example_section()),
            ("calibration", "Calibration", self._calibration()),
            ("uncertainty", "Uncertainty", self._uncertainty()),
            ("ood", "Other images", self._ood()),
            ("layers", "Layers", self._layers()),
            ("training", "Training", self._training()),
        ]
        sections = [section for section in sections if section[2] is not None]
        links = [tag("li", tag("a", name, href=f"#{key}")) for key, name, _ in sections]
        body = [
            tag("section", content, id=key, aria_labelledby=f"{key}-title",
                class_="plain" if key == "summary" else None)
            for key, _, content in sections
        ]  # fmt: skip
        files = resources.files("bayescaffe") / "report_template"
        # `<` would let a class named "</script>" end the script.
        data = json.dumps(self.data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return string.Template((files / "report.html").read_text("utf-8")).substitute(
            title=html.escape(title),
            css=(files / "report.css").read_text("utf-8").rstrip(),
            script=(files / "report.js").read_text("utf-8").rstrip(),
            nav=tag("ul", *links),
            body=join(body, "\n"),
            footer=self._footer(command),
            data=data.replace("<", "\\u003c"),
        )

    # Summary and tables

    def _summary(self, title: str) -> Html:
        a = self.analysis
        passes = (
            f"{a.passes:,} times, each time with weights drawn anew from what training learned,"
            if self.has_intervals
            else "once"
        )
        text = [f"The net was run {passes} on {images_of(a.images)} of {a.classes:,} classes."]
        tiles = []
        if a.correct is not None:
            error, wrong = a.metrics["error"], int((~a.correct).sum())
            what = "mean of the passes" if self.has_intervals else "answer"
            text.append(f"The {what} is wrong on {wrong:,} of them ({percent(error)}).")
            others = [f"{name}: {percent(b.metrics['error'])}"
                      for name, b in self.baselines.items() if b.metrics]  # fmt: skip
            tiles.append((percent(error), "error", ", ".join(others) or f"{images_of(wrong)}"))
        if self.has_intervals:
            certain = int(a.certain.sum())
            tiles.append((percent(certain / a.images, 1), "certain",
                          f"{certain:,} answers whose {self.level} interval meets no other"))  # fmt: skip
            if a.table is not None:
                bad = a.table["wrong_certain"]
                text.append(
                    f"It calls {certain:,} of its answers certain, and "
                    + (f"{bad:,} of those {'is' if bad == 1 else 'are'} wrong." if bad
                       else "none of those is wrong.")
                )  # fmt: skip
                rate = f"1 in {certain / bad:,.0f} certain answers" if bad else "no certain answer"
                tiles.append((f"{bad:,}", "wrong but certain", rate))
        handed = self._to_a_human()
        if handed:
            share, target = handed
            text.append(
                f"Handing the least confident {percent(share, 1)} to a human would have left an "
                f"error of {target} among the rest."
            )
            tiles.append((percent(share, 1), "to a human", f"for an error of {target} in the rest"))
        warnings = [tag("p", "Note: ", warning, class_="note") for warning in a.warnings]
        return join([
            tag("h1", title, id="summary-title"),
            tag("p", " ".join(text), class_="lead"),
            *warnings,
            tag("ul", *(
                tag("li", tag("strong", number), tag("b", name), tag("span", more))
                for number, name, more in tiles
            ), class_="tiles") if tiles else None,
        ])  # fmt: skip

    def _to_a_human(self) -> tuple[float, str] | None:
        """The share of images to hand over for a much smaller error, and that error."""
        a = self.analysis
        if a.risk_coverage is None:
            return None
        for target in RISKS:
            reached = np.flatnonzero(a.risk_coverage["risk"] <= target)
            if target <= a.metrics["error"] / 2 and len(reached):
                return 1 - float(a.risk_coverage["coverage"][reached[-1]]), f"{100 * target:g}%"
        return None

    def _errors(self) -> Html | None:
        a = self.analysis
        if a.correct is None:
            return None
        models = {"this net": a, **{n: b for n, b in self.baselines.items() if b.metrics}}
        head = [tag("th", name, scope="col", class_="number") for name in models]
        head = tag("thead", tag("tr", tag("th", "measure", scope="col"), *head))
        rows = {key: self._metric_row(key, models) for key in a.metrics}
        main = [row for key, row in rows.items() if key in MAIN_METRICS]
        more = [row for key, row in rows.items() if key not in MAIN_METRICS]
        deviation = math.sqrt(a.metrics["error"] * (1 - a.metrics["error"]) / a.images)
        caption = (
            f"Lower is better{'; ★ is the best' if len(models) > 1 else ''}. By chance of the "
            f"images, an error has a standard error of {percent(deviation)}."
        )
        table = tag("table", tag("caption", caption), head, tag("tbody", *main))
        return join([
            tag("h2", "How often it is wrong", id="outcomes-title"),
            tag("div",
                self._outcomes(),
                tag("div",
                    table,
                    tag("details", tag("summary", "More measures"),
                        tag("table", head, tag("tbody", *more))) if more else None,
                    class_="scroll", tabindex=0, role="region", aria_label="Measures"),
                class_="columns uneven" if self.has_intervals else None),
        ])  # fmt: skip

    def _metric_row(self, key: str, models: "Mapping[str, Analysis]") -> Html:
        name, meaning = METRICS.get(key, (key.replace("_", " "), ""))
        values = [model.metrics.get(key) for model in models.values()]
        best = min((value for value in values if value is not None), default=None)
        cells = []
        for value in values:
            shown = "–" if value is None else percent(value) if "error" in key else f"{value:.3g}"
            star = tag("span", " ★", title="best") if len(models) > 1 and value == best else None
            cells.append(tag("td", shown, star, class_="number best" if star else "number"))
        return tag("tr", tag("th", name, tag("small", meaning), scope="row"), *cells)

    def _outcomes(self) -> Html | None:
        a = self.analysis
        if a.table is None or not self.has_intervals:
            return None
        colours = {"correct": ("good", "calm"), "wrong": ("bad", "warn")}
        rows = [
            tag("tr", tag("th", row, scope="row"), *(
                tag("td", tag("b", f"{a.table[f'{row}_{column}']:,}"),
                    percent(a.table[f"{row}_{column}"] / a.images), class_=colour)
                for column, colour in zip(("certain", "uncertain"), colours[row], strict=True)
            ))
            for row in ("correct", "wrong")
        ]  # fmt: skip
        kind = "highest-density" if a.interval == "hdi" else "equal-tailed"
        return tag("div", tag("table",
            tag("caption", f"Certain: the {self.level} credible interval ({kind}) of the predicted "
                "class's probability overlaps that of no other class."),
            tag("thead", tag("tr", tag("td", ""), tag("th", "certain", scope="col"),
                tag("th", "uncertain", scope="col"))),
            tag("tbody", *rows),
            class_="outcomes"), self._flagged())  # fmt: skip

    def _flagged(self) -> Html | None:
        """How well `uncertain` finds the mistakes."""
        table = self.analysis.table
        wrong = table["wrong_certain"] + table["wrong_uncertain"]
        right = table["correct_certain"] + table["correct_uncertain"]
        if not wrong or not right:
            return None
        return tag("p", "Calling an answer uncertain finds ",
                   tag("b", percent(table["wrong_uncertain"] / wrong, 0)), " of the mistakes, and "
                   "casts doubt on ", tag("b", percent(table["correct_uncertain"] / right, 1)),
                   " of the right answers.", class_="after")  # fmt: skip

    # Charts of the whole set

    def _risk(self) -> Html | None:
        a = self.analysis
        if a.risk_coverage is None or not (~a.correct).any():
            return None
        curve = a.risk_coverage
        # Where the error is next to nothing, there is nothing to see.
        rises = curve["coverage"][np.argmax(curve["risk"] > 0.05 * a.metrics["error"])]
        start = max(1 / a.images, min(0.9, math.floor(10 * rises) / 10 - 0.1))
        steps = np.linspace(start, 1, SLIDER_STEPS + 1)
        falling = np.sort(a.confidence)[::-1]
        shown = []
        for name, b in {"this net": a, **self.baselines}.items():
            if b.risk_coverage is not None:
                at = np.searchsorted(b.risk_coverage["coverage"], steps - 1e-9)
                shown.append({
                    "name": name,
                    "coverage": _short(b.risk_coverage["coverage"][at]),
                    "risk": _short(b.risk_coverage["risk"][at]),
                })  # fmt: skip
        count = np.rint(np.array(shown[0]["coverage"]) * a.images).astype(int)
        shown[0]["threshold"] = _short(falling[np.clip(count - 1, 0, None)])
        self.data["risk"] = shown
        table = _table(
            ["accepted", *(model["name"] for model in shown)],
            [
                [percent(shown[0]["coverage"][k], 1), *(percent(m["risk"][k]) for m in shown)]
                for k in range(0, SLIDER_STEPS + 1, SLIDER_STEPS // 20)
            ],
        )
        label = (
            f"Error over the share of images accepted, from {percent(start, 0)} to 100%. With all "
            f"accepted it is {percent(a.metrics['error'])}."
        )
        return join([
            tag("h2", "When to ask a human", id="risk-title"),
            tag("p", "Sort the images by the probability of the predicted class, accept the most "
                "confident, and let a human look at the rest. The fewer are accepted, the fewer "
                "errors are left.", class_="soft"),
            tag("div",
                tag("figure", _plot("risk", label), table),
                tag("div",
                    tag("label", "Share of images to accept", for_="coverage"),
                    tag("input", type="range", id="coverage", min=0, max=SLIDER_STEPS,
                        value=SLIDER_STEPS * 9 // 10),
                    tag("output", "", id="coverage-says", for_="coverage", aria_live="polite"),
                    tag("p", "A threshold chosen on these very images does a little worse on new "
                        "ones.", class_="soft small"),
                    class_="slider"),
                class_="columns"),
        ])  # fmt: skip

    def _calibration(self) -> Html | None:
        a = self.analysis
        if a.reliability is None:
            return None
        models = {"this net": a, **self.baselines}
        shown = [
            {"name": name, "bins": [
                {key: _short(b[key]) for key in ("count", "confidence", "accuracy")}
                for b in model.reliability if b["count"]
            ]}
            for name, model in models.items() if model.reliability is not None
        ]  # fmt: skip
        self.data["reliability"] = shown
        table = _table(
            ["bin", "images", "mean probability", "right"],
            [
                [f"{b['lower']:.2f}–{b['upper']:.2f}", f"{b['count']:,}",
                 percent(b["confidence"], 1), percent(b["accuracy"], 1)]
                for b in a.reliability if b["count"]
            ],
        )  # fmt: skip
        ece = a.metrics.get("ece")
        label = "Share of right answers over the probability of the predicted class, in bins" + (
            f"; calibration error {percent(ece)}." if ece is not None else "."
        )
        return join([
            tag("h2", "Does it mean what it says?", id="calibration-title"),
            tag("div",
                tag("figure", _plot("reliability", label), table),
                tag("div",
                    tag("p", "On the dotted diagonal, answers given with a probability of 80% are "
                        "right 80% of the time. Below it the net is too sure of itself, above it "
                        "too modest."),
                    tag("p", "The size of a mark tells how many images are in its bin. Bins of few "
                        "images jump about by chance.", class_="soft")),
                class_="columns"),
        ])  # fmt: skip

    def _uncertainty(self) -> Html:
        a = self.analysis
        measures = MEASURES if self.has_intervals else {"entropy": MEASURES["entropy"]}
        labels = {}
        for key in measures:
            values = getattr(a, key)
            groups = {"all": values}
            if a.correct is not None:
                groups = {"right": values[a.correct], "wrong": values[~a.correct]}
            labels[key] = self._histogram(key, groups, measures[key])
        buttons = [
            tag("button", name, type="button", class_="pill", data_show=key,
                data_label=labels[key], aria_pressed="true" if key == "entropy" else "false")
            for key, name in measures.items()
        ]  # fmt: skip
        means = ", ".join(f"{key} {getattr(a, key).mean():.4f}" for key in measures)
        return join([
            tag("h2", "How unsure it is, and why", id="uncertainty-title"),
            tag("p", "The entropy of a prediction is 0 when one class has all the probability. "
                + ("One part of it each pass has by itself: the image is hard to tell (aleatoric). "
                   "The rest comes from passes that disagree: the net has not learned enough to "
                   "know (epistemic)." if self.has_intervals else ""), class_="soft"),
            tag("fieldset", tag("legend", "Show"), *buttons, class_="chips")
            if len(buttons) > 1 else None,
            tag("figure",
                _plot("histogram", labels["entropy"], data_measure="entropy", id="histogram"),
                tag("figcaption", f"Share of each group on a logarithmic scale. Means in nats: {means}.")),
        ])  # fmt: skip

    def _histogram(self, key: str, groups: Mapping[str, np.ndarray], name: str) -> str:
        """Put a histogram into the data; return a sentence that describes it."""
        groups = {group: values for group, values in groups.items() if len(values)}
        top = max(float(values.max()) for values in groups.values()) or 1.0
        edges = np.linspace(0, top, HISTOGRAM_BINS + 1)
        self.data["histograms"][key] = {
            "edges": _short(edges),
            "groups": [
                {"name": group, "total": len(values),
                 "counts": np.histogram(values, edges)[0].tolist()}
                for group, values in groups.items()
            ],
        }  # fmt: skip
        medians = "; ".join(f"{group}: median {np.median(v):.3g}" for group, v in groups.items())
        return f"Histogram, {name}, in nats. {medians}."

    def _ood(self) -> Html | None:
        a = self.analysis
        if self.ood is None:
            return None
        label = self._histogram(
            "ood", {"these images": a.entropy, "other images": self.ood.entropy}, "entropy"
        )
        certain = float(self.ood.certain.mean())
        scores = None
        if a.ood is not None:
            scores = _table(
                ["told apart by", "AUROC", "false alarms at 95%"],
                [
                    [name, f"{a.ood['scores'][key]['auroc']:.3f}",
                     percent(a.ood["scores"][key]["fpr95"], 1)]
                    for key, name in OOD_SCORES.items() if key in a.ood["scores"]
                ],
                folded=False,
            )  # fmt: skip
        return join([
            tag("h2", "Images of another kind", id="ood-title"),
            tag("p", f"The same net was shown {images_of(self.ood.images)} that are nothing it was "
                "trained for. It should be unsure of all of them"
                + (f"; it calls {percent(certain, 1)} of its answers certain." if self.has_intervals
                   else "."), class_="soft"),
            tag("div",
                tag("figure", _plot("histogram", label, data_measure="ood"),
                    tag("figcaption", "Entropy; share of each set on a logarithmic scale.")),
                tag("div", scores, tag("p", "AUROC: how often another image has the higher score "
                    "when compared with one of these; 0.5 is chance, 1 is perfect. False alarms: "
                    "share of these images above a threshold that finds 95% of the others.",
                    class_="soft small after")) if scores else None,
                class_="columns"),
        ])  # fmt: skip

    # The net

    def _layers(self) -> Html | None:
        if not self.layers:
            return None
        self.data["tau"] = [
            {"name": x.name, "tau": _short(x.tau), "tau_bias": _short(x.tau_bias)}
            for x in self.layers
        ]
        top = max(self.layers, key=lambda layer: layer.tau)
        flips = math.erfc(1 / (top.tau * math.sqrt(2))) / 2 if top.tau else 0.0
        table = _table(
            ["layer", "weights", "τ", "biases", "τ of biases"],
            [
                [x.name, f"{x.weights:,}", f"{x.tau:.3g}", f"{x.biases:,}",
                 "–" if x.tau_bias is None else f"{x.tau_bias:.3g}"]
                for x in self.layers
            ],
        )  # fmt: skip
        label = "τ of each layer: " + "; ".join(f"{x.name} {x.tau:.3g}" for x in self.layers)
        return join([
            tag("h2", "Which layers are unsure", id="layers-title"),
            tag("div",
                tag("figure", _plot("tau", label), tag("figcaption", "Logarithmic scale."), table),
                tag("div",
                    tag("p", "τ is the standard deviation of a layer's weights, as a multiple of "
                        "each weight's mean. A layer with a small τ knows its weights; one with a "
                        "large τ may be larger than it needs to be."),
                    tag("p", f"The least sure is {top.name} with τ = {top.tau:.2f}: a draw of one "
                        f"of its weights has the other sign with a probability of "
                        f"{percent(flips, 1)}.", class_="soft")),
                class_="columns"),
        ])  # fmt: skip

    def _training(self) -> Html | None:
        shown = []
        for name, curve in self.curves.items():
            iteration = np.asarray(curve["iteration"], float)
            lines = {
                key: _thin(iteration, np.asarray(curve[key], float), positive=key == "loss")
                for key in ("loss", "test_error") if key in curve
            }  # fmt: skip
            shown.append({"name": name, **lines})
        plots, rows = [], []
        for key, name in (("test_error", "Test error"), ("loss", "Training loss")):
            ends = [(c["name"], c[key]["y"][-1]) for c in shown if c.get(key, {}).get("y")]
            if not ends:
                continue
            write = percent if key == "test_error" else "{:.4g}".format
            rows += [[curve, name.lower(), write(value)] for curve, value in ends]
            label = f"{name} over iterations. At the end: " + "; ".join(
                f"{curve} {write(value)}" for curve, value in ends
            )
            plots.append(tag("figure", _plot(key, label)))
        if not plots:
            return None
        self.data["curves"] = shown
        name, curve = next(iter(self.curves.items()))
        taus = {
            key.removeprefix("tau:"): _thin(np.asarray(curve["iteration"], float), values, True)
            for key, values in curve.items() if key.startswith("tau:")
        }  # fmt: skip
        taus = {layer: line for layer, line in taus.items() if line["y"]}
        if taus:
            self.data["tau_curve"] = [{"name": layer, **line} for layer, line in taus.items()]
            label = f"τ of the weights of each layer of {name} over iterations. At the end: "
            label += "; ".join(f"{layer} {line['y'][-1]:.3g}" for layer, line in taus.items())
            plots.append(tag("figure", _plot("taus", label)))
        return join([
            tag("h2", "How it learned", id="training-title"),
            tag("p", "Dotted lines mark the last test. Tests while training use few passes, often "
                "one, so they can be worse than the error above. The loss is shown without the "
                "prior's part.", class_="soft"),
            tag("div", *plots, class_="columns"),
            _table(["curve", "at the end", ""], rows),
        ])  # fmt: skip

    # Single images

    def _groups(self) -> dict[str, list[int]]:
        """The images of the gallery."""
        a = self.analysis
        if a.correct is None:
            order = np.argsort(-a.entropy, kind="stable")
            groups = {"least certain": order}
            self.group_sizes = {"least certain": a.images}
        else:
            order = np.argsort(-a.confidence, kind="stable")
            wrong = ~a.correct[order]
            certain = a.certain[order]
            groups = {"wrong": order[wrong]}
            if self.has_intervals:
                groups = {
                    "wrong but certain": order[wrong & certain],
                    "wrong and uncertain": order[wrong & ~certain],
                    "right but uncertain": order[~wrong & ~certain][::-1],
                }
            groups = {name: indices for name, indices in groups.items() if len(indices)}
            self.group_sizes = {name: len(indices) for name, indices in groups.items()}
        return {name: indices[: GALLERY[name]].tolist() for name, indices in groups.items()}

    def _gallery(self) -> Html | None:
        a = self.analysis
        if not self.groups:
            return None
        filters = [
            tag("button", f"{name} ({self.group_sizes[name]:,})", type="button", class_="pill",
                data_filter=name, aria_pressed="true" if number == 0 else "false")
            for number, name in enumerate(self.groups)
        ]  # fmt: skip
        columns = [
            ("confidence", "probability", "descending"),
            ("entropy", "entropy", "descending"),
        ]
        if self.has_intervals:
            columns.append(("epistemic", "epistemic", "descending"))
        if a.labels is not None:
            columns.append(("true", "true label", "ascending"))
        columns.append(("index", "index", "ascending"))
        chosen = "confidence" if a.labels is not None else "entropy"
        head = [tag("th", tag("span", "image", class_="hidden"), role="columnheader", scope="col")]
        head += [
            tag("th", tag("button", name, type="button", class_="pill"), role="columnheader",
                scope="col", data_key=key, data_first=first,
                aria_sort="descending" if key == chosen else None)
            for key, name, first in columns
        ]  # fmt: skip
        rows = [
            self._row(group, index, [key for key, *_ in columns])
            for group, indices in self.groups.items()
            for index in indices
        ]
        left_out = [
            f"{len(self.groups[name]):,} of {size:,} {name}"
            for name, size in self.group_sizes.items() if size > len(self.groups[name])
        ]  # fmt: skip
        title = "The images it got wrong" if a.correct is not None else "The images it is unsure of"
        return join([
            tag("h2", title, id="gallery-title"),
            tag("p", "Choose an image to see what every pass said of it."
                + (f" To keep the file small, it holds {'; '.join(left_out)}." if left_out else ""),
                class_="soft"),
            tag("fieldset", tag("legend", "Show"), *filters, class_="chips")
            if len(filters) > 1 else None,
            tag("table",
                tag("thead", tag("tr", *head, role="row"), role="rowgroup"),
                tag("tbody", *rows, role="rowgroup"),
                class_="gallery", role="table", data_sort=chosen, aria_labelledby="gallery-title"),
            tag("p", "", id="gallery-says", class_="soft small", role="status"),
        ])  # fmt: skip

    def _row(self, group: str, index: int, columns: list[str]) -> Html:
        a = self.analysis
        true = None if a.labels is None else int(a.labels[index])
        predicted = self.names[a.predicted[index]]
        verdict = [predicted]
        if true is not None and true != a.predicted[index]:
            verdict = [self.names[true], tag("span", " → ", class_="arrow"), predicted]
        picture = self.pictures.get(index)
        inside = tag("img", src=picture, alt=self._alt(index)) if picture else f"{self._alt(index)}"
        cells = {
            "confidence": tag("span", f"{a.confidence[index]:.3f}", " sure"),
            "entropy": f"entropy {a.entropy[index]:.3f}",
            "epistemic": f"epistemic {a.epistemic[index]:.3f}",
            "true": join(verdict),
            "index": self.data["images"][str(index)].get("name", f"# {index}"),
        }
        return tag(
            "tr",
            tag("td", tag("button", inside, type="button"), role="cell", class_="picture"),
            *(tag("td", cells[key], role="cell", data_column=key) for key in columns),
            role="row",
            data_group=group,
            data_index=index,
            data_confidence=f"{a.confidence[index]:.6g}",
            data_entropy=f"{a.entropy[index]:.6g}",
            data_epistemic=f"{a.epistemic[index]:.6g}",
            data_true=true,
        )

    def _alt(self, index: int) -> str:
        a = self.analysis
        predicted = self.names[a.predicted[index]]
        if a.labels is None or a.labels[index] == a.predicted[index]:
            return f"Image {index}, taken for {predicted}"
        return f"Image {index}, a {self.names[a.labels[index]]} taken for {predicted}"

    def _examples(self) -> list[tuple[str, int]]:
        """A few telling images, each with a heading."""
        a = self.analysis
        if not self.has_intervals:
            return []
        everything = np.ones(a.images, bool)
        right = everything if a.correct is None else a.correct
        wanted = [
            ("Right and certain" if a.correct is not None else "Certain", right & a.certain,
             a.confidence),
            ("Right, but uncertain" if a.correct is not None else "Uncertain", right & ~a.certain,
             a.epistemic),
        ]  # fmt: skip
        if a.correct is not None:
            wanted += [
                ("Wrong, and the passes disagree", ~right & ~a.certain, a.epistemic),
                ("Wrong, and sure of it", ~right & a.certain, a.confidence),
            ]
        return [
            (name, int(np.flatnonzero(mask)[score[mask].argmax()]))
            for name, mask, score in wanted if mask.any()
        ]  # fmt: skip

    def _example_section(self) -> Html | None:
        if not self.examples:
            return None
        parts = []
        for heading, index in self.examples:
            image, picture = self.data["images"][str(index)], self.pictures.get(index)
            true = "" if image["true"] is None else f"Is {self.names[image['true']]}, taken"
            text = f"{true or 'Taken'} for {self.names[image['predicted']]} with {image['confidence']:.3f}."
            parts.append(tag("div",
                tag("img", src=picture, alt=self._alt(index)) if picture else None,
                tag("div", tag("h3", heading), tag("p", text, class_="soft small")),
                tag("figure", _plot("box", image["label"], data_image=index)),
                class_="example"))  # fmt: skip
        return join([
            tag("h2", "What the passes say of one image", id="examples-title"),
            tag("p", self._box_caption(), class_="soft"),
            tag("div", *parts, class_="columns"),
        ])  # fmt: skip

    def _box_caption(self) -> str:
        a = self.analysis
        dots = "A dot is one pass"
        if a.passes > SHOWN_PASSES:
            dots += f" (the first {SHOWN_PASSES} of {a.passes:,})"
        text = f"{dots}, the box holds the middle half, the whiskers are the {self.level} credible interval."
        if a.labels is not None:
            text += " ✓ is the true class."
        if a.classes > SHOWN_CLASSES:
            text += f" Shown are {SHOWN_CLASSES} of {a.classes:,} classes."
        return text

    def _image(self, index: int) -> dict[str, Any]:
        """All that the page knows of one image."""
        a = self.analysis
        true = None if a.labels is None else int(a.labels[index])
        predicted = int(a.predicted[index])
        order = np.argsort(-a.mean[index], kind="stable").tolist()
        first = [predicted] + [true] * (true is not None and true != predicted)
        classes = sorted([*first, *(c for c in order if c not in first)][:SHOWN_CLASSES])
        passes = np.asarray(self.draws.probabilities[:, index])[:, classes]
        quartiles = np.quantile(passes, (0.25, 0.5, 0.75), axis=0)
        shown = [
            {
                "class": c,
                "box": _short(np.array([a.lower[index, c], *quartiles[:, k], a.upper[index, c]])),
                # In thousandths, which the eye cannot tell from more.
                "passes": np.rint(1000 * passes[:SHOWN_PASSES, k]).astype(int).tolist(),
            }
            for k, c in enumerate(classes)
        ]
        names = self.draws.meta.get("names")
        return {
            "true": true,
            "predicted": predicted,
            "certain": bool(a.certain[index]),
            **{key: _short(getattr(a, key)[index])
               for key in ("confidence", "entropy", "aleatoric", "epistemic")},
            "classes": shown,
            "label": "Probabilities of the passes. " + "; ".join(
                f"{self.names[x['class']]}: median {x['box'][2]:.2f}, interval {x['box'][0]:.2f} "
                f"to {x['box'][4]:.2f}" for x in shown if x["box"][4] >= 0.005 or x["class"] in first
            ) + ".",
            **({"name": str(names[index])} if names else {}),
        }  # fmt: skip

    def _pictures(self, indices: list[int]) -> dict[int, str]:
        """Data URIs of images."""
        if self.images is None or not indices:
            return {}
        pixels = np.asarray(self.images(indices))
        if pixels.ndim != 4 or len(pixels) != len(indices) or pixels.shape[1] not in (1, 3):
            raise BayesCaffeError(
                f"images of shape {pixels.shape}, expected {len(indices)} x 1 or 3 channels x "
                "height x width"
            )
        if pixels.dtype != np.uint8:
            low, high = np.nanmin(pixels), np.nanmax(pixels)
            pixels = np.nan_to_num(255 * (pixels - low) / ((high - low) or 1)).astype(np.uint8)
        return {index: _data_uri(image) for index, image in zip(indices, pixels, strict=True)}

    def _footer(self, command: str | None) -> Html:
        meta = self.draws.meta
        facts = {"passes": f"{self.analysis.passes:,}", "seed": meta.get("seed")}
        for key in ("net", "weights"):
            if meta.get(key) is not None:
                digest = meta.get(f"{key}_sha256")
                facts[key] = f"{meta[key]}" + (f" (SHA-256 {digest[:16]}…)" if digest else "")
        facts["data"] = meta.get("data")
        facts["drawn"] = meta.get("created")
        facts["made by"] = f"bayescaffe {__version__}"
        if meta.get("version") not in (None, __version__):
            facts["made by"] += f", draws by {meta['version']}"
        facts["command"] = tag("code", command) if command else None
        items = [
            part for name, value in facts.items() if value is not None
            for part in (tag("dt", name), tag("dd", value))
        ]  # fmt: skip
        return join([tag("h2", "Where this comes from"), tag("dl", *items)])


def _plot(chart: str, label: str, **attributes: Any) -> Html:
    without_script = tag("noscript", tag("p", "This chart needs JavaScript. ", label))
    return tag("div", without_script, class_="plot", data_chart=chart, data_label=label,
               **attributes)  # fmt: skip


def _table(head: list[str], rows: list[list[str]], folded: bool = True) -> Html:
    """A table of a chart's numbers; the first column names the row."""
    table = tag("div", tag("table",
        tag("thead", tag("tr", *(
            tag("th", name, scope="col", class_="number" if k else None)
            for k, name in enumerate(head)))),
        tag("tbody", *(
            tag("tr", tag("th", row[0], scope="row"),
                *(tag("td", cell, class_="number") for cell in row[1:]))
            for row in rows)),
    ), class_="scroll")  # fmt: skip
    return tag("details", tag("summary", "The numbers"), table) if folded else table


def _thin(x: np.ndarray, y: np.ndarray, positive: bool) -> dict[str, list]:
    """The measured points of a curve, or as many of them as a chart can show."""
    measured = np.isfinite(y) & ((y > 0) | (not positive))
    x, y = x[measured], y[measured]
    chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), CURVE_POINTS)).round().astype(int))
    return {"x": _short(x[chosen]), "y": _short(y[chosen])}


def _short(value: Any) -> Any:
    """Numbers for JSON, with the digits that a chart can show; None for what is no number."""
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        return [_short(one) for one in value.tolist()]
    if isinstance(value, int):
        return value
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _data_uri(image: np.ndarray) -> str:
    """An image, channels x height x width, as an address that holds it: PNG, or JPEG if large."""
    from PIL import Image

    # From blue, green, red.
    picture = Image.fromarray(image[0] if len(image) == 1 else np.moveaxis(image[::-1], 0, -1))
    is_small = max(picture.size) <= SMALL_IMAGE
    picture.thumbnail((LARGE_IMAGE, LARGE_IMAGE))
    buffer = io.BytesIO()
    picture.save(buffer, *(("PNG",) if is_small else ("JPEG",)), optimize=True)
    kind = "png" if is_small else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
