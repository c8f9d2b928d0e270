"""The command `bayescaffe inspect`, from files to what it prints and writes."""

import csv
import json
import shlex
from pathlib import Path

import pytest
from conftest import make_net, small_net

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe.cli import main  # noqa: E402
from bayescaffe.net.posterior import inspect  # noqa: E402


@pytest.fixture
def files(tmp_path, digits, monkeypatch):
    """net.prototxt and its caffemodel in the current directory; `hidden` is unsure of its signs."""
    monkeypatch.chdir(tmp_path)
    text = "# mine\n" + small_net(digits, "kl_weight: 0.5 dataset_size: 330")
    hidden, out = text.index('name: "hidden"'), text.index('name: "out"')
    unsure = text[hidden:out].replace("dataset_size", "tau_init: 0.758 dataset_size")
    net = make_net(tmp_path, text[:hidden] + unsure + text[out:])
    net.save("my net.caffemodel")
    return ["net.prototxt", "my net.caffemodel"]


def test_table_names_what_each_layer_has(files, capsys):
    assert main(["inspect", *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == "layer K tau tau_b |m|/sd sign norm KL share".split()  # noqa: SIM905
    layer = inspect(*files)[1]
    assert lines[2].split() == [
        *("hidden", "1,600", "0.758", "0.1", "1.32", "90.65%"),
        *(f"{layer.norm:.4g}", f"{layer.kl:,.0f}", f"{layer.kl_share:.1%}"),
    ]
    assert len({len(line) for line in lines[:4]}) == 1
    kl = sum(layer.kl for layer in inspect(*files))
    assert lines[4].split() == ["total", "1,700", f"{kl:,.0f}"]
    scale = 0.5 / 330
    assert lines[6] == f"KL adds {kl * scale:.4g} to the loss: it is multiplied by {scale:.3g}"


def test_the_command_that_is_advised_works(files, capsys):
    assert main(["inspect", *files]) == 0
    advised = capsys.readouterr().out.splitlines()[-2:]
    assert advised[0].startswith(
        "hidden is unsure of its signs (sign 90.65%, below 95%): try 8 out"
    )
    program, *arguments = shlex.split(advised[1])
    assert program == "bayescaffe"
    assert main(arguments) == 0
    assert "reduced.prototxt: 1,724 -> 884 weights and biases (1/1.95)" in capsys.readouterr().out
    old, new = (Path(name).read_text() for name in ("net.prototxt", "reduced.prototxt"))
    assert new == old.replace("num_output: 16", "num_output: 8") != old


def test_a_high_kl_weight_may_be_the_reason(files, capsys):
    warning = "If the net's error is high, KL outweighs the data: kl_weight is 0.5, try kl_weight: "
    assert main(["inspect", *files]) == 0
    assert warning in capsys.readouterr().out
    net = Path(files[0])
    net.write_text(net.read_text().replace("kl_weight: 0.5", "kl_weight: 1e-6"))
    assert main(["inspect", *files]) == 0
    out = capsys.readouterr().out
    assert "hidden is unsure of its signs" in out and "If the net's error is high" not in out


def test_a_net_that_is_sure_gets_no_advice(tmp_path, digits, capsys):
    net = make_net(tmp_path, small_net(digits, "kl_weight: 0"))
    net.save(str(tmp_path / "weights"))
    assert main(["inspect", str(tmp_path / "net.prototxt"), str(tmp_path / "weights")]) == 0
    assert "Every layer whose size can change is sure of its signs" in capsys.readouterr().out


def test_json_is_one_object(files, capsys):
    options = ["--json", "--reduce", "hidden=5", "--reduce", "conv=2", "--out", "small"]
    assert main(["inspect", *files, *options]) == 0
    found = json.loads(capsys.readouterr().out)
    layers = inspect(*files)
    assert [layer["tau"] for layer in found["layers"]] == [layer.tau for layer in layers]
    assert found["kl"] == pytest.approx(sum(layer.kl for layer in layers))
    assert [(one["layer"], one["proposed"]) for one in found["advice"]] == [("hidden", 8)]
    # conv 4x9+4 -> 2x9+2; hidden 16x100+16 -> 5x50+5; out 4x16+4 -> 4x5+4
    assert found["reduced"] == {"out": "small", "parameters_before": 1724, "parameters": 299}


def test_csv_is_written_beside_the_table(files, capsys):
    assert main(["inspect", *files, "--csv", "layers.csv"]) == 0
    with open("layers.csv") as file:
        assert [row["name"] for row in csv.DictReader(file)] == ["conv", "hidden", "out"]
    assert "hidden" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--reduce", "hidden=8"], 2, "--reduce LAYER=N and --out FILE go together"),
        (["--out", "x"], 2, "--reduce LAYER=N and --out FILE go together"),
        (["--reduce", "hidden", "--out", "x"], 2, "'hidden' is not LAYER=N, such as fc1=250"),
        (["--reduce", "hidden=-3", "--out", "x"], 2, "'hidden=-3' is not LAYER=N"),
        (["--reduce", "a=1", "--reduce", "a=2", "--out", "x"], 2, "--reduce names a layer twice"),
        (["--reduce", "out=2", "--out", "x"], 1, "net.prototxt: layer 'out' gives the net's ans"),
        (["--reduce", "hidden=8", "--out", "net.prototxt"], 1, "net.prototxt would overwrite"),
    ],
)
def test_mistakes_are_told_and_write_nothing(files, tmp_path, capsys, options, code, message):
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    try:
        assert main(["inspect", *files, *options]) == code
    except SystemExit as error:
        assert error.code == code
    assert message in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_missing_file_is_named(files, capsys):
    assert main(["inspect", "nowhere.prototxt", files[1]]) == 1
    assert "nowhere.prototxt" in capsys.readouterr().err
