"""scripts/cuda_toolkit.py on machines that have all, some or nothing of CUDA, and little wheels."""

import importlib.util
import os
import stat
import subprocess
import sys
import zipfile

import pytest
from conftest import REPO

SCRIPT = REPO / "scripts/cuda_toolkit.py"
NVCC = """#!/bin/sh
case "$*" in
  --version) echo "Cuda compilation tools, release {version}, V{version}.1" ;;
  *) echo '#$ _HERE_={bin}' >&2; echo '#$ TOP={bin}/..' >&2 ;;
esac
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The script as a module, on a machine where nothing is installed."""
    spec = importlib.util.spec_from_file_location("cuda_toolkit", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SYSTEM", tmp_path / "usr")
    monkeypatch.setattr(module, "LOCAL", tmp_path / "usr/local")
    for name in ("CUDACXX", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "usr/bin"))
    return module


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def install_nvcc(root, version="13.0"):
    return write_program(root / "bin/nvcc", NVCC.format(version=version, bin=root / "bin"))


def install_library(root, name, header, below="lib64"):
    for path in (root / "include" / header, root / below / f"lib{name}.so"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def names(lines):
    return {line.split("==")[0] for line in lines}


# ---- what the machine has ----------------------------------------------------------------------


def test_no_nvcc(script):
    assert script.find_nvcc() is None


def test_nvcc_of_a_variable_goes_before_path(script, tmp_path, monkeypatch):
    install_nvcc(tmp_path / "usr", "12.4")
    install_nvcc(tmp_path / "named", "13.1")
    assert script.find_nvcc().major == 12
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "named"))
    assert script.find_nvcc().major == 13


def test_newest_of_several_toolkits(script, tmp_path):
    for version in ("12.9", "13.10", "13.2"):
        install_nvcc(tmp_path / f"usr/local/cuda-{version}", version)
    assert script.find_nvcc().root == tmp_path / "usr/local/cuda-13.10"


def test_script_that_calls_nvcc(script, tmp_path):
    real = install_nvcc(tmp_path / "usr/local/cuda-13.0")
    write_program(tmp_path / "usr/bin/nvcc", f'#!/bin/sh\nexec {real} "$@"\n')
    found = script.find_nvcc()
    assert (found.path, found.root) == (real, tmp_path / "usr/local/cuda-13.0")


