#!/usr/bin/env python3
"""Prepare the Caffe source tree that the build compiles.

    caffe_source.py prepare OUT [--source PATH]   write OUT: pinned Caffe + patches + our files
    caffe_source.py check [--source PATH]         check caffe_bayes/patches against the pinned Caffe

This repository contains no upstream Caffe. The source comes from the first of these that has it,
and is verified before it is used:

    1. --source PATH (or $CAFFE_SOURCE): the pinned tarball, or a git clone with the pinned commit
    2. the cache, ${XDG_CACHE_HOME:-~/.cache}/bayescaffe
    3. Debian's source package, through the Debian mirror that this machine's apt already uses
    4. git, from the public BVLC repository

`prepare` can be run again at any time. It writes only files whose content changes, so that the
build recompiles only what depends on them.

Exit codes: 0 success; 1 failure, with one message on standard error.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
FORK = REPO / "caffe_bayes"
PATCHES = FORK / "patches"

COMMIT = "99bd99795dcdf0b1d3086a8d67ab1782a8a08383"
GIT_URL = "https://github.com/BVLC/caffe.git"
DEBIAN_SUITE = "bullseye"
TARBALL = "caffe_1.0.0+git20180821.99bd997.orig.tar.gz"
TARBALL_SHA256 = "e0eb3f06794f7402c77b7dec8e8480273ee1a1bb192e9122b621a69d4147ad0c"

# Directories of caffe_bayes/ whose files are added to Caffe's directories of the same name.
OVERLAID = ("include", "src", "python")
# The file in OUT that records a digest of the inputs of `prepare`, then the files that it wrote.
MANIFEST = ".bayescaffe-manifest"


class SourceError(Exception):
    """An error to show to the person who runs the build."""


def run(*command, cwd=None, timeout=600):
    """Run a command and return its output. A failure is a SourceError with its last lines."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=timeout,
        )
    except FileNotFoundError:
        raise SourceError(f"the program '{command[0]}' is not installed") from None
    except subprocess.TimeoutExpired:
        raise SourceError(f"'{command[0]}' did not finish within {timeout} s") from None
    if done.returncode:
        last_lines = "; ".join(done.stdout.strip().splitlines()[-3:])
        raise SourceError(f"'{command[0]}' failed: {last_lines}")
    return done.stdout


# ---- obtaining the pinned source ---------------------------------------------------------------


def cache_dir():
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bayescaffe"


def verified(origin):
    """Return `origin` if it is the pinned tarball or a clone with the pinned commit; else raise."""
    if not origin.exists():
        raise SourceError(f"{origin} does not exist")
    if origin.is_file():
        found = hashlib.sha256(origin.read_bytes()).hexdigest()
        if found != TARBALL_SHA256:
            raise SourceError(f"{origin} has sha256 {found}, expected {TARBALL_SHA256} ({TARBALL})")
        return origin
    try:
        run("git", "-C", origin, "cat-file", "-e", f"{COMMIT}^{{commit}}")
    except SourceError as error:
        raise SourceError(
            f"{origin} is not a git clone that contains commit {COMMIT} ({error})"
        ) from None
    return origin


def unpack(origin, into):
    """Write the pristine tree of a verified origin into the empty directory `into`."""
    if origin.is_file():
        run("tar", "-xzf", origin, "-C", into)
    else:
        with tempfile.NamedTemporaryFile(suffix=".tar") as archive:
            run("git", "-C", origin, "archive", "-o", archive.name, COMMIT)
            run("tar", "-xf", archive.name, "-C", into)


def from_cache():
    for name in (TARBALL, "caffe.git"):
        if (cache_dir() / name).exists():
            return verified(cache_dir() / name)
    raise SourceError(f"{cache_dir()} has no copy")


