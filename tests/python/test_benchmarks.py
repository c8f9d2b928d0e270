"""The benchmarks work: every subject runs and computes what upstream Caffe computes."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from bayescaffe.common import provenance
from conftest import REPO


def git(*arguments):
    return subprocess.check_output(["git", "-C", REPO, *arguments], text=True).strip()


def test_bench_runs_and_verifies_its_subjects(tmp_path):
    pytest.importorskip("caffe", reason="pycaffe is not built")
    command = [sys.executable, REPO / "benchmarks/bench.py", "--quick", "--nets", "lenet"]
    done = subprocess.run(
        [*command, "--json", tmp_path / "bench.json"], capture_output=True, text=True, cwd=REPO
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "bench.json").read_text())
    ours = {"ours, Bayesian", "ours, stock", "upstream Caffe's CPU code"}
    for table in ("lenet step", "lenet inference"):
        rows = {row["who"]: row for row in results[table]}
        assert all(rows[who]["mean"] > 0 for who in ours)
        # The other tools are an option; one that is there must agree with Caffe.
        for who in rows.keys() - ours:
            assert rows[who].get("mean", 0) > 0 or "No module named" in rows[who]["missing"]
    assert [row["images"] for row in results["lenet scaling"]] == [500, 1, 100]
    head = git("rev-parse", "--short", "HEAD")
    assert results["commit"].split()[0] == head
    assert f"at commit `{head}" in done.stdout
    assert results["machine"] == provenance.machine() and results["machine"] in done.stdout


@pytest.mark.parametrize(
    ("part", "rows"), [("stock LeNet", 3), ("draws of one image", 1), ("150 kB records", 2)]
)
def test_files_are_timed_with_two_builds(tmp_path, part, rows):
    """The other one is the same here."""
    pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
    other = Path(pycaffe.__file__).parents[1]
    command = [sys.executable, REPO / "benchmarks/bench_files.py", "--quick", "--only", part]
    command += ["--old", other]
    done = subprocess.run(
        [*command, "--folder", tmp_path, "--json", tmp_path / "files.json"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "files.json").read_text())
    assert len(found) == rows
    for name, times in found.items():
        assert part in name and f"| {name} | " in done.stdout
        assert times.keys() == {"this build", "old build"}
        # One round of two calls each.
        assert all(len(calls) == 2 and min(calls) > 0 for [calls] in times.values())
    assert [path.name for path in tmp_path.iterdir()] == ["files.json"]


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(REPO / "benchmarks"))
    import bench

    yield bench
    sys.path.remove(str(REPO / "benchmarks"))


def made_up(torch=8.0):
    """The results of a run in which ours takes 4 ms."""

    def row(who, mean):
        if mean is None:
            return {"who": who, "missing": "No module named torch"}
        return {"who": who, "mean": mean, "sd": 0.1, "ratio": mean / 4, "peak": 2 / mean}

    rows = [row("ours, Bayesian", 4.0), row("PyTorch, deterministic", torch), row("blitz", 16.0)]
    return {
        "commit": "abc1234",
        "machine": "2 cores of CPU X",
        "peers": {"torch": "1.0"},
        "peak": 186e9,
        "lenet step": rows,
        "lenet inference": rows,
    }


def test_the_aims_are_ratios_of_the_measured_times(bench):
    text = bench.aims(made_up())
    assert "| LeNet, training step: ours Bayesian / PyTorch | at most 0.55 | 0.50 |" in text
    assert "step: ours Bayesian / best Bayesian peer | at most 0.36 | 0.25 |" in text
    assert "| LeNet, inference: share of the SGEMM peak | at least 45% | 50% |" in text
    assert "vgg" not in text
    assert "PyTorch | at most 0.55 | – |" in bench.aims(made_up(torch=None))


def test_tables_are_written_below_the_mark(bench, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# Prose\n\n{bench.MARK}\nold")
    bench.write_into(page, bench.origin(made_up()))
    text = page.read_text()
    assert text.startswith("# Prose\n") and "old" not in text
    assert "at commit `abc1234` on 2 cores of CPU X. SGEMM" in text
    assert "186 GFLOP/s" in text
    page.write_text("no mark")
    with pytest.raises(SystemExit, match="has no line"):
        bench.write_into(page, "x")
    assert page.read_text() == "no mark"


@pytest.fixture(scope="module")
def measured(bench):
    """The part of BENCHMARKS.md that bench.py writes."""
    before, mark, after = (REPO / "BENCHMARKS.md").read_text().partition(bench.MARK)
    assert mark
    return after


def test_the_page_names_a_commit_of_this_repository(measured):
    commit = re.search(r"at commit `([0-9a-f]{7,})` on \d+ cores of", measured)[1]
    if git("rev-parse", "--is-shallow-repository") == "false":
        git("merge-base", "--is-ancestor", commit, "HEAD")


@pytest.mark.parametrize(
    "words, row", [("training", "training step"), ("Monte Carlo inference", "inference")]
)
def test_the_readme_claims_the_measured_speed(measured, words, row):
    row = rf"LeNet, {row}: ours Bayesian / PyTorch \|[^|]*\| ([\d.]+) \|"
    ratio = float(re.search(row, measured)[1])
    readme = (REPO / "README.md").read_text()
    claimed = float(re.search(rf"([\d.]+) times as fast in {words}", readme)[1])
    assert math.isclose(claimed, 1 / ratio, rel_tol=0.03)
