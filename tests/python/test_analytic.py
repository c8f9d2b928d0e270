"""`--passes analytic`: the moments of the scores, against closed forms and against many draws."""

import json

import numpy as np
import pytest
from conftest import input_net, save_weights, small_net

pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe import BayesCaffeError, Mixture, Model, cli, load_draws, predict, sample  # noqa: E402
from bayescaffe.net.analytic import POINTS, Analytic, as_analytic  # noqa: E402
from bayescaffe.net.moments import MomentNet  # noqa: E402
from bayescaffe.stats.analysis import analyze  # noqa: E402
from bayescaffe.stats.draws import Draws  # noqa: E402
from export_nets import randomize  # noqa: E402

pytestmark = pytest.mark.engine

BAYES = "bayes_param { dataset_size: 100 }"


def net_text(*layers, shape=(2, 4, 4)):
    """A net of these layers, each with one bottom and one top, and three classes."""
    dims = " ".join(f"dim: {size}" for size in (5, *shape))
    text = [
        f'layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ {dims} }} }} }}'
    ]
    bottom = "data"
    for number, layer in enumerate([*layers, dense(3)]):
        kind, options = layer
        name = f"layer{number}"
        text.append(
            f'layer {{ name: "{name}" type: "{kind}" bottom: "{bottom}" top: "{name}" {options} }}'
        )
        bottom = name
    return "\n".join(text)


def dense(outputs, bayesian=True):
    options = f'inner_product_param {{ num_output: {outputs} weight_filler {{ type: "xavier" }} }}'
    return ("BayesInnerProduct", f"{options} {BAYES}") if bayesian else ("InnerProduct", options)


def conv(outputs, bayesian=True, more=""):
    options = (
        f"convolution_param {{ num_output: {outputs} kernel_size: 3 pad: 1 {more} "
        'weight_filler { type: "xavier" } }'
    )
    return ("BayesConvolution", f"{options} {BAYES}") if bayesian else ("Convolution", options)


