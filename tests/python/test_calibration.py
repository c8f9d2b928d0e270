"""Temperature scaling: the temperature that is fitted, and the weights that have it."""

import json
import math
import shutil
from functools import partial

import numpy as np
import pytest
from bayescaffe import BayesCaffeError
from bayescaffe.stats.draws import Draws
from bayescaffe.stats.temperature import fit_temperature, tempered
from conftest import caffe, input_net, save_weights, small_net, write_solver

BAYES = "kl_weight: 0.01 dataset_size: 330 tau_init: 0.4"


def softmax(scores):
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return scores / scores.sum(axis=-1, keepdims=True)


def drawn_labels(probabilities, random):
    """A class for each image, with these probabilities."""
    below = probabilities.cumsum(axis=1) < random.random((len(probabilities), 1))
    return below.sum(axis=1).clip(max=probabilities.shape[1] - 1)


def overconfident(images, temperature, draws=1, seed=0):
    """Draws whose labels come from their tempered mean."""
    random = np.random.default_rng(seed)
    scores = 3 * random.standard_normal((1, images, 4)) + random.standard_normal((draws, images, 4))
    labels = drawn_labels(softmax(scores / temperature).mean(axis=0), random)
    return Draws(softmax(scores).astype(np.float32), labels)


# ---- The temperature -----------------------------------------------------------------------------


def test_tempered_by_hand():
    # Square roots of 0.64, 0.32, 0.04 are 0.8, 0.5657, 0.2, of sum 1.5657.
    root = tempered(np.array([0.64, 0.32, 0.04]), 2)
    assert np.allclose(root, np.array([0.8, math.sqrt(0.32), 0.2]) / (1 + math.sqrt(0.32)))
    given = np.array([[0.7, 0.3], [1.0, 0.0]])
    assert np.allclose(tempered(given, 1), given, atol=1e-30)


@pytest.mark.parametrize("draws", [1, 5])
@pytest.mark.parametrize("temperature", [0.5, 1, 2])
def test_the_temperature_comes_back(temperature, draws):
    fit = fit_temperature(overconfident(20_000, temperature, draws))
    # The interval is narrow, and the truth is at most twice as far away as its ends.
    assert fit.high / fit.low < 1.1
    assert abs(math.log(fit.temperature / temperature)) < math.log(fit.high / fit.low)
    assert fit.images == 20_000
    assert fit.is_shown == (temperature != 1)
    assert fit.nll[1] <= fit.nll[0]
    if temperature == 2:
        assert fit.ece[1] < 0.2 * fit.ece[0]


def test_the_interval_covers_the_truth():
    """In 200 sets of images; with a coverage of 95 %, fewer than 180 has a chance of 0.3 %."""
    fits = [fit_temperature(overconfident(500, 1.5, seed=seed)) for seed in range(200)]
    assert 180 <= sum(fit.low <= 1.5 <= fit.high for fit in fits) < 200


def test_the_best_is_the_best():
    """No other temperature has a lower NLL of the mean of the tempered draws."""
    draws = overconfident(300, 1.7, draws=7)
    fit = fit_temperature(draws)

    def loss(temperature):
        mean = tempered(draws.probabilities, temperature).mean(axis=0)
        return -np.log(mean[np.arange(300), draws.labels]).mean()

    assert fit.nll == pytest.approx((loss(1), loss(fit.temperature)), abs=1e-9)
    others = fit.temperature * np.geomspace(0.1, 10, 41)
    assert min(map(loss, others)) >= loss(fit.temperature) - 1e-9


def test_images_without_an_error_have_no_temperature():
    draws = overconfident(50, 1)
    right = Draws(draws.probabilities, draws.probabilities[0].argmax(axis=1))
    with pytest.raises(BayesCaffeError, match="sure enough of these 50 images; more images"):
        fit_temperature(right)
    wrong = Draws(draws.probabilities, draws.probabilities[0].argmin(axis=1))
    with pytest.raises(BayesCaffeError, match="unsure enough of these 50 images"):
        fit_temperature(wrong)
    with pytest.raises(BayesCaffeError, match="has no labels"):
        fit_temperature(Draws(draws.probabilities))


# ---- The weights ---------------------------------------------------------------------------------

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe import Mixture, Model, calibrate, cli, predict  # noqa: E402
from bayescaffe.infer.calibration import NOISE  # noqa: E402
from bayescaffe.net.calibrated_weights import write_calibrated  # noqa: E402

_random = np.random.default_rng(3)
# Some are dark, some are bright.
IMAGES = (_random.random((300, 1, 1)) * _random.integers(0, 256, (300, 12, 12))).astype(np.uint8)


