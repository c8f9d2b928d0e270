"""bayescaffe.stats needs NumPy and SciPy only: it runs in a Python that has nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import bayescaffe
import numpy
import pytest
import scipy

# Every module of the room is imported, and draws make the whole way: file, analysis, tables.
PROGRAM = """
import importlib, json, pkgutil, sys
import numpy as np
import bayescaffe
from bayescaffe import stats

for module in pkgutil.iter_modules(stats.__path__):
    importlib.import_module(f"bayescaffe.stats.{module.name}")
random = np.random.default_rng(0)
probabilities = random.dirichlet(np.ones(3), (50, 20)).astype(np.float32)
bayescaffe.save_draws("draws.npz", probabilities, random.integers(0, 3, 20), {"seed": 1})
draws = bayescaffe.load_draws("draws.npz")
assert np.array_equal(draws.probabilities, probabilities)
for interval in ("equal-tailed", "hdi"):
    found = bayescaffe.analyze("draws.npz", interval=interval, ood=draws)
found.write_csv("images.csv")
repr(draws), repr(found)
rooms = {name.split(".")[1] for name in sys.modules if name.startswith("bayescaffe.")}
print(json.dumps({"images": found.summary()["images"], "rooms": sorted(rooms)}))
"""


@pytest.fixture
def run_alone(tmp_path):
    """Runs a program without site-packages: it finds the standard library and these three."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for package in (numpy, scipy, bayescaffe):
        home = Path(package.__file__).parent
        # What a wheel ships its shared libraries in, beside the package.
        for path in (home, home.with_name(f"{home.name}.libs")):
            if path.exists():
                (folder / path.name).symlink_to(path)

    def run(program):
        program = f"import sys\nsys.path.insert(0, {str(folder)!r})\n{program}"
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )

    return run


def test_statistics_need_numpy_and_scipy_only(run_alone, tmp_path):
    done = run_alone(PROGRAM)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"images": 20, "rooms": ["common", "stats"]}
    assert (tmp_path / "images.csv").read_text().count("\n") == 21


@pytest.mark.parametrize("package", ["tqdm", "lmdb", "matplotlib", "PIL", "jinja2", "google"])
def test_the_other_packages_are_not_there(run_alone, package):
    done = run_alone(f"import {package}")
    assert f"No module named '{package}'" in done.stderr
