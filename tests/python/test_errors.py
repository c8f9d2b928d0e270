"""Errors of Caffe: caffe.Error in Python, one line and exit code 1 from the tool, and life goes on.

Each case says what is broken and what the error must tell; the same cases go through both.
"""

import os
import pickle
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from conftest import CAFFE, PLAIN_ENVIRONMENT, input_net, make_net, python, small_net, write_solver

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory) -> Path:
    """A folder with run_iter_2.caffemodel and .solverstate of the stock net, and .h5 of both."""
    folder = tmp_path_factory.mktemp("trained")
    for name, options in (("run", {}), ("hdf5", {"snapshot_format": "HDF5"})):
        solver = write_solver(folder, small_net(digits, None), 2, name, **options)
        pycaffe.get_solver(str(solver)).solve()
    return folder


def truncated(path: Path, to: Path, size: int) -> Path:
    to.write_bytes(path.read_bytes()[:size])
    return to


def copy_of_data(digits: Path, folder: Path) -> Path:
    """A copy of the data sets that a test may break."""
    for name in ("train_lmdb", "test_lmdb"):
        shutil.copytree(digits / name, folder / name)
    return folder


def change_record(source: Path, index: int, change) -> None:
    """Replace the record number `index` of an LMDB by what `change` makes of its Datum."""
    import lmdb
    from caffe.proto import caffe_pb2

    with lmdb.open(str(source), map_size=1 << 26) as env, env.begin(write=True) as txn:
        keys = [key for key, _ in txn.cursor()]
        datum = caffe_pb2.Datum.FromString(txn.get(keys[index]))
        changed = change(datum)
        txn.put(keys[index], changed if changed is not None else datum.SerializeToString())


def save_changed(trained: Path, path: Path, change) -> Path:
    """The trained net with what `change` does to its NetParameter."""
    from caffe.proto import caffe_pb2

    param = caffe_pb2.NetParameter.FromString((trained / "run_iter_2.caffemodel").read_bytes())
    change({layer.name: layer for layer in param.layer})
    path.write_bytes(param.SerializeToString())
    return path


def run_tool(*arguments, **environment) -> subprocess.CompletedProcess:
    """The caffe tool, its stderr apart from what it logs: glog's lines are left out."""
    done = subprocess.run(
        [str(part) for part in (CAFFE, *arguments)],
        capture_output=True,
        text=True,
        timeout=100,
        env={**PLAIN_ENVIRONMENT, **environment},
    )
    done.lines = [line for line in done.stderr.splitlines() if line[:1] not in "IW"]
    return done


# ---- the exception -----------------------------------------------------------------------------


def test_error_has_message_and_place(tmp_path):
    with pytest.raises(pycaffe.Error) as caught:
        make_net(tmp_path, 'layer { name: "x" type: "NoSuchLayer" }')
    error = caught.value
    assert isinstance(error, RuntimeError)
    assert error.file == "include/caffe/layer_factory.hpp" and error.line > 0
    assert "layer 'x': " in error.message
    assert "Unknown layer type: NoSuchLayer (known types: AbsVal, " in error.message
    assert str(error) == f"{error.file}:{error.line}: {error.message}"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is pycaffe.Error and vars(again) == vars(error) and str(again) == str(error)


