"""What `bayescaffe train` finds wrong, before it starts and by its log, and what it proposes."""

import json
import re
from pathlib import Path

import pytest
from bayescaffe import BayesCaffeError, cli, convert
from bayescaffe.net import starting
from bayescaffe.net.messages import read_message
from conftest import REPO, make_net, small_net, write_solver

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe.training.train import train  # noqa: E402
from bayescaffe.training.watch import Watch  # noqa: E402

GOOD = "dataset_size: 330 kl_weight: 1e-5"
RATES = "param { lr_mult: 1 } param { lr_mult: 1 } param { lr_mult: 10 } param { lr_mult: 10 }"
GUESS = 1.386  # ln 4
PROPOSED = "kl_weight: 1.32e-05"


@pytest.fixture
def rule(monkeypatch):
    """Lets the kl_weight of `convert` be that of PROPOSED, whatever it is by now."""
    monkeypatch.setattr(starting, "kl_weight", lambda *_, **__: 1.32e-5)


@pytest.fixture
def watch_of(tmp_path, digits, rule):
    """The watch of a small net with these options, or of a text."""

    def make(bayes=GOOD, text=None, **options):
        solver = write_solver(tmp_path, text or small_net(digits, bayes), 400, **options)
        return Watch(solver, read_message(solver, "SolverParameter"))

    return make


def row(iteration, loss=0.1, kl_term=0.01, tau=0.3, **more):
    """What the log tells of one iteration, with one tau for all layers."""
    taus = {f"tau:{name}": tau for name in ("conv", "hidden", "out")}
    return {"iteration": iteration, "loss": loss, "kl_term": kl_term, **taus, **more}


START = row(0, 1.5, tau=0.4)


def texts(findings):
    return [finding.text for finding in findings]


# ---- Whole trainings


def test_caffe_tells_what_is_wrong_with_iter_size(tmp_path, digits):
    """It was a division by zero."""
    solver = write_solver(tmp_path, small_net(digits, GOOD), 2, iter_size=0)
    with pytest.raises(BayesCaffeError, match="iter_size is 0, but must be 1 to"):
        train(solver, progress=False)


def test_strong_kl_is_told_before_it_makes_the_loss_nan(tmp_path, digits, capsys, caplog, rule):
    # The evidence lower bound.
    text = small_net(digits, "dataset_size: 330 kl_weight: 1").replace(
        "bayes_param", f"{RATES} bayes_param"
    )
    solver = write_solver(tmp_path, text, 400, base_lr=0.1)
    assert cli.main(["train", str(solver), "--quiet"]) == 1
    assert re.match(
        r"warning: .*net.prototxt: KL adds \S+ to a loss that starts near 1.39, .* kl_weight is 1, "
        f"try {PROPOSED}$",
        caplog.messages[0],
    )
    error = capsys.readouterr().err
    assert "the training diverged and was stopped: " in error
    assert f". KL outweighs the data: kl_weight is 1, try {PROPOSED}.\n" in error
    assert "base_lr" not in error


