"""The Docker images, as far as that goes without building them; `make docker-test` does."""

import contextlib
import difflib
import glob
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import REPO, small_net, why_no_mpi, write_solver

DOCKERFILES = {kind: (REPO / f"docker/{kind}/Dockerfile").read_text() for kind in ("cpu", "gpu")}
README = (REPO / "docker/README.md").read_text()
ENTRYPOINT = REPO / "docker/entrypoint.sh"


def git(*arguments, **options):
    done = subprocess.run(["git", *arguments], cwd=REPO, capture_output=True, text=True, **options)
    return done.stdout.splitlines()


# ---- What is sent to a build --------------------------------------------------------------------


def pattern(text):
    """A line of .dockerignore as an expression, which also matches what is below a match."""
    parts = {"**/": "(.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    tokens = re.findall(r"\*\*/|\*\*|\*|\?|[^*?]+", text.strip("/"))
    return re.compile("".join(parts.get(token, re.escape(token)) for token in tokens) + "(/.*)?")


RULES = [
    (pattern(line.removeprefix("!")), not line.startswith("!"))
    for line in (REPO / ".dockerignore").read_text().splitlines()
    if line and not line.startswith("#")
]


def is_sent(path):
    """Whether Docker sends a file: the last rule that matches it decides."""
    ignored = [ignore for rule, ignore in RULES if rule.fullmatch(path)]
    return not (ignored and ignored[-1])


def examples_of(ignored):
    """Paths that a line of .gitignore is about."""
    path = ignored.removesuffix("/").replace("**", "some/folder").replace("*", "some")
    if "/" in path:
        return [path.removeprefix("/")]
    return [f"{folder}{path}" for folder in ("", "models/lenet/", "python/bayescaffe/", "docker/")]


@pytest.mark.parametrize("ignored", (REPO / ".gitignore").read_text().split())
def test_what_git_ignores_is_not_sent(ignored):
    # As a folder with a file, where it is a folder that is ignored.
    paths = [path + "/file" * ignored.endswith("/") for path in examples_of(ignored)]
    assert git("check-ignore", "--no-index", *paths) == paths
    assert [path for path in paths if is_sent(path)] == []


def copied(dockerfile):
    """The sources that a Dockerfile copies from the repository."""
    for line in re.findall(r"^COPY (?!--from)(.+)$", dockerfile, flags=re.M):
        yield from line.split()[:-1]


@pytest.mark.parametrize("kind", DOCKERFILES)
def test_what_is_copied_is_there_and_sent(kind):
    for source in copied(DOCKERFILES[kind]):
        found = [os.path.relpath(path, REPO) for path in glob.glob(str(REPO / source))]
        assert found or source == "caffe*.tar.gz", source
        for path in found:
            files = git("ls-files", path)
            # CMake wants to see these, but not what is Python or for other builds.
            if path == "benchmarks":
                files = [file for file in files if file.endswith(".cpp")]
            if path == "tests":
                others = tuple(f"tests/{name}/" for name in ("faults", "fuzz", "python", "wheel"))
                files = [file for file in files if not file.startswith(others)]
            assert files
            assert [file for file in files if not is_sent(file)] == []


def test_only_what_is_copied_is_sent():
    sources = [source for text in DOCKERFILES.values() for source in copied(text)]
    used = tuple(sources + ["docker/", "scripts/"])
    assert [file for file in git("ls-files") if is_sent(file) and not file.startswith(used)] == []


# ---- Dockerfiles --------------------------------------------------------------------------------


def test_the_gpu_image_is_the_cpu_image_and_cuda():
    lines = [DOCKERFILES[kind].splitlines() for kind in ("cpu", "gpu")]
    gone = [line[2:] for line in difflib.ndiff(*lines) if line.startswith("- ")]
    allowed = ("Bayesian Caffe for", "docker build", "cmake ", "caffe_source.py", "title=")
    assert [line for line in gone if not any(words in line for words in allowed)] == []


@pytest.mark.parametrize("kind", DOCKERFILES)
def test_the_base_is_pinned_and_the_user_is_not_root(kind):
    assert re.search(r"^ARG BASE=debian:\w+-20\d{6}-slim$", DOCKERFILES[kind], flags=re.M)
    last_stage = DOCKERFILES[kind].split("FROM ")[-1]
    assert re.findall(r"^USER (.+)", last_stage, flags=re.M) == ["1000"]


def test_labels_tell_the_version_of_the_package():
    import bayescaffe

    for text in DOCKERFILES.values():
        assert re.search(r'image\.version="(.+)"', text)[1] == bayescaffe.__version__


@pytest.mark.parametrize("kind", DOCKERFILES)
def test_images_keep_the_licenses_of_packages(kind):
    installer = (REPO / "docker/install-packages.sh").read_text()
    assert "--path-include='/usr/share/doc/*/copyright'" in installer
    last_stage = DOCKERFILES[kind].split("FROM ")[-1]
    assert "/tmp/install-packages.sh /tmp/packages.txt" in last_stage
    assert "apt-get" not in last_stage and "/usr/share" not in last_stage


def test_the_readme_tells_all_build_arguments():
    told = re.findall(r"^\| `(\w+)` \|", README, flags=re.M)
    known = re.findall(r"^ARG (\w+)", "".join(DOCKERFILES.values()), flags=re.M)
    assert sorted(told) == sorted(set(known))


# ---- What is collected for the image ------------------------------------------------------------


@pytest.fixture
def collect(tmp_path):
    """Runs docker/collect.sh on stand-ins for a finished build, and returns what the image gets."""
    top = tmp_path / "top"
    for folder in ("models", "examples", "build/caffe-src/python/caffe", "build/caffe/lib"):
        (top / folder).mkdir(parents=True)
    for file in ("LICENSE", "scripts/demo.sh", "docker/entrypoint.sh"):
        (top / file).parent.mkdir(exist_ok=True)
        shutil.copy(REPO / file, top / file)
    (top / ".venv/bin").mkdir(parents=True)
    (top / ".venv/bin/python").symlink_to(sys.executable)
    (top / "build/caffe/tools").mkdir()
    for program in ("caffe", "convert_imageset", "compute_image_mean"):
        shutil.copy("/bin/bash", top / "build/caffe/tools" / program)
    shutil.copy("/bin/bash", top / "build/caffe/lib/_caffe.so")
    (top / "build/caffe-src/LICENSE").write_text("Caffe's notice")

    def run(**environment):
        env = {**os.environ, "BAYESCAFFE_TOP": str(top), "CUDA_HOME": "/nowhere", **environment}
        command = [REPO / "docker/collect.sh", tmp_path / "out"]
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        return done, Path(f"{tmp_path}/out/{top}")

    run.top = top
    return run


def test_the_image_has_our_license_and_caffes(collect):
    done, image = collect()
    assert done.returncode == 0, done.stderr
    assert (image / "LICENSE").read_text() == (REPO / "LICENSE").read_text()
    assert (image / "licenses/caffe").read_text() == "Caffe's notice"
    assert "libc6" in (image / "packages.txt").read_text().split()


def test_no_image_is_made_without_caffes_license(collect):
    (collect.top / "build/caffe-src/LICENSE").unlink()
    assert collect()[0].returncode != 0


def test_tests_bring_the_license_of_google_test(collect):
    header = collect.top / "build/caffe-src/src/gtest/gtest.h"
    header.parent.mkdir(parents=True)
    header.write_text("// Copyright\n//\n// THE TERMS\n//\n// Author: X\n//\n#define GTEST\n")
    (collect.top / "build/bayes_tests").touch()
    done, image = collect()
    assert done.returncode == 0, done.stderr
    assert (image / "licenses/googletest").read_text() == "Copyright\n\nTHE TERMS\n\n"


def test_a_library_of_no_package_brings_its_license(collect, tmp_path):
    source = tmp_path / "library.c"
    source.write_text("int main(void) { return 0; }")
    (tmp_path / "own").mkdir()
    library = tmp_path / "own/libnobodys.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libnobodys.so", "-o", library, source], check=True
    )
    caffe = collect.top / "build/caffe/tools/caffe"
    command = ["cc", "-Wl,--no-as-needed", f"-Wl,-rpath,{library.parent}", source, library]
    subprocess.run([*command, "-o", caffe], check=True)
    done, _ = collect()
    assert done.returncode == 1
    assert "libnobodys.so belongs to no Debian package" in done.stderr
    notice = collect.top / ".cuda/13/licenses/x.dist-info/License.txt"
    notice.parent.mkdir(parents=True)
    notice.write_text("NVIDIA's terms")
    done, image = collect()
    assert done.returncode == 0, done.stderr
    assert (image / "licenses/cuda/x.dist-info/License.txt").read_text() == "NVIDIA's terms"
    assert Path(f"{tmp_path}/out/{library}").exists()


