"""The commit and the machine that a page of results names."""

import os
import subprocess
import sys

import pytest
from bayescaffe.common import provenance


@pytest.mark.parametrize(
    ("flags", "held_back", "words"),
    [
        ("avx2 avx512f avx512bw", "", "(AVX-512)"),
        ("avx2 avx512f avx512bw", "avx2", "(AVX-512, BAYESCAFFE_ISA=avx2)"),
        ("avx2 fma", "", "(AVX2)"),
        ("avx", "", "(no AVX2)"),
    ],
)
def test_the_machine_is_described(tmp_path, monkeypatch, flags, held_back, words):
    monkeypatch.setenv("BAYESCAFFE_ISA", held_back)
    core = f"model name\t: Some CPU @ 2 GHz\nflags\t\t: sse {flags}\n\n"
    (tmp_path / "cpuinfo").write_text(2 * core)
    said = provenance.machine(tmp_path / "cpuinfo")
    assert said.startswith(f"{provenance.cores()} core")
    assert f" of Some CPU @ 2 GHz {words}, " in said


def test_cores_heed_the_affinity():
    code = (
        f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}});"
        "from bayescaffe.common import provenance; print(provenance.cores(), provenance.machine())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("1 1 core of ")


def test_the_commit_and_changes_to_it(tmp_path):
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=A", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-qm", "One")
    head = git("rev-parse", "--short", "HEAD")
    assert provenance.commit(tmp_path) == head
    (tmp_path / "not tracked").write_text("")
    assert provenance.commit(tmp_path) == head
    (tmp_path / "file").write_text("two")
    assert provenance.commit(tmp_path) == f"{head} with uncommitted changes"


def test_without_git_the_commit_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance.commit(tmp_path) == "unknown"
