"""Errors name the argument in Python, and the option on the command line."""

import ast
import inspect
import re
from pathlib import Path

import bayescaffe
import numpy as np
import pytest
from bayescaffe import BayesCaffeError, cli
from bayescaffe.common.errors import argument, arguments_are_options
from conftest import save_weights, small_net
from PIL import Image

PACKAGE = Path(bayescaffe.__file__).parent
MODULES = [path for path in PACKAGE.glob("*/*.py") if path.parent.name != "cli"]


def command_parsers():
    """The parser of each command, by its words."""
    found = {}
    waiting = [((), cli.build_parser())]
    while waiting:
        words, parser = waiting.pop()
        if parser._subparsers is None:
            found[" ".join(words)] = parser
            continue
        choices = parser._subparsers._group_actions[0].choices
        waiting += [((*words, name), one) for name, one in choices.items()]
    return found


def texts(source):
    """The texts of a module that people may see: all that are no docstrings."""
    tree = ast.parse(source)
    hidden = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in hidden
        ):
            yield node.value


def named_arguments(source):
    """The names that a module passes to `argument`, as far as they are written out."""
    for node in ast.walk(ast.parse(source)):
        is_call = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "argument"
        if is_call and isinstance(node.args[0], ast.Constant):
            yield node.args[0].value


def test_the_two_forms():
    assert argument("image_shape") == "image_shape"
    assert argument("channels", "rgb") == "channels='rgb'"
    assert argument("untrained", True) == "untrained=True"
    with arguments_are_options({"image_shape": "--shape", "level": "--level", "cpu": "--cpu"}):
        assert argument("image_shape") == "--shape"
        assert argument("level", 0.5) == "--level 0.5"
        assert argument("cpu", True) == "--cpu"
        assert argument("other") == "other"
    assert argument("level") == "level"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_only_the_command_line_writes_options(path):
    """Whole command lines may be shown: what to run by hand."""
    found = [
        text
        for text in texts(path.read_text())
        if re.search(r"(?<![\w-])--[a-z]", text) and "bayescaffe " not in text
    ]
    allowed = {"--short", "--porcelain", "--fetch-retries=1"}  # of git and npm
    # Of mpirun.
    allowed |= {"--version", "--host", "--bind-to", "--oversubscribe", "--allow-run-as-root"}
    assert set(found) <= allowed


def test_every_argument_is_one_in_python_and_an_option():
    options = {name for parser in command_parsers().values() for name in parser.options()}
    functions = [getattr(bayescaffe, name) for name in bayescaffe.__all__]
    functions += [getattr(bayescaffe.data, name) for name in dir(bayescaffe.data)]
    parameters = {
        name
        for one in functions
        if callable(one) and one is not BayesCaffeError
        for name in inspect.signature(one).parameters
    }
    named = {name for path in MODULES for name in named_arguments(path.read_text())}
    assert len(named) > 20
    assert named <= parameters
    assert named <= options


@pytest.fixture
def files(tmp_path, digits, monkeypatch):
    """A folder with a net, its weights and images; it is the current directory."""
    pytest.importorskip("caffe", reason="pycaffe is not built")
    monkeypatch.chdir(tmp_path)
    save_weights(tmp_path, small_net(digits, "kl_weight: 0.01 dataset_size: 330"))
    lost = small_net(tmp_path / "lost", "kl_weight: 0.01 dataset_size: 330")
    (tmp_path / "lost.prototxt").write_text(lost)
    unit = """layer { name: "unit" type: "InnerProduct" bottom: "hidden" top: "unit"
                      inner_product_param { num_output: 1 } }"""
    (tmp_path / "unit").mkdir()
    save_weights(tmp_path / "unit", small_net(digits, None, unit))
    (tmp_path / "names.txt").write_text("one\ntwo\n")
    np.save("x.npy", np.zeros((4, 3, 8, 8), np.uint8))
    np.save("y.npy", np.arange(4) % 2)
    np.savez("one.npz", probabilities=np.ones((2, 3, 1), np.float32), meta=np.array("{}"))
    Image.fromarray(np.zeros((12, 12), np.uint8)).save("a.png")
    return tmp_path


