"""scripts/setup.sh on machines that lack something, played by stand-ins for the system's tools."""

import os
import shutil
import subprocess

import pytest
from conftest import REPO
from packaging.requirements import Requirement


@pytest.fixture
def machine(tmp_path):
    """Runs the script in a copy of the repository, with only the named tools on PATH."""
    repo, tools = tmp_path / "repo", tmp_path / "bin"
    (repo / "scripts").mkdir(parents=True)
    (repo / "python").mkdir()
    tools.mkdir()
    for path in ((REPO / "scripts/setup.sh"), *(REPO / "scripts").glob("apt-packages*.txt")):
        shutil.copy(path, repo / "scripts")
    for name in ("python/requirements.txt", "pyproject.toml"):
        shutil.copy(REPO / name, repo / name)
    for tool in ("bash", "cat", "dirname", "env", "grep", "sha256sum"):
        (tools / tool).symlink_to(shutil.which(tool))

    def run(*arguments, os_release="/etc/os-release", **stand_ins):
        for name, body in stand_ins.items():
            path = tools / name.replace("_", "-")
            path.write_text(f"#!/bin/bash\n{body}\n")
            path.chmod(0o755)
        return subprocess.run(
            ["bash", str(repo / "scripts/setup.sh"), *arguments],
            capture_output=True,
            text=True,
            env={"PATH": str(tools), "HOME": str(tmp_path), "OS_RELEASE": str(os_release)},
        )

    run.repo = repo
    return run


NONE_INSTALLED = "exit 1"
ALL_INSTALLED = "echo install ok installed"
# Stops the script after the packages: the environment is not what these tests are about.
LOG = 'echo "$0 $@" >> "$HOME/calls"; case "$*" in *install*) exit 7;; esac'


def test_this_machine_has_all_packages():
    done = subprocess.run([REPO / "scripts/setup.sh", "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_neither_root_nor_sudo_is_a_clear_message(machine):
    done = machine(dpkg_query=NONE_INSTALLED, id="echo 1000")
    assert done.returncode == 1
    assert "installing them needs root or sudo" in done.stderr
    assert "apt-get install" in done.stderr and "libprotobuf-dev" in done.stderr


def test_sudo_is_used_when_not_root(machine, tmp_path):
    done = machine(dpkg_query=NONE_INSTALLED, id="echo 1000", sudo=LOG)
    assert done.returncode == 7
    calls = (tmp_path / "calls").read_text()
    assert "sudo apt-get update" in calls
    assert "apt-get install -qq -y --no-install-recommends ca-certificates cmake" in calls


def test_only_missing_packages_are_installed(machine, tmp_path):
    only_cmake = 'case "$*" in *" cmake") exit 1;; *) echo install ok installed;; esac'
    done = machine(dpkg_query=only_cmake, id="echo 0", apt_get=LOG)
    assert done.returncode == 7
    last = (tmp_path / "calls").read_text().splitlines()[-1]
    assert last.endswith("--no-install-recommends cmake")


def test_nothing_is_done_when_all_is_there(machine):
    venv = machine.repo / ".venv"
    venv.mkdir()
    wants = subprocess.run(
        "cat python/requirements.txt pyproject.toml scripts/setup.sh | sha256sum",
        shell=True, cwd=machine.repo, capture_output=True, text=True, env=os.environ,
    ).stdout  # fmt: skip
    (venv / ".installed").write_text(wants)
    done = machine(dpkg_query=ALL_INSTALLED, id="echo 1000")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_another_distribution_is_told_what_to_install(machine):
    done = machine(id="echo 0")
    assert done.returncode == 1
    assert "this is not Debian or Ubuntu" in done.stderr


DEBIAN, UBUNTU = "ID=debian\n", "ID=ubuntu\nID_LIKE=debian\n"
FOR_TESTS = "chromium fish fonts-dejavu-core zsh"


@pytest.fixture
def tests_on(machine, tmp_path):
    """Runs `setup.sh --tests` on a distribution."""

    def run(os_release, **stand_ins):
        (tmp_path / "os-release").write_text(os_release)
        return machine("--tests", os_release=tmp_path / "os-release", **stand_ins)

    return run


def test_tests_get_a_browser_and_shells_on_debian(tests_on, tmp_path):
    done = tests_on(DEBIAN, dpkg_query=NONE_INSTALLED, id="echo 0", apt_get=LOG, apt_cache="")
    assert done.returncode == 7
    last = (tmp_path / "calls").read_text().splitlines()[-1]
    assert last.endswith(f"--no-install-recommends {FOR_TESTS}")


def test_tests_do_without_them_on_ubuntu(tests_on, tmp_path):
    done = tests_on(UBUNTU, dpkg_query=NONE_INSTALLED, id="echo 0", apt_get=LOG)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "calls").exists()


def test_tests_do_without_them_where_they_cannot_be_installed(tests_on):
    done = tests_on(DEBIAN, dpkg_query=NONE_INSTALLED, id="echo 1000")
    assert done.returncode == 0
    assert f"without {FOR_TESTS};" in done.stdout


def test_tests_make_no_environment(tests_on, machine):
    done = tests_on(DEBIAN, dpkg_query=ALL_INSTALLED, id="echo 1000")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (machine.repo / ".venv").exists()


def test_mpi_is_installed_on_request(machine, tmp_path):
    done = machine("--mpi", dpkg_query=NONE_INSTALLED, id="echo 0", apt_get=LOG, apt_cache="")
    assert done.returncode == 7
    last = (tmp_path / "calls").read_text().splitlines()[-1]
    assert last.endswith("--no-install-recommends libopenmpi-dev openmpi-bin")


def test_tests_do_without_mpi_where_it_cannot_be_installed(machine):
    done = machine("--mpi", dpkg_query=NONE_INSTALLED, id="echo 1000")
    assert done.returncode == 0
    assert "continuing without libopenmpi-dev openmpi-bin" in done.stdout


def test_a_compiler_that_a_release_lacks_is_named(machine, tmp_path):
    """Debian 13 has no g++-11."""
    done = machine(
        "--compilers",
        dpkg_query=NONE_INSTALLED,
        id="echo 0",
        apt_get=LOG,
        apt_cache='[ "$2" != g++-11 ]',
    )
    assert "this system has no package g++-11" in done.stdout
    last = (tmp_path / "calls").read_text().splitlines()[-1]
    assert last.endswith("--no-install-recommends clang g++-12")


@pytest.mark.parametrize(
    "path", sorted(REPO.glob("*/requirements*.txt")), ids=lambda path: path.name
)
def test_pip_reads_the_lists_of_packages(path):
    lines = [line.strip() for line in path.read_text().splitlines()]
    wanted = [line for line in lines if line and not line.startswith(("#", "-c "))]
    assert wanted and all(Requirement(line).name for line in wanted)