def pooled_net(digits):
    """Scores from a convolution, averaged over the picture, as SqueezeNet has them."""
    head = input_net(small_net(digits, BAYES), 5).split('layer {\n          name: "hidden"')[0]
    return (
        head
        + f"""
        layer {{ name: "scores" type: "BayesConvolution" bottom: "conv" top: "scores"
                bayes_param {{ {BAYES} }}
                convolution_param {{ num_output: 4 kernel_size: 1
                                    weight_filler {{ type: "gaussian" std: 0.01 }} }} }}
        layer {{ name: "relu" type: "ReLU" bottom: "scores" top: "scores" }}
        layer {{ name: "pool" type: "Pooling" bottom: "scores" top: "pool"
                pooling_param {{ pool: AVE global_pooling: true }} }}
        layer {{ name: "flat" type: "Flatten" bottom: "pool" top: "flat" }}
        layer {{ name: "prob" type: "Softmax" bottom: "flat" top: "prob" }}"""
    )


NETS = {
    "Bayesian": lambda digits: small_net(digits, BAYES),
    "a tau for each weight": lambda digits: small_net(digits, BAYES + " posterior: PER_WEIGHT"),
    "stock": lambda digits: small_net(digits, None),
    "scores averaged": pooled_net,
}


@pytest.fixture
def held_out(tmp_path):
    """A model, and images whose labels its draws are sure of by half of what they should be."""

    def make(text):
        model = Model(*save_weights(tmp_path, text), seed=3)
        draws = model.sample(IMAGES[:, np.newaxis], 10)
        mean = tempered(draws, 0.5).mean(axis=0)
        return model, drawn_labels(mean, np.random.default_rng(1))

    return make


@pytest.mark.engine
@pytest.mark.parametrize("kind", NETS)
def test_the_new_weights_have_the_tempered_draws(kind, held_out, digits, tmp_path):
    model, labels = held_out(NETS[kind](digits))
    before = (tmp_path / "net.caffemodel").read_bytes()
    out = tmp_path / "new.caffemodel"
    found = calibrate(model, IMAGES, 10, labels=labels, noise=1, out=out, progress=False)
    fit = fit_temperature(Draws(model.sample(IMAGES[:, np.newaxis], 10), labels))
    assert found.fit == fit and abs(math.log(fit.temperature)) > 0.01
    assert found.layer == ("scores" if kind == "scores averaged" else "out")
    expected = tempered(model.sample(IMAGES[:, np.newaxis], 3), fit.temperature)
    got = Model(found.out, seed=3).sample(IMAGES[:, np.newaxis], 3)
    assert np.abs(got - expected).max() < 1e-5
    assert np.abs(got - model.sample(IMAGES[:, np.newaxis], 3)).max() > 1e-3
    assert (tmp_path / "net.caffemodel").read_bytes() == before


def test_a_second_time_it_is_1(held_out, digits, tmp_path):
    model, labels = held_out(small_net(digits, BAYES))
    options = {"labels": labels, "noise": 1, "progress": False}
    first = calibrate(model, IMAGES, 20, out=tmp_path / "a.caffemodel", **options)
    again = Model(first.out, seed=3)
    second = calibrate(again, IMAGES, 20, out=tmp_path / "a.caffemodel", **options)
    assert second.fit.temperature == pytest.approx(1, abs=2e-3)
    assert second.fit.nll[0] == pytest.approx(first.fit.nll[1], abs=1e-5)


@pytest.mark.engine
@pytest.mark.parametrize("kind", ["Bayesian", "a tau for each weight", "scores averaged"])
def test_the_new_weights_have_less_noise(kind, held_out, digits, tmp_path):
    model, labels = held_out(NETS[kind](digits))
    options = {"labels": labels, "out": tmp_path / "new.caffemodel", "progress": False}
    found = calibrate(model, IMAGES, 10, noise=0.5, **options)
    assert found.noise == 0.5 and list(found.fits) == [0.5]
    after = Model(found.out, seed=3)
    for name, params in model.caffe_net.params.items():
        count = len(params) // 3
        old, new = ([blob.data for blob in net.caffe_net.params[name]] for net in (model, after))
        scale = found.fit.temperature if name == found.layer else 1
        for i in range(count):
            assert np.allclose(scale * new[i], old[i], rtol=1e-5)
            taus = [np.logaddexp(0, delta[count + i].astype(np.float64)) for delta in (old, new)]
            assert np.allclose(taus[1], 0.5 * taus[0], rtol=1e-5)


def test_noise_is_reduced_only_if_the_images_ask_for_it(digits, tmp_path):
    """Labels by the means of a net are fitted best without its noise; labels by its draws, with."""
    options = BAYES.replace("tau_init: 0.4", "tau_init: 2")
    model = Model(*save_weights(tmp_path, small_net(digits, options)), seed=3)
    images = IMAGES[:, np.newaxis]
    random = np.random.default_rng(1)
    out = tmp_path / "new.caffemodel"
    calibrated = partial(calibrate, model, IMAGES, 40, out=out, progress=False)
    by_draws = model.sample(images, 40).mean(axis=0)
    found = calibrated(labels=drawn_labels(by_draws, random))
    assert found.noise == 1 and list(found.fits) == list(NOISE)
    write_calibrated(model, tmp_path / "means.caffemodel", noise=1e-4)
    by_means = Model(tmp_path / "means.caffemodel").sample(images, 1)[0]
    found = calibrated(labels=drawn_labels(tempered(by_means, 0.3), random))
    assert found.noise < 1
    assert found.fit.nll[1] < found.fits[1].nll[1]


