"""The nets in models/ are what their generator writes, what the paper says, and they train."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import REPO, caffe, write_digits

LENET = REPO / "models/lenet"
NAMES = [f"{family}-{kind}" for family in ("stock", "bayes") for kind in
         ("plain", "dropout", "exchanged", "reduced")]  # fmt: skip


def generator():
    spec = importlib.util.spec_from_file_location("generate", LENET / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_written_files_are_in_step_with_the_generator(tmp_path):
    generator().write(tmp_path)
    written = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.prototxt"))
    assert written == sorted(path.relative_to(LENET) for path in LENET.rglob("*.prototxt"))
    assert {path.parts[0] for path in written} == set(NAMES)
    for path in written:
        assert (tmp_path / path).read_text() == (LENET / path).read_text(), path


@pytest.mark.parametrize("name", NAMES)
def test_options_are_the_papers(name):
    pytest.importorskip("caffe", reason="pycaffe is not built")
    from caffe.proto import caffe_pb2
    from google.protobuf import text_format

    net = text_format.Parse(
        (LENET / name / "train_test.prototxt").read_text(), caffe_pb2.NetParameter()
    )
    solver = text_format.Parse(
        (LENET / name / "solver.prototxt").read_text(), caffe_pb2.SolverParameter()
    )
    bayes = name.startswith("bayes")
    layers = {layer.name: layer for layer in net.layer}
    assert (solver.base_lr, solver.lr_policy, solver.gamma, solver.power, solver.momentum) == (
        pytest.approx(0.01), "inv", pytest.approx(0.0001), 0.75, pytest.approx(0.9),
    )  # fmt: skip
    assert solver.max_iter == 10_000
    assert solver.weight_decay == pytest.approx(0 if bayes else 0.0005)
    train, test = net.layer[:2]
    exchanged = name.endswith("exchanged")
    assert train.data_param.batch_size == 64
    assert train.data_param.source.endswith("test_lmdb" if exchanged else "train_lmdb")
    tested = solver.test_iter[0] * test.data_param.batch_size
    assert tested == (60_000 if exchanged else 10_000)
    assert layers["conv1"].convolution_param.num_output == 20
    assert layers["conv2"].convolution_param.num_output == 50
    neurons = 250 if name.endswith("reduced") else 500
    assert layers["fc1"].inner_product_param.num_output == neurons
    assert layers["fc2"].inner_product_param.num_output == 10
    assert ("drop1" in layers) == (not name.endswith("plain"))
    if "drop1" in layers:
        assert layers["drop1"].dropout_param.sample_weights_test == bayes
    for weights in ("conv1", "conv2", "fc1", "fc2"):
        assert layers[weights].type.startswith("Bayes") == bayes
        if bayes:
            param = layers[weights].bayes_param
            assert (param.prior_mean, param.prior_std, param.bias_prior_std) == (0, 5, 10)
            taus = (1, 0.2) if weights == "fc1" else (0.4, 0.1)
            assert (param.tau_init, param.bias_tau_init) == pytest.approx(taus)
            assert param.dataset_size == (10_000 if exchanged else 60_000)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A directory with the models and a small set in MNIST's place."""
    from bayescaffe.data.datasets import prepare_idx

    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(LENET, folder / "models/lenet", ignore=shutil.ignore_patterns("*.caffemodel"))
    write_digits(folder / "idx", train=300, test=200, size=28, classes=10)
    prepare_idx(folder / "idx", folder / "data/mnist", progress=False)
    return folder


def shorten(solver):
    """Four iterations instead of 10,000, and a test of two batches."""
    text = solver.read_text()
    for field, value in {"max_iter": 4, "test_iter": 2, "test_interval": 4, "display": 1}.items():
        text = re.sub(rf"^{field}: .*", f"{field}: {value}", text, flags=re.M)
    solver.write_text(text)


@pytest.mark.engine
@pytest.mark.parametrize("name", NAMES)
def test_each_net_trains(workplace, name):
    solver = f"models/lenet/{name}/solver.prototxt"
    shorten(workplace / solver)
    done = caffe("train", "-solver", solver, cwd=workplace)
    assert done.returncode == 0, done.stdout
    assert "accuracy = " in done.stdout and "nan" not in done.stdout
    assert (workplace / f"models/lenet/{name}/lenet_iter_4.caffemodel").exists()


def run_demo(workplace):
    demo = [REPO / "scripts/demo.sh", "models/lenet/bayes-plain", "7"]
    return subprocess.run(demo, cwd=workplace, capture_output=True, text=True)


def test_demo_ends_with_error_table_and_report(workplace):
    shorten(workplace / "models/lenet/bayes-plain/solver.prototxt")
    done = run_demo(workplace)
    assert done.returncode == 0, done.stderr
    commands = re.findall(r"^\$ bayescaffe (\w+)", done.stdout, re.M)
    assert commands == ["train", "inspect", "sample", "analyze", "report"]
    # Four iterations leave tau about where it started.
    tau = re.search(r"^fc1 +400,000 +(\S+)", done.stdout, re.M)[1]
    assert float(tau) == pytest.approx(1, abs=0.1)
    draws = np.load(workplace / "models/lenet/bayes-plain/test.draws.npz")
    assert draws["probabilities"].shape == (7, 200, 10)
    wrong = draws["probabilities"].mean(axis=0).argmax(axis=1) != draws["labels"]
    end = done.stdout[done.stdout.index("$ bayescaffe analyze") :]
    assert f"{100 * wrong.mean():.2f}" in end
    table = [list(map(int, row)) for row in re.findall(r"^ *\w+ +(\d+) +(\d+)", end, re.M)][:2]
    assert [sum(row) for row in table] == [(~wrong).sum(), wrong.sum()]
    page = workplace / "models/lenet/bayes-plain/report.html"
    assert "models/lenet/bayes-plain/report.html" in end.splitlines()[-1]
    assert page.read_text().startswith("<!doctype html>")


def test_commands_of_the_readme(workplace):
    """As they stand there, but for the number of iterations."""
    from PIL import Image

    readme = (REPO / "README.md").read_text()
    (block,) = re.findall(r"^```sh\n(net=.*?)^```$", readme, flags=re.M | re.S)
    shorten(workplace / "models/lenet/bayes-plain/solver.prototxt")
    Image.fromarray(np.full((40, 50, 3), 255, np.uint8)).save(workplace / "scan.png")
    (workplace / ".venv").symlink_to(Path(sys.executable).parents[1])
    script = "set -e\n" + block.replace("lenet_iter_10000", "lenet_iter_4")
    done = subprocess.run(["bash", "-c", script], cwd=workplace, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "num_output: 250" in (workplace / "reduced.prototxt").read_text()
    assert (workplace / "report.html").stat().st_size > 10_000
    assert re.search(r"scan.png +\d", done.stdout)


def test_demo_stops_where_a_command_fails(workplace):
    (workplace / "models/lenet/bayes-plain/train_test.prototxt").write_text("nonsense")
    done = run_demo(workplace)
    assert done.returncode == 1
    assert done.stdout.count("$ bayescaffe") == 1
    assert "bayescaffe: error:" in done.stderr and "train.log" in done.stderr
