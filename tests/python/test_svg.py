"""Figures as inline SVG: they fit into a page with its own letters, colours and identifiers."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from bayescaffe.reporting import plots, svg
from bayescaffe.reporting.svg import Chart

DRAWS = np.random.default_rng(0).dirichlet(np.ones(3), 50)


def boxplot(*names):
    return Chart(plots.plot_boxplot, DRAWS, 0, 1, names or "abc")


def test_letters_and_colours_are_the_pages():
    text = boxplot().markup("x", "label")
    assert "font" not in text and not re.search("#[0-9a-f]{6}", text)
    assert {"var(--s2)", "var(--s3)", "var(--ink)", "var(--line)"} <= set(
        re.findall(r"var\(--\w+\)", text)
    )
    assert set(re.findall(r'class="(\w+)"[^>]*>([^<]+)', text)) == {
        ("strong", "a ✓"),
        ("strong", "b ✗"),
    }


def test_every_colour_of_the_figures_has_a_variable():
    assert set(plots.COLOURS) | {plots.GREY, plots.PALE} == set(svg.COLOURS)


def test_names_are_text_and_numbers_of_labels_stay_as_they_are():
    names = ["<b>", 'a $1 and $2 "c"', "0.123456"]
    root = ElementTree.fromstring(boxplot(*names).markup("x", 'a "label" <i>'))
    texts = [node.text for node in root.iter("text")]
    assert {"<b> ✓", 'a $1 and $2 "c" ✗', "0.123456"} <= set(texts)
    assert root.get("aria-label") == 'a "label" <i>' and root.get("role") == "img"


def test_identifiers_differ_between_charts_and_are_found():
    chart = Chart(plots.plot_curves, {"a": ([1, 2], [3, 4]), "b": ([1, 2], [4, 3])}, "y", log=True)
    for name in ("one", "two"):
        text = chart.markup(name, "label")
        ids = set(re.findall(r' id="([^"]+)"', text))
        used = set(re.findall(r"#([\w-]+)", text))
        assert ids == used and ids and all(one.startswith(f"{name}-") for one in ids)


def test_positions_are_where_the_figure_has_the_points():
    x, y = np.array([0.0, 10.0]), np.array([0.3, 0.1])
    chart = Chart(plots.plot_curves, {"a": (x, y)}, "error")
    text = chart.markup("x", "label")
    (drawn,) = re.findall(r'd="M([^"]+)"[^>]*stroke:var\(--s1\)[^"]*"', text)[:1]
    points = [[float(number) for number in point.split()] for point in drawn.split("L")]
    np.testing.assert_allclose(chart.positions(x, y), points, atol=0.06)


@pytest.mark.parametrize("height", [100, 300])
def test_size_is_that_of_a_narrow_screen(height):
    text = Chart(plots.plot_boxplot, DRAWS, height=height).markup("x", "label")
    assert text.startswith(f'<svg viewBox="0 0 {svg.WIDTH} {height}" ')
