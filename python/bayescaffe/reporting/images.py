"""The sections of the report about single images: the gallery, its dialog, and a few examples."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bayescaffe.reporting import plots
from bayescaffe.reporting.subject import Subject, short
from bayescaffe.reporting.svg import Chart
from bayescaffe.reporting.thumbnails import thumbnails

# What bounds the size of the page: images of each group, and what is shown of one.
GALLERY = 60
RIGHT_GALLERY = 24
SHOWN_CLASSES = 10

Reader = Callable[[Sequence[int]], np.ndarray] | None


def gallery(subject: Subject, read: Reader) -> dict[str, Any] | None:
    """The images that tell most, in groups; `details` is what the dialog shows of each."""
    groups = {name: rows for name, rows in _groups(subject).items() if len(rows)}
    if not groups:
        return None
    limit = {name: RIGHT_GALLERY if name.startswith("right") else GALLERY for name in groups}
    shown = {name: rows[: limit[name]].tolist() for name, rows in groups.items()}
    indices = [index for rows in shown.values() for index in rows]
    pictures = thumbnails(read, indices)
    described = {index: _describe(subject, index) for index in indices}
    left_out = [
        f"{len(shown[name])} of {len(rows):,} {name}"
        for name, rows in groups.items()
        if len(rows) > len(shown[name])
    ]
    columns = [
        {"key": "confidence", "name": "probability", "first": "descending"},
        {"key": "entropy", "name": "entropy", "first": "descending"},
    ]
    if subject.has_intervals:
        columns.append({"key": "epistemic", "name": "epistemic", "first": "descending"})
    has_labels = subject.analysis.labels is not None
    if has_labels:
        columns.append({"key": "true", "name": "true label", "first": "ascending"})
    columns.append({"key": "index", "name": "index", "first": "ascending"})
    return {
        "groups": [
            {
                "name": name,
                "size": len(groups[name]),
                "images": [{**described[i], "picture": pictures.get(i)} for i in rows],
            }
            for name, rows in shown.items()
        ],
        "columns": columns,
        "sort": "confidence" if has_labels else "entropy",
        "left_out": "; ".join(left_out),
        "details": {
            str(index): {**one, "classes": _classes(subject, index)}
            for index, one in described.items()
        },
    }


def _groups(subject: Subject) -> dict[str, np.ndarray]:
    """Indices of the images of the gallery, the most telling first."""
    a = subject.analysis
    if a.correct is None:
        return {"uncertain": np.argsort(-a.entropy, kind="stable")}
    order = np.argsort(-a.confidence, kind="stable")
    right, certain = a.correct[order], a.certain[order]
    if not subject.has_intervals:
        return {"wrong": order[~right]}
    return {
        "wrong but certain": order[~right & certain],
        "wrong and uncertain": order[~right & ~certain],
        "right but uncertain": order[right & ~certain][::-1],
    }


def examples(subject: Subject, read: Reader) -> list[dict[str, Any]]:
    """A few telling images with a box plot of their draws, each with a heading."""
    a = subject.analysis
    if not subject.has_intervals:
        return []
    if a.correct is None:
        wanted = [
            ("Certain", a.certain, a.confidence),
            ("Uncertain", ~a.certain, a.epistemic),
        ]
    else:
        wanted = [
            ("Right and certain", a.correct & a.certain, a.confidence),
            ("Right but uncertain", a.correct & ~a.certain, a.epistemic),
            ("Wrong, and the draws disagree", ~a.correct & ~a.certain, a.epistemic),
            ("Wrong but certain", ~a.correct & a.certain, a.confidence),
        ]
    found = {
        heading: int(np.flatnonzero(mask)[score[mask].argmax()])
        for heading, mask, score in wanted
        if mask.any()
    }
    pictures = thumbnails(read, list(found.values()))
    return [
        {
            **_describe(subject, index),
            "heading": heading,
            "picture": pictures.get(index),
            "chart": _box_plot(subject, index),
        }
        for heading, index in found.items()
    ]


def _box_plot(subject: Subject, index: int) -> str:
    a = subject.analysis
    classes = _shown_classes(subject, index)
    place = {c: k for k, c in enumerate(classes)}
    chart = Chart(
        plots.plot_boxplot,
        subject.draws.of_image(index)[:, classes],
        None if a.labels is None else place[a.labels[index]],
        place[a.predicted[index]],
        [subject.names[c] for c in classes],
        (a.lower[index, classes], a.upper[index, classes]),
        height=50 + 24 * len(classes),
    )
    told = "; ".join(
        f"{subject.names[c]}: {a.lower[index, c]:.2f} to {a.upper[index, c]:.2f}"
        for c in classes
        if a.upper[index, c] >= 0.005
    )
    return chart.markup(f"box-{index}", f"Credible intervals of the probabilities. {told}.")


def _shown_classes(subject: Subject, index: int) -> list[int]:
    """The predicted class, the true one, and the most probable others."""
    a = subject.analysis
    telling = dict.fromkeys([int(a.predicted[index])])
    if a.labels is not None:
        telling[int(a.labels[index])] = None
    order = [*telling, *np.argsort(-a.mean[index], kind="stable").tolist()]
    return sorted(list(dict.fromkeys(order))[:SHOWN_CLASSES])


def _classes(subject: Subject, index: int) -> list[dict[str, Any]]:
    """For the dialog: credible interval and draws of each class."""
    a = subject.analysis
    draws = subject.draws.of_image(index)[: plots.DOTS]
    return [
        {
            "class": c,
            "interval": [short(float(a.lower[index, c])), short(float(a.upper[index, c]))],
            # In thousandths, which the eye cannot tell from finer ones.
            "draws": np.rint(1000 * draws[:, c]).astype(int).tolist(),
        }
        for c in _shown_classes(subject, index)
    ]


def _describe(subject: Subject, index: int) -> dict[str, Any]:
    """What the page says about one image."""
    a, names = subject.analysis, subject.names
    predicted = int(a.predicted[index])
    true = None if a.labels is None else int(a.labels[index])
    files = subject.draws.meta.get("names")
    what = f"{names[true]}, predicted" if true not in (None, predicted) else "predicted"
    return {
        "index": index,
        "true": true,
        "predicted": predicted,
        "certain": bool(a.certain[index]),
        "name": str(files[index]) if files else None,
        "alt": f"Image {index}: {what} as {names[predicted]}",
        **{
            key: short(float(getattr(a, key)[index]))
            for key in ("confidence", "entropy", "aleatoric", "epistemic")
        },
    }


def captions(subject: Subject) -> dict[str, str]:
    """What the marks of an image's draws mean: in a box plot, and in the dialog."""
    a = subject.analysis
    first = f" (the first {plots.DOTS} of {a.draws:,})" if a.draws > plots.DOTS else ""
    dot = f"A dot is one draw{first}."
    rest = "" if a.labels is None else " ✓ marks the true class, ✗ a wrong prediction."
    if a.classes > SHOWN_CLASSES:
        rest += f" {SHOWN_CLASSES} of {a.classes:,} classes are shown."
    interval = f"the {subject.level} credible interval"
    return {
        "box": f"{dot} The box holds the middle half of the draws, the whiskers mark {interval}."
        + rest,
        "strip": f"{dot} The bar marks {interval}.{rest}" if subject.has_intervals else dot + rest,
    }
