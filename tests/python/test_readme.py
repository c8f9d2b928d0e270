"""What the README shows works as it stands there."""

import re

import numpy as np
import pytest
from conftest import REPO, input_net, small_net

README = (REPO / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.M | re.S)


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (REPO / "Makefile").read_text(), flags=re.M))
    named = set(re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)", README, flags=re.M))
    named = {name for pair in named for name in pair if name}
    assert {"demo", "test"} <= named <= targets


def test_readme_starts_with_the_two_commands():
    first = blocks("sh")[0].splitlines()
    assert [line.split("#")[0].strip() for line in first] == ["make demo", "make test"]


def test_caffe_train_line_names_a_solver_that_is_there():
    solver = re.search(r"caffe train -solver (\S+)", README)[1]
    assert (REPO / solver).exists()


def test_prototxt_is_a_bayesian_layer(tmp_path):
    pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
    (layer,) = blocks("prototxt")
    head = 'layer { name: "x" type: "Input" top: "pool2" input_param { shape { dim: 2 dim: 8 } } }'
    (tmp_path / "net.prototxt").write_text(head + layer)
    net = pycaffe.Net(str(tmp_path / "net.prototxt"), pycaffe.TEST)
    assert net.forward()["fc1"].shape == (2, 500)
    assert len(net.params["fc1"]) == 6


def test_python_example_runs(tmp_path, digits, monkeypatch, capsys):
    pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
    text = input_net(small_net(digits, "kl_weight: 0"), batch=1)
    text += 'layer { name: "prob" type: "Softmax" bottom: "out" top: "prob" }'
    (tmp_path / "net.prototxt").write_text(text)
    pycaffe.Net(str(tmp_path / "net.prototxt"), pycaffe.TEST).save(
        str(tmp_path / "lenet.caffemodel")
    )
    monkeypatch.chdir(tmp_path)
    names = {"images": np.random.default_rng(0).random((3, 1, 12, 12), np.float32)}
    (example,) = blocks("python")
    assert len(example.strip().splitlines()) <= 7
    exec(example, names)
    printed = capsys.readouterr().out.splitlines()
    found = names["found"]
    assert len(printed) == 3 and found.draws == 100
    for line, predicted, certain in zip(printed, found.predicted, found.certain, strict=True):
        assert line.startswith(f"{predicted}: ")
        assert line.endswith("certain" if certain else "ask a person")


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "RESULTS.md",
        "caffe_bayes/README.md",
        "models/README.md",
        "models/lenet/README.md",
        "BENCHMARKS.md",
        "docker/README.md",
        "docs/gpu.md",
    ],
)
def test_links_and_pictures_are_there(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (REPO / page).read_text())
    for link in links:
        if not link.startswith("http"):
            assert ((REPO / page).parent / link).exists(), link
    if page in ("README.md", "RESULTS.md"):
        assert any(link.endswith(".png") for link in links)