def test_strong_kl_is_in_the_summary_and_in_json(tmp_path, digits, capsys, caplog, rule):
    solver = write_solver(tmp_path, small_net(digits, "dataset_size: 330 kl_weight: 0.5"), 120)
    assert cli.main(["train", str(solver), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert found[0]["where"].endswith("run.net.prototxt")
    assert f"kl_weight is 0.5, try {PROPOSED}" in found[0]["text"]
    assert caplog.text.count("KL adds") == 1
    assert cli.main(["train", str(solver)]) == 0
    out = capsys.readouterr().out
    assert out.count("KL adds") == 1 and "\nwarning: " in out


@pytest.mark.parametrize("has_weights", [False, True])
def test_what_convert_makes_has_no_findings(tmp_path, digits, has_weights, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stock = small_net(digits, None)
    make_net(tmp_path, stock).save("stock.caffemodel")
    Path("net.prototxt").write_text(stock)
    done = convert("net.prototxt", "stock.caffemodel" if has_weights else None)
    result = train(done.solver, progress=False)
    assert result.findings == []
    assert result.loss < GUESS / 4


def test_kl_is_that_of_the_weights_that_the_training_starts_from(tmp_path, digits, rule):
    """The net's own prior is 0 nats away. It was told of the fillers' weights, which are far."""
    text = small_net(digits, GOOD)
    prior = tmp_path / "prior.caffemodel"
    make_net(tmp_path, text).save(str(prior))
    more = f'kl_weight: 1 prior_from: "{prior}"'
    solver = write_solver(tmp_path, small_net(digits, f"dataset_size: 330 {more}"), 400)
    message = read_message(solver, "SolverParameter")
    make_net(tmp_path, text, seed=7).save(str(tmp_path / "far.caffemodel"))
    assert Watch(solver, message, prior).before == []
    (told,) = texts(Watch(solver, message, tmp_path / "far.caffemodel").before)
    assert "KL adds" in told


@pytest.mark.parametrize("path", sorted((REPO / "models").rglob("solver.prototxt")), ids=str)
def test_our_models_start_without_findings(path, monkeypatch):
    monkeypatch.chdir(REPO)
    assert Watch(path, read_message(path, "SolverParameter")).before == []


def test_a_rate_that_is_too_high_is_not_blamed_on_kl(tmp_path, digits):
    solver = write_solver(tmp_path, small_net(digits, GOOD), 400, base_lr=1e4)
    with pytest.raises(BayesCaffeError, match="Try a base_lr below 10000") as error:
        train(solver, progress=False)
    assert "kl_weight" not in str(error.value)
    stock = write_solver(tmp_path, small_net(digits, None), 400, "stock", base_lr=1e30)
    with pytest.raises(BayesCaffeError, match=r"Try a base_lr below 1e\+30\.\n"):
        train(stock, progress=False)


def test_mistakes_in_the_files_are_told(tmp_path, digits, caplog):
    text = small_net(digits, GOOD).replace("dataset_size: 330", "dataset_size: 60000", 1)
    text = text.replace("bayes_param", "param { lr_mult: 0 } bayes_param", 1)
    result = train(write_solver(tmp_path, text, 2), progress=False)
    for part in (
        "dataset_size is 60000 in conv, but",
        "layer 'conv': a parameter of this Bayesian layer has lr_mult: 0",
    ):
        assert part in caplog.text
        assert sum(part in str(finding) for finding in result.findings) == 1
    assert len(result.findings) == 2


# ---- Each rule, by the rows of a log


def test_a_good_training(watch_of):
    watch = watch_of()
    rows = [START, row(50, 0.9), row(100, 0.5), row(400, 0.01, tau=0.1)]
    assert [watch.news(rows[:end]) for end in range(1, 5)] == [[]] * 4
    assert watch.findings(rows) == []
    assert watch.findings([]) == []


def test_a_loss_no_better_than_a_guess(watch_of):
    watch = watch_of()
    rows = [START, row(50, 1.5)]
    assert watch.findings(rows) == []  # too early
    rows.append(row(100, 1.38))
    (found,) = texts(watch.news(rows))
    assert found.startswith(
        "the loss is 1.38 after 100 iterations, and that of a constant guess is 1.39: the net has "
        "learned nothing. Change base_lr, 0.01: "
    )
    assert watch.findings([START, row(100, 1.3)]) == []
    # Told once, and gone from the summary once it is better.
    assert watch.news([*rows, row(200, 1.4)]) == []
    assert watch.findings([*rows, row(200, 1.2)]) == []


def test_the_loss_is_that_of_the_latest_epoch_without_kl(watch_of, digits):
    # 17 iterations are an epoch; one batch may be worse than a guess.
    rows = [START, row(190, 0.3), row(200, 1.5)]
    assert watch_of().findings(rows) == []
    assert watch_of().findings([START, row(180, 0.3), row(200, 1.5)])
    # Two batches for each iteration: an epoch is 9 iterations.
    assert watch_of(iter_size=2).findings(rows)
    with_top = small_net(digits, GOOD).replace(
        'top: "out" bayes_param', 'top: "out" top: "kl" loss_weight: 0 loss_weight: 1 bayes_param'
    )
    counted = watch_of(text=with_top)
    assert counted.findings([START, row(200, 1.5, kl_term=1)]) == []
    assert counted.findings([START, row(200, 2.5, kl_term=1)])


def test_strong_kl_explains_the_rest(watch_of):
    watch = watch_of("dataset_size: 330 kl_weight: 1")
    assert len(watch.before) == 1
    rows = [START, row(100, 1.4, tau=4.54e-5), row(200, 1.4, tau=4.54e-5, **{"tau:out": 40})]
    (found,) = texts(watch.news(rows))
    assert "learned nothing. KL outweighs the data: kl_weight is 1, try" in found


def test_kl_that_is_not_strong(watch_of):
    # A small net with 750 times the kl_weight of convert: KL starts at 0.2 of the guess.
    assert watch_of("dataset_size: 330 kl_weight: 0.01").before == []


def test_the_kl_weight_of_convert_is_never_too_strong(watch_of, monkeypatch):
    # KL of a large net is large.
    monkeypatch.setattr(starting, "kl_weight", lambda *_, **__: 0.6)
    assert watch_of("dataset_size: 330").before == []
    assert watch_of("dataset_size: 330 kl_weight: 1").before == []
    assert watch_of("dataset_size: 330 kl_weight: 1.3").before


def test_strong_kl_without_a_guess_is_found_by_the_log(watch_of, digits):
    text = small_net(digits, "dataset_size: 330 kl_weight: 1").replace(
        "SoftmaxWithLoss", "MultinomialLogisticLoss"
    )
    watch = watch_of(text=text)
    assert watch.before == []
    (found,) = texts(watch.news([row(0, 2.5, kl_term=30)]))
    assert found.startswith("KL adds") and "starts near 2.5" in found and PROPOSED in found
    assert (
        watch_of(text=text.replace("kl_weight: 1", "kl_weight: 1e-4")).findings(
            [row(0, 2.5, kl_term=1e-3)]
        )
        == []
    )


def test_tau_that_runs_away(watch_of):
    watch = watch_of("dataset_size: 330 kl_weight: 0.01")
    (found,) = texts(watch.findings([START, row(200, 0.8, **{"tau:hidden": 12.5})]))
    assert found.startswith("tau has run away in hidden (12.5): these weights are mostly noise")
    assert found.endswith(f"kl_weight is 0.01, try {PROPOSED}")
    assert watch.findings([START, row(200, 0.8, **{"tau:hidden": 9.5})]) == []
    # The layer is larger than it must be.
    assert watch.findings([START, row(200, 0.1, **{"tau:hidden": 12.5})]) == []
    assert watch_of("kl_weight: 0").findings([START, row(200, 0.8, tau=12)]) == []
    # kl_weight is not above the rule.
    (found,) = texts(watch_of().findings([START, row(200, 0.8, tau=12.5)]))
    assert found.endswith("kl_weight is 1e-05, try kl_weight: 1e-06")


def test_tau_at_its_floor(watch_of):
    floor = {"tau:conv": 4.54e-5}
    watch = watch_of()
    (found,) = texts(watch.findings([START, row(190, **floor), row(200, **floor)]))
    assert found.startswith("tau is at its floor, tau_min, in conv, so") and "lr_mult" in found
    assert watch.findings([START, row(190), row(200, **floor)]) == []
    assert watch.findings([START, row(190, **floor), row(200)]) == []
    low = watch_of("kl_weight: 1e-7 dataset_size: 330 tau_min: 0.01")
    (found,) = texts(low.findings([START, row(190, tau=0.01), row(200, tau=0.01)]))
    assert "in conv, hidden, out" in found and found.endswith(f"1e-07, try {PROPOSED}")


def test_a_posterior_that_never_left_its_start(watch_of, digits):
    watch = watch_of()
    (found,) = texts(watch.findings([START, row(200, tau=0.403)]))
    assert found.startswith("tau of every layer is within 1% of its start after 200 iterations")
    assert "set lr_mult: 10 in the params of delta" in found
    assert watch.findings([START, row(99, tau=0.403)]) == []  # too early
    assert watch.findings([START, row(200, tau=0.403, **{"tau:conv": 0.41})]) == []
    fast = small_net(digits, GOOD).replace("bayes_param", f"{RATES} bayes_param")
    (found,) = texts(watch_of(text=fast).findings([START, row(200, tau=0.4)]))
    assert found.endswith("raise base_lr, 0.01")


def test_nets_that_cannot_be_read_are_left_to_caffe(watch_of):
    watch = watch_of(text='layer { type: "NoSuchLayer" }')
    assert watch.findings([START, row(200, 0.1)]) == []
    watch = watch_of(text="nonsense")
    assert watch.remedy([START]).startswith("Try a base_lr below 0.01")