@pytest.mark.parametrize("noise", [0, -1, 1.5, math.nan])
def test_noise_that_makes_no_sense_is_refused(noise, held_out, digits, tmp_path):
    model, labels = held_out(small_net(digits, BAYES))
    with pytest.raises(BayesCaffeError, match=r"noise=.*: expected more than 0 and at most 1"):
        calibrate(model, IMAGES, 2, labels=labels, noise=noise, out=tmp_path / "new.caffemodel")


def test_what_cannot_be_written_is_an_error_at_once(held_out, digits, tmp_path, monkeypatch):
    model, labels = held_out(small_net(digits, BAYES))
    monkeypatch.setattr("bayescaffe.infer.calibration.sample", None)  # never called
    with pytest.raises(OSError, match="there is no directory .*none"):
        calibrate(model, IMAGES, 2, labels=labels, out=tmp_path / "none" / "new.caffemodel")
    with pytest.raises(BayesCaffeError, match="calibrate each on its own"):
        other = Model(model.path, shutil.copy(model.weights, tmp_path / "b.caffemodel"), seed=3)
        calibrate(Mixture([model, other]), IMAGES, 2, out=tmp_path / "new.caffemodel")


def test_scores_that_are_a_sum_are_refused(held_out, digits, tmp_path):
    text = small_net(digits, BAYES)
    added = """layer { name: "sum" type: "Eltwise" bottom: "out" bottom: "out" top: "sum" }
        layer {
          name: "accuracy" """
    text = text.replace('layer {\n          name: "accuracy" ', added)
    model, labels = held_out(
        text.replace('bottom: "out" bottom: "label"', 'bottom: "sum" bottom: "label"')
    )
    with pytest.raises(
        BayesCaffeError, match=r"from the Eltwise layer 'sum', whose weights cannot"
    ):
        calibrate(model, IMAGES, 2, labels=labels, out=tmp_path / "new.caffemodel")
    assert not (tmp_path / "new.caffemodel").exists()


def test_weights_that_are_shared_are_refused(held_out, digits, tmp_path):
    text = small_net(digits, None).replace("num_output: 16", "num_output: 4")
    for name in ("hidden", "out"):
        text = text.replace(
            f'name: "{name}" type: "InnerProduct"',
            f'name: "{name}" type: "InnerProduct" param {{ name: "w" }}',
        )
    # Both take four numbers.
    text = text.replace('bottom: "conv" top: "hidden"', 'bottom: "small" top: "hidden"')
    small = """layer { name: "small" type: "InnerProduct" bottom: "conv" top: "small"
                 inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
        layer {
          name: "hidden" """
    text = text.replace('layer {\n          name: "hidden" ', small)
    model, labels = held_out(text)
    with pytest.raises(BayesCaffeError, match="shares its weights with 'hidden'"):
        calibrate(model, IMAGES, 2, labels=labels, out=tmp_path / "new.caffemodel")


# ---- The command ---------------------------------------------------------------------------------


def test_the_command(held_out, digits, tmp_path, capsys):
    _, labels = held_out(small_net(digits, BAYES))
    np.save(tmp_path / "x.npy", IMAGES)
    np.save(tmp_path / "y.npy", labels)
    (tmp_path / "names").write_text("a\nb\nc\nd\n")
    arguments = ["calibrate", "net.prototxt", "net.caffemodel", "--seed", "3", "--passes", "10"]
    arguments[1:3] = [str(tmp_path / name) for name in arguments[1:3]]
    options = {"data": "x.npy", "labels": "y.npy", "classes": "names", "out": "new.caffemodel"}
    for option, name in options.items():
        arguments += [f"--{option}", str(tmp_path / name)]
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith(f"{tmp_path / 'new.caffemodel'}: the scores of out divided by 0.")
    assert [line.split()[0] for line in printed[2:]] == ["1", *(f"{one:g}" for one in NOISE)]
    assert sum(line.endswith("<") for line in printed) == 1
    assert cli.main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["layer"] == "out" and found["low"] < found["temperature"] < found["high"]
    assert [one["noise"] for one in found["fits"]] == list(NOISE)
    # The new file carries its net, and the names of the classes.
    (answer,) = predict(Model(tmp_path / "new.caffemodel"), IMAGES[:1], passes=3)
    assert answer.class_name == "abcd"[answer.label]


def test_a_solver_stands_for_its_net(digits, tmp_path, capsys):
    solver = write_solver(tmp_path, small_net(digits, BAYES), 5)
    assert caffe("train", "-solver", solver).returncode == 0
    out = tmp_path / "new.caffemodel"
    code = cli.main(
        ["calibrate", str(solver), "--data", str(digits / "test_lmdb"), "--out", str(out)]
    )
    assert (code, out.exists()) == (0, True), capsys.readouterr().err