def debian_mirror():
    """The base address of the Debian mirror in this machine's apt configuration."""
    targets = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN) $(LABEL)")
    for line in targets.splitlines():
        fields = line.split()
        if fields[1:] == ["Debian", "Debian"]:
            return fields[0]
    raise SourceError("apt's configuration names no Debian mirror (or 'apt-get update' never ran)")


def from_debian():
    """Download the source package with apt, without changing apt's own directories."""
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    mirror = debian_mirror()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        sources = scratch / "sources.list"
        sources.write_text(f"deb-src [signed-by={keyring}] {mirror} {DEBIAN_SUITE} main\n")
        for name in ("lists/partial", "cache/archives/partial", "state"):
            (scratch / name).mkdir(parents=True)
        apt = ["apt-get", "-q"]
        for option in (
            f"Dir::Etc::SourceList={sources}",
            "Dir::Etc::SourceParts=/dev/null",
            f"Dir::State={scratch / 'state'}",
            f"Dir::State::Lists={scratch / 'lists'}",
            f"Dir::Cache={scratch / 'cache'}",
            "APT::Sandbox::User=",
        ):
            apt += ["-o", option]
        run(*apt, "update", cwd=scratch)
        run(*apt, "source", "--download-only", f"caffe/{DEBIAN_SUITE}", cwd=scratch)
        tarball = verified(scratch / TARBALL)
        cache_dir().mkdir(parents=True, exist_ok=True)
        partial = cache_dir() / f"{TARBALL}.{os.getpid()}"
        shutil.copy(tarball, partial)
        return partial.replace(cache_dir() / TARBALL)


def from_git():
    clone = cache_dir() / "caffe.git"
    partial = cache_dir() / f"caffe.git.{os.getpid()}"
    partial.mkdir(parents=True)
    try:
        run("git", "init", "--bare", "-q", partial)
        run("git", "-C", partial, "fetch", "-q", "--depth", "1", GIT_URL, COMMIT)
        return verified(partial).replace(clone)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def obtain(user_path):
    """Return a verified origin: the path that the user names, else the first source that works."""
    if user_path:
        return verified(Path(user_path).expanduser().resolve())
    failures = []
    for label, source in (
        ("cache", from_cache),
        ("Debian source package", from_debian),
        ("git", from_git),
    ):
        try:
            return source()
        except SourceError as error:
            failures.append(f"  {label}: {error}")
    raise SourceError(
        "the pinned Caffe source could not be obtained:\n"
        + "\n".join(failures)
        + f"\nDownload {TARBALL} (Debian source package 'caffe') or clone {GIT_URL}, and pass"
        " the path with -DCAFFE_SOURCE=PATH."
    )


# ---- the patch series --------------------------------------------------------------------------


def series():
    """The patches in the order in which they apply, as paths relative to caffe_bayes/patches."""
    lines = (PATCHES / "series").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def apply_series(tree):
    """Apply every patch of the series to `tree`; return the output of `patch` for each."""
    said = {}
    for name in series():
        try:
            said[name] = run(
                "patch", "-p1", "--fuzz=0", "--force", "--no-backup-if-mismatch",
                "-i", PATCHES / name, cwd=tree,
            )  # fmt: skip
        except SourceError as error:
            raise SourceError(
                f"patch {name} does not apply to the pinned Caffe: {error}\n"
                "Refresh it against the patches before it in caffe_bayes/patches/series."
            ) from None
    return said


def series_faults():
    """Faults of the patch files themselves, before any of them is applied."""
    faults = []
    listed = series()
    present = {str(path.relative_to(PATCHES)) for path in PATCHES.rglob("*.patch")}
    for name in sorted({name for name in listed if listed.count(name) > 1}):
        faults.append(f"{name}: listed {listed.count(name)} times in series")
    for name in sorted(set(listed) - present):
        faults.append(f"{name}: listed in series, but the file does not exist")
    for name in sorted(present - set(listed)):
        faults.append(f"{name}: not listed in series")
    contents = {}
    for name in sorted(present):
        text = (PATCHES / name).read_text()
        header, hunks = re.split(r"^(?=--- )", text, maxsplit=1, flags=re.M)
        for field in ("Description", "Author", "Forwarded"):
            if not re.search(rf"^{field}: \S", header, flags=re.M):
                faults.append(f"{name}: its header has no '{field}:' line")
        if hunks in contents:
            faults.append(f"{name}: the same change as {contents[hunks]}")
        contents.setdefault(hunks, name)
    return faults


