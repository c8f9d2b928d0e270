"""The notebook in examples/ runs from top to bottom, and what it shows makes sense."""

import json
from pathlib import Path

import pytest
from conftest import REPO

pytest.importorskip("caffe", reason="pycaffe is not built")
nbformat = pytest.importorskip("nbformat")
from nbclient import NotebookClient  # noqa: E402

NOTEBOOK = REPO / "examples/uncertainty.ipynb"
# Asked of the notebook's own variables, when it is through.
QUESTIONS = """
import json
print(json.dumps({
    "analysis": analysis.summary(),
    "reduced": reduced_analysis.summary(),
    "auroc": {name: other.ood["scores"]["epistemic"]["auroc"] for name, other in compared.items()},
    "tau": [[x.tau for x in some] for some in (layers, reduced_layers)],
    "advised": [one.layer for one in advised],
    "report": str(report.resolve()),
}))
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook with its outputs, and the answers to QUESTIONS."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(QUESTIONS))
    folder = tmp_path_factory.mktemp("notebook")
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook, json.loads(notebook.cells.pop().outputs[0].text)


def test_it_is_stored_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs") and not cell.get("execution_count")


def test_it_shows_figures_and_no_warnings(executed):
    outputs = [output for cell in executed[0].cells for output in cell.get("outputs", [])]
    streams = [output for output in outputs if output.output_type == "stream"]
    shown = [stream.text for stream in streams if stream.name == "stdout"]
    assert shown == ["Writing uncertainty/net.prototxt\n"]
    # On a slow machine, progress bars appear.
    assert not [stream.text for stream in streams if "warning" in stream.text.lower()]
    figures = [output.data.get("image/png", "") for output in outputs if "data" in output]
    assert len([figure for figure in figures if len(figure) > 3000]) == 8


def test_the_net_learns_and_a_hundred_passes_beat_one(executed):
    found = executed[1]["analysis"]
    assert found["images"] == sum(found["table"].values()) == 597
    assert found["draws"] == 100 and not found["warnings"]
    assert found["metrics"]["error"] < 0.04
    assert found["metrics"]["error"] < found["metrics"]["single_draw_error"]
    shown = "\n".join(
        output.data["text/markdown"]
        for cell in executed[0].cells
        for output in cell.get("outputs", [])
        if "text/markdown" in output.get("data", {})
    )
    assert f"**{found['metrics']['error']:.2%}**" in shown
    assert "| class | mean probability | 95 % credible interval |" in shown


def test_errors_gather_among_the_uncertain(executed):
    table = executed[1]["analysis"]["table"]
    assert table["correct_certain"] > 450
    certain = table["wrong_certain"] / (table["wrong_certain"] + table["correct_certain"])
    uncertain = table["wrong_uncertain"] / (table["wrong_uncertain"] + table["correct_uncertain"])
    assert uncertain > 5 * certain


def test_strange_images_make_it_unsure(executed):
    assert executed[1]["auroc"].keys() == {"inverted", "shuffled"}
    assert min(executed[1]["auroc"].values()) > 0.85


def test_the_advice_makes_a_surer_layer_at_no_great_loss(executed):
    found = executed[1]
    assert found["advised"] == ["hidden"]
    (_, before, _), (_, after, _) = found["tau"]
    assert after < 0.608 < before
    assert found["reduced"]["metrics"]["error"] < found["analysis"]["metrics"]["error"] + 0.02


def test_it_leaves_a_report(executed):
    assert "Digits of 8 × 8 pixels" in Path(executed[1]["report"]).read_text()
