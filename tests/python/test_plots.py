"""The figures show the numbers they are given, and leave no trace in matplotlib."""

import math
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
from bayescaffe.reporting import plots
from conftest import layer_posterior
from matplotlib import pyplot
from matplotlib.figure import Figure

CURVE = {
    "iteration": np.array([0.0, 100, 200, 300]),
    "loss": np.array([2.3, 0.5, np.nan, 0.1]),
    "test_error": np.array([np.nan, 0.2, np.nan, 0.05]),
}
LAYERS = [
    layer_posterior("conv", 0.08, 0.1),
    layer_posterior("fc", 0.7),
]
TABLE = dict(correct_certain=9609, correct_uncertain=297, wrong_certain=14, wrong_uncertain=80)
DRAWS = np.array([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1], [0.6, 0.3, 0.1]])


def analysis():
    """Six images, two wrong; image 4 is wrong and certain."""
    labels = np.array([0, 1, 2, 0, 1, 2])
    predicted = np.array([0, 1, 2, 1, 0, 2])
    correct = labels == predicted
    return SimpleNamespace(
        labels=labels,
        predicted=predicted,
        correct=correct,
        confidence=np.array([0.99, 0.9, 0.8, 0.4, 0.95, 0.7]),
        epistemic=np.array([0, 0.1, 0.2, 0.5, 0.3, 0.1]),
        certain=np.array([1, 1, 1, 0, 1, 1], bool),
        reliability=[
            {"lower": 0, "upper": 0.5, "count": 1, "confidence": 0.4, "accuracy": 0.0},
            {"lower": 0.5, "upper": 0.6, "count": 0, "confidence": None, "accuracy": None},
            {"lower": 0.6, "upper": 1, "count": 5, "confidence": 0.868, "accuracy": 0.8},
        ],
        risk_coverage={
            "coverage": np.arange(1, 7) / 6,
            "risk": np.array([0, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 2 / 6]),
        },
    )


def images(indices):
    return np.full((len(indices), 1, 4, 4), 200, np.uint8)


FIGURES = {
    "softplus": plots.plot_softplus,
    "prior": plots.plot_prior,
    "initialisation": plots.plot_initialisation,
    "training": lambda **o: plots.plot_training(CURVE, **o),
    "boxplot": lambda **o: plots.plot_boxplot(DRAWS, 1, **o),
    "gallery": lambda **o: plots.plot_gallery(images([0, 1]), [1, 0], [0, 1], [0.4, 0.95], **o),
    "reliability": lambda **o: plots.plot_reliability(analysis(), **o),
    "risk_coverage": lambda **o: plots.plot_risk_coverage({"ours": analysis()}, **o),
    "entropy": lambda **o: plots.plot_entropy({"right": [0.1, 0.2], "wrong": [0.5]}, **o),
    "curves": lambda **o: plots.plot_curves({"a": ([1, 2], [0.3, 0.1])}, "error", **o),
    "tau": lambda **o: plots.plot_tau(LAYERS, **o),
    "outcomes": lambda **o: plots.plot_outcomes(TABLE, **o),
}


@pytest.mark.parametrize("name", FIGURES)
def test_draws_on_the_axes_it_is_given_or_on_its_own(name, tmp_path):
    before = dict(matplotlib.rcParams)
    mine = Figure().add_subplot()
    assert FIGURES[name](ax=mine) is mine
    own = FIGURES[name]()
    assert own.figure is not mine.figure
    for ax in (mine, own):
        path = tmp_path / "figure.png"
        ax.figure.savefig(path)
        # More than the paper's white: at least one pixel in fifty has ink.
        pixels = matplotlib.image.imread(path)[..., :3]
        assert (pixels.min(axis=2) < 0.95).mean() > 0.02
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == []


def texts(ax):
    legend = ax.get_legend()
    return [t.get_text() for t in [*ax.texts, *(legend.get_texts() if legend else [])]]


