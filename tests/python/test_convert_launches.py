"""The script that turns launches of kernels into calls of the simulated device."""

import subprocess
import sys

import pytest
from conftest import REPO

SCRIPT = REPO / "tests/simulated_cuda/convert_launches.py"


@pytest.fixture
def convert(tmp_path):
    """A function from the text of a .cu file to what is made of it, without what is prepended."""

    def run(text):
        source, result = tmp_path / "kernels.cu", tmp_path / "made/kernels.cu.cpp"
        source.write_text(text)
        command = [sys.executable, SCRIPT, source, result]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return done.stderr
        include, line, converted = result.read_text().split("\n", 2)
        assert include == '#include "device_code.hpp"'
        assert line == f'#line 1 "{source}"'
        assert converted.count("\n") == text.count("\n")
        return converted

    return run


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        ("fill<<<1, 2>>>(x)", "SIMULATED_CUDA_LAUNCH((fill),(1, 2))(x)"),
        ("a::fill<T, 2><<<n, m>>>()", "SIMULATED_CUDA_LAUNCH((a::fill<T, 2>),(n, m))()"),
        ("f<float> <<<B(n), 2>>>(x)", "SIMULATED_CUDA_LAUNCH((f<float>), (B(n), 2))(x)"),
        ("n##_k<T><<<1, 2>>>( \\\n x)", "SIMULATED_CUDA_LAUNCH((n##_k<T>),(1, 2))( \\\n x)"),
        ("f  // why\n  <<<1,\n2>>>(x)", "SIMULATED_CUDA_LAUNCH((f),  // why\n  (1,\n2))(x)"),
    ],
)
def test_forms_of_launches(convert, launch, expected):
    assert convert(f"if (n > 0) {launch};\nx << y;\n") == f"if (n > 0) {expected};\nx << y;\n"


def test_several_launches(convert):
    launch = "SIMULATED_CUDA_LAUNCH((f),(1, 2))(x);"
    assert convert("f<<<1, 2>>>(x); f<<<1, 2>>>(x);") == f"{launch} {launch}"


def test_what_is_no_launch_is_an_error(convert):
    assert "kernels.cu: line 2: no launch of a kernel around '<<<'" in convert("int x;\n<<<1>>>\n")
    assert "line 1: no launch" in convert("f<<<1, 2")
