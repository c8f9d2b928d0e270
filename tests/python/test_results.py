"""RESULTS.md from made-up numbers: what is bold, what is ahead, and where it was measured."""

import re
import statistics
import subprocess
import sys

import numpy as np
import pytest
from conftest import REPO
from scipy import stats

LENET = REPO / "models/lenet"
sys.path.insert(0, str(LENET))

import results  # noqa: E402
from comparison import Difference, Measure, bold_best, compare, signed  # noqa: E402
from experiments import Settings  # noqa: E402

SMALLER = Measure("smaller", lambda analysis: analysis["x"], 2)
LARGER = Measure("larger", lambda analysis: analysis["x"], 2, larger_is_better=True)


# Differences of -0.1, -0.2, -0.3 have the mean -0.2 and the standard deviation 0.1. With two
# degrees of freedom Student's t has its 97.5 % quantile at 4.302653, so the interval reaches
# 4.302653 * 0.1 / sqrt(3) = 0.248414 to either side: it contains 0. A tenth of the spread does not.
@pytest.mark.parametrize(
    ("ours", "interval", "verdict"),
    [
        ([0.9, 1.8, 2.7], (-0.448414, 0.048414), "no difference shown"),
        ([0.81, 1.8, 2.79], (-0.224841, -0.175159), "ahead"),
        ([1.21, 2.2, 3.19], (0.175159, 0.224841), "behind"),
    ],
)
def test_the_interval_is_worked_by_hand(ours, interval, verdict):
    found = compare(ours, [1.0, 2.0, 3.0])
    assert found.interval == pytest.approx(interval, abs=1e-6)
    assert found.mean == pytest.approx(statistics.fmean(interval))
    assert found.verdict() == verdict
    opposite = {"ahead": "behind", "behind": "ahead"}
    assert found.verdict(larger_is_better=True) == opposite.get(verdict, verdict)


def test_verdicts_are_those_of_scipy():
    rng = np.random.default_rng(1)
    seen = set()
    for _ in range(200):
        ours, theirs = rng.normal(0, 1, (2, 3)) + [[rng.normal(0, 2)], [0]]
        found, expected = compare(ours, theirs), stats.ttest_rel(ours, theirs)
        assert found.interval == pytest.approx(expected.confidence_interval(0.95))
        assert (found.verdict() != "no difference shown") == (expected.pvalue < 0.05)
        seen.add(found.verdict())
    assert seen == {"ahead", "behind", "no difference shown"}


def test_equal_scores_show_no_difference():
    assert compare([1.0, 2.0], [1.0, 2.0]).verdict() == "no difference shown"


def test_one_seed_is_not_tested():
    found = compare([1.0], [2.0])
    assert found == Difference(-1.0, None)
    assert found.verdict() == "one seed: no test" and found.text(1) == "−1.0"


def test_numbers_as_text():
    assert Difference(-0.064, (-0.106, 0.0001)).text(2) == "−0.06 (−0.11 to 0.00)"
    assert [signed(x, 1) for x in (0.14, -0.14, 0.04, -0.04)] == ["+0.1", "−0.1", "0.0", "0.0"]


def test_the_best_is_bold():
    groups = [[1.0, 3.0], [1.0, 1.0], [4.0, 4.0]]
    assert bold_best(groups, SMALLER) == ["2.00 ± 1.41", "**1.00 ± 0.00**", "4.00 ± 0.00"]
    assert bold_best(groups, LARGER) == ["2.00 ± 1.41", "1.00 ± 0.00", "**4.00 ± 0.00**"]


def test_what_prints_the_same_is_bold_too():
    assert bold_best([[0.8301], [0.8299], [0.84]], SMALLER) == ["**0.83**", "**0.83**", "0.84"]


def test_what_does_not_apply_or_has_no_rival_is_never_bold():
    assert bold_best([None, [0.0], [1.0]], SMALLER) == ["–", "**0.00**", "1.00"]
    assert bold_best([None, [0.0]], SMALLER) == ["–", "0.00"]


def made_up(
    stock: list[float], bayes: list[float], kind: str = "plain", fc1: float = 0.7, ood=None
) -> dict:
    """What `collect` finds for a net whose errors, in %, are these: one for each seed."""
    table = {"correct_certain": 90, "correct_uncertain": 4}
    table |= {"wrong_certain": 2, "wrong_uncertain": 4}

    def analysis(error: float) -> dict:
        metrics = {measure: error / 100 for measure in METRICS} | {"single_draw_error": 0.5}
        return {"metrics": metrics, "table": table, "level": 0.95, "ood": ood and ood(error)}

    layers = [
        {"name": name, "tau": tau, "tau_bias": 0.1}
        for name, tau in (("conv1", 0.1), ("conv2", 0.2), ("fc1", fc1), ("fc2", 0.1))
    ]
    origin = {"made": {"commit": "abc", "machine": "a CPU"}}
    return {
        f"stock-{kind}": {
            seed: {"stock": analysis(error), **origin} for seed, error in enumerate(stock, 1)
        },
        f"bayes-{kind}": {
            seed: {"bayes": analysis(error), "layers": {"layers": layers}, **origin}
            for seed, error in enumerate(bayes, 1)
        },
    }


METRICS = ("error", "nll", "brier", "ece", "adaptive_ece", "aurc")


def write(found: dict, seeds: int) -> str:
    """The page, with its lines joined as Markdown joins them."""
    text = results.write(found, Settings(seeds=range(1, seeds + 1)), [])
    return " ".join(text.split())


