#!/usr/bin/env python3
"""Find a CUDA toolkit for the build, or complete one from PyPI's wheels.

    cuda_toolkit.py [--out DIR] [--wheels]

Takes the first nvcc of: $CUDACXX, $CUDA_HOME/bin, $CUDA_PATH/bin, PATH, /usr/local/cuda/bin, the
newest /usr/local/cuda-*/bin. Of cuBLAS, cuRAND and NCCL, and nvcc itself, what the machine lacks is
installed into DIR/13 or DIR/12 (by default .cuda/ of this repository), laid out like a toolkit:
bin, include, lib, lib64, nvvm. The versions are those of scripts/cuda-13.txt and cuda-12.txt.

    --wheels   take nvcc and all libraries from wheels, whatever the machine has

Prints the arguments that tell CMake where all this is. A second run finds it done.

Exit codes: 0 done, 1 with one message on standard error.
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
# A library is there if its header and its shared object are. All else in the lists is nvcc's.
HEADERS = {"cublas": "cublas_v2.h", "curand": "curand.h", "nccl": "nccl.h"}


class ToolkitError(Exception):
    """A reason to stop, worded for the person who runs the build."""


class Nvcc:
    """An nvcc that works: its path, its version, and the toolkit that it belongs to."""

    def __init__(self, path):
        self.path = Path(path)
        # What it would do tells where it is, even if `path` is a script that calls it.
        said = self._run("--dryrun", os.devnull) + self._run("--version")
        version = re.search(r"release (\d+)\.(\d+)", said)
        top = re.search(r"^#\$ TOP=(.+)$", said, flags=re.M)
        here = re.search(r"^#\$ _HERE_=(.+)$", said, flags=re.M)
        if not version:
            raise ToolkitError(f"{path} tells no version of CUDA: {said.strip()[-200:]}")
        self.major = int(version[1])
        if self.major not in SUPPORTED:
            raise ToolkitError(
                f"{path} is of CUDA {version[1]}.{version[2]}, and CUDA 12 or 13 is needed; name"
                " another with CUDACXX=…/bin/nvcc, or take it from wheels with --wheels"
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
    """The nvcc that the user named or the machine has, or None."""
    for variable, below in (("CUDACXX", ""), ("CUDA_HOME", "bin/nvcc"), ("CUDA_PATH", "bin/nvcc")):
        value = os.environ.get(variable)
        if value:
            path = shutil.which(Path(value) / below)
            if not path:
                raise ToolkitError(f"{variable}={value}, but {Path(value) / below} is no program")
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
    """Whether a directory of `roots` has the header of a library and what to link with."""
    headers = [root / "include" / HEADERS[name] for root in roots]
    objects = [
        path
        for root in roots
        for below in ("lib64", "lib", "lib/*-linux-gnu")
        for path in root.glob(f"{below}/lib{name}.so")
    ]
    return any(path.exists() for path in headers) and bool(objects)


def wanted(major, nvcc):
    """The lines of the list of wheels that name what the machine lacks."""
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
    """Install wheels into `out` as one toolkit, unless just these are there."""
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
    """Move what wheels hold into one tree. They have it under nvidia/cu13, nvidia/nccl and so on,
    and no links by which a linker finds a library."""
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
