#!/usr/bin/env python3
"""Report the registers that our GPU kernels use.

    kernels.py compile NVCC …   run the compiler; save the output of ptxas -v beside the object
    kernels.py report BUILD     print the registers of each kernel in BUILD by architecture

CMake uses the first as nvcc's launcher. A kernel that spills registers to memory is an error,
because it is slow for a reason that its source does not show.

Exit codes: `compile` returns the compiler's; `report` returns 1 if a kernel spills or none was
compiled, else 0.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

KEPT = ".ptxas"


def compile_and_keep(command):
    """Run nvcc. What ptxas says about kernels goes to OBJECT.ptxas, the rest to standard error."""
    if "-Xptxas=-v" not in command or "-o" not in command:
        os.execvp(command[0], command)
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    lines = done.stderr.splitlines(keepends=True)
    told = re.compile(r"ptxas info|\s+\d+ bytes stack frame")
    sys.stderr.writelines(line for line in lines if not told.match(line))
    if done.returncode == 0:
        kept = "".join(line for line in lines if told.match(line))
        Path(command[command.index("-o") + 1] + KEPT).write_text(kept)
    return done.returncode


def read(text):
    """Yield (kernel, architecture, registers, bytes of spill stores and loads) from ptxas -v."""
    entry = re.compile(
        r"Compiling entry function '(?P<kernel>\S+)' for '(?P<gpu>\w+)'"
        r"(?:.(?!Compiling))*?(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
        r"(?:.(?!Compiling))*?Used (?P<registers>\d+) registers",
        flags=re.S,
    )
    for found in entry.finditer(text):
        spilled = int(found["stores"]) + int(found["loads"])
        yield found["kernel"], found["gpu"], int(found["registers"]), spilled


def short_names(mangled):
    """Mangled name -> the kernel's name in the source, with template arguments."""
    names = sorted(set(mangled))
    done = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    )
    return {name: shorten(full) for name, full in zip(names, done.stdout.splitlines(), strict=True)}


def shorten(full):
    """`void caffe::(anonymous namespace)::Draw<float>(int, float*)` -> `Draw<float>`."""
    name = re.sub(r"\(anonymous namespace\)::|\w+::", "", full)
    name = re.sub(r"\(.*", "", name)
    return re.sub(r"^void |(?<=>) (?=>)", "", name)


def kept_files(build):
    """The saved outputs whose sources still exist."""
    objects = build / "caffe/src/caffe/CMakeFiles/caffe.dir"
    for path in sorted(objects.rglob(f"*.o{KEPT}")):
        source = str(path.relative_to(objects)).removesuffix(f".o{KEPT}")
        if (build / "caffe-src/src/caffe" / source).exists():
            yield path


def report(build):
    uses = {}
    kernels = [kernel for path in kept_files(build) for kernel in read(path.read_text())]
    names = short_names(kernel for kernel, *_ in kernels)
    for kernel, gpu, registers, spilled in kernels:
        uses.setdefault(names[kernel], {})[gpu] = (registers, spilled)
    if not uses:
        sys.exit(f"kernels: {build} contains no compiled kernel of ours")
    gpus = sorted({gpu for use in uses.values() for gpu in use}, key=lambda gpu: int(gpu[3:]))
    title = "registers of kernel"
    width = max(map(len, [title, *uses]))
    print(f"{title:{width}}" + "".join(f"{gpu:>8}" for gpu in gpus) + "  spilled")
    spilling = []
    for name, use in sorted(uses.items()):
        spilled = max(use.values(), key=lambda pair: pair[1])[1]
        if spilled:
            spilling.append(name)
        cells = "".join(f"{use[gpu][0] if gpu in use else '':>8}" for gpu in gpus)
        print(f"{name:{width}}{cells}  {f'{spilled} bytes' if spilled else 'none'}")
    if spilling:
        sys.exit(f"kernels: these kernels spill registers to memory: {', '.join(spilling)}")


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["compile"] and len(arguments) > 1:
        return compile_and_keep(arguments[1:])
    if arguments[:1] == ["report"] and len(arguments) == 2:
        return report(Path(arguments[1]))
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main())