def check(user_path):
    faults = series_faults()
    if not faults:
        with tempfile.TemporaryDirectory() as tree:
            unpack(obtain(user_path), tree)
            try:
                said = apply_series(tree)
            except SourceError as error:
                faults.append(str(error))
            else:
                faults += [
                    f"{name}: applies only with an offset or fuzz; refresh it"
                    for name, output in said.items()
                    if re.search(r"offset|fuzz", output)
                ]
    if faults:
        raise SourceError("the patch series has faults:\n  " + "\n  ".join(faults))
    print(f"{len(series())} patches apply cleanly")


# ---- the tree that is compiled -----------------------------------------------------------------


def overlay_files():
    return [
        path.relative_to(FORK)
        for top in OVERLAID
        for path in sorted((FORK / top).rglob("*"))
        if path.is_file()
    ]


def inputs_digest():
    """A digest that changes whenever `prepare` has something to do."""
    digest = hashlib.sha256(f"{COMMIT} {Path(__file__).read_text()}".encode())
    for name in ["series", *series()]:
        path = PATCHES / name
        digest.update(path.read_bytes() if path.exists() else b"missing")
    digest.update("\n".join(map(str, overlay_files())).encode())
    return digest.hexdigest()


def place(source, target):
    """Make `target` a copy of `source` (a file or link); leave it alone if it is one already."""
    if source.is_symlink():
        link = os.readlink(source)
        if target.is_symlink() and os.readlink(target) == link:
            return
        target.unlink(missing_ok=True)
        target.symlink_to(link)
    elif target.is_symlink() or not target.exists() or target.read_bytes() != source.read_bytes():
        target.unlink(missing_ok=True)
        shutil.copy(source, target)


def prepare(out, user_path):
    manifest = out / MANIFEST
    digest = inputs_digest()
    before = manifest.read_text().splitlines() if manifest.exists() else [""]
    if before[0] == digest:
        return
    if out.exists() and any(out.iterdir()) and not manifest.exists():
        raise SourceError(f"{out} is not empty and was not made by this script; use another folder")
    origin = obtain(user_path)
    print(f"Caffe {COMMIT[:12]} from {origin}", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as tree:
        tree = Path(tree)
        unpack(origin, tree)
        apply_series(tree)
        for name in overlay_files():
            if (tree / name).exists():
                raise SourceError(f"caffe_bayes/{name} would replace a file of Caffe; use a patch")
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            # A link, so that the compiler sees our edits without another `prepare`.
            (tree / name).symlink_to(FORK / name)
        files = [
            p.relative_to(tree) for p in sorted(tree.rglob("*")) if p.is_symlink() or p.is_file()
        ]
        for name in files:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            place(tree / name, out / name)
    for name in set(before[1:]) - set(map(str, files)):
        (out / name).unlink(missing_ok=True)
    manifest.write_text("\n".join([digest, *map(str, files)]) + "\n")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("prepare", "check"):
        command = commands.add_parser(name)
        if name == "prepare":
            command.add_argument("out", type=Path)
        command.add_argument("--source", default=os.environ.get("CAFFE_SOURCE", ""))
    options = parser.parse_args()
    try:
        if options.command == "prepare":
            prepare(options.out.resolve(), options.source)
        else:
            check(options.source)
    except SourceError as error:
        sys.exit(f"caffe_source: {error}")


if __name__ == "__main__":
    main()
