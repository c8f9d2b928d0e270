#!/usr/bin/env python3
"""Find a CUDA toolkit for the build, and install what it lacks from PyPI's wheels.

    cuda_toolkit.py [--out DIR] [--wheels]

Uses the first nvcc of: $CUDACXX, $CUDA_HOME/bin, $CUDA_PATH/bin, PATH, /usr/local/cuda/bin, the
newest /usr/local/cuda-*/bin. Installs what the machine lacks of nvcc, cuBLAS, cuRAND and NCCL into
DIR/13 or DIR/12 (default DIR: .cuda in this repository), laid out like a toolkit: bin, include,
lib, lib64, nvvm. scripts/cuda-13.txt and cuda-12.txt give the versions.

    --wheels   take nvcc and all libraries from wheels, whatever the machine has

Prints the CMake arguments that locate the toolkit. A second run installs nothing.

Exit codes: 0 success; 1 failure, with one message on standard error.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent
OUT = SCRIPTS.parent / ".cuda"
SYSTEM, LOCAL = Path("/usr"), Path("/usr/local")

NEWEST = 13
SUPPORTED = (12, 13)
# A library is present if its header and its shared object are. All else in the lists is for nvcc.
HEADERS = {"cublas": "cublas_v2.h", "curand": "curand.h", "nccl": "nccl.h"}


class ToolkitError(Exception):
    """An error to show to the person who runs the build."""


class Nvcc:
    """A working nvcc: its path, its version, and the toolkit that it belongs to."""

    def __init__(self, path):
        self.path = Path(path)
        # A dry run prints where nvcc really is, even if `path` is a script that calls it.
        said = self._run("--dryrun", os.devnull) + self._run("--version")
        version = re.search(r"release (\d+)\.(\d+)", said)
        top = re.search(r"^#\$ TOP=(.+)$", said, flags=re.M)
        here = re.search(r"^#\$ _HERE_=(.+)$", said, flags=re.M)
        if not version:
            raise ToolkitError(f"{path} --version names no CUDA version: {said.strip()[-200:]}")
        self.major = int(version[1])
        if self.major not in SUPPORTED:
            raise ToolkitError(
                f"{path} belongs to CUDA {version[1]}.{version[2]}, but the build needs CUDA 12 or"
                " 13; set CUDACXX=…/bin/nvcc to another one, or use --wheels"
            )
        if here:
            self.path = Path(here[1]) / "nvcc"
        self.root = Path(top[1]).resolve() if top else self.path.resolve().parent.parent

    def _run(self, *arguments):
        try:
            done = subprocess.run(
                [str(self.path), *arguments], capture_output=True, text=True, timeout=60
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolkitError(f"{self.path} cannot be run: {error}") from None
        return done.stdout + done.stderr


def find_nvcc():
    """The nvcc that the user names or the machine has, or None."""
    for variable, below in (("CUDACXX", ""), ("CUDA_HOME", "bin/nvcc"), ("CUDA_PATH", "bin/nvcc")):
        value = os.environ.get(variable)
        if value:
            path = shutil.which(Path(value) / below)
            if not path:
                raise ToolkitError(f"{variable}={value}: {Path(value) / below} is not a program")
            return Nvcc(path)
    versions = sorted(
        LOCAL.glob("cuda-*/bin/nvcc"),
        key=lambda path: [int(number) for number in re.findall(r"\d+", str(path))],
        reverse=True,
    )
    for path in [shutil.which("nvcc"), LOCAL / "cuda/bin/nvcc", *versions]:
        if path and os.access(path, os.X_OK):
            return Nvcc(path)
    return None


def has_library(name, roots):
    """Whether the directories `roots` contain a library's header and its shared object."""
    headers = [root / "include" / HEADERS[name] for root in roots]
    objects = [
        path
        for root in roots
        for below in ("lib64", "lib", "lib/*-linux-gnu")
        for path in root.glob(f"{below}/lib{name}.so")
    ]
    return any(path.exists() for path in headers) and bool(objects)


def wanted(major, nvcc):
    """The lines of the wheel list that name what the machine lacks."""
    lines = (SCRIPTS / f"cuda-{major}.txt").read_text().splitlines()
    lines = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    roots = [nvcc.root, SYSTEM, LOCAL] if nvcc else []
    chosen = []
    for line in lines:
        library = re.match(rf"nvidia-({'|'.join(HEADERS)})\b", line)
        there = has_library(library[1], roots) if library else nvcc is not None
        if not there:
            chosen.append(line)
    return chosen


def install(lines, out):
    """Install wheels into `out` as one toolkit, unless exactly these are installed."""
    stamp = out / ".installed"
    wants = "\n".join(lines) + "\n"
    if stamp.exists() and stamp.read_text() == wants:
        return
    print(f"cuda_toolkit: installing {' '.join(lines)} into {out}", file=sys.stderr, flush=True)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile",
             "--only-binary", ":all:", "--target", scratch, *lines],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        if done.returncode:
            raise ToolkitError("pip failed: " + "; ".join(done.stdout.strip().splitlines()[-3:]))
        merge(Path(scratch), out)
    stamp.write_text(wants)


def merge(site, out):
    """Move the contents of wheels into one tree. Wheels spread them over nvidia/cu13, nvidia/nccl
    and so on, and lack the links by which a linker finds a library."""
    for tree in [*site.glob("nvidia/*/"), *site.glob("*.dist-info")]:
        into = out / "licenses" / tree.name if tree.suffix == ".dist-info" else out
        for path in sorted(tree.rglob("*")):
            if path.is_file() and path.name != "__init__.py":
                target = into / path.relative_to(tree)
                target.parent.mkdir(parents=True, exist_ok=True)
                path.replace(target)
    (out / "lib64").symlink_to("lib")
    for path in (out / "lib").glob("lib*.so.*"):
        link = path.with_name(path.name.split(".so.")[0] + ".so")
        if not link.exists():
            link.symlink_to(path.name)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--wheels", action="store_true")
    options = parser.parse_args()
    try:
        nvcc = None if options.wheels else find_nvcc()
        major = nvcc.major if nvcc else NEWEST
        out = options.out.resolve() / str(major)
        lines = wanted(major, nvcc)
        if lines:
            install(lines, out)
    except ToolkitError as error:
        sys.exit(f"cuda_toolkit: {error}")
    print(f"-DCMAKE_CUDA_COMPILER={nvcc.path if nvcc else out / 'bin/nvcc'}")
    print(f"-DCMAKE_PREFIX_PATH={out if lines else ''}")


if __name__ == "__main__":
    main()
