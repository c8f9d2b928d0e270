"""`models/lenet/reproduce.py` with small nets: what it makes, and what it does not make twice."""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from bayescaffe.common import provenance
from bayescaffe.common.errors import BayesCaffeError
from conftest import small_net

LENET = Path(__file__).parents[2] / "models/lenet"
sys.path.insert(0, str(LENET))

pytest.importorskip("caffe", reason="pycaffe is not built")

from experiments import NETS, Settings, collect, reproduce  # noqa: E402
from marked_part import SUITE  # noqa: E402

DROPOUT = 'layer { name: "drop" type: "Dropout" bottom: "fc1" top: "fc1" dropout_param { %s } }'


def write_nets(folder: Path, digits: Path, iterations: int = 15) -> None:
    """Small nets under the names of the paper's eight."""
    for name in NETS:
        family, kind = name.split("-")
        bayes = "kl_weight: 0.01 dataset_size: 330" if family == "bayes" else None
        net = small_net(digits, bayes, "MORE")
        for old, new in {"conv": "conv1", "hidden": "fc1", "out": "fc2"}.items():
            net = net.replace(f'"{old}"', f'"{new}"')
        more = DROPOUT % ("sample_weights_test: true" if bayes else "")
        net = net.replace("MORE", "" if kind == "plain" else more)
        (folder / name).mkdir(parents=True)
        (folder / name / "train_test.prototxt").write_text(net)
        (folder / name / "solver.prototxt").write_text(f"""
            net: "{folder / name / "train_test.prototxt"}"
            base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 max_iter: {iterations} display: 5
            test_iter: 5 test_interval: 10 snapshot_prefix: "elsewhere" random_seed: 99
        """)


@pytest.fixture(scope="module")
def settings(tmp_path_factory, digits) -> Settings:
    folder = tmp_path_factory.mktemp("reproduction")
    write_nets(folder / "models", digits)
    for name in ("mnist", "fashion-mnist"):
        (folder / "data").mkdir(exist_ok=True)
        (folder / "data" / name).symlink_to(digits)
    return Settings(
        out=folder / "results",
        models=folder / "models",
        data=folder / "data",
        nets=("stock-dropout", "bayes-dropout"),
        seeds=(1, 2),
        draws=5,
        jobs=2,
    )


@pytest.fixture(scope="module")
def text(settings) -> str:
    return reproduce(settings, settings.out.parent / "RESULTS.md", progress=False).read_text()


def test_every_number_is_of_an_analysis(settings, text):
    found = collect(settings)
    errors = [100 * found["bayes-dropout"][seed]["bayes"]["metrics"]["error"] for seed in (1, 2)]
    assert errors[0] != errors[1]
    plain = text.replace("**", "")
    row = f"| with dropout | 0.75 | {mean_sd(found, 'stock')} | 0.71 | {mean_sd(found, 'bayes')} |"
    assert row in plain
    assert "MC dropout" in text and "AUROC" in text and "| fc1 |" in text
    filled = " ".join(text.split())
    assert "over the seeds 1, 2, with 5 draws" in filled


def test_the_commit_and_the_machine_are_named(settings, text):
    filled = " ".join(text.split())
    origin = f"at commit {provenance.commit(LENET)} on {provenance.machine()}."
    assert origin in filled


def test_what_was_made_elsewhere_stays_so(settings, text):
    """The page names the commit and the machine of the runs, not those of its last writing."""
    made = settings.out / "bayes-dropout/seed-1/made.json"
    kept = made.read_text()
    made.write_text(json.dumps(json.loads(kept) | {"commit": "0ld", "machine": "Another CPU"}))
    try:
        again = reproduce(settings, settings.out.parent / "again.md", progress=False).read_text()
    finally:
        made.write_text(kept)
    assert "0ld" in again and "Another CPU" in again


def mean_sd(found, method):
    errors = [100 * run[method]["metrics"]["error"] for run in found[f"{method}-dropout"].values()]
    return f"{statistics.fmean(errors):.2f} ± {statistics.stdev(errors):.2f}"


def test_seeds_make_the_nets_and_the_draws(settings, text):
    one, two = (settings.out / "bayes-dropout" / f"seed-{seed}" for seed in (1, 2))
    assert (one / "lenet_iter_15.caffemodel").read_bytes() != (
        two / "lenet_iter_15.caffemodel"
    ).read_bytes()
    assert "random_seed: 2" in (two / "solver.prototxt").read_text()


def test_draws_are_kept_for_the_reports_only(settings, text):
    kept = {str(path.relative_to(settings.out)) for path in settings.out.rglob("*.npz")}
    assert kept == {
        f"{net}/seed-1/{method}.{data}.draws.npz"
        for net, method in (
            ("bayes-dropout", "bayes"),
            ("stock-dropout", "stock"),
            ("stock-dropout", "mc-dropout"),
        )
        for data in ("test", "fashion-mnist")
    }
    page = settings.out / "report-dropout.html"
    assert str(page) in text and "MC dropout" in page.read_text()