def test_text_that_is_not_utf8_is_shown(tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_bytes(b'layer { name: "caf\xe9" type: "Missing" }')
    with pytest.raises(pycaffe.Error, match=r"layer 'caf\\xe9'"):
        pycaffe.Net(str(path), pycaffe.TEST)


# ---- what is wrong, and what is said of it -----------------------------------------------------


@dataclass
class Case:
    """A call that must fail: what it is given, and what its error tells."""

    net: str
    says: str
    weights: Path | None = None
    resume: Path | None = None


def break_net_text(digits, trained, folder):
    return Case(small_net(digits, None) + "layer { nmae: 'x' }", 'has no field named "nmae"')


def break_net_brackets(digits, trained, folder):
    return Case("layer {\n  name: 'x'\n  type: }\n", "net.prototxt:3:9: ")


def name_an_unknown_layer(digits, trained, folder):
    net = small_net(digits, None).replace('"Convolution"', '"Konvolution"')
    return Case(
        net, "layer 'conv': Check failed: registry.count(type) == 1 (0 vs. 1) Unknown layer"
    )


def name_an_unknown_bottom(digits, trained, folder):
    net = small_net(digits, None).replace('bottom: "conv"', 'bottom: "cnov"')
    return Case(net, "Unknown bottom blob 'cnov' (layer 'hidden', bottom index 0)")


def give_an_impossible_shape(digits, trained, folder):
    net = small_net(digits, None).replace("kernel_size: 3", "kernel_size: 0")
    return Case(net, "layer 'conv': convolution_param.kernel_size is 0, but must be 1 to 16777216")


def name_missing_data(digits, trained, folder):
    return Case(
        small_net(folder, None),
        f"layer 'data': Check failed: mdb_status == 0 (2 vs. 0) LMDB {folder}/t",
    )


def truncate_data(digits, trained, folder):
    copy_of_data(digits, folder)
    for name in ("train_lmdb", "test_lmdb"):
        file = folder / name / "data.mdb"
        os.truncate(file, file.stat().st_size // 2)
    return Case(small_net(folder, None), "_lmdb is truncated: its file has ")


def truncate_data_to_its_head(digits, trained, folder):
    copy_of_data(digits, folder)
    for name in ("train_lmdb", "test_lmdb"):
        os.truncate(folder / name / "data.mdb", 100)
    return Case(small_net(folder, None), f"LMDB {folder}/t")


def empty_data(digits, trained, folder):
    import lmdb

    for name in ("train_lmdb", "test_lmdb"):
        lmdb.open(str(folder / name)).close()
    return Case(small_net(folder, None), "_lmdb has no records")


def fill_a_record_with_noise(digits, trained, folder):
    copy_of_data(digits, folder)
    for name in ("train_lmdb", "test_lmdb"):
        change_record(folder / name, 30, lambda datum: b"\xff\xff no image")
    return Case(small_net(folder, None), "layer 'data': Check failed: ")


def shorten_a_record(digits, trained, folder):
    def shorten(datum):
        datum.data = datum.data[:100]

    copy_of_data(digits, folder)
    for name in ("train_lmdb", "test_lmdb"):
        change_record(folder / name, 30, shorten)
    return Case(small_net(folder, None), "_lmdb: has 100 numbers, but its shape is 1 x 12 x 12")


def label_outside(digits, trained, folder):
    def relabel(datum):
        datum.label = 4

    copy_of_data(digits, folder)
    for name in ("train_lmdb", "test_lmdb"):
        change_record(folder / name, 27, relabel)
    return Case(
        small_net(folder, None), "the label of image 7 of the batch is 4, but must be 0 to 3"
    )


def lose_weights(digits, trained, folder):
    path = folder / "nowhere.caffemodel"
    return Case(small_net(digits, None), str(path), weights=path)


def truncate_weights(digits, trained, folder):
    source = trained / "run_iter_2.caffemodel"
    path = truncated(source, folder / "cut.caffemodel", source.stat().st_size - 10)
    return Case(small_net(digits, None), f"{path}: cut off", weights=path)


def empty_weights(digits, trained, folder):
    path = truncated(trained / "run_iter_2.caffemodel", folder / "empty.caffemodel", 0)
    return Case(small_net(digits, None), f"{path} holds no layers", weights=path)


def take_a_folder_for_weights(digits, trained, folder):
    return Case(small_net(digits, None), f"Cannot read {folder}: Is a directory", weights=folder)


def truncate_hdf5_weights(digits, trained, folder):
    path = truncated(trained / "hdf5_iter_2.caffemodel.h5", folder / "cut.caffemodel.h5", 3000)
    return Case(small_net(digits, None), f"{path}: cut off", weights=path)


def load_other_shapes(digits, trained, folder):
    path = trained / "run_iter_2.caffemodel"
    net = small_net(digits, None).replace("num_output: 16", "num_output: 17")
    return Case(
        net,
        f"{path}: Cannot copy param 0 weights from layer 'hidden'; shape mismatch.  "
        "Source param shape is 16 100 (1600); target param shape is 17 100 (1700)",
        weights=path,
    )


def load_other_shapes_from_hdf5(digits, trained, folder):
    net = small_net(digits, None).replace("num_output: 16", "num_output: 17")
    path = trained / "hdf5_iter_2.caffemodel.h5"
    return Case(net, f"{path}: Check failed: blob_dims == blob->shape()", weights=path)


def load_nan(digits, trained, folder):
    def spoil(layers):
        layers["hidden"].blobs[0].data[17] = np.nan

    path = save_changed(trained, folder / "nan.caffemodel", spoil)
    says = f"{path}: blob 0 of layer 'hidden' has nan at index 17, but weights must be finite"
    return Case(small_net(digits, None), says, weights=path)


def load_infinity(digits, trained, folder):
    def spoil(layers):
        layers["out"].blobs[1].data[3] = -np.inf

    path = save_changed(trained, folder / "inf.caffemodel", spoil)
    says = "blob 1 of layer 'out' has -inf at index 3, but weights must be finite"
    return Case(small_net(digits, None), says, weights=path)


def resume_from_nowhere(digits, trained, folder):
    path = folder / "nowhere.solverstate"
    return Case(small_net(digits, None), f"File not found: {path}", resume=path)


def resume_from_no_hdf5(digits, trained, folder):
    path = folder / "nowhere.solverstate.h5"
    return Case(
        small_net(digits, None), f"{path}: damaged, not there, or no HDF5 file", resume=path
    )


def truncate_state(digits, trained, folder):
    source = trained / "run_iter_2.solverstate"
    path = truncated(source, folder / "cut.solverstate", source.stat().st_size // 2)
    return Case(small_net(digits, None), f"{path}: cut off", resume=path)


def empty_state(digits, trained, folder):
    path = truncated(trained / "run_iter_2.solverstate", folder / "empty.solverstate", 0)
    return Case(small_net(digits, None), f"{path}: not complete", resume=path)


def resume_another_net(digits, trained, folder):
    path = trained / "run_iter_2.solverstate"
    net = small_net(digits, None).replace("num_output: 16", "num_output: 17")
    return Case(net, "Cannot copy param 0 weights from layer 'hidden'", resume=path)


CASES = [
    break_net_text,
    break_net_brackets,
    name_an_unknown_layer,
    name_an_unknown_bottom,
    give_an_impossible_shape,
    name_missing_data,
    truncate_data,
    truncate_data_to_its_head,
    empty_data,
    fill_a_record_with_noise,
    shorten_a_record,
    label_outside,
    lose_weights,
    truncate_weights,
    empty_weights,
    take_a_folder_for_weights,
    truncate_hdf5_weights,
    load_other_shapes,
    load_other_shapes_from_hdf5,
    load_nan,
    load_infinity,
    resume_from_nowhere,
    resume_from_no_hdf5,
    truncate_state,
    empty_state,
    resume_another_net,
]


@pytest.mark.parametrize("broken", CASES, ids=lambda case: case.__name__)
def test_what_is_wrong_is_raised_and_said_by_the_tool(
    tmp_path, digits, trained, capfd, broken, reference
):
    case = broken(digits, trained, tmp_path)
    with pytest.raises(pycaffe.Error) as caught:
        if case.resume:
            solver = pycaffe.get_solver(str(write_solver(tmp_path, case.net, 2)))
            solver.restore(str(case.resume))
        else:
            net = make_net(tmp_path, case.net, weights=case.weights)
            for _ in range(5):
                net.forward()
    assert case.says in str(caught.value)
    # The exception says it all.
    assert capfd.readouterr().err == ""
    reference.still_holds(tmp_path)

    solver = write_solver(tmp_path, case.net, 5, "net")
    shutil.move(tmp_path / "net.net.prototxt", tmp_path / "net.prototxt")
    solver.write_text(solver.read_text().replace("net.net.prototxt", "net.prototxt"))
    flags = ["-weights", case.weights] if case.weights else []
    flags += ["-snapshot", case.resume] if case.resume else []
    done = run_tool("train", "-solver", solver, *flags)
    assert done.returncode == 1, done.stderr
    assert len(done.lines) == 1, done.stderr
    assert done.lines[0].startswith("caffe: error: ")
    assert case.says in done.lines[0]


@pytest.fixture(scope="module")
def reference(digits, trained, tmp_path_factory):
    """A Bayesian net with trained weights and what it gives: to be made again after each error."""

    class Reference:
        net = input_net(small_net(digits, "dataset_size: 330"), batch=2)
        images = np.random.default_rng(0).random((5, 1, 12, 12), np.float32)

        def outputs(self, folder):
            net = make_net(folder, self.net, weights=trained / "run_iter_2.caffemodel")
            return net.sample(3, self.images)

        def still_holds(self, folder):
            assert np.array_equal(self.outputs(folder), self.expected)

    reference = Reference()
    reference.expected = reference.outputs(tmp_path_factory.mktemp("reference"))
    return reference


# ---- labels ------------------------------------------------------------------------------------


def scored_net(layer: str, places: int = 1) -> str:
    return f"""
        layer {{ name: "scores" type: "Input" top: "scores"
                 input_param {{ shape {{ dim: 3 dim: 4 dim: {places} }} }} }}
        layer {{ name: "label" type: "Input" top: "label"
                 input_param {{ shape {{ dim: 3 dim: {places} }} }} }}
        layer {{ name: "last" bottom: "scores" bottom: "label" top: "last" {layer} }}"""


@pytest.mark.parametrize("kind", ["SoftmaxWithLoss", "Accuracy"])
@pytest.mark.parametrize("label", [4, -1, 1e9, np.nan, -np.inf])
def test_label_that_is_no_class_is_refused(tmp_path, kind, label):
    net = make_net(tmp_path, scored_net(f'type: "{kind}"'))
    net.blobs["label"].data[1] = label
    with pytest.raises(pycaffe.Error) as caught:
        net.forward()
    says = f"layer 'last': the label of image 1 of the batch is {label:g}, but must be 0 to 3"
    assert says in str(caught.value)
    net.blobs["label"].data[1] = 3
    net.forward()


@pytest.mark.parametrize("kind", ["HingeLoss", "MultinomialLogisticLoss"])
def test_other_losses_refuse_it_too(tmp_path, kind):
    net = make_net(tmp_path, scored_net(f'type: "{kind}"'))
    net.blobs["label"].data[2] = 4
    with pytest.raises(pycaffe.Error, match="label of image 2 of the batch is 4, but must be 0"):
        net.forward()


@pytest.mark.parametrize(
    ("kind", "param"), [("SoftmaxWithLoss", "loss_param"), ("Accuracy", "accuracy_param")]
)
def test_ignored_label_is_no_error(tmp_path, kind, param):
    layer = f'type: "{kind}" {param} {{ ignore_label: -1 }}'
    net = make_net(tmp_path, scored_net(layer, places=2))
    net.blobs["label"].data[1, 1] = -1
    net.forward()
    net.blobs["label"].data[1, 1] = -2
    with pytest.raises(pycaffe.Error, match="image 1 of the batch at place 1 is -2, but must be"):
        net.forward()


# ---- threads -----------------------------------------------------------------------------------


def test_batches_before_a_bad_record_are_given_out_and_then_its_error_again_and_again(
    tmp_path, digits
):
    copy_of_data(digits, tmp_path)
    change_record(tmp_path / "test_lmdb", 45, lambda datum: b"\xff")
    net = make_net(tmp_path, small_net(tmp_path, None))
    for _ in range(2):
        net.forward()
    for _ in range(3):
        with pytest.raises(pycaffe.Error, match=r"layer 'data': .*record '0*45.*is no Datum"):
            net.forward()


def test_error_in_a_copy_of_the_net_comes_out_of_sample(tmp_path, digits, reference):
    pick = """
        layer { name: "place" type: "Power" bottom: "label" top: "place" power_param { shift: %d } }
        layer { name: "pick" type: "BatchReindex" bottom: "out" bottom: "place" top: "pick" }"""
    bayes = small_net(digits, "dataset_size: 330")
    net = make_net(tmp_path, bayes + pick % 99)
    for _ in range(3):
        with pytest.raises(pycaffe.Error, match=r"layer 'pick': .*greater than batch size"):
            net.sample(8, images=40, output="pick")
    assert np.isfinite(
        make_net(tmp_path, bayes + pick % 0).sample(2, images=20, output="pick")
    ).all()
    reference.still_holds(tmp_path)


def test_python_layer_keeps_its_exception(tmp_path, monkeypatch):
    (tmp_path / "raising_layer.py").write_text(
        "import caffe\n"
        "class Raising(caffe.Layer):\n"
        "    def setup(self, bottom, top): pass\n"
        "    def reshape(self, bottom, top): top[0].reshape(1)\n"
        "    def forward(self, bottom, top): raise KeyError('mine')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    layer = (
        'layer { name: "raising" type: "Python" top: "x"'
        ' python_param { module: "%s" layer: "%s" } }'
    )
    net = make_net(tmp_path, layer % ("raising_layer", "Raising"))
    with pytest.raises(KeyError, match="mine"):
        net.forward()
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        make_net(tmp_path, layer % ("no_such_module", "Raising"))
    with pytest.raises(AttributeError, match="Nobody"):
        make_net(tmp_path, layer % ("raising_layer", "Nobody"))


# ---- life goes on ------------------------------------------------------------------------------


def test_a_thousand_errors_leave_nothing_behind(tmp_path, digits, trained):
    net = small_net(digits, None)
    wrong, other, nowhere = (
        tmp_path / f"{name}.prototxt" for name in ("wrong", "other", "nowhere")
    )
    # The data layer's thread runs already when the last layer turns out to be wrong.
    wrong.write_text(net + 'layer { name: "x" type: "NoSuchLayer" }')
    other.write_text(net.replace("num_output: 16", "num_output: 17"))
    weights, hdf5_weights = (
        trained / name for name in ("run_iter_2.caffemodel", "hdf5_iter_2.caffemodel.h5")
    )
    attempts = [(wrong, None), (nowhere, None), (other, weights), (other, hdf5_weights)]
    attempts = [(str(net), weights and str(weights)) for net, weights in attempts]
    program = f"""
import gc, os
import caffe
def fail(times):
    for _ in range(times):
        for net, weights in {attempts}:
            try:
                caffe.Net(net, caffe.TEST, weights=weights)
            except caffe.Error:
                continue
            raise SystemExit("no error")
    gc.collect()
    pages = int(open("/proc/self/statm").read().split()[1])
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), pages
for times in (0, 40, 250):
    print(*fail(times))
"""
    lines = python(program).splitlines()
    threads, files, pages = np.array([line.split() for line in lines], int).T
    assert len(set(threads)) == len(set(files)) == 1
    assert pages[2] - pages[1] < 2000


def test_tool_keeps_the_reason_in_its_log(tmp_path, digits):
    solver = write_solver(tmp_path, small_net(tmp_path, None), 1)
    done = run_tool("train", "-solver", solver, GLOG_log_dir=str(tmp_path))
    assert done.returncode == 1
    logged = (tmp_path / "caffe.ERROR").read_text()
    assert f"LMDB {tmp_path}/train_lmdb: No such file or directory" in logged
    only = run_tool("train", "-logtostderr", "-solver", solver)
    assert only.returncode == 1 and only.stderr.count("No such file or directory") == 1


def test_tool_refuses_unknown_commands_and_missing_flags():
    assert run_tool("brew").returncode == 1
    done = run_tool("train")
    assert done.returncode == 1
    assert done.lines[0].startswith("caffe: error: tools/caffe.cpp:")
    assert "Need a solver definition to train." in done.lines[0]


def test_tool_escapes_control_characters(tmp_path, digits):
    """Of names in a prototxt, in the log and in the error."""
    hostile = small_net(digits, None).replace('"conv"', r'"conv\033[2J"')
    solver = write_solver(tmp_path, hostile, 1)
    done = run_tool("train", "-v", "-solver", solver)
    assert done.returncode == 0
    assert r"Creating Layer conv\x1b[2J" in done.stderr
    assert "\x1b" not in done.stderr
    solver = write_solver(tmp_path, hostile.replace("kernel_size: ", "kernel_size: 9"), 1)
    done = run_tool("train", "-solver", solver)
    assert done.returncode == 1 and r"conv\x1b[2J" in done.stderr
    assert "\x1b" not in done.stderr