# ---- What a container runs ----------------------------------------------------------------------


@pytest.fixture
def container(tmp_path):
    """Runs the entry point in tmp_path/work, with programs that only tell how they were called."""
    top, work = tmp_path / "top", tmp_path / "work"
    for program in ("bin/caffe", "bin/bayescaffe", "bin/bayes_tests", "scripts/demo.sh"):
        path = top / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho {path.name} "$@" in "$PWD" home "$HOME"\n')
        path.chmod(0o755)
    shutil.copytree(REPO / "models/lenet/bayes-plain", top / "models/lenet/bayes-plain")
    work.mkdir()

    def run(*arguments, home=work, **more):
        return subprocess.run(
            [ENTRYPOINT, *arguments],
            cwd=work,
            capture_output=True,
            text=True,
            env={"PATH": f"{top}/bin:/usr/bin:/bin", "HOME": str(home), "BAYESCAFFE_TOP": str(top)}
            | more,
        )

    def program(name, body):
        (top / "bin" / name).unlink(missing_ok=True)
        if body:
            (top / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
            (top / "bin" / name).chmod(0o755)

    run.work, run.program = work, program
    return run


def test_by_itself_it_tells_what_it_has(container):
    done = container()
    assert (done.returncode, done.stderr) == (0, "")
    programs = (
        "caffe train",
        "bayescaffe COMMAND",
        "python",
        "jupyter lab",
        "demo",
        "serve",
        "test-gpu",
    )
    for program in programs:
        assert f"\n  {program}" in done.stdout
    assert container("help").stdout == container("--help").stdout == done.stdout


def test_it_tells_the_commands_of_bayescaffe(container):
    from bayescaffe.cli import build_parser

    told = re.search(r"bayescaffe COMMAND +(.+)", container().stdout)[1].split(", ")
    assert told == list(build_parser()._subparsers._group_actions[0].choices)


@pytest.mark.parametrize("program", ["caffe", "bayescaffe"])
def test_programs_get_their_arguments(container, program):
    done = container(program, "train", "two words")
    assert done.stdout == f"{program} train two words in {container.work} home {container.work}\n"


def test_exit_codes_are_those_of_the_program(container):
    assert container("sh", "-c", "exit 7").returncode == 7


def test_an_unknown_program_is_named(container):
    done = container("train", "-solver", "x")
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr.startswith("entrypoint: no program 'train'")


@pytest.mark.parametrize("home", ["/nonexistent", ""])
def test_a_user_without_a_home_gets_one(container, home):
    assert container("caffe", home=home).stdout.endswith("home /tmp\n")


def test_demo_brings_the_nets_and_the_data(container):
    done = container("demo", "models/lenet/bayes-plain", "5")
    lines = [line.split(" in ")[0] for line in done.stdout.splitlines()]
    assert lines == ["bayescaffe data mnist", "demo.sh models/lenet/bayes-plain 5"]
    solver = container.work / "models/lenet/bayes-plain/solver.prototxt"
    solver.write_text("changed")
    assert container("demo").returncode == 0
    assert solver.read_text() == "changed"


def test_gpu_tests_need_a_gpu(container):
    done = container("test-gpu")
    lines = [line.split(" in ")[0] for line in done.stdout.splitlines()]
    assert lines == ["caffe device_query", "bayes_tests"]
    container.program("caffe", "echo 'caffe: error: no CUDA device' >&2; exit 1")
    done = container("test-gpu")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "caffe: error: no CUDA device\n"


def test_only_the_gpu_image_has_gpu_tests(container):
    container.program("bayes_tests", None)
    done = container("test-gpu")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "entrypoint: only the GPU image contains the GPU tests\n"


def test_serve_listens_for_others(container):
    done = container("serve", "net.caffemodel", "--port", "9000")
    assert done.stdout.startswith("bayescaffe serve --host 0.0.0.0 net.caffemodel --port 9000 in ")


@pytest.mark.parametrize(
    "words, port",
    [("serve net", 8080), ("serve net --port 9", 9), ("serve --port=7 net", 7), ("train x", None)],
)
def test_the_health_of_a_service_is_asked(container, tmp_path, words, port):
    container.program("python", 'printf "%s\\n" "$2"; exit 3')
    (tmp_path / "cmdline").write_text("\0".join(["python", "bayescaffe", *words.split(), ""]))
    done = container("health", BAYESCAFFE_CMDLINE=str(tmp_path / "cmdline"))
    assert done.returncode == (3 if port else 0)
    assert (f"http://127.0.0.1:{port}/healthz" in done.stdout) == bool(port)
    for text in DOCKERFILES.values():
        assert "HEALTHCHECK" in text and '"health"]' in text


# ---- Compose ------------------------------------------------------------------------------------


def test_compose_runs_jupyter_in_both_images():
    services = yaml.safe_load((REPO / "docker/compose.yaml").read_text())["services"]
    serve = services.pop("serve")
    assert set(services) == set(DOCKERFILES)
    assert serve["image"] == "bayescaffe:cpu" and serve["command"].startswith("serve ")
    assert serve["ports"] == ["127.0.0.1:8080:8080"]
    assert serve["volumes"][0].endswith(":/workspace:ro")
    for kind, service in services.items():
        assert f"-t {service['image']} ." in README
        assert service["build"]["dockerfile"] == f"docker/{kind}/Dockerfile"
        assert service["command"].startswith("jupyter lab ")
        # JupyterLab lets anyone who reaches it run anything.
        assert [port.split(":")[0] for port in service["ports"]] == ["127.0.0.1"]
        assert [volume.split(":")[-1] for volume in service["volumes"]] == ["/workspace"]
    gpu = services["gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert gpu == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]


def cluster_commands():
    """The commands of docker/cluster.yaml, as lists of words, without variables."""
    services = yaml.safe_load((REPO / "docker/cluster.yaml").read_text())["services"]
    texts = {name: service["command"] for name, service in services.items()}
    return {name: re.sub(r"\$\{\w+:-(.*?)\}", r"\1", text).split() for name, text in texts.items()}


def test_the_cluster_is_private_and_has_two_workers():
    services = yaml.safe_load((REPO / "docker/cluster.yaml").read_text())["services"]
    assert services["worker"]["deploy"] == {"replicas": 2}
    for service in services.values():
        assert service["image"] == "bayescaffe:cpu" and "ports" not in service
        assert [volume.split(":")[-1] for volume in service["volumes"]] == ["/workspace"]
    for job in ("sample", "train"):
        assert services[job]["profiles"] == ["job"]
        solver = cluster_commands()[job][2]
        assert (REPO / solver).is_file()
    assert cluster_commands()["train"][-2:] == ["--ranks", "2"]


def test_the_commands_of_the_cluster_work_together(tmp_path, digits):
    """As processes of this machine, each with its own address in place of the scheduler's name."""
    pytest.importorskip("distributed", reason="Dask is not installed")
    pytest.importorskip("caffe", reason="pycaffe is not built")
    if why := why_no_mpi():
        pytest.skip(why)
    net = small_net(digits, "kl_weight: 0.01 dataset_size: 330")
    solver = write_solver(tmp_path, net, 4)
    commands, address = cluster_commands(), f"tcp://127.0.0.1:{free_port()}"
    bin_folder = Path(sys.executable).parent

    def command(name, *more):
        words = [word.replace("tcp://scheduler:8786", address) for word in commands[name]]
        words = [str(solver) if word.endswith("solver.prototxt") else word for word in words]
        words = [address.rsplit(":")[-1] if word == "8786" else word for word in words]
        return [str(bin_folder / words[0]), *words[1:], *more]

    def run(name):
        done = subprocess.run(
            command(name), cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr

    run("train")
    with contextlib.ExitStack() as stack:
        for name, more in (("scheduler", ["--host", "127.0.0.1"]), ("worker", []), ("worker", [])):
            process = subprocess.Popen(
                command(name, *more), cwd=tmp_path, stderr=subprocess.DEVNULL
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
        run("sample")
    with np.load(tmp_path / "draws.npz") as found:
        assert found["probabilities"].shape[0] == 100


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