@pytest.fixture
def model_of(tmp_path):
    """A model of a net with random weights; each tau is this."""

    def make(text, tau=0.2, **options):
        def change(net):
            randomize(net)
            for name, params in net.params.items():
                if name in net.posteriors():
                    for blob in params[len(params) // 3 : 2 * len(params) // 3]:
                        blob.data[...] = np.log(np.expm1(tau))  # tau = softplus(delta)
                    taus = [float(one) for tau_ in net.taus(name) for one in tau_.ravel()]
                    assert taus == pytest.approx([tau] * len(taus), rel=1e-4)

        return Model(*save_weights(tmp_path, text, change), **options)

    return make


def images_of(model, count=5, seed=3):
    return np.random.default_rng(seed).normal(0, 1, (count, *model.image_shape)).astype(np.float32)


def differences(probabilities):
    """Of the scores of each class and of the first: softmax hides what is common to all."""
    logs = np.log(probabilities.astype(np.float64))
    return logs[..., 1:] - logs[..., :1]


def expect_moments(model, draws=4000, error=0.12, shift=4.0):
    """The moments are those of many draws: variances within `error`, means within `shift` standard
    errors of them."""
    images = images_of(model)
    mean, covariance = MomentNet(model).scores(images)
    away = np.array([[-1, 1, 0], [-1, 0, 1]])
    found = differences(model.sample(images, draws))
    expected = away @ covariance @ away.T
    for row in range(len(images)):
        spread = np.sqrt(np.diag(expected[row]))
        sampled = np.cov(found[:, row].T)
        assert np.abs(sampled - expected[row]).max() <= error * spread.max() ** 2
        standard_error = spread / np.sqrt(draws)
        assert (
            np.abs(found[:, row].mean(axis=0) - away @ mean[row]) <= shift * standard_error
        ).all()


def test_one_inner_product_is_exact(model_of):
    """Var y = sum (tau m x)^2, and different classes share nothing."""
    model = model_of(net_text())
    images = images_of(model)
    weights, bias = (blob.data.astype(np.float64) for blob in model.caffe_net.params["layer0"][:2])
    x = images.reshape(len(images), -1).astype(np.float64)
    mean, covariance = MomentNet(model).scores(images)
    assert mean == pytest.approx(x @ weights.T + bias, rel=1e-5, abs=1e-6)
    expected = 0.04 * (x**2 @ weights.T**2 + bias**2)
    assert np.einsum("ijj->ij", covariance) == pytest.approx(expected, rel=1e-3)
    assert np.count_nonzero(covariance) == 3 * len(images)


@pytest.mark.parametrize("slope", [0, 0.2])
def test_a_hidden_layer_is_exact(model_of, slope):
    """Hidden numbers are independent, so all that is left is the error of the draws."""
    relu = ("ReLU", f"relu_param {{ negative_slope: {slope} }}")
    expect_moments(model_of(net_text(dense(40), relu), tau=0.5))


def test_dropped_numbers_have_a_variance(model_of):
    text = net_text(dense(40, bayesian=False), ("Dropout", "dropout_param { dropout_ratio: 0.4 }"))
    model = model_of(text.replace("BayesInner", "Inner").replace(BAYES, ""), mc_dropout=True)
    expect_moments(model)


HIDDEN = dense(32)
AS_PICTURE = ("Reshape", "reshape_param { shape { dim: 0 dim: 2 dim: 4 dim: 4 } }")


@pytest.mark.parametrize(
    "layers",
    [
        [("Scale", "scale_param { bias_term: true filler { value: 1.5 } }")],
        # Each number has a weight of its own.
        [("BayesScale", f"scale_param {{ num_axes: -1 filler {{ value: 1.5 }} }} {BAYES}")],
        [("Bias", "bias_param { filler { value: 0.5 } }")],
        [("BatchNorm", "")],
        [("Power", "power_param { scale: -0.5 shift: 2 }")],
        [("TanH", "")],
        [("Sigmoid", "")],
        [("LRN", "lrn_param { local_size: 3 alpha: 0.01 }")],
        [("ReLU", ""), ("Flatten", "")],
        # One number of each map: neighbours would depend on each other.
        [conv(3, more="stride: 4")],
        [conv(2, False, "stride: 4 group: 2")],
        [("Deconvolution", conv(3, False)[1])],
    ],
    ids=lambda layers: layers[0][0],
)
def test_each_kind_of_layer(model_of, layers):
    """Behind numbers that are independent of each other and vary little."""
    expect_moments(model_of(net_text(HIDDEN, AS_PICTURE, *layers), tau=0.05), error=0.15)


def two_ways(middle):
    """Two inner products of the image, brought together by layers."""
    text = net_text(shape=(8, 1, 1)).split("\n")[0]
    for name in ("a", "b"):
        kind, options = dense(8)
        text += f'layer {{ name: "{name}" type: "{kind}" bottom: "data" top: "{name}" {options} }}'
    kind, options = dense(3)
    return (
        text
        + middle
        + (f'layer {{ name: "out" type: "{kind}" bottom: "both" top: "out" {options} }}')
    )


@pytest.mark.parametrize(
    "middle",
    [
        'layer { name: "both" type: "Concat" bottom: "a" bottom: "b" top: "both" }',
        'layer { name: "both" type: "Eltwise" bottom: "a" bottom: "b" top: "both" '
        "eltwise_param { coeff: 1 coeff: -0.5 } }",
        # What is the same in each draw, beside what is not.
        'layer { name: "flat" type: "Flatten" bottom: "data" top: "flat" }'
        'layer { name: "both" type: "Concat" bottom: "a" bottom: "flat" top: "both" }',
        'layer { name: "slice" type: "Slice" bottom: "a" top: "both" top: "rest" '
        "slice_param { slice_point: 5 } }",
    ],
    ids=["Concat", "Eltwise", "Concat with the image", "Slice"],
)
def test_ways_come_together(model_of, middle):
    expect_moments(model_of(two_ways(middle), tau=0.3, output="out"))


def test_without_inner_product_at_the_end(model_of):
    """Each score has its own variance then."""
    text = net_text(conv(3), ("ReLU", "")).split("\n")[:-1]
    pool = 'layer { name: "pool" type: "Pooling" bottom: "layer1" top: "pool" '
    pool += "pooling_param { pool: AVE global_pooling: true } }"
    model = model_of("\n".join([*text, pool]))
    mean, covariance = MomentNet(model).scores(images_of(model))
    assert mean.shape == (5, 3) and (np.einsum("ijj->ij", covariance) > 0).all()
    assert np.count_nonzero(covariance) == 15


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        (("PReLU", ""), "PReLU has no analytic form"),
        (("Power", "power_param { power: 2 }"), "Power with power: 2 has no analytic form"),
        (("BNLL", ""), "BNLL has no analytic form"),
    ],
)
def test_what_has_no_analytic_form_is_named(model_of, layer, told):
    model = model_of(net_text(HIDDEN, layer))
    with pytest.raises(BayesCaffeError, match=f"net.prototxt: layer 'layer1': {told}; take draws"):
        Analytic(model)
    # The same layer before all that is random is no hindrance.
    expect_moments(model_of(net_text(layer)))


