"""`models/kl_rule` with small sizes: pictures, set-ups, runs, and the page that is written."""

import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "models/kl_rule"))

pytest.importorskip("caffe", reason="pycaffe is not built")

import setups  # noqa: E402
from marked_part import KL_RULE  # noqa: E402
from measure import measure_all  # noqa: E402
from page import interval, run_of, write_page  # noqa: E402
from pictures import KINDS, write_pictures  # noqa: E402
from plan import SCALES, planned  # noqa: E402
from runs import Run, is_done, read_lines  # noqa: E402


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_are_drawn_by_seed_and_class(tmp_path, kind):
    for folder, seed in (("one", 1), ("again", 1), ("other", 2)):
        write_pictures(tmp_path / folder, kind, 2 * len(KINDS[kind]), seed)
    files = {
        name: {
            str(path.relative_to(tmp_path / name)): path.read_bytes()
            for path in (tmp_path / name).rglob("*.png")
        }
        for name in ("one", "again", "other")
    }
    assert files["one"] == files["again"]
    assert not set(files["one"].values()) & set(files["other"].values())
    assert sorted(path.split("/")[0] for path in files["one"]) == sorted([*KINDS[kind]] * 2)


def test_the_plan_has_each_scale_once_and_the_defaults_over_seeds():
    runs = planned(["mnist-1000", "shapes-small"])
    assert len(set(runs)) == len(runs)
    assert [run.scale for run in runs if run.setup == "mnist-1000" and run.scale] == list(SCALES)
    drawn = [run.seed for run in runs if run.kind == "bayes-weights"]
    assert drawn == [1, 2, 3, 4, 5]


def test_the_interval_of_a_difference():
    rng = np.random.default_rng(1)
    gaps = [rng.normal(0.5, 1, 2000) for _ in range(3)]
    low, high = interval(gaps, rng)
    assert low < np.mean(gaps) < high
    # The seeds alike, the images are what varies: 1.96 standard errors to each side, about.
    assert 0.04 < high - low < 0.1
    # Seeds that differ by more than their images make it wider.
    low, high = interval([gaps[0], gaps[1] + 1], rng)
    assert high - low > 0.8


@pytest.fixture
def small_setups(monkeypatch):
    for name in ("shapes-small", "textures-resnet"):
        small = replace(setups.SETUPS[name], images=40, held_out=20, iterations=4)
        monkeypatch.setitem(setups.SETUPS, name, small)


def test_runs_are_measured_once_and_shown(tmp_path, small_setups, monkeypatch):
    monkeypatch.setattr("page.RESAMPLES", 20)
    runs = [Run("shapes-small", "stock"), Run("shapes-small", "bayes", 1e-8)]
    runs += [Run("shapes-small"), Run("shapes-small", "bayes-weights", tau=0.2)]
    measure_all(runs, tmp_path, tmp_path / "out", 1, progress=False)
    lines = read_lines(tmp_path / "out/runs.jsonl")
    by_run = {run_of(line): line for line in lines}
    assert len(lines) == 4 and set(by_run) == set(runs)
    assert all(line["failed"] is None and line["images"] == 20 for line in lines)
    assert by_run[runs[1]]["kl_scale"] == pytest.approx(1e-8, rel=1e-3)
    assert by_run[runs[1]]["dataset_size"] == 30
    measure_all(runs, tmp_path, tmp_path / "out", 1, progress=False)
    assert len(read_lines(tmp_path / "out/runs.jsonl")) == 4
    page = tmp_path / "kl.md"
    start, end = KL_RULE.start, KL_RULE.end
    page.write_text(f"before\n\n{start}\nstale\n{end}\nafter\n")
    for _ in range(2):
        write_page(page, tmp_path / "out")
        text = page.read_text()
        assert text.startswith(f"before\n\n{start}\n") and text.endswith(f"{end}\nafter\n")
        assert "stale" not in text and text.count("| shapes-small |") == 3
    assert f"{by_run[runs[1]]['nll']:.3f}" in text
    assert "| shapes-small | `convert --weights`, tau_init 0.2 | 1 |" in text
    assert (tmp_path / "figures/kl-scale.png").stat().st_size > 1000


def test_a_run_of_another_rule_is_not_done():
    line = asdict(Run("shapes-small")) | {"rule": 123.0}
    assert not is_done(Run("shapes-small"), [line])
    assert is_done(Run("shapes-small"), [line | {"rule": Run("shapes-small").rule}])
    line = asdict(Run("shapes-small", scale=1e-8)) | {"rule": None}
    assert is_done(Run("shapes-small", scale=1e-8), [line])


def test_a_training_that_diverges_is_a_result(tmp_path, small_setups):
    run = Run("shapes-small", "bayes", 1e30)
    measure_all([run], tmp_path, tmp_path / "out", 1, progress=False)
    (line,) = read_lines(tmp_path / "out/runs.jsonl")
    assert line["failed"]