def test_figures_are_beside_the_tables(settings, text):
    shown = re.findall(r"!\[.+\]\((docs/figures/.+\.png)\)", text)
    names = {Path(path).stem for path in shown}
    assert {"softplus", "prior", "training-bayes-dropout", "boxplots"} <= names
    for path in shown:
        assert (settings.out.parent / path).read_bytes().startswith(b"\x89PNG")


def state(settings):
    return {
        path: path.stat().st_mtime_ns for path in settings.out.rglob("*") if path.suffix != ".html"
    }


def test_what_is_done_is_not_done_again(settings, text):
    before = {p: t for p, t in state(settings).items() if p.is_file() and p.suffix != ".prototxt"}
    again = reproduce(settings, settings.out.parent / "again.md", progress=False)
    assert again.read_text() == text
    assert {p: t for p, t in state(settings).items() if p in before} == before


def test_the_part_of_the_suite_is_kept(settings, text):
    page = settings.out.parent / "with-suite.md"
    part = f"{SUITE.start}\n\nof the suite\n\n{SUITE.end}"
    page.write_text(f"old\n\n{part}\n")
    for _ in range(2):
        again = reproduce(settings, page, progress=False).read_text()
        assert again == f"{text}\n{part}\n"


def test_a_net_that_was_changed_is_done_again(settings, text):
    net = settings.models / "stock-dropout/train_test.prototxt"
    before, kept = state(settings), net.read_text()
    net.write_text(kept + "# changed\n")
    try:
        reproduce(settings, settings.out.parent / "again.md", progress=False)
    finally:
        net.write_text(kept)
    changed = {path for path, made in state(settings).items() if before.get(path) != made}
    weights = {path.parts[-3] for path in changed if path.suffix == ".caffemodel"}
    assert weights == {"stock-dropout"}


def test_it_goes_on_after_an_interruption(tmp_path, digits, settings):
    """Ctrl-C in the middle of a training; its snapshot is where the next run starts."""
    write_nets(tmp_path / "models", digits, iterations=12000)
    out = tmp_path / "results"
    command = [sys.executable, LENET / "reproduce.py", "--jobs", "1"]
    command += ["--nets", "bayes-plain", "stock-plain"]
    command += ["--models", tmp_path / "models", "--data", settings.data, "--out", out]
    command += ["--seeds", "1", "--passes", "3", "--results", tmp_path / "R.md", "--quiet"]
    process = subprocess.Popen(
        [str(part) for part in command], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    curve = out / "bayes-plain/seed-1/curve.csv"
    while process.poll() is None and (not curve.exists() or curve.read_text().count("\n") < 4):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate()[1].count("interrupted") == 1
    assert process.returncode == 130
    snapshots = list((out / "bayes-plain/seed-1").glob("*.solverstate"))
    assert len(snapshots) == 1 and "iter_12000" not in snapshots[0].name
    assert not (tmp_path / "R.md").exists()
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    log = (out / "bayes-plain/seed-1/train.log").read_text()
    assert len(re.findall(r"Iteration 0 \(", log)) == 1  # not started anew


def test_a_failing_step_says_which_and_why(settings, tmp_path):
    broken = replace(settings, models=tmp_path / "models", out=tmp_path / "results")
    write_nets(broken.models, Path("/nowhere"))
    with pytest.raises(BayesCaffeError, match=r"`bayescaffe train .*` failed:\n(.|\n)*/nowhere"):
        reproduce(broken, tmp_path / "R.md", progress=False)


@pytest.mark.parametrize("nets", [("bayes-plain",), ("lenet", "stock-plain", "bayes-plain")])
def test_nets_come_with_their_counterparts(settings, nets):
    with pytest.raises(BayesCaffeError, match="each with its counterpart"):
        reproduce(replace(settings, nets=nets), progress=False)


def test_folders_without_the_nets_are_refused(tmp_path):
    with pytest.raises(BayesCaffeError, match="has no solver.prototxt; run this from the top"):
        reproduce(Settings(models=tmp_path), progress=False)


def test_json(settings, text, capsys):
    import reproduce as command

    arguments = ["--models", settings.models, "--data", settings.data, "--out", settings.out]
    arguments += ["--nets", *settings.nets, "--seeds", "2", "--passes", "5", "--json", "--quiet"]
    arguments += ["--results", settings.out.parent / "json.md"]
    assert command.run(command.build_parser().parse_args(list(map(str, arguments)))) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["runs"]["bayes-dropout"]["2"]["bayes"]["draws"] == 5
