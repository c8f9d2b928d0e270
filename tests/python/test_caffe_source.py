"""The script that prepares Caffe's source tree, and the patch series that it applies."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import REPO, load_script

SCRIPT = REPO / "scripts/caffe_source.py"
PATCH = "compat/protobuf-byte-limit.patch"


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The script as a module, on a copy of caffe_bayes/ that a test may spoil."""
    module = load_script(SCRIPT)
    shutil.copytree(REPO / "caffe_bayes", tmp_path / "fork")
    monkeypatch.setattr(module, "FORK", tmp_path / "fork")
    monkeypatch.setattr(module, "PATCHES", tmp_path / "fork/patches")
    return module


@pytest.fixture(scope="session")
def origin():
    """The pinned source; the build has put it into the cache."""
    return load_script(SCRIPT).obtain(os.environ.get("CAFFE_SOURCE", ""))


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_our_series_is_in_order(script, origin, capsys):
    script.check(origin)
    assert f"{len(script.series())} patches apply cleanly" in capsys.readouterr().out


def refuses(script, origin, message):
    with pytest.raises(script.SourceError, match=message):
        script.check(origin)


def test_patch_missing_from_the_series(script, origin):
    edit(script.PATCHES / "series", PATCH + "\n", "")
    refuses(script, origin, f"{PATCH}: not listed in series")


def test_listed_patch_without_a_file(script, origin):
    (script.PATCHES / PATCH).unlink()
    refuses(script, origin, f"{PATCH}: listed in series, but the file does not exist")


def test_patch_listed_twice(script, origin):
    edit(script.PATCHES / "series", PATCH, f"{PATCH}\n{PATCH}")
    refuses(script, origin, f"{PATCH}: listed 2 times")


def test_same_change_under_two_names(script, origin):
    shutil.copy(script.PATCHES / PATCH, script.PATCHES / "compat/again.patch")
    edit(script.PATCHES / "series", PATCH, f"{PATCH}\ncompat/again.patch")
    refuses(script, origin, "the same change as compat/again.patch")


def test_patch_without_a_reason(script, origin):
    edit(script.PATCHES / PATCH, "Description:", "Subject:")
    refuses(script, origin, f"{PATCH}: its header has no 'Description:' line")


def test_patch_that_applies_only_with_fuzz(script, origin):
    # Another first line of context: `patch` alone would accept it with fuzz 1.
    edit(script.PATCHES / PATCH, "   ZeroCopyInputStream* raw_input", "   Something* raw_input")
    refuses(script, origin, f"{PATCH} does not apply")


def test_patch_that_applies_only_with_an_offset(script, origin):
    edit(script.PATCHES / PATCH, "@@ -54,", "@@ -44,")
    edit(script.PATCHES / PATCH, " +54,", " +44,")
    refuses(script, origin, f"{PATCH}: applies only with an offset or fuzz")


def test_patch_that_does_not_apply(script, origin):
    edit(script.PATCHES / PATCH, "-  coded_input->SetTotalBytesLimit", "-  coded_input->SetLimit")
    refuses(script, origin, f"{PATCH} does not apply to the pinned Caffe")


def tree_state(tree):
    files = [path for path in tree.rglob("*") if path.is_file()]
    return {path: path.stat().st_mtime_ns for path in files}


def test_prepare_again_touches_only_what_changed(script, origin, tmp_path):
    out = tmp_path / "out"
    script.prepare(out, origin)
    header = out / "include/caffe/layers/bayes_layer.hpp"
    assert header.resolve() == script.FORK / "include/caffe/layers/bayes_layer.hpp"
    assert "BayesParameter" in (out / "src/caffe/proto/caffe.proto").read_text()
    (out / "python/caffe/_caffe.so").write_text("made by the build")
    before = tree_state(out)
    script.prepare(out, origin)
    assert tree_state(out) == before

    edit(script.PATCHES / "ours/bayes-param.patch", "+  optional float prior_mean", "+  optional ")
    script.prepare(out, origin)
    after = tree_state(out)
    changed = {path for path in before if before[path] != after.get(path)}
    assert changed == {out / "src/caffe/proto/caffe.proto", out / script.MANIFEST}

    (script.FORK / "src/caffe/layers/bayes_layer.cpp").unlink()
    script.prepare(out, origin)
    assert not (out / "src/caffe/layers/bayes_layer.cpp").is_symlink()
    assert (out / "python/caffe/_caffe.so").exists()


def test_file_of_ours_may_not_hide_one_of_caffes(script, origin, tmp_path):
    (script.FORK / "src/caffe/net.cpp").write_text("")
    with pytest.raises(script.SourceError, match="src/caffe/net.cpp would replace a file of Caffe"):
        script.prepare(tmp_path / "out", origin)


def test_directory_of_somebody_else_is_left_alone(script, origin, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.txt").write_text("mine")
    with pytest.raises(script.SourceError, match="was not made by this script"):
        script.prepare(tmp_path / "out", origin)


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def test_wrong_hash_is_refused_in_one_message(tmp_path):
    (tmp_path / "caffe.tar.gz").write_bytes(b"not caffe")
    done = run("prepare", tmp_path / "out", "--source", tmp_path / "caffe.tar.gz")
    assert done.returncode == 1
    assert "has sha256" in done.stderr and "expected e0eb3f06794f" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_directory_that_is_no_clone_is_refused(tmp_path):
    done = run("prepare", tmp_path / "out", "--source", tmp_path)
    assert done.returncode == 1
    assert "is not a git clone that contains commit 99bd99795dcd" in done.stderr


def test_no_source_at_all_says_what_was_tried_and_what_to_do(tmp_path):
    # Neither apt nor git can be found, and the cache is empty.
    done = run("prepare", tmp_path / "out", XDG_CACHE_HOME=str(tmp_path), PATH="", CAFFE_SOURCE="")
    assert done.returncode == 1
    for part in ("cache: ", "Debian source package: ", "git: ", "-DCAFFE_SOURCE=PATH"):
        assert part in done.stderr
    assert "Traceback" not in done.stderr


def test_corrupt_cache_is_passed_over(script, origin, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "bayescaffe").mkdir()
    (tmp_path / "bayescaffe" / script.TARBALL).write_bytes(b"half a download")
    monkeypatch.setattr(script, "from_debian", lambda: origin)
    assert script.obtain("") == origin


def test_git_clone_is_a_source(script, tmp_path, monkeypatch):
    # A repository with one commit stands in for Caffe's.
    git = ["git", "-C", str(tmp_path / "clone"), "-c", "user.name=x", "-c", "user.email=x@x"]
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone/file.txt").write_text("committed")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    monkeypatch.setattr(script, "COMMIT", commit.stdout.strip())
    (tmp_path / "clone/file.txt").write_text("edited by hand")
    (tmp_path / "tree").mkdir()
    script.unpack(script.obtain(tmp_path / "clone"), tmp_path / "tree")
    assert (tmp_path / "tree/file.txt").read_text() == "committed"