STOCK = [1.0, 1.1, 1.2]


# The intervals by hand, as above: 4.302653 / sqrt(3) = 2.484138 standard deviations either way.
@pytest.mark.parametrize(
    ("bayes", "words"),
    [
        (
            [0.8, 0.91, 0.99],
            "−0.20 (−0.22 to −0.18); the Bayesian net is ahead of its stock counterpart. "
            "Our Bayesian net minus the paper's: +0.05.",
        ),
        (
            [1.2, 1.31, 1.39],
            "+0.20 (+0.18 to +0.22); the Bayesian net is behind its stock counterpart.",
        ),
        ([0.6, 1.0, 1.1], "−0.20 (−0.63 to +0.23); no difference shown."),
    ],
)
def test_verdicts_follow_the_seeds(bayes, words):
    assert f"*without dropout*: {words}" in write(made_up(STOCK, bayes), 3)


def test_the_best_errors_are_bold_and_the_papers_never():
    text = write(made_up(STOCK, [0.6, 1.0, 1.1]), 3)
    assert (
        "| without dropout | 0.90 | 1.10 ± 0.10 | 0.85 | **0.90 ± 0.26** | 50.00 ± 0.00 |" in text
    )
    text = write(made_up(STOCK, [1.0, 1.1, 1.2]), 3)
    assert "| 0.90 | **1.10 ± 0.10** | 0.85 | **1.10 ± 0.10** |" in text
    text = write(made_up(STOCK, [1.2, 1.2, 1.2]), 3)
    assert "| 0.90 | **1.10 ± 0.10** | 0.85 | 1.20 ± 0.00 |" in text


def test_one_seed_has_no_verdict():
    text = write(made_up([1.0], [0.5]), 1)
    assert "*without dropout*: −0.50; one seed: no test." in text
    assert "from seed 1 only" in text and "t-test" not in text
    assert "| without dropout | stock | −0.50 |" in text


def test_differences_beyond_the_paper_have_verdicts():
    found = made_up(STOCK, [0.8, 0.91, 0.99])
    for seed, run in found["bayes-plain"].items():
        run["bayes"]["metrics"]["brier"] = 0.05 + 0.001 * seed  # behind
        run["bayes"]["metrics"]["aurc"] = 0.011 - 0.01 * (seed == 3)  # varies too much
    cells = write(found, 3).split("| without dropout | stock | −0.20 ")[1].split(" | ")
    assert cells[0] == "(−0.22 to −0.18) ahead"
    assert cells[2].endswith("behind")
    assert cells[5].split("|")[0].strip().endswith(")")


def ood(error: float) -> dict:
    """As if the net with the smaller error were the better one by every score."""
    score = {"auroc": 1 - error / 10, "fpr95": error / 10}
    scores = {name: score for name in ("entropy", "epistemic", "confidence")}
    return {"scores": scores, "certain": error, "images": 10}


def test_a_larger_auroc_is_better():
    text = write(made_up([2.0, 2.0], [1.0, 1.0], ood=ood), 2).split("out-of-distribution")[1]
    stock = "| stock | 80.0 ± 0.0 | 20.0 ± 0.0 | – | – | 80.0 ± 0.0 | 20.0 ± 0.0 | 20.0 ± 0.0 |"
    first, alone = "**90.0 ± 0.0** | **10.0 ± 0.0**", "90.0 ± 0.0 | 10.0 ± 0.0"
    assert stock in text
    assert f"| Bayesian | {first} | {alone} | {first} | **10.0 ± 0.0** |" in text
    gain, loss = "+10.0 (+10.0 to +10.0) ahead", "−10.0 (−10.0 to −10.0) ahead"
    assert f"| stock | {gain} | {loss} | – | – | {gain} | {loss} | {loss} |" in text


def test_all_commits_and_machines_are_named():
    found = made_up(STOCK, STOCK)
    assert "at commit abc on a CPU." in write(found, 3)
    found["stock-plain"][2]["made"] = {"commit": "def (with uncommitted changes)", "machine": "B"}
    places = "commit abc on a CPU and at commit def (with uncommitted changes) on B"
    assert f"The runs were made at {places}." in write(found, 3)


def test_certain_and_uncertain_are_counted():
    text = write(made_up(STOCK, STOCK), 3)
    assert "67 % of the wrong predictions are uncertain (paper: 85 %)" in text
    assert "reviews 8 of 10,000 images (paper: 377)" in text


def test_layers_are_compared():
    found = made_up([1, 1], [0.8, 0.8], "dropout", 0.8) | made_up(
        [1, 1], [0.9, 0.9], "reduced", 0.5
    )
    text = write(found, 2)
    assert "fc1 has the largest τ in every net, at least 2.5 times the next" in text
    assert "its τ by −0.30 (−0.30 to −0.30), in the paper by −0.19" in text
    assert "the error by +0.10 (+0.10 to +0.10) points" in text
    assert "does not have the largest" in write(made_up([1], [1], fc1=0.1), 1)


def test_the_page_names_a_commit_of_this_repository():
    page = " ".join((REPO / "RESULTS.md").read_text().split())
    commits = re.findall(r"at commit ([0-9a-f]{7,})", page)
    assert commits
    git = ["git", "-C", str(REPO)]
    shallow = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True)
    if shallow.stdout == b"false\n":
        for commit in commits:
            subprocess.run([*git, "merge-base", "--is-ancestor", commit, "HEAD"], check=True)
