"""The report: one HTML file that shows a person what the draws say and how far to trust them.

The file holds everything it shows and needs no network. `sections` and `images` provide the numbers
and, with `plots`, the figures; template/report.html has the text; report.js reacts to the reader.
The same input gives the same bytes.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bayescaffe import __version__
from bayescaffe.common.errors import BayesCaffeError, argument
from bayescaffe.common.files import scratch_file
from bayescaffe.common.printing import printable
from bayescaffe.reporting import images as single
from bayescaffe.reporting import sections
from bayescaffe.reporting.subject import Subject, percent

if TYPE_CHECKING:
    from bayescaffe.data.images import Images
    from bayescaffe.net.posterior import LayerPosterior
    from bayescaffe.stats.analysis import Analysis
    from bayescaffe.stats.draws import Draws

SECTIONS = {
    "summary": "Summary",
    "errors": "Errors",
    "risk": "When to ask a human",
    "gallery": "Mistakes",
    "examples": "Single images",
    "calibration": "Calibration",
    "decisions": "Decisions",
    "uncertainty": "Uncertainty",
    "ood": "OOD images",
    "layers": "Layers",
    "training": "Training",
}


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
    untrained: bool = False,
) -> Path:
    """Write the report on `draws` to the file `out` and return its path.

    If labels, images, curves or others are missing, the report leaves out the parts that need them.

    Args:
        analysis: the result of `analyze(draws)`.
        curves: by name, the result of `read_curve`.
        layers: the result of `inspect`.
        ood: the analysis of draws for out-of-distribution images.
        images: the image source that was sampled, or a function from indices to an array of images
            x channels x height x width; colours are blue, green, red, as usual in Caffe.
        baselines: by name, analyses of other nets on the same images.
        class_names: by default those of the draws, else numbers.
        command: the command line that made this report, for its footer.
        untrained: report on draws even if their net had stock weights, and so no posterior.
    """
    if draws.meta.get("untrained") and not untrained:
        every = draws.meta.get("models") or [draws.meta]
        bad = next((one for one in every if one.get("untrained")), draws.meta)
        raise BayesCaffeError(
            f"the draws are of no posterior: {bad.get('weights')} has stock weights for "
            f"Bayesian layers of {bad.get('net')}. Train the net and sample it, or report "
            f"the draws as they are with {argument('untrained', True)}"
        )
    names = class_names or draws.meta.get("class_names") or range(analysis.classes)
    if len(names) != analysis.classes:
        raise BayesCaffeError(
            f"{argument('class_names')}: {len(names)} names, expected {analysis.classes}"
        )
    for name, other in (baselines or {}).items():
        if (other.images, other.classes) != (analysis.images, analysis.classes):
            raise BayesCaffeError(
                f"{argument('baselines')}: {name}: {other.images} images of {other.classes} "
                f"classes, expected the report's {analysis.images} of {analysis.classes}"
            )
    subject = Subject(draws, analysis, [printable(str(name)) for name in names], baselines or {})
    read = getattr(images, "read", images)
    parts = {
        "summary": sections.summary(subject),
        "errors": sections.errors(subject),
        "risk": sections.risk(subject),
        "gallery": single.gallery(subject, read),
        "examples": single.examples(subject, read),
        "calibration": sections.calibration(subject),
        "decisions": sections.decisions(subject),
        "uncertainty": sections.uncertainty(subject),
        "ood": None if ood is None else sections.out_of_distribution(subject, ood),
        "layers": sections.layers(layers) if layers else None,
        "training": sections.training(curves) if curves else None,
    }
    out = Path(out)
    with scratch_file(out) as scratch:
        # Names of files need not be UTF-8.
        scratch.write_text(
            _render(subject, title, parts, command), encoding="utf-8", errors="backslashreplace"
        )
    return out


def _render(subject: Subject, title: str, parts: dict[str, Any], command: str | None) -> str:
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

    data = {
        "class_names": subject.names,
        "has_intervals": subject.has_intervals,
        "total": subject.analysis.images,
        "level": subject.level,
        "images": parts["gallery"]["details"] if parts["gallery"] else {},
        "risk": parts["risk"]["slider"] if parts["risk"] else None,
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return environment.get_template("report.html").render(
        title=title,
        css=file("report.css"),
        script=file("report.js"),
        # A class named "</script>" would end the script.
        data=Markup(text.replace("<", "\\u003c")),
        sections=[(key, name) for key, name in SECTIONS.items() if parts[key]],
        a=subject.analysis,
        names=subject.names,
        has_intervals=subject.has_intervals,
        level=subject.level,
        interval="highest-density" if subject.analysis.interval == "hdi" else "equal-tailed",
        captions=single.captions(subject),
        origin=_origin(subject, command),
        **parts,
    )


def _origin(subject: Subject, command: str | None) -> list[tuple[str, str]]:
    """Where the numbers come from, for the footer."""
    meta = subject.draws.meta
    drawn = f"{subject.analysis.draws:,}"
    if subject.analysis.is_analytic:
        drawn += " of the scores (analytic)"
    elif meta.get("antithetic"):
        drawn += " in pairs (antithetic)"
    facts = {"draws": drawn, "seed": meta.get("seed")}
    models = subject.draws.models
    for number, model in enumerate(models, 1):
        for key in ("net", "weights"):
            path, digest = model[key], model[f"{key}_sha256"]
            if path is not None:
                name = key if len(models) == 1 else f"{key} {number}"
                facts[name] = f"{path} (SHA-256 {digest[:16]}…)" if digest else path
    facts["data"] = meta.get("data")
    facts["drawn"] = meta.get("created")
    drawn_by = meta.get("version")
    other = f", draws by {drawn_by}" if drawn_by not in (None, __version__) else ""
    facts["made by"] = f"bayescaffe {__version__}{other}"
    facts["command"] = command
    return [(name, str(value)) for name, value in facts.items() if value is not None]
