#!/usr/bin/env python3
"""Compile our C++ files with the oldest GCC that we support and with clang; fail on any warning.

    compilers.py [BUILD]

The files and their flags are those of the build in BUILD (default: build), with -Wall -Wextra.
Files of the fork are compiled to code (-O1); tests and benchmarks are only parsed and checked.
Caffe's own files are not compiled, and warnings of its headers do not count.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("caffe_bayes", "tests/cpp", "benchmarks")
OLDEST = ("g++-11", "g++-12")  # the first that is installed


def compilers() -> list[str]:
    found = [name for name in OLDEST if shutil.which(name)]
    if not found:
        sys.exit(
            f"compilers: no {' or '.join(OLDEST)}; install it with scripts/setup.sh --compilers"
        )
    if found[0] != OLDEST[0]:
        print(f"compilers: {OLDEST[0]} is not installed; trying {found[0]} instead")
    if not shutil.which("clang++"):
        sys.exit("compilers: no clang++; install it with scripts/setup.sh --compilers")
    return [found[0], "clang++"]


def our_files(build: Path) -> dict[Path, list[str]]:
    """The flags of each of our source files, by its path."""
    command = ["ninja", "-C", str(build), "-t", "compdb"]
    entries = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    files = {}
    for entry in entries:
        source = Path(build, entry["file"]).resolve()
        ours = any(ROOT / folder in source.parents for folder in FOLDERS)
        simulated = entry["output"].startswith("tests/simulated_cuda")
        if source.suffix == ".cpp" and ours and not simulated:
            files[source] = flags(shlex.split(entry["command"]))
    return files


def flags(command: list[str]) -> list[str]:
    """What the build passes to its compiler, except names of files and the optimisation level."""
    # -isystem, because warnings of Caffe's headers do not count. Its folder also has links to our
    # headers; -I finds ours first.
    kept = ["-Wall", "-Wextra", "-Werror", f"-I{ROOT}/caffe_bayes/include", f"-I{ROOT}/caffe_bayes"]
    for i, argument in enumerate(command):
        if argument.startswith("-I"):
            kept += ["-isystem", argument[2:]]
        elif argument == "-isystem":
            kept += [argument, command[i + 1]]
        elif argument.startswith(("-D", "-W", "-f", "-std")):
            kept.append(argument)
    return kept


def compile_one(compiler: str, source: Path, arguments: list[str]) -> str:
    """The compiler's messages if there is an error or, by -Werror, a warning; empty otherwise.

    What Boost's headers print by `#pragma message` is neither.
    """
    to_code = ROOT / "caffe_bayes" in source.parents
    with tempfile.TemporaryDirectory() as folder:
        how = ["-O1", "-c", "-o", f"{folder}/out.o"] if to_code else ["-fsyntax-only"]
        done = subprocess.run(
            [compiler, *arguments, *how, str(source)], capture_output=True, text=True
        )
    return done.stderr if done.returncode else ""


def main() -> None:
    if sys.argv[1:] and sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    build = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build").resolve()
    files = our_files(build)
    if not files:
        sys.exit(f"compilers: the build in {build} compiles none of our files")
    failed = False
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for compiler in compilers():
            messages = pool.map(compile_one, repeat(compiler), files, files.values())
            complaints = [message for message in messages if message]
            count = f"{len(files)} files, {len(complaints)} with warnings or errors"
            print(f"compilers: {compiler}: {count}")
            print("".join(complaints), end="", file=sys.stderr)
            failed = failed or bool(complaints)
    sys.exit(failed)


if __name__ == "__main__":
    main()
