"""The build with CUDA on a machine without a GPU, or as if: it starts, trains in CPU mode like the
CPU build, and says in one line why there is no device. `make cuda` makes it."""

import re
import subprocess

import pytest
from conftest import CAFFE, PLAIN_ENVIRONMENT, REPO, python, small_net, write_solver

CUDA_BUILD = REPO / "build-cuda"
CUDA_CAFFE = CUDA_BUILD / "caffe/tools/caffe"
needs_cuda_build = pytest.mark.skipif(
    not CUDA_CAFFE.exists(), reason="there is no build with CUDA; `make cuda` makes one"
)
BUILDS = [
    pytest.param(CAFFE, id="cpu"),
    pytest.param(CUDA_CAFFE, id="cuda", marks=needs_cuda_build),
]
# Hides the devices of a machine that has some.
NO_DEVICES = {"CUDA_VISIBLE_DEVICES": ""}


def run(tool, *arguments):
    return subprocess.run(
        [str(part) for part in (tool, *arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**PLAIN_ENVIRONMENT, **NO_DEVICES},
    )


def python_of_build(code):
    return python(code, PYTHONPATH=str(CUDA_BUILD / "caffe-src/python"), **NO_DEVICES)


@needs_cuda_build
def test_starts():
    done = run(CUDA_CAFFE, "--version")
    assert done.returncode == 0
    assert done.stdout.startswith("caffe version") and done.stderr == ""


@needs_cuda_build
def test_is_linked_with_cuda():
    libraries = subprocess.run(["ldd", CUDA_CAFFE], capture_output=True, text=True).stdout
    for name in ("libcudart", "libcublas", "libcurand", "libnccl"):
        assert re.search(rf"{name}\.so\S* => /", libraries), libraries
    assert "not found" not in libraries


@pytest.mark.engine
@needs_cuda_build
@pytest.mark.parametrize("bayes", [None, "dataset_size: 330"])
def test_trains_in_cpu_mode_like_the_cpu_build(digits, tmp_path, bayes):
    losses = []
    for tool in (CAFFE, CUDA_CAFFE):
        solver = write_solver(tmp_path, small_net(digits, bayes), 30, display=5)
        done = run(tool, "train", "-solver", solver)
        assert done.returncode == 0, done.stderr
        # Nothing but progress: no warning that there is no GPU.
        assert all(line.startswith("I") for line in done.stderr.splitlines()), done.stderr
        losses.append(re.findall(r" loss = (\S+)", done.stderr))
    assert len(losses[0]) > 5 and losses[0] == losses[1]


@pytest.mark.parametrize("tool", BUILDS)
@pytest.mark.parametrize(
    "command, device",
    [
        ("train -gpu 0", 0),
        ("train -gpu all", 0),
        ("train -gpu 1,3", 1),
        ("test -gpu 2", 2),
        ("time -gpu 0", 0),
        ("device_query", 0),
        ("device_query -gpu 1", 1),
    ],
)
def test_no_device_is_one_line(digits, tmp_path, tool, command, device):
    solver = write_solver(tmp_path, small_net(digits), 2)
    files = {
        "train": ["-solver", solver],
        "test": ["-model", tmp_path / "run.net.prototxt", "-weights", "any.caffemodel"],
        "time": ["-model", tmp_path / "run.net.prototxt"],
    }
    name = command.split()[0]
    done = run(tool, *command.split(), *files.get(name, []))
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"caffe: error: no CUDA device {device}: ")
    cause = "built without CUDA" if tool == CAFFE else "NVIDIA driver|no CUDA-capable device"
    assert re.search(cause, line)


def test_number_of_a_device_that_there_is_not():
    tool = REPO / "build/caffe_simulated_tool"
    if not tool.exists():
        pytest.skip("there is no tool with a simulated device; `make test-cpp` makes one")
    done = run(tool, "device_query", "-gpu", "0,2")
    assert done.returncode == 1
    assert done.stderr == "caffe: error: no CUDA device 2: the machine has 2, numbers 0 to 1\n"


@pytest.mark.parametrize("tool", BUILDS)
def test_solver_that_wants_a_gpu(digits, tmp_path, tool):
    done = run(
        tool, "train", "-solver", write_solver(tmp_path, small_net(digits), 2, solver_mode="GPU")
    )
    assert done.returncode == 1
    assert re.fullmatch(r"caffe: error: no CUDA device 0: .*\n", done.stderr)


@pytest.mark.parametrize("tool", BUILDS)
@pytest.mark.parametrize("gpu", ["first", "0,", "0;1"])
def test_gpu_that_is_no_number(tool, gpu):
    done = run(tool, "device_query", "-gpu", gpu)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    if gpu == "0,":
        # The number is asked for first.
        assert "no CUDA device 0: " in done.stderr
    else:
        assert f"-gpu {gpu}: must be 'all' or device numbers separated by ','" in done.stderr


REFUSED = """
import caffe
for ask in (lambda: caffe.set_device(1), caffe.set_mode_gpu):
    try:
        ask()
    except caffe.Error as error:
        print(error)
"""


def test_python_error_of_the_cpu_build():
    why = "this Caffe was built without CUDA (CPU_ONLY)"
    assert python(REFUSED) == f"no CUDA device 1: {why}\nno CUDA device 0: {why}\n"


@needs_cuda_build
def test_python_error_of_the_cuda_build():
    lines = python_of_build(REFUSED).splitlines()
    assert [line.split(": ")[0] for line in lines] == ["no CUDA device 1", "no CUDA device 0"]
    assert all(re.search("NVIDIA driver|no CUDA-capable device", line) for line in lines)


@needs_cuda_build
def test_python_draws_in_cpu_mode_like_the_cpu_build(tmp_path):
    (tmp_path / "net.prototxt").write_text("""
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 8 } } }
        layer { name: "fc" type: "BayesInnerProduct" bottom: "x" top: "fc"
                inner_product_param { num_output: 3 weight_filler { type: "xavier" } }
                bayes_param { kl_weight: 0 } }""")
    code = f"""
import caffe, numpy as np
caffe.set_random_seed(3)
net = caffe.Net("{tmp_path}/net.prototxt", caffe.TEST)
net.blobs["x"].data[...] = np.arange(16).reshape(2, 8)
print(caffe.__file__.split("/")[-5], [net.forward()["fc"].tobytes().hex() for _ in range(3)])
"""
    (_, cpu), (build, cuda) = python(code).split(" ", 1), python_of_build(code).split(" ", 1)
    assert build == "build-cuda" and cpu == cuda