def test_softplus_marks_the_start_values_where_they_are_on_the_curve():
    ax = plots.plot_softplus()
    curve, *marks, floor = ax.lines
    assert set(floor.get_ydata()) == {plots.TAU_FLOOR}
    assert [mark.get_ydata()[0] for mark in marks] == [0.4, 0.1, 1.0, 0.2]
    for line in (curve, *marks):
        x, y = line.get_xdata(), line.get_ydata()
        assert np.allclose(np.log(np.expm1(y)), x, atol=1e-6)
    assert math.log(math.expm1(plots.TAU_FLOOR)) == pytest.approx(-10)


def test_prior_integrates_to_one_within_three_standard_deviations():
    weights, biases = plots.plot_prior(weight_std=2, bias_std=1).lines
    for line, inside in ((weights, math.erf(3 / math.sqrt(2))), (biases, 1)):
        assert np.trapezoid(line.get_ydata(), line.get_xdata()) == pytest.approx(inside, abs=1e-3)


def test_initialisation_tells_how_many_weights_turn_their_sign():
    shown = texts(plots.plot_initialisation({"weights": 0.4, "fc1": 1.0, "biases": 0.1}))
    # The normal distribution below -1/tau.
    assert "weights: τ = 0.4, 0.6% below 0" in shown
    assert "fc1: τ = 1, 15.9% below 0" in shown
    assert "biases: τ = 0.1" in shown


def test_training_marks_the_error_achieved():
    left = plots.plot_training(CURVE)
    right = left.figure.axes[1]
    error, level = right.lines
    assert list(left.lines[0].get_ydata()) == [2.3, 0.5, 0.1]
    assert list(error.get_xdata()) == [100, 300]
    assert list(level.get_ydata()) == [0.05, 0.05]
    assert "5.00%" in right.get_ylabel()
    asked = plots.plot_training(CURVE, final_error=0.03).figure.axes[1]
    assert list(asked.lines[1].get_ydata()) == [0.03, 0.03]


def test_training_without_tests_shows_the_loss_alone():
    ax = plots.plot_training({**CURVE, "test_error": np.full(4, np.nan)})
    assert ax.figure.axes == [ax]


def test_boxplot_marks_true_and_predicted():
    ax = plots.plot_boxplot(DRAWS, true=1, class_names=["a", "b", "c"])
    labels = ax.get_yticklabels()
    assert [label.get_text() for label in labels] == ["a ✗", "b ✓", "c"]
    assert [label.get_fontweight() for label in labels] == ["bold", "bold", "normal"]
    assert ax.get_title(loc="left") == "wrong"
    # Each class has a box, then its dots.
    boxes = [patch.get_path().get_extents() for patch in ax.patches[::2]]
    assert [box.x0 for box in boxes] == pytest.approx([0.55, 0.25, 0.1])
    assert [box.x1 for box in boxes] == pytest.approx([0.65, 0.35, 0.1])
    for c, dots in enumerate(ax.patches[1::2]):
        assert dots.get_path().vertices[::2, 0].tolist() == DRAWS[:, c].tolist()
    assert plots.plot_boxplot(DRAWS, true=0).get_title(loc="left") == "right"
    assert plots.plot_boxplot(DRAWS).get_title(loc="left") == ""


def test_boxplot_has_whiskers_over_the_credible_interval():
    def whiskers(**options):
        ax = plots.plot_boxplot(DRAWS, **options)
        ends = [line.get_xdata() for line in ax.lines]
        # Lower and upper whisker, two caps, median.
        return np.array([(ends[k][1], ends[k + 1][1]) for k in range(0, 15, 5)])

    np.testing.assert_allclose(whiskers(), np.quantile(DRAWS, (0.025, 0.975), axis=0).T)
    given = np.zeros(3), np.array([0.8, 0.5, 0.2])
    np.testing.assert_array_equal(whiskers(interval=given), np.transpose(given))


def test_gallery_says_what_each_image_is_taken_for():
    ax = plots.plot_gallery(images(range(9)), [1] * 9, [0] * 9, np.linspace(0.1, 0.9, 9))
    assert len(ax.images) == 9
    assert texts(ax)[0] == "0 → 1  0.10"
    assert ax.images[8].get_extent()[2:] == [1.95, 1.05]


