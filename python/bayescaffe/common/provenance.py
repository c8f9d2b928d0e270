"""Where a measurement comes from: the commit and the machine that a page of results names."""

import os
import platform
import subprocess
from pathlib import Path


def commit(folder: Path) -> str:
    """The commit that is checked out in `folder`, and whether files differ from it."""
    git = ["git", "-C", str(folder)]
    try:
        found = subprocess.check_output([*git, "rev-parse", "--short", "HEAD"], text=True).strip()
        changed = subprocess.check_output([*git, "status", "--porcelain", "-uno"], text=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{found} with uncommitted changes" if changed else found


def cores() -> int:
    """How many cores this process may use, by its CPU affinity."""
    return len(os.sched_getaffinity(0))


def machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Such as "2 cores of AMD EPYC (AVX2), 8 GiB, Debian GNU/Linux 12 (bookworm)"."""
    lines = cpuinfo.read_text().splitlines()
    fields = {key.strip(): value.strip() for key, _, value in (x.partition(":") for x in lines)}
    flags = fields.get("flags", "").split()
    instructions = "AVX-512" if "avx512bw" in flags else "AVX2" if "avx2" in flags else "no AVX2"
    held_back = os.environ.get("BAYESCAFFE_ISA")
    if held_back:
        instructions += f", BAYESCAFFE_ISA={held_back}"
    cpu = fields.get("model name", platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    count = f"{cores()} core{'s' * (cores() > 1)}"
    return f"{count} of {cpu} ({instructions}), {memory:.0f} GiB, {system}"
