"""What the README shows works as it stands there."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import bayescaffe
import numpy as np
import pytest
import yaml
from conftest import REPO, bash, input_net, small_net
from drawn_pictures import SHAPES, draw, draw_pictures
from PIL import Image

README = (REPO / "README.md").read_text()


def blocks(language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.M | re.S)
    return [text for name, text in found if name == language]


def block(language, start):
    """The one block of a language whose text begins so."""
    (found,) = [text for text in blocks(language) if text.startswith(start)]
    return found


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
    example = block("python", "import bayescaffe  # with")
    assert len(example.strip().splitlines()) <= 7
    exec(example, names)
    printed = capsys.readouterr().out.splitlines()
    found = names["found"]
    assert len(printed) == 3 and found.draws == 100
    for line, predicted, certain in zip(printed, found.predicted, found.certain, strict=True):
        assert line.startswith(f"{predicted}: ")
        assert line.endswith("certain" if certain else "ask a person")


def test_python_example_of_data_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = block("python", "bayescaffe.data.from_arrays")
    names = {"X": np.zeros((20, 8, 8, 3), np.uint8), "y": np.arange(20) % 2}
    exec(example, {"bayescaffe": bayescaffe, **names})
    assert bayescaffe.data.open_images(tmp_path / "data/mine/val_lmdb").channels == "bgr"


# ---- Your own pictures ---------------------------------------------------------------------------


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A directory with a space in its name, the examples, and a solver that ends soon."""
    folder = tmp_path / "my work"
    shutil.copytree(REPO / "examples/pictures", folder / "examples/pictures")
    solver = folder / "examples/pictures/solver.prototxt"
    text = solver.read_text()
    assert text.count("max_iter: 500\n") == 1
    solver.write_text(text.replace("max_iter: 500\n", "max_iter: 6\n"))
    (folder / ".venv").symlink_to(sys.prefix)
    monkeypatch.chdir(folder)
    return folder


def form(line):
    """A line of output with every number as 0, and every run of spaces as one."""
    return re.sub(r" +", " ", re.sub(r"\d+([.,]\d+)*(e[+-]\d+)?", "0", line))


def test_five_commands_take_pictures_to_a_report(workplace):
    pytest.importorskip("caffe", reason="pycaffe is not built")
    draw_pictures(workplace / "photos", 10, ["Bälle", "square", "a <b> triangle"])
    commands = block("sh", ".venv/bin/bayescaffe data folder photos --out data/photos --size 64\n")
    assert len(commands.strip().splitlines()) == 5
    printed = bash(commands)
    found = set(map(form, printed.splitlines()))
    shown = block("", "data/photos/train_lmdb: ").splitlines()
    shown = [line for line in shown if line != "  ⋮" and not line.startswith("training images")]
    assert [line for line in shown if form(line) not in found] == [], printed
    draws = bayescaffe.load_draws("photos.npz")
    assert draws.probabilities.shape == (100, 6, 3)
    assert draws.meta["class_names"] == ["Bälle", "a <b> triangle", "square"]
    page = Path("photos.html").read_text()
    assert "Bälle" in page and "a &lt;b&gt; triangle" in page and "a <b>" not in page
    assert page.count("data:image/png") > 6


def test_arrays_get_to_a_report_in_python(workplace):
    pytest.importorskip("caffe", reason="pycaffe is not built")
    random = np.random.default_rng(1)
    y = np.arange(30) % 3
    pictures = [draw(SHAPES[label], random).resize((40, 40), Image.BILINEAR) for label in y]
    names = {"X": np.stack([np.asarray(picture) for picture in pictures]), "y": y}
    exec(block("python", "import bayescaffe\n\n# X:"), names)
    assert names["draws"].probabilities.shape == (100, 6, 3)
    assert tuple(names["draws"].meta["class_names"]) == SHAPES
    assert "triangle" in Path("mine.html").read_text()