CASES = {
    "sample net.prototxt net.caffemodel --output nothing": "--output nothing: the net has no such",
    "sample net.prototxt net.caffemodel --mc-dropout": "--mc-dropout: the net has no Dropout",
    "sample net.prototxt net.caffemodel --classes names.txt": "--classes: 2 names for 4 classes",
    "sample net.prototxt": "give the caffemodel, too, as WEIGHTS",
    "predict lost.prototxt net.caffemodel a.png": "not here; give it as --shape",
    "predict net.prototxt net.caffemodel a.png --level 2": "--level 2.0: the level of a credible",
    "predict unit/net.prototxt unit/net.caffemodel a.png --output unit": "--output unit: ",
    "sample unit/net.prototxt unit/net.caffemodel --output unit": "--output unit: ",
    "export unit/net.prototxt unit/net.caffemodel --output unit --means --to caffe --out o": (
        "--output unit: "
    ),
    "pack unit/net.prototxt unit/net.caffemodel --output unit": "--output unit: ",
    "sample net.prototxt net.caffemodel --data a.png --channels rgb": "--channels rgb is for arr",
    "sample lost.prototxt net.caffemodel --shape 1x12x12": "not there; name the images as --data",
    "check lost.prototxt": "give the shape of its images as --shape",
    "convert unit/net.prototxt --layers nothing --out o": "--layers nothing: no such layer",
    "convert net.prototxt --to-stock --last 9 --out o": "--last 9: must be within 1..3",
    "train run.prototxt --weights nothing": "--weights nothing: no such file",
    "data array x.npy y.npy --out d": "and --channels says nothing",
    "data array x.npy y.npy --out d --channels rgb --val 2": "--val 2.0 is not a share",
    "data folder . --out ./d --size 8": "choose another --out",
    "analyze one.npz": "two classes",
    "report one.npz": "two classes",
}


@pytest.mark.parametrize("command", CASES)
def test_commands_name_options(files, capsys, command):
    (files / "run.prototxt").write_text('net: "net.prototxt" snapshot_prefix: "run"')
    expected = CASES[command]
    code = cli.main([*command.split(), "--quiet"])
    said = capsys.readouterr()
    assert expected in said.err + said.out
    assert code == 1 or command.startswith("check")


def test_functions_name_arguments(files):
    for call, expected in (
        (lambda: bayescaffe.Model("net.prototxt", "net.caffemodel", output="x"), "output='x': the"),
        (lambda: bayescaffe.Model("net.prototxt"), "too, as weights"),
        (lambda: bayescaffe.Model("lost.prototxt", "net.caffemodel"), "give it as image_shape"),
        (lambda: bayescaffe.Model("net.prototxt", "net.caffemodel", seed=-1), "seed=-1 is not"),
        (lambda: bayescaffe.train("run.prototxt", test_draws=0), "test_draws=0: must"),
        (lambda: bayescaffe.Rule(accept_above=2), "accept_above=2 is not within"),
        (lambda: bayescaffe.convert("unit/net.prototxt", layers="x"), "layers='x': no such layer"),
        (
            lambda: bayescaffe.data.from_arrays(np.zeros((4, 8, 8, 3)), [0, 1, 0, 1], "d"),
            "and channels says nothing",
        ),
    ):
        (files / "run.prototxt").write_text('net: "net.prototxt" snapshot_prefix: "run"')
        with pytest.raises(BayesCaffeError, match=re.escape(expected)):
            call()


def test_one_unit_is_no_choice_of_classes(files):
    paths = ("unit/net.prototxt", "unit/net.caffemodel")
    with pytest.raises(BayesCaffeError, match="for each of two or more classes"):
        bayescaffe.Model(*paths, output="unit")
    assert bayescaffe.Model(*paths).classes == 4
