"""scripts/kernels.py keeps what ptxas tells of our kernels, and refuses one that spills."""

import subprocess
import sys

import pytest
from conftest import REPO

SCRIPT = REPO / "scripts/kernels.py"
OBJECTS = "caffe/src/caffe/CMakeFiles/caffe.dir/bayes"
# Draw<float> and Sum<double> of an anonymous namespace in caffe.
DRAW, SUM = "_ZN5caffe12_GLOBAL__N_14DrawIfEEviPT_", "_ZN5caffe12_GLOBAL__N_13SumIdEEviPT_"


def told(kernel, gpu, registers, spilled=0):
    return f"""\
ptxas info    : Compiling entry function '{kernel}' for '{gpu}'
ptxas info    : Function properties for {kernel}
    {spilled} bytes stack frame, {spilled} bytes spill stores, 0 bytes spill loads
ptxas info    : Used {registers} registers, used 0 barriers, 368 bytes cmem[0]
"""


def run(*arguments):
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def build(tmp_path):
    """Writes what ptxas told of a source into a build."""

    def write(source, *entries):
        (tmp_path / OBJECTS).mkdir(parents=True, exist_ok=True)
        (tmp_path / OBJECTS / f"{source}.o.ptxas").write_text("".join(entries))
        (tmp_path / "caffe-src/src/caffe/bayes").mkdir(parents=True, exist_ok=True)
        (tmp_path / "caffe-src/src/caffe/bayes" / source).touch()
        return tmp_path

    return write


def test_table_of_registers(build):
    build("noise.cu", told(DRAW, "sm_75", 24), told(DRAW, "sm_120", 30))
    folder = build("posterior.cu", told(SUM, "sm_75", 8), told(SUM, "sm_120", 9))
    done = run("report", folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["registers", "of", "kernel", "sm_75", "sm_120", "spilled"],
        ["Draw<float>", "24", "30", "none"],
        ["Sum<double>", "8", "9", "none"],
    ]


def test_spill_on_one_architecture_is_an_error(build):
    folder = build("noise.cu", told(DRAW, "sm_75", 255, spilled=12), told(DRAW, "sm_80", 40))
    build("posterior.cu", told(SUM, "sm_75", 8))
    done = run("report", folder)
    assert done.returncode == 1
    assert done.stderr == "kernels: these kernels spill registers to memory: Draw<float>\n"
    assert "12 bytes" in done.stdout


def test_source_that_is_gone_does_not_count(build):
    folder = build("noise.cu", told(DRAW, "sm_75", 255, spilled=12))
    build("posterior.cu", told(SUM, "sm_75", 8))
    (folder / "caffe-src/src/caffe/bayes/noise.cu").unlink()
    done = run("report", folder)
    assert done.returncode == 0 and "Draw" not in done.stdout


def test_no_kernel_is_an_error(tmp_path):
    done = run("report", tmp_path)
    assert done.returncode == 1 and "contains no compiled kernel of ours" in done.stderr


@pytest.mark.parametrize("code", [0, 2])
def test_compiler_is_run_and_what_ptxas_told_kept(tmp_path, code):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(
        f"#!/bin/sh\necho output\ncat >&2 <<'END'\nx.cu(3): warning: this\n"
        f"{told(DRAW, 'sm_80', 24)}END\nexit {code}\n"
    )
    nvcc.chmod(0o755)
    kept = tmp_path / "x.cu.o.ptxas"
    done = run("compile", nvcc, "-Xptxas=-v", "-o", tmp_path / "x.cu.o")
    assert (done.returncode, done.stdout) == (code, "output\n")
    assert done.stderr == "x.cu(3): warning: this\n"
    assert kept.exists() == (code == 0)
    if code == 0:
        assert kept.read_text() == told(DRAW, "sm_80", 24)
        kept.unlink()
    # Without the option the compiler is simply run.
    assert "ptxas info" in run("compile", nvcc, "-o", tmp_path / "x.cu.o").stderr
    assert not kept.exists()