def test_variable_that_names_nothing(script, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(script.ToolkitError, match="CUDA_HOME=.*nowhere/bin/nvcc is not a program"):
        script.find_nvcc()


@pytest.mark.parametrize("version", ["11.8", "14.0"])
def test_version_that_is_not_supported(script, tmp_path, version):
    install_nvcc(tmp_path / "usr", version)
    with pytest.raises(script.ToolkitError, match=f"CUDA {version}, but the build needs"):
        script.find_nvcc()


def test_program_that_is_no_nvcc(script, tmp_path):
    write_program(tmp_path / "usr/bin/nvcc", "#!/bin/sh\necho what?\n")
    with pytest.raises(script.ToolkitError, match="nvcc --version names no CUDA version: what?"):
        script.find_nvcc()


# ---- what it lacks -----------------------------------------------------------------------------


def test_everything_without_nvcc(script):
    lines = script.wanted(13, None)
    assert {"nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cublas", "nvidia-nccl-cu13"} <= names(lines)


def test_libraries_that_a_toolkit_lacks(script, tmp_path):
    root = tmp_path / "usr/local/cuda-13.0"
    install_nvcc(root)
    install_library(root, "curand", "curand.h")
    # A library without its header cannot be compiled with.
    (root / "lib64/libcublas.so").touch()
    wanted = script.wanted(13, script.find_nvcc())
    assert names(wanted) == {"nvidia-cublas", "nvidia-nccl-cu13"}


def test_debian_has_all_where_it_has_libraries(script, tmp_path):
    install_nvcc(tmp_path / "usr/lib/nvidia-cuda-toolkit", "12.4")
    (tmp_path / "usr/bin").mkdir()
    (tmp_path / "usr/bin/nvcc").symlink_to(tmp_path / "usr/lib/nvidia-cuda-toolkit/bin/nvcc")
    for name, header in script.HEADERS.items():
        install_library(tmp_path / "usr", name, header, "lib/x86_64-linux-gnu")
    nvcc = script.find_nvcc()
    assert script.wanted(nvcc.major, nvcc) == []


def test_libraries_are_of_the_same_major_version(script, tmp_path):
    install_nvcc(tmp_path / "usr", "12.4")
    wanted = script.wanted(12, script.find_nvcc())
    assert names(wanted) == {"nvidia-cublas-cu12", "nvidia-curand-cu12", "nvidia-nccl-cu12"}


# ---- wheels ------------------------------------------------------------------------------------


def write_wheel(folder, project, files):
    name = f"{project.replace('-', '_')}-1.0"
    info = {
        "METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
        "licenses/License.txt": "terms",
    }
    files = {**files, **{f"{name}.dist-info/{path}": text for path, text in info.items()}}
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            entry = zipfile.ZipInfo(path)
            executable = stat.S_IXUSR if "/bin/" in path else 0
            entry.external_attr = (stat.S_IFREG | 0o644 | executable) << 16
            wheel.writestr(entry, text)


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """pip finds two little wheels, and nothing else."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    write_wheel(
        folder,
        "nvidia-cuda-nvcc",
        {"nvidia/cu13/bin/nvcc": "#!/bin/sh\n", "nvidia/cu13/lib/libcudart.so.13": "runtime"},
    )
    write_wheel(
        folder,
        "nvidia-nccl-cu13",
        {
            "nvidia/__init__.py": "",
            "nvidia/nccl/include/nccl.h": "header",
            "nvidia/nccl/lib/__init__.py": "",
            "nvidia/nccl/lib/libnccl.so.2": "library",
        },
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


BOTH = ["nvidia-cuda-nvcc==1.0", "nvidia-nccl-cu13==1.0"]


def test_wheels_become_one_toolkit(script, wheels, tmp_path):
    out = tmp_path / "out/13"
    script.install(BOTH, out)
    assert os.access(out / "bin/nvcc", os.X_OK)
    assert (out / "include/nccl.h").read_text() == "header"
    # What a linker asks for.
    assert (out / "lib64/libnccl.so").read_text() == "library"
    assert (out / "lib/libcudart.so").resolve() == out / "lib/libcudart.so.13"
    assert len(list(out.glob("licenses/*/licenses/License.txt"))) == 2
    assert not list(out.rglob("__init__.py"))
    assert [path.name for path in out.parent.iterdir()] == ["13"]


def test_second_run_installs_nothing_and_a_new_list_all(script, wheels, tmp_path):
    out = tmp_path / "out/13"
    script.install(BOTH, out)
    (out / "bin/nvcc").write_text("kept")
    script.install(BOTH, out)
    assert (out / "bin/nvcc").read_text() == "kept"
    script.install(BOTH[1:], out)
    assert not (out / "bin").exists() and (out / "lib/libnccl.so").exists()


def test_wheel_that_there_is_not(script, wheels, tmp_path):
    with pytest.raises(script.ToolkitError, match="pip failed: .*nvidia-cublas"):
        script.install([*BOTH, "nvidia-cublas==1.0"], tmp_path / "out/13")
    script.install(BOTH, tmp_path / "out/13")
    assert (tmp_path / "out/13/bin/nvcc").exists()


def test_command_line_tells_cmake_and_errors(tmp_path):
    root = tmp_path / "cuda"
    install_nvcc(root)
    install_library(root, "nccl", "nccl.h")
    install_library(root, "cublas", "cublas_v2.h")
    install_library(root, "curand", "curand.h")

    def run(cuda_home):
        return subprocess.run(
            [sys.executable, SCRIPT, "--out", tmp_path / "out"],
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"], "CUDA_HOME": str(cuda_home)},
        )

    done = run(root)
    assert done.stdout.split() == [
        f"-DCMAKE_CUDA_COMPILER={root}/bin/nvcc",
        "-DCMAKE_PREFIX_PATH=",
    ]
    assert (done.returncode, done.stderr, (tmp_path / "out").exists()) == (0, "", False)
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"cuda_toolkit: CUDA_HOME={tmp_path}")
    assert done.stderr.count("\n") == 1
