"""Progress bars: on a terminal only, and without tqdm none."""

import io
import sys
import time

import pytest
from bayescaffe.common.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def written(monkeypatch, stream, **options):
    """What a bar of 8 writes to `stream` while it goes to 2 and then on by 3."""
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar(8, "reading", **{"show": True, **options}) as bar:
        for step, count in ((bar.move_to, 2), (bar.advance, 3)):
            time.sleep(0.11)  # tqdm writes ten times a second
            step(count)
    return stream.getvalue()


def test_a_terminal_shows_the_bar(monkeypatch):
    text = written(monkeypatch, Terminal())
    assert "reading" in text and "2/8" in text and "5/8" in text and " images/s" in text
    assert text.endswith("\r")  # it is wiped out at the end


@pytest.mark.parametrize(
    ("stream", "options"),
    [(io.StringIO(), {}), (Terminal(), {"show": False}), (Terminal(), {"delay": 60})],
    ids=["no terminal", "not wanted", "too quick"],
)
def test_no_bar(monkeypatch, stream, options):
    assert written(monkeypatch, stream, **options) == ""


def test_without_tqdm_there_is_no_bar(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert written(monkeypatch, Terminal()) == ""


# ---- notebooks ---------------------------------------------------------------------------------

CELL = """
import time
from bayescaffe.common.progress import ProgressBar
with ProgressBar(8, "reading", show=True) as bar:
    for step in range(8):
        time.sleep(0.11)
        bar.advance(1)
"""
TRAINING_CELL = """
from bayescaffe.training.log import LogParser
from bayescaffe.training.view import TrainingView
parser = LogParser()
view = TrainingView(0, 20, True)
for iteration in (10, 20):
    time.sleep(0.11)
    parser.rows.append({"iteration": iteration})
    view.show(parser)
view.close()
"""


def outputs_of(*cells):
    """What the cells of a notebook put out."""
    nbformat = pytest.importorskip("nbformat")
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    NotebookClient(notebook, timeout=120).execute()
    return [output for cell in notebook.cells for output in cell.outputs]


def test_a_notebook_shows_bars_as_text_without_ipywidgets():
    hide = "import sys\nsys.modules['ipywidgets'] = None"
    outputs = outputs_of(hide + CELL, TRAINING_CELL)
    assert {output.name for output in outputs} == {"stderr"}
    text = "".join(output.text for output in outputs)
    assert "reading" in text and "4/8" in text and "10/20" in text
    assert "Warning" not in text and "ipywidgets" not in text


def test_a_notebook_shows_bars_as_widgets():
    pytest.importorskip("ipywidgets")
    outputs = outputs_of(CELL, TRAINING_CELL)
    assert [output.output_type for output in outputs] == ["display_data"] * 2
    assert all("application/vnd.jupyter.widget-view+json" in output.data for output in outputs)
