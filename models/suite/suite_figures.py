"""The page of pictures: one line of three for each row of the suite."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from methods import METHODS
from scores import Scores, difference
from shifts import SHIFTS, STRENGTHS, shifted

COLOURS = {name: f"C{number}" for number, name in enumerate(METHODS)}
COLOURS |= {
    "stock": "black",
    "ensemble": "black",
    "ours": "C3",
    "ours-ensemble": "C3",
    "calibrated": "C6",
    "swag": "C0",
}


def page_of_pictures(found: dict[str, dict[str, Scores]]) -> Figure:
    """Of each row: the differences to the stock net, and error and NLL by strength of shift."""
    drawing = Figure(figsize=(15, 3.6 * len(found) + 0.4), layout="constrained")
    axes = drawing.subplots(len(found), 3, squeeze=False)
    for line, (row, by_method) in zip(axes, found.items(), strict=True):
        _differences(line[0], by_method)
        for place, (name, label) in zip(
            line[1:], (("error", "error, %"), ("nll", "NLL")), strict=True
        ):
            _by_strength(place, by_method, name, label)
        line[0].set_title(f"{row}: NLL minus the stock net's, test images", fontsize=10)
        line[1].set_title(f"{row}: shifted test images", fontsize=10)
        line[2].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return drawing


def _differences(axes: Axes, found: dict[str, Scores]) -> None:
    """NLL minus that of the stock net, with intervals; ensembles minus the deep ensemble."""
    axes.axvline(0, color="black", linewidth=0.8)
    titles = []
    for name in reversed(found):
        method = METHODS[name]
        base = "stock" if method.members == 1 else "ensemble"
        if base not in found or base == name:
            continue
        height = len(titles)
        titles.append(method.title + " − deep ensemble" * (method.members > 1))
        one = difference(found[name], found[base], "nll")
        axes.plot(one.interval, [height, height], color=COLOURS[name])
        axes.plot(one.mean, height, "o", color=COLOURS[name])
    axes.set_yticks(range(len(titles)), titles, fontsize=8)
    axes.set_ylim(-0.6, len(titles) - 0.4)
    axes.grid(axis="x", alpha=0.3)


def _by_strength(axes: Axes, by_method: dict[str, Scores], name: str, label: str) -> None:
    """The mean over all shifts and seeds; strength 0 is not shifted."""
    factor = 100 if name == "error" else 1
    for method, scores in by_method.items():
        if name in scores.by_strength:
            style = "-" if METHODS[method].members == 1 else "--"
            axes.plot(
                (0, *STRENGTHS),
                factor * scores.by_strength[name],
                style,
                color=COLOURS[method],
                linewidth=2.5 if method.startswith("ours") else 1.5,
                label=METHODS[method].title,
            )
    axes.set(xlabel="strength of the shift", ylabel=label)
    axes.grid(alpha=0.3)


def shift_examples(images: Sequence[np.ndarray]) -> Figure:
    """Every shift at every strength, for an image of each set (channels x height x width, BGR)."""
    drawing = Figure(figsize=(1.1 * 5 * len(images), 1.1 * len(SHIFTS)), layout="constrained")
    axes = drawing.subplots(len(SHIFTS), 5 * len(images))
    for line, (kind, shift) in zip(axes, SHIFTS.items(), strict=True):
        line[0].set_ylabel(kind, fontsize=8, rotation=0, ha="right", va="center")
        for place, cell in enumerate(line):
            cell.set(xticks=[], yticks=[])
            cell.spines[:].set_visible(False)
            image = images[place // 5][np.newaxis]
            if shift.fits(image):
                shown = shifted(image, kind, STRENGTHS[place % 5])[0, ::-1].transpose(1, 2, 0)
                cell.imshow(shown.squeeze(), cmap="gray", vmin=0, vmax=255)
    return drawing
