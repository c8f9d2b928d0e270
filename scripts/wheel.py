#!/usr/bin/env python3
"""Build dist/bayescaffe-….whl: the Python package, pycaffe, the caffe tool and their libraries.

    wheel.py           the wheel for this Python, from the files in build/; `make wheel` runs it
    wheel.py sdist     the source archive
    wheel.py missing   tell for which versions of Python this system cannot build a wheel, and why

auditwheel copies the libraries into the wheel under names of their own, and tells which glibc it
needs. The notices of the Debian packages that the libraries come from go into the wheel as well.

Exit codes: 0 success; 1 failure, with one message on standard error.
"""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import scikit_build_core.build as backend

REPO = Path(__file__).resolve().parent.parent
DIST = REPO / "dist"
MOST_MEGABYTES = 60
# The systems whose Boost.Python is for a version of Python. Each has it for one version.
SYSTEMS = {10: "Ubuntu 22.04", 11: "Debian 12", 12: "Ubuntu 24.04", 13: "Debian 13"}


class WheelError(Exception):
    """An error to show to the person who runs the build."""


def run(*command, **options) -> str:
    """Run a command and return what it prints. A failure is a WheelError with its output."""
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
    if done.returncode:
        raise WheelError(f"{command[0]} failed:\n{done.stdout}")
    return done.stdout


def build(folder: Path) -> Path:
    """The wheel as scikit-build-core makes it, unpacked, without the libraries of the system."""
    # The build directory of `make build`, so that what is compiled is not compiled again.
    name = backend.build_wheel(str(folder), {"build-dir": "build"})
    unpacked = folder / "unpacked"
    with zipfile.ZipFile(folder / name) as archive:
        for member in archive.infolist():
            path = archive.extract(member, unpacked)
            os.chmod(path, member.external_attr >> 16)  # programs stay programs
    add_notices(unpacked, prepare(unpacked))
    return pack(unpacked, folder / name)


def prepare(unpacked: Path) -> set[str]:
    """Let the binaries of a wheel take Python's symbols from the Python that loads them. Return the
    Debian packages of the libraries that they need."""
    binaries = sorted((unpacked / "caffe").glob("*.so*"))
    for binary in binaries:
        run("strip", "--strip-unneeded", binary)
        for library in run("patchelf", "--print-needed", binary).split():
            if library.startswith("libpython"):
                run("patchelf", "--remove-needed", library, binary)
    return {package_of(library) for binary in binaries for library in libraries_of(binary)}


def add_notices(unpacked: Path, packages: set[str]) -> None:
    """Put the notices of Debian packages, and the licenses that these refer to, into a wheel."""
    (licenses,) = unpacked.glob("*.dist-info/licenses")
    referred = set()
    for package in packages:
        notice = Path("/usr/share/doc", package, "copyright")
        if not notice.is_file():
            raise WheelError(f"{notice} is not there: the notice of a library in the wheel")
        shutil.copyfile(notice, licenses / f"LICENSE.{package}")
        text = notice.read_text(errors="replace")
        referred |= set(re.findall(r"/usr/share/common-licenses/([\w.-]*\w)", text))
    for name in referred:
        shutil.copyfile(Path("/usr/share/common-licenses", name), licenses / f"common.{name}")


def libraries_of(binary: Path) -> set[Path]:
    """The libraries of the system that a binary needs, but for those of every system."""
    found = set()
    for line in run("ldd", binary).splitlines():
        _, arrow, rest = line.partition(" => ")
        if not arrow:
            continue
        if "not found" in rest:
            raise WheelError(f"{binary.name}: needs {line.strip()}")
        path = Path(rest.rsplit(" (", 1)[0])
        if path.parent != binary.parent:
            found.add(path.resolve())
    return found


def package_of(library: Path) -> str:
    """The Debian package of a library."""
    # By file name, because Debian 12 still lists files under /lib, a link to /usr/lib.
    return run("dpkg-query", "-S", f"*/{library.name}").split(":", 1)[0]


def pack(unpacked: Path, wheel: Path) -> Path:
    """Write a wheel with the files of a folder; its RECORD tells their digests."""
    (record,) = unpacked.glob("*.dist-info/RECORD")
    lines = []
    wheel.unlink(missing_ok=True)
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(unpacked.rglob("*")):
            if path.is_dir() or path == record:
                continue
            name = path.relative_to(unpacked).as_posix()
            digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest())
            lines.append(f"{name},sha256={digest.decode().rstrip('=')},{path.stat().st_size}")
            archive.write(path, name)
        name = record.relative_to(unpacked).as_posix()
        archive.writestr(name, "\n".join([*lines, f"{name},,", ""]))
    return wheel


def tell_missing() -> None:
    """Print which of the versions of Python that we support has no wheel from this system."""
    for minor, system in SYSTEMS.items():
        if minor == sys.version_info.minor:
            print(
                f"Python 3.{minor}: {', '.join(f'dist/{one.name}' for one in DIST.glob('*.whl'))}"
            )
        else:
            print(
                f"Python 3.{minor}: no wheel; this system has Boost.Python for Python "
                f"3.{sys.version_info.minor} only. {system} has it for 3.{minor}: "
                "run `make wheel` there"
            )


def main() -> None:
    os.chdir(REPO)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    DIST.mkdir(exist_ok=True)
    if sys.argv[1:] == ["sdist"]:
        print(f"dist/{backend.build_sdist(str(DIST))}")
        return
    if sys.argv[1:] == ["missing"]:
        tell_missing()
        return
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        out = Path(folder, "repaired")
        run("auditwheel", "repair", "--zip-compression-level", "9", "-w", out, wheel)
        (repaired,) = out.glob("*.whl")
        megabytes = repaired.stat().st_size / 1e6
        if megabytes > MOST_MEGABYTES:
            raise WheelError(f"{repaired.name} has {megabytes:.1f} MB; at most {MOST_MEGABYTES}")
        for old in DIST.glob(f"*-{repaired.name.split('-')[2]}-*.whl"):
            old.unlink()
        shutil.move(repaired, DIST / repaired.name)
    print(f"dist/{repaired.name}: {megabytes:.1f} MB")


if __name__ == "__main__":
    try:
        main()
    except WheelError as error:
        sys.exit(f"wheel: {error}")
