"""Figures as inline SVG, to be part of an HTML page.

The page decides on letters and colours: text has no font of its own, and our colours become the
page's CSS variables, so one figure serves the light and the dark theme. The layout is that of a
narrow screen. On a wide one the page enlarges the figure and makes letters smaller in proportion.
"""

import io
import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayescaffe.common.printing import printable
from bayescaffe.reporting import plots

WIDTH, HEIGHT = 340, 240
FONT_SIZE = 13
"""In units of the figure's width; report.css has the same."""
COLOURS = {
    plots.BLUE: "s1",
    plots.VERMILION: "s2",
    plots.GREEN: "s3",
    plots.PURPLE: "s4",
    plots.ORANGE: "s5",
    plots.INK: "ink",
    plots.GREY: "soft",
    plots.PALE: "line",
}
STYLE = {
    **plots.STYLE,
    "font.size": FONT_SIZE,
    "text.parse_math": False,  # a $ in a name is a $
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.spines.left": False,
    "xtick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
}
DROPPED = ("metadata", "style")
NUMBER = re.compile(r"-?\d+\.\d+")


class Chart:
    """A figure of `plots`, drawn for the page."""

    def __init__(self, plot: Callable[..., Axes], *args: Any, height: int = HEIGHT, **options: Any):
        with matplotlib.rc_context(STYLE):
            self._figure = Figure(figsize=(WIDTH / 72, height / 72))
            self.ax = plot(*args, ax=self._figure.add_subplot(), **options)
            self.ax.set_title(None)
            text = io.StringIO()
            self._figure.savefig(text, format="svg")
        # Of a name of a class or a layer, XML takes no control characters.
        self._text = printable(text.getvalue())

    def positions(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Where data is in the SVG: points x 2."""
        place = self.ax.transData.transform(np.column_stack([x, y]))
        box = self._figure.bbox
        return np.column_stack([place[:, 0], box.height - place[:, 1]]) * 72 / self._figure.dpi

    def markup(self, name: str, label: str) -> Markup:
        """The `<svg>` element. `name` is unique in the page; `label` describes the figure."""
        root = ElementTree.fromstring(self._text)
        body = "".join(_element(child, name) for child in root)
        box = root.get("viewBox")
        return Markup(f'<svg viewBox="{box}" role="img" aria-label="{escape(label)}">{body}</svg>')


def _element(node: ElementTree.Element, name: str) -> str:
    """An element as compact HTML, with identifiers that begin with `name`."""
    tag = _local(node.tag)
    attributes = {_local(key): _compact(value) for key, value in node.attrib.items()}
    content = "".join(_element(child, name) for child in node)
    if tag in DROPPED or (tag == "path" and not attributes.get("d")):
        return ""
    if tag == "g":
        attributes.pop("id", None)
        if not attributes or not content:
            return content
    if tag == "text":
        content = str(escape(node.text or ""))
        is_bold = re.search(r"font(-weight)?:(bold|700)", attributes["style"])
        attributes["style"] = re.sub(r"font[^;]*;?", "", attributes["style"])
        attributes["class"] = "strong" if is_bold else ""
        if attributes.get("transform", "").startswith("rotate(0 "):
            del attributes["transform"]
    if "id" in attributes:
        attributes["id"] = f"{name}-{attributes['id']}"
    for key in {"href", "clip-path"} & set(attributes):
        attributes[key] = attributes[key].replace("#", f"#{name}-")
    written = "".join(f' {key}="{escape(value)}"' for key, value in attributes.items() if value)
    return f"<{tag}{written}>{content}</{tag}>" if content else f"<{tag}{written}/>"


def _compact(value: str) -> str:
    """The value of an attribute, with the page's colours and numbers no finer than a screen."""
    for colour, variable in COLOURS.items():
        value = value.replace(colour.lower(), f"var(--{variable})")
    value = NUMBER.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), value)
    value = re.sub(r"\s*([A-Za-z])\s+(?=[-\d])|\s*\n", r"\1", value)
    return re.sub(r"([:;]) ", r"\1", value).replace("-0 ", "0 ")


def _local(name: str) -> str:
    return name.rpartition("}")[2]
