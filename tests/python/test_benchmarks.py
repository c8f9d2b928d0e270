"""The benchmarks work: every subject runs and computes what upstream Caffe computes."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from bayescaffe.common import provenance
from conftest import REPO, why_no_mpi, write_digits


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
    rows = {row["who"]: row for row in results["lenet one image"]}
    assert sum(row.get("mean", 0) > 0 for who, row in rows.items() if who.startswith("ours")) == 3
    for who in rows:
        assert rows[who].get("mean", 0) > 0 or "No module named" in rows[who]["missing"]
    assert "| LeNet, one image, 100 draws, ms: predict, draws kept | at most 12 |" in done.stdout
    assert [row["images"] for row in results["lenet scaling"]] == [500, 1, 100]
    head = git("rev-parse", "--short", "HEAD")
    assert results["commit"].split()[0] == head
    assert f"at commit `{head}" in done.stdout
    assert results["machine"] == provenance.machine() and results["machine"] in done.stdout


@pytest.mark.skipif(why_no_mpi() is not None, reason=str(why_no_mpi()))
def test_ranks_are_verified_and_timed(tmp_path):
    command = [sys.executable, REPO / "benchmarks/bench_scale.py", "--quick", "--nets", "lenet"]
    done = subprocess.run(
        [*command, "--json", tmp_path / "scale.json"], capture_output=True, text=True, cwd=REPO
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "scale.json").read_text())["lenet"]
    assert found["difference"] < 1e-4
    ways = {(way["ranks"], way["threads"], way["batch"]): way for way in found["ways"]}
    assert ways.keys() == {(1, 1, 64), (1, 2, 64), (2, 1, 64), (4, 1, 64), (1, 1, 32)}
    single, two = ways[1, 1, 64], ways[2, 1, 64]
    assert two["efficiency"] == pytest.approx(single["mean"] / (2 * two["mean"]))


def test_workers_are_verified_and_timed(tmp_path):
    pytest.importorskip("distributed", reason="Dask is not installed")
    command = [sys.executable, REPO / "benchmarks/bench_workers.py", "--quick", "--workers", "2"]
    done = subprocess.run(
        [*command, "--json", tmp_path / "x.json"], capture_output=True, text=True, cwd=REPO
    )
    assert done.returncode == 0, done.stderr
    alone, two = json.loads((tmp_path / "x.json").read_text())["lenet"]["ways"]
    assert (alone["workers"], two["workers"]) == (0, 2)
    assert two["ratio"] == pytest.approx(alone["mean"] / two["mean"])
    assert two["oversubscribed"] == (provenance.cores() < 2)


def test_the_cost_of_ranks_is_worked_by_hand():
    sys.path.insert(0, str(REPO / "benchmarks"))
    import scale_model

    def way(ranks, batch, mean):
        return {"ranks": ranks, "threads": 1, "batch": batch, "mean": mean}

    record = {"ways": [way(1, 64, 0.7), way(1, 32, 0.4), way(2, 64, 0.42)]}
    cost = scale_model.fitted(record, weights=2**20)
    # 0.3 s for 32 images more; 0.1 s whatever the batch is; four messages of a megabyte.
    assert (cost.image, cost.weights) == pytest.approx((0.3 / 32, 0.1))
    assert cost.bytes == 2**22
    model, measured = scale_model.predicted(record, cost)
    assert (model, measured) == pytest.approx((0.4, 0.42))
    # 2 · 3/4 of 4 MiB at 1 MiB/s, and four messages of 4 latencies, less 2/3 of the computing.
    sums = 6 + 4 * 4 * scale_model.LATENCY
    expected = 0.4 + sums - 0.2
    assert cost.iteration(4, 128, 2**20) == pytest.approx(expected)
    assert cost.efficiency(4, 128, 2**20) == pytest.approx(1.3 / (4 * expected))
    # Sums that are hidden cost nothing; what is done for each weight is done by each rank.
    assert cost.efficiency(1, 32, 2**20) == 1
    assert cost.efficiency(4, 128, 1e12) == pytest.approx(1.3 / (4 * 0.4))


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


def test_adaptive_sampling_is_measured(tmp_path):
    """With untrained nets and few images, of one set that is here."""
    pytest.importorskip("caffe", reason="pycaffe is not built")
    from bayescaffe.data.datasets import prepare_idx

    write_digits(tmp_path / "idx", train=100, test=200, size=28, classes=10)
    prepare_idx(tmp_path / "idx", tmp_path / "data/mnist", progress=False)
    page = tmp_path / "page.md"
    marks = (f"<!-- {word} bench_adaptive.py -->\n" for word in ("measured by", "end of"))
    page.write_text("# Prose\n\n" + "old\n".join(marks))
    command = [sys.executable, REPO / "benchmarks/bench_adaptive.py", "--quick", "--error", "0.05"]
    command += ["--sets", "mnist", "--seeds", "3", "--data", tmp_path / "data"]
    command += ["--out", tmp_path / "out", "--json", tmp_path / "x.json", "--into", page]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPO)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "x.json").read_text())
    assert row["images"] == 100 and row["fewer"] == pytest.approx(100 / row["mean_draws"])
    text = page.read_text()
    assert text.startswith("# Prose\n") and "old" not in text
    assert f"| mnist, seed 3 | 20 | {row['settled']:.1%} | {row['mean_draws']:.1f} | " in text
    again = [*command[:2], "--sets", "--together", tmp_path / "x.json"]
    assert subprocess.check_output(again, text=True, cwd=REPO) == done.stdout


def test_the_analytic_pass_is_measured(tmp_path):
    """With an untrained net and few images."""
    pytest.importorskip("caffe", reason="pycaffe is not built")
    from bayescaffe.data.datasets import prepare_idx

    write_digits(tmp_path / "idx", train=100, test=200, size=28, classes=10)
    prepare_idx(tmp_path / "idx", tmp_path / "data/mnist", progress=False)
    page = tmp_path / "page.md"
    marks = (f"<!-- {word} bench_analytic.py -->\n" for word in ("measured by", "end of"))
    page.write_text("# Prose\n\n" + "old\n".join(marks))
    command = [sys.executable, REPO / "benchmarks/bench_analytic.py", "--quick", "--sets", "mnist"]
    command += ["--seeds", "3", "--data", tmp_path / "data", "--out", tmp_path / "out"]
    command += ["--json", tmp_path / "x.json", "--into", page]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPO)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "x.json").read_text())
    assert row["images"] == 20 and row["passes"] == pytest.approx(100 / row["faster"])
    text, one = page.read_text(), row["analytic"]
    assert text.startswith("# Prose\n") and "old" not in text
    assert (
        f"**{one['classes']:.1%}** | {row['few']['verdicts']:.1%}, **{one['verdicts']:.1%}** | "
        in text
    )


def test_the_readme_claims_the_draws_that_were_measured():
    page, readme = ((REPO / name).read_text() for name in ("BENCHMARKS.md", "README.md"))
    cell = r"[^|]*\|"
    row = (
        rf"^\| (\S+), seed \d \|{cell}{cell} ([\d.]+) \|{cell}{cell}{cell}"
        r" \d+ \(([\d.]+)%\) \| ([\d.]+)%"
    )
    rows = re.findall(row, page, flags=re.M)
    assert all(float(found) <= float(bound) for *_, found, bound in rows)
    draws = [float(mean) for name, mean, *_ in rows if name == "mnist"]
    assert max(draws) < 100 / 6
    claimed = re.search(r"a digit of MNIST gets (\d+) draws on average", readme)[1]
    assert int(claimed) == round(sum(draws) / len(draws))


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


def test_the_service_is_loaded(tmp_path):
    """With two clients, for a second."""
    pytest.importorskip("caffe", reason="pycaffe is not built")
    pytest.importorskip("uvicorn", reason="uvicorn is not installed: bayescaffe[serve]")
    command = [sys.executable, REPO / "benchmarks/bench_serve.py", "--quick", "--draws", "5"]
    command += ["--json", tmp_path / "x.json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "x.json").read_text())
    for row, clients in zip(found["rows"][:2], (1, 2), strict=True):
        assert (row["clients"], row["refused"]) == (clients, 0) and row["answered"] > 0
        assert row["share"] == pytest.approx(row["images_per_second"] / found["net_sample"])
        assert f"| bayescaffe serve | {clients} | {row['p50_ms']:.1f} | " in done.stdout