def test_a_net_is_made_as_sure_as_it_is_right(workplace):
    pytest.importorskip("caffe", reason="pycaffe is not built")
    solver = workplace / "examples/pictures/solver.prototxt"
    # Enough for a net that is right more often than not.
    solver.write_text(solver.read_text().replace("max_iter: 6\n", "max_iter: 150\n"))
    draw_pictures(workplace / "photos", 60, list("abc"))
    first = block("sh", ".venv/bin/bayescaffe data folder photos --out data/photos --size 64\n")
    commands = block("sh", ".venv/bin/bayescaffe data folder photos --out data/photos --size 64 --")
    split, *others = commands.splitlines()
    printed = bash("\n".join([split, *first.splitlines()[1:3], *others]))
    assert "sure.caffemodel: the scores of fc2 divided by " in printed
    found = bayescaffe.load_draws("sure.npz")
    assert found.probabilities.shape == (100, 36, 3)
    old = bayescaffe.sample(
        "photos-net/net_iter_150.caffemodel", "data/photos/test_lmdb", progress=False
    )
    (ratio,) = {round(float(one), 2) for one in _ratios(old, found)}
    assert ratio != 1
    start = ".venv/bin/bayescaffe sample photos-net/solver.prototxt --data data/photos/val_lmdb"
    printed = bash(block("sh", start))
    shown = block("", "Are the decisions safe?").splitlines()[1:3]
    assert {form(line)[:40] for line in shown} <= {form(line)[:40] for line in printed.splitlines()}
    assert "set: has the class of at least 90 %" in printed


def _ratios(before, after):
    """How many times as far apart the first two scores are before, by draw and image."""

    def apart(draws):
        logs = np.log(draws.probabilities)
        return logs[..., 0] - logs[..., 1]

    clear = np.abs(apart(after)) > 1
    return (apart(before) / apart(after))[clear]


def test_several_trainings_together(workplace):
    pytest.importorskip("caffe", reason="pycaffe is not built")
    draw_pictures(workplace / "photos", 10, list("abc"))
    first = block("sh", ".venv/bin/bayescaffe data folder photos --out data/photos --size 64\n")
    start = ".venv/bin/bayescaffe train photos-net/solver.prototxt --seeds"
    commands = block("sh", start)
    assert commands.count("--seeds 1-5") == commands.count("net_iter_500.") == 1
    commands = commands.replace("--seeds 1-5", "--seeds 1-2").replace("iter_500.", "iter_6.")
    printed = bash("\n".join([*first.splitlines()[:2], commands]))
    draws = bayescaffe.load_draws("mixture.npz")
    models = [f"photos-net/seed-{seed}/net_iter_6.caffemodel" for seed in (1, 2)]
    assert [model["weights"] for model in draws.models] == models
    assert f"bayescaffe sample {' '.join(models)}\n" in printed
    assert "between the models" in printed

    example = block("python", "trained = bayescaffe.train_seeds(")
    assert example.count("range(1, 6)") == 1
    names = {"bayescaffe": bayescaffe}
    exec(example.replace("range(1, 6)", "range(1, 3)"), names)
    assert np.array_equal(names["draws"].probabilities, draws.probabilities)
    # Its name is (model, k).
    one = bayescaffe.Model(models[1])
    images = one.test_images.read(range(6))
    assert np.array_equal(one.sample(images, [7])[0], draws.probabilities[7])


# ---- All pages ----------------------------------------------------------------------------------

PAGES = subprocess.check_output(["git", "ls-files", "*.md"], cwd=REPO, text=True).split()


def without_code(page):
    text = (REPO / page).read_text()
    return re.sub(r"`[^`\n]+`", "", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))


def anchors(page):
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"`", "", (REPO / page).read_text()), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_are_there(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = ((REPO / page).parent / path if path else REPO / page).resolve()
        assert target.exists(), link
        assert REPO in target.parents or target == REPO, link
        if anchor:
            assert anchor in anchors(target.relative_to(REPO)), link


def test_the_readme_leads_to_every_page():
    linked = re.findall(r"\]\(([^)#]+\.md)", README)
    assert set(PAGES) <= {"README.md", *linked}


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_understood(page):
    from bayescaffe.cli import build_parser

    text = (REPO / page).read_text()
    for block in re.findall(r"^```sh\n(.*?)^```$", text, flags=re.M | re.S):
        for command in re.findall(r"(?:^|bin/|:cpu )bayescaffe (.+)", block, flags=re.M):
            build_parser().parse_args(shlex.split(command, comments=True))


def test_one_version():
    citation = yaml.safe_load((REPO / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+)", (REPO / "CHANGELOG.md").read_text(), flags=re.M)[1]
    assert citation["version"] == newest == bayescaffe.__version__
