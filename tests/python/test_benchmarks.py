"""`make bench` works: every subject runs and computes what upstream's Caffe computes."""

import json
import subprocess
import sys

import pytest
from conftest import REPO


def test_bench_runs_and_verifies_its_subjects(tmp_path):
    pytest.importorskip("caffe", reason="pycaffe is not built")
    command = [sys.executable, REPO / "benchmarks/bench.py", "--quick", "--nets", "lenet"]
    done = subprocess.run(
        [*command, "--json", tmp_path / "bench.json"], capture_output=True, text=True, cwd=REPO
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "bench.json").read_text())
    ours = {"ours, Bayesian", "ours, deterministic", "upstream Caffe's CPU code"}
    for table in ("lenet step", "lenet pass"):
        rows = {row["who"]: row for row in results[table]}
        assert all(rows[who]["mean"] > 0 for who in ours)
        # The other tools are an option; one that is there must agree with Caffe.
        for who in rows.keys() - ours:
            assert rows[who].get("mean", 0) > 0 or "No module named" in rows[who]["missing"]
    assert [row["images"] for row in results["lenet scaling"]] == [500, 1, 100]