def test_reliability_leaves_empty_bins_out():
    ax = plots.plot_reliability(analysis())
    (marks,) = ax.collections
    assert marks.get_offsets().tolist() == [[0.4, 0.0], [0.868, 0.8]]


def test_the_scale_of_few_images_has_plain_labels():
    ax = plots.plot_entropy({"right": [0.1, 0.2, 0.3], "wrong": [0.5]})
    ax.figure.canvas.draw()
    texts = [label.get_text() for label in ax.get_yticklabels(which="both")]
    assert [text for text in texts if text and "%" not in text] == []
    assert {"10%", "100%"} <= set(texts)


def test_entropy_is_a_share_of_each_group():
    ax = plots.plot_entropy({"right": np.array([0.0, 0.1, 1.0, 1.0]), "wrong": []}, bins=2)
    assert ax.patches[0].get_data().values.tolist() == [0.5, 0.5]
    assert texts(ax) == ["right (4)"]


def test_tau_shows_every_layer_and_no_bar_for_a_missing_bias():
    ax = plots.plot_tau({"full": LAYERS, "reduced": LAYERS[:1]})
    lengths = [patch.get_width() for patch in ax.patches]
    assert lengths[:3] == [0.08, 0.7, 0.1] and math.isnan(lengths[3])
    assert lengths[4:] == [0.08, 0.1]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["conv", "fc"]
    assert not ax.lines


def test_tau_shows_the_range_of_several():
    ax = plots.plot_tau([layer_posterior("conv", 0.08, 0.1, tau_low=0.002, tau_high=3.0)])
    (line,) = ax.lines
    assert list(line.get_xdata()) == [0.002, 3]
    bar = ax.patches[0]
    assert bar.get_y() < line.get_ydata()[0] < bar.get_y() + bar.get_height()
    assert ax.get_xlim()[0] <= 0.002 and ax.get_xlim()[1] >= 3


def test_curves_leave_out_what_was_not_measured():
    ax = plots.plot_curves({"a": (CURVE["iteration"], CURVE["test_error"])}, "test error")
    line, last = ax.lines
    assert line.get_xydata().tolist() == [[100, 0.2], [300, 0.05]]
    assert list(last.get_ydata()) == [0.05, 0.05]
    ax = plots.plot_curves({"a": ([1, 2, 3], [2.0, 0.0, 0.3])}, "loss", log=True)
    assert ax.lines[0].get_xydata().tolist() == [[1, 2], [3, 0.3]]
    assert ax.get_ylim() == pytest.approx((0.1, 10))
    flat = plots.plot_curves({"a": ([1, 2], [1, 1])}, "loss", log=True)
    assert flat.get_ylim() == pytest.approx((1, 10))
    long = plots.plot_curves({"a": (np.arange(9999), np.ones(9999))}, "loss", log=True).lines[0]
    assert len(long.get_xdata()) == plots.POINTS and long.get_xdata()[-1] == 9998


def test_risk_coverage_begins_where_it_is_told():
    (line,) = plots.plot_risk_coverage(analysis(), start=0.5).lines
    assert line.get_ydata().tolist() == [1 / 3, 1 / 4, 1 / 5, 2 / 6]


def test_outcomes_are_counts_with_their_share():
    shown = texts(plots.plot_outcomes(TABLE))
    assert shown == ["9,609", "96.09%", "297", "2.97%", "14", "0.14%", "80", "0.80%"]


def test_paper_figures_are_written_the_same_again(tmp_path):
    probabilities = np.random.default_rng(0).dirichlet([1, 1, 1], (5, 6))
    for folder in ("a", "b"):
        written = plots.paper_figures(
            tmp_path / folder,
            curves={"bayes": CURVE},
            analysis=analysis(),
            probabilities=probabilities,
            images=images,
        )
    names = {path.name for path in written}
    results = ("training-bayes", "boxplots", "wrong-but-certain")
    figures = ("softplus", "prior", "initialisation", *results)
    assert names == {f"{figure}.{kind}" for figure in figures for kind in ("svg", "png")}
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_paper_figures_need_no_data(tmp_path):
    written = plots.paper_figures(tmp_path, formats=["svg"])
    assert [path.stem for path in written] == ["softplus", "prior", "initialisation"]