@pytest.fixture
def small(tmp_path, digits):
    """A small convolutional net with random weights."""

    def change(net):
        randomize(net)
        for name, tau in (("conv", 0.1), ("hidden", 0.3), ("out", 0.3)):
            for blob in net.params[name][2:4]:
                blob.data[...] = np.log(np.expm1(tau))

    text = input_net(small_net(digits, "dataset_size: 330"), batch=4)
    return save_weights(tmp_path, text, change)


def test_verdicts_are_nearer_to_those_of_many_draws_than_100_draws_are(small):
    """Though numbers of a convolution depend on each other."""
    model = Model(*small)
    images = np.random.default_rng(0).normal(0, 1, (300, 1, 12, 12)).astype(np.float32)
    many = model.sample(images, 3000)
    expected = analyze(Draws(many), progress=False)
    assert 0.2 < expected.certain.mean() < 0.8

    def same_verdicts(draws):
        found = analyze(Draws(draws), progress=False)
        same = (found.predicted == expected.predicted) & (found.certain == expected.certain)
        return same.mean(), np.abs(found.mean - expected.mean).mean()

    (verdicts, error), (of_100, error_of_100) = map(
        same_verdicts, (Analytic(model).sample(images, POINTS), many[:100])
    )
    assert verdicts >= of_100 and verdicts > 0.95
    assert error < error_of_100 / 2


def test_a_draw_is_the_same_for_any_number_of_them(small):
    model = Analytic(Model(*small))
    images = np.random.default_rng(0).normal(0, 1, (6, 1, 12, 12)).astype(np.float32)
    many = model.sample(images, 40)
    assert np.array_equal(model.sample(images, 7), many[:7])
    assert np.array_equal(model.sample(images, [3, 30]), many[[3, 30]])
    # The last batch is smaller than the others.
    assert model.sample(images[4:], 5) == pytest.approx(many[:5, 4:], abs=1e-5)
    assert len(np.unique(many[:, 0, 0])) == 40
    # Another seed has other points of the same distribution.
    one, other = (Analytic(Model(*small, seed=n)).sample(images, POINTS) for n in (1, 2))
    assert not np.array_equal(one, other)
    assert one.mean(axis=0) == pytest.approx(other.mean(axis=0), abs=0.01)


