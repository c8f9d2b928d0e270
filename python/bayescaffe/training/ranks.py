"""The command that trains on several ranks: `mpirun caffe train`."""

import math
import os
import re
import shutil
import subprocess
from dataclasses import dataclass

from bayescaffe.common.errors import BayesCaffeError, argument

# What other hosts must know of the environment; mpirun passes on nothing by itself.
_PASSED_ON = re.compile(r"GLOG_\w+|OMP_NUM_THREADS|OPENBLAS_\w+|BAYESCAFFE_\w+|LD_LIBRARY_PATH")
_HOST = re.compile(r"[\w.-]+(:[1-9]\d*)?")
# What mpirun says of a rank that was killed.
_KILLED = re.compile(r".*noticed that process rank (\d+) .*on node (\S+) exited on signal (.*?)\.?")


@dataclass(frozen=True)
class Ranks:
    """How many processes train a net together, and where."""

    count: int
    hosts: str | None = None
    """Names separated by commas, each with a number of ranks if it is followed by `:4`."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise BayesCaffeError(f"{argument('ranks', self.count)}: must be 1 or more")
        for host in self.hosts.split(",") if self.hosts is not None else ():
            if not _HOST.fullmatch(host):
                raise BayesCaffeError(
                    f"{argument('hosts', self.hosts)}: {host!r} is no name of a host; expected "
                    "names such as a,b or a:4,b:4"
                )

    def command(self, caffe: list[str], environment: dict[str, str]) -> list[str]:
        """The command that runs the command `caffe` on all ranks."""
        # Without binding: mpirun's default may leave one core to each rank.
        command = [find_mpirun(), "-n", str(self.count), "--bind-to", "none"]
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
        if self.hosts is None:
            command.append("--oversubscribe")
        else:
            names = self.hosts.split(",")
            each = math.ceil(self.count / len(names))
            hosts = (name if ":" in name else f"{name}:{each}" for name in names)
            command += ["--host", ",".join(hosts)]
        for name in sorted(filter(_PASSED_ON.fullmatch, environment)):
            command += ["-x", name]
        return [*command, *caffe]


def killed_rank(line: str) -> str | None:
    """What a line of mpirun says of a rank that was killed, if anything."""
    found = _KILLED.fullmatch(line.strip())
    return f"rank {found[1]} on {found[2]} was ended by signal {found[3]}" if found else None


def find_mpirun() -> str:
    """The path of Open MPI's mpirun."""
    path = shutil.which("mpirun")
    if path is None:
        raise BayesCaffeError(
            f"{argument('ranks')}: there is no mpirun; install Open MPI, and build caffe again "
            "(docs/mpi.md)"
        )
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    if "Open MPI" not in version.stdout:
        raise BayesCaffeError(
            f"{argument('ranks')}: {path} is not Open MPI's; start `mpirun caffe train` yourself"
        )
    return path
