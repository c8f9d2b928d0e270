"""The machine that the experiments run on, as RESULTS.md names it."""

import os
import platform
from pathlib import Path

# From the least to the best, as BAYESCAFFE_ISA calls them; the engine needs all of these flags.
INSTRUCTION_SETS = {
    "plain": ("no AVX2", set()),
    "avx2": ("AVX2", {"avx2", "fma"}),
    "avx512": ("AVX-512", {"avx512f", "avx512vl", "avx512dq", "avx512bw"}),
}


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def describe(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The CPU, the instruction set that the engine uses, and the threads, separated by commas."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    fields = {key.strip(): value.strip() for key, _, value in (x.partition(":") for x in lines)}
    flags = set(fields.get("flags", "").split())
    used = "no AVX2"
    for name, (title, needed) in INSTRUCTION_SETS.items():
        if needed <= flags:
            used = title
        if name == os.environ.get("BAYESCAFFE_ISA"):
            break
    cpu = fields.get("model name", platform.machine())
    return f"{cpu}, {used}, {cores()} thread{'s' * (cores() > 1)}"