def test_the_command_line(small, tmp_path, capsys):
    images = np.random.default_rng(0).integers(0, 256, (9, 1, 12, 12)).astype(np.uint8)
    np.save(tmp_path / "x.npy", images)
    given = [*map(str, small), "--data", str(tmp_path / "x.npy"), "--passes", "analytic"]
    out = str(tmp_path / "draws.npz")
    assert cli.main(["sample", *given, "--out", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["draws"] == POINTS
    draws = load_draws(out)
    assert draws.meta["analytic"] is True
    assert np.array_equal(draws.probabilities, Analytic(Model(*small)).sample(images, POINTS))
    assert cli.main(["sample", *given, "--out", out]) == 0
    assert "analytic, 256 draws of the scores" in capsys.readouterr().out
    assert cli.main(["analyze", out]) == 0
    assert "analytic" in capsys.readouterr().out
    given[given.index("analytic")] = "few"
    with pytest.raises(SystemExit):
        cli.main(["sample", *given])
    assert "--passes: 'few' is no number, and not analytic" in capsys.readouterr().err


def test_predict_and_a_mixture(small, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (3, 1, 12, 12)).astype(np.float32)
    model = Model(*small)
    found = predict(model, images, "analytic")
    assert [one.draws for one in found] == [POINTS] * 3
    expected = Analytic(model).sample(images, POINTS).mean(axis=0)
    assert [one.probability for one in found] == pytest.approx(expected.max(axis=1).tolist())
    copy = tmp_path / "other.caffemodel"
    copy.write_bytes(small[1].read_bytes())
    both, passes = as_analytic(Mixture([model, Model(small[0], copy)]))
    assert passes == 2 * POINTS
    draws = sample(Mixture([model, Model(small[0], copy)]), images, "analytic", progress=False)
    assert np.array_equal(draws.probabilities, both.sample(images, passes))
    assert draws.probabilities.mean(axis=0) == pytest.approx(expected, abs=0.01)


def test_a_model_measures_its_factor_once(small, monkeypatch):
    images, model = np.zeros((1, 1, 12, 12), np.float32), Model(*small)
    first = predict(model, images, "analytic")
    monkeypatch.setattr(Analytic, "_measured_factor", None)
    assert predict(model, images, "analytic") == first


def test_no_draw_is_saved_of_one_pass(small):
    images = np.zeros((1, 1, 12, 12), np.float32)
    with pytest.raises(BayesCaffeError, match="adaptive: .*takes one pass, so none is saved"):
        predict(Model(*small), images, "analytic", adaptive="rule.json")


def test_what_is_no_number_is_told(small):
    images = np.zeros((6, 1, 12, 12), np.float32)
    images[5] = np.nan
    with pytest.raises(BayesCaffeError, match=r"image 5: the mean or the variance .* is no number"):
        Analytic(Model(*small)).sample(images, 2)


def test_the_factor_makes_up_for_what_the_moments_ignore(model_of):
    """Numbers of a map share their weights, so that a sum of them varies otherwise."""
    pool = ("Pooling", "pooling_param { pool: AVE kernel_size: 4 stride: 4 }")
    model = model_of(net_text(conv(6), conv(6), pool, shape=(2, 8, 8)), tau=0.1)
    images = np.random.default_rng(5).uniform(0, 255, (8, *model.image_shape)).astype(np.float32)
    found = Analytic(model)
    draws = np.empty((1000, 8, 3), np.float32)
    model.caffe_net.sample(
        1000, lambda first, count: images[first : first + count], 8, output="layer3", out=draws
    )
    centred = draws - draws.mean(axis=2, keepdims=True)
    _, covariance = MomentNet(model).scores(images)
    away = np.eye(3) - 1 / 3
    ratios = centred.var(axis=0).sum(axis=1) / np.trace(away @ covariance @ away, axis1=1, axis2=2)
    assert abs(ratios.mean() - 1) > 0.15, "the test needs a net where the moments are wrong"
    assert found.factor == pytest.approx(ratios.mean(), rel=0.1)
    # The same for any image, and for another object of the same model.
    assert Analytic(model).factor == found.factor


def test_a_net_without_noise_has_no_factor(model_of):
    text = net_text(dense(4, bayesian=False)).replace("BayesInner", "Inner").replace(BAYES, "")
    model = model_of(text)
    images = images_of(model)
    analytic = Analytic(model)
    assert analytic.factor == 1 and analytic.distinct_draws == 1
    expected = np.broadcast_to(model.sample(images, 1), (3, 5, 3))
    assert analytic.sample(images, 3) == pytest.approx(expected, abs=1e-6)
