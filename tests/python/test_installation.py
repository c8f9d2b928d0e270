"""What is installed: the metadata of the wheel, completion, the man page, and Caffe for C++."""

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from bayescaffe.cli import build_parser
from bayescaffe.cli.help_files import SHELLS, commands, man_page, write_help_files
from conftest import REPO, bash, input_net, save_weights, small_net

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no reader of TOML")
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
PACKAGES = {"PIL": "pillow", "google": "protobuf", "dask": "distributed", "yaml": "pyyaml"}
# Packages that a function uses if the user has them: its result is of their type.
IF_THERE = {"arviz", "pandas", "xarray", "IPython", "ipywidgets"}


def imported(folder: Path) -> set[str]:
    """The packages that the modules of a folder import, by the names that pip knows."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module)
    tops = {name.partition(".")[0] for name in found} - set(sys.stdlib_module_names)
    return {PACKAGES.get(name, name) for name in tops - {"bayescaffe", "caffe"}}


def named(requirements) -> set[str]:
    return {re.match(r"[\w-]+", line)[0] for line in requirements}


def test_the_metadata_name_every_package_that_is_imported():
    optional = set().union(*map(named, PROJECT["optional-dependencies"].values()))
    missing = imported(REPO / "python/bayescaffe") - named(PROJECT["dependencies"]) - optional
    assert missing - IF_THERE == set()
    assert {"numpy", "protobuf", "six"} <= named(PROJECT["dependencies"])  # of pycaffe


def test_the_environment_has_versions_that_the_metadata_allow():
    done = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False
    )
    assert "bayescaffe" not in done.stdout


# ---- Completion and man page -----------------------------------------------------------------


def every_word():
    """Each command, and each option with the command it belongs to."""
    for command in commands(build_parser()):
        for action in command.options:
            for option in action.option_strings:
                yield command, option


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_names_every_command_and_option(shell):
    script = SHELLS[shell](build_parser())
    for command, option in every_word():
        for word in command.words:
            assert re.search(rf"\b{word}\b", script)
        spelled = option
        if shell == "fish":
            spelled = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
        assert spelled in script, (command.words, option)


def test_the_man_page_names_every_command_and_option():
    page = man_page(build_parser())
    for command, option in every_word():
        assert option.replace("-", "\\-") in page
        assert " ".join(command.words[1:]).upper().replace("-", "\\-") in page
    if shutil.which("groff"):
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", "-Kutf8"],
            input=page, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")


def completed(*words: str) -> set[str]:
    """What bash offers for the last of the words."""
    script = SHELLS["bash"](build_parser())
    array = " ".join(f"'{word}'" for word in words)
    return set(
        bash(
            f"{script}\nCOMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; COMPREPLY=()\n"
            '_bayescaffe; printf "%s\\n" "${COMPREPLY[@]}"'
        ).split()
    )


def test_bash_completes_commands_options_and_values():
    subparsers = next(
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    assert completed("bayescaffe", "") == set(subparsers.choices)
    assert completed("bayescaffe", "me") == {"merge"}
    assert completed("bayescaffe", "data", "m") == {"mnist"}
    assert completed("bayescaffe", "sample", "net", "--pas") == {"--passes"}
    assert completed("bayescaffe", "analyze", "x", "--interval", "") == {"equal-tailed", "hdi"}
    assert completed("bayescaffe", "merge", "--out", "") == set()  # files
    assert completed("bayescaffe", "completion", "") == set(SHELLS)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_commands_options_and_values(tmp_path):
    script = tmp_path / "bayescaffe.fish"
    script.write_text(SHELLS["fish"](build_parser()))

    def offered(line: str) -> set[str]:
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"],
            env={**os.environ, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        return {line.partition("\t")[0] for line in done.stdout.splitlines()}

    assert offered("bayescaffe me") == {"merge"}
    assert offered("bayescaffe sample --pas") == {"--passes"}
    assert offered("bayescaffe analyze x --interval ") == {"equal-tailed", "hdi"}
    assert offered("bayescaffe completion ") == set(SHELLS)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
@pytest.mark.parametrize(
    "typed, expected",
    [
        ("me", "merge "),
        ("sample --pas", "--passes "),
        ("analyze x --interval h", "hdi "),
        ("completion f", "fish "),
    ],
)
def test_zsh_completes_commands_options_and_values(tmp_path, typed, expected):
    """In a shell on a terminal of its own, with the tabulator; it waits until the word is there."""
    (tmp_path / "_bayescaffe").write_text(SHELLS["zsh"](build_parser()))
    session = tmp_path / "session.zsh"
    session.write_text(
        "zmodload zsh/zpty\n"
        "zpty shell 'TERM=dumb zsh -f -i'\n"
        "zpty -w shell 'PS1=; fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -D; "
        'echo rea""dy\'\n'
        "zpty -r -m shell out '*ready*'\n"
        f"zpty -n -w shell $'bayescaffe {typed}\\t'\n"
        f"zpty -r -m shell out '*bayescaffe *{expected}*' && print found\n"
        "zpty -d shell\n"
    )
    done = subprocess.run(
        ["zsh", "-f", str(session)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.endswith("found\n"), done


def test_they_are_put_where_shells_look(tmp_path):
    write_help_files(tmp_path)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {
        "man/man1/bayescaffe.1",
        "bash-completion/completions/bayescaffe",
        "zsh/site-functions/_bayescaffe",
        "fish/vendor_completions.d/bayescaffe.fish",
    }


# ---- Caffe for C++ -----------------------------------------------------------------------------


def test_another_project_finds_caffe(tmp_path, digits):
    pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
    prefix = tmp_path / "a prefix"
    net = input_net(small_net(digits), batch=1) + (
        'layer { name: "prob" type: "Softmax" bottom: "out" top: "prob" }'
    )
    definition, weights = save_weights(tmp_path, net)
    bash(
        f"cmake --build {REPO}/build --target help_files && "
        f"cmake --install {REPO}/build --component sdk --prefix '{prefix}' && "
        f"cmake -S {REPO}/examples/cpp -B {tmp_path}/build -DCMAKE_PREFIX_PATH='{prefix}' && "
        f"cmake --build {tmp_path}/build"
    )
    assert (prefix / "bin/caffe").is_file() and (prefix / "share/man/man1/bayescaffe.1").is_file()
    linked = bash(f"ldd {tmp_path}/build/interval '{prefix}/bin/caffe'")
    assert f"=> {prefix}/lib/libcaffe.so" in linked  # of the example
    assert f"=> {prefix}/bin/../lib/libcaffe.so" in linked  # of the tool
    assert "not found" not in linked
    printed = bash(f"{tmp_path}/build/interval {definition} {weights} 2> /dev/null")

    pycaffe.set_random_seed(1)
    read = pycaffe.Net(str(definition), pycaffe.TEST, weights=str(weights))
    image = (np.arange(144, dtype=np.float32) / 144).reshape(1, 1, 12, 12)
    draws = np.asarray(read.sample(100, image)).reshape(100, 4)
    best = draws.mean(0).argmax()
    low, high = np.sort(draws[:, best])[[2, 97]]
    assert printed == f"class {best}: {draws[:, best].mean():.4f}, {low:.4f} to {high:.4f}\n"
