"""A small image set and nets to train on it, for the tests that need Caffe."""

import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

REPO = Path(__file__).resolve().parents[2]
CAFFE = REPO / "build/caffe/tools/caffe"
# What the experiments in models/ have in common; their commands do the same.
sys.path.append(str(REPO / "models/shared"))
# Matplotlib keeps a list of fonts. The one in the home directory may be of another environment.
os.environ["MPLCONFIGDIR"] = str(Path(sys.prefix) / "matplotlib")
# Without what the user may have said on logging.
PLAIN_ENVIRONMENT = {name: os.environ[name] for name in os.environ if not name.startswith("GLOG_")}


def pytest_configure(config):
    # A shell starts what runs in the background with Ctrl-C ignored, which child processes inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line(
        "markers",
        "engine: computes with nets on the CPU; `make test` runs it with our engine and without",
    )


def write_idx(path: Path, array: np.ndarray) -> None:
    header = b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def write_digits(directory: Path, train: int, test: int, size: int, classes: int) -> None:
    """Images of `classes` kinds of random blocks, with noise over them, as four IDX files."""
    random = np.random.default_rng(0)
    prototypes = random.integers(0, 2, (classes, size // 4, size // 4)).repeat(4, 1).repeat(4, 2)
    directory.mkdir(exist_ok=True)
    for name, count in (("train", train), ("t10k", test)):
        labels = random.integers(0, classes, count)
        images = 160 * prototypes[labels] + random.integers(0, 90, (count, size, size))
        write_idx(directory / f"{name}-images-idx3-ubyte", images)
        write_idx(directory / f"{name}-labels-idx1-ubyte", labels)


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> Path:
    """A directory with train_lmdb (330 images) and test_lmdb (100 images): 1x12x12, 4 classes."""
    from bayescaffe.data.datasets import prepare_idx

    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder / "idx", train=330, test=100, size=12, classes=4)
    prepare_idx(folder / "idx", folder, progress=False)
    return folder


def small_net(digits: Path, bayes: str | None = "", more: str = "", batch: int = 20) -> str:
    """A convolution, a hidden layer and an output layer; Bayesian with the options `bayes`.

    `more` is put in behind the hidden layer; it must work in place on "hidden".
    """
    prefix, options = ("", "") if bayes is None else ("Bayes", f"bayes_param {{ {bayes} }}")
    source = {phase: digits / f"{phase.lower()}_lmdb" for phase in ("TRAIN", "TEST")}
    data = "".join(
        f"""
        layer {{
          name: "data" type: "Data" top: "data" top: "label" include {{ phase: {phase} }}
          transform_param {{ scale: 0.00390625 }}
          data_param {{ source: "{path}" batch_size: {batch} backend: LMDB }}
        }}"""
        for phase, path in source.items()
    )
    return (
        data
        + f"""
        layer {{
          name: "conv" type: "{prefix}Convolution" bottom: "data" top: "conv" {options}
          convolution_param {{
            num_output: 4 kernel_size: 3 stride: 2 weight_filler {{ type: "xavier" }}
          }}
        }}
        layer {{
          name: "hidden" type: "{prefix}InnerProduct" bottom: "conv" top: "hidden" {options}
          inner_product_param {{ num_output: 16 weight_filler {{ type: "xavier" }} }}
        }}
        layer {{ name: "relu" type: "ReLU" bottom: "hidden" top: "hidden" }}
        {more}
        layer {{
          name: "out" type: "{prefix}InnerProduct" bottom: "hidden" top: "out" {options}
          inner_product_param {{ num_output: 4 weight_filler {{ type: "xavier" }} }}
        }}
        layer {{
          name: "accuracy" type: "Accuracy" bottom: "out" bottom: "label" top: "accuracy"
          include {{ phase: TEST }}
        }}
        layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "out" bottom: "label" top: "loss" }}
        """
    )


def input_net(text, batch):
    """The same net fed by arrays: an Input layer instead of Data, label and scores."""
    head = f"""layer {{ name: "data" type: "Input" top: "data"
                        input_param {{ shape {{ dim: {batch} dim: 1 dim: 12 dim: 12 }} }} }}"""
    start, end = (
        text.index('layer {\n          name: "conv"'),
        text.index('layer {\n          name: "acc'),
    )
    return head + text[start:end]


def write_solver(folder: Path, net: str, max_iter: int, name: str = "run", **options) -> Path:
    """Write a net and its solver into `folder`; return the solver's path."""
    (folder / f"{name}.net.prototxt").write_text(net)
    fields = {
        "base_lr": 0.01,
        "lr_policy": '"fixed"',
        "momentum": 0.9,
        "random_seed": 1,
        "max_iter": max_iter,
        "display": 10,
        "solver_mode": "CPU",
        "snapshot_prefix": f'"{folder / name}"',
        **options,
    }
    lines = [
        f'train_net: "{folder / name}.net.prototxt"',
        *(f"{k}: {v}" for k, v in fields.items()),
    ]
    path = folder / f"{name}.solver.prototxt"
    path.write_text("\n".join(lines))
    return path


def caffe(*arguments, cwd=None, tool=CAFFE, **environment) -> subprocess.CompletedProcess:
    """Run the `caffe` tool; its output is the log."""
    return subprocess.run(
        [str(part) for part in (tool, *arguments)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**PLAIN_ENVIRONMENT, **environment},
    )


def why_no_mpi() -> str | None:
    """Why `caffe` cannot train on several ranks; None if it can."""
    if shutil.which("mpirun") is None:
        return "mpirun is not installed (scripts/setup.sh --mpi)"
    libraries = subprocess.run(["ldd", str(CAFFE)], capture_output=True, text=True, check=False)
    if "libmpi" not in libraries.stdout:
        return "caffe was built without MPI"
    return None


def bash(commands):
    """What commands of a page write, in the current directory. They must succeed."""
    done = subprocess.run(
        ["bash", "-e", "-c", commands],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**PLAIN_ENVIRONMENT, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def python(code, timeout=600, **environment):
    """What a Python program writes."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        env={**PLAIN_ENVIRONMENT, **environment},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def make_net(folder: Path, text: str, phase: int = 1, seed: int = 1, weights=None):
    """A net of pycaffe, in phase TEST unless it is 0."""
    import caffe as pycaffe

    path = folder / "net.prototxt"
    path.write_text(text)
    pycaffe.set_random_seed(seed)
    return pycaffe.Net(str(path), phase, **({"weights": str(weights)} if weights else {}))


def save_weights(folder: Path, text: str, change=None) -> tuple[Path, Path]:
    """Write a net and the weights it starts with, after `change(net)`; return their paths."""
    net = make_net(folder, text, seed=5)
    if change:
        change(net)
    net.save(str(folder / "net.caffemodel"))
    return folder / "net.prototxt", folder / "net.caffemodel"


def blobs(net):
    return {name: [blob.data.copy() for blob in params] for name, params in net.params.items()}


def assert_same_bits(a, b):
    assert a.keys() == b.keys()
    for name in a:
        for i, (x, y) in enumerate(zip(a[name], b[name], strict=True)):
            assert np.array_equal(x, y), f"{name} blob {i}"


def agree(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether they differ by at most 1e-5 of the largest number, as other orders of sums do."""
    return np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def engine_is_chosen() -> bool:
    """Whether our CPU engine computes, and not upstream's code."""
    return os.environ.get("BAYESCAFFE_ENGINE", "").lower() != "caffe"


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    """The same bits from our engine. BLAS may sum in another order for another batch."""
    assert found.shape == expected.shape
    if engine_is_chosen():
        assert np.array_equal(found, expected)
    else:
        assert agree(found, expected)


def layer_posterior(name, tau, tau_bias=None, **fields):
    """What `inspect` might say of a layer with one tau for its weights and one for its biases."""
    from bayescaffe.net.posterior import LayerPosterior

    said = {
        **{"name": name, "weights": 24, "type": "BayesInnerProduct", "outputs": 8},
        **{"tau": tau, "tau_low": tau, "tau_high": tau},
        **{"biases": 0 if tau_bias is None else 8, "tau_bias": tau_bias},
        **{"tau_bias_low": tau_bias, "tau_bias_high": tau_bias},
        **{"sign_certainty": NormalDist().cdf(1 / tau), "is_output": False, "norm": 1.0},
        **{"kl": 1.0, "kl_share": 1.0, "kl_scale": 0.0},
    }
    return LayerPosterior(**{**said, **fields})


def load_script(path: Path):
    """A module of its own, from a file of scripts/ or models/."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def browser():
    """Chromium. Not for the whole session: Playwright's event loop must have ended when notebooks
    are run."""
    playwright = pytest.importorskip("playwright.sync_api")
    script = load_script(REPO / "scripts/screenshot.py")
    if script.find_browser() is None:
        pytest.skip("no chromium; scripts/setup.sh --tests installs it on Debian")
    # Playwright gives it a fresh profile, and removes that.
    with playwright.sync_playwright() as running:
        launched = running.chromium.launch(executable_path=script.find_browser(), args=script.FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def cluster():
    """A Dask cluster of two workers that is there already."""
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=2,
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
    ) as started:
        yield started
