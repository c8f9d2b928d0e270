"""`posterior: PER_OUTPUT` and `PER_WEIGHT` wherever taus are used: in draws, files and exports."""

import numpy as np
import pytest
from conftest import (
    assert_same,
    assert_same_bits,
    blobs,
    caffe,
    input_net,
    make_net,
    save_weights,
    small_net,
    write_solver,
)

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
import bayescaffe  # noqa: E402
from bayescaffe.common.errors import BayesCaffeError  # noqa: E402
from bayescaffe.net.messages import read_weights  # noqa: E402
from bayescaffe.net.stock import stock_layers  # noqa: E402
from bayescaffe.training.log import LogParser  # noqa: E402
from export_nets import images_of, onnx_session, randomize, run_pycaffe, saved  # noqa: E402
from scipy import stats  # noqa: E402

pytestmark = pytest.mark.engine

KINDS = ("PER_OUTPUT", "PER_WEIGHT")
SHAPES = {  # of delta, weights and biases
    "PER_OUTPUT": {"conv": [(4, 1, 1, 1), (4,)], "hidden": [(16, 1), (16,)]},
    "PER_WEIGHT": {"conv": [(4, 1, 3, 3), (4,)], "hidden": [(16, 100), (16,)]},
}


def options(kind):
    return f"kl_weight: 0.5 dataset_size: 330 prior_std: 0.7 posterior: {kind}"


def text_of(digits, kind, batch=3):
    return input_net(small_net(digits, options(kind)), batch)


@pytest.fixture(params=KINDS)
def model(request, tmp_path, digits):
    """A model with a random tau for each output or weight."""
    return saved(tmp_path, text_of(digits, request.param))


def softplus(delta):
    return np.logaddexp(0, delta.astype(np.float64))


def test_taus_are_those_of_delta(model):
    net = model.caffe_net
    kind = "PER_WEIGHT" if net.params["hidden"][2].count == 1600 else "PER_OUTPUT"
    for name, shapes in SHAPES[kind].items():
        taus = net.taus(name)
        assert [tau.shape for tau in taus] == shapes
        posterior = net.posteriors()[name]
        for i, tau in enumerate(taus):
            assert tau == pytest.approx(softplus(net.params[name][2 + i].data), rel=1e-6)
            assert np.ptp(tau) > 0.05
            assert posterior.taus[i] == pytest.approx(np.median(tau), rel=1e-6)
            assert posterior.tau_ranges[i] == (tau.min(), tau.max())


def test_kl_is_the_sum_over_weights(model):
    net = model.caffe_net
    for name in net.posteriors():
        expected = 0
        for i, (tau, zeta) in enumerate(zip(net.taus(name), (0.7, 10), strict=True)):
            blob = net.params[name][i].data
            blob[np.abs(blob) < 0.01] = 0.01  # where KL is the formula's
            m = blob.astype(np.float64)
            std = tau * np.abs(m)
            expected += np.sum(np.log(zeta / std) + (std**2 + m**2) / (2 * zeta**2) - 0.5)
        assert net.posteriors()[name].kl == pytest.approx(expected, rel=1e-5)


def test_sample_draws_what_forward_draws(model):
    net = model.caffe_net
    images = images_of(model, 3)
    drawn = net.sample([0, 7], images, output="out")
    net.blobs["data"].reshape(*images.shape)
    for row, draw in enumerate((0, 7)):
        net.set_draw(draw)
        net.forward(data=images)
        assert_same(drawn[row], net.blobs["out"].data)
        # The noise has the names that it has with one tau.
        weights = [
            m.data * (1 + tau * epsilon.data)
            for m, tau, epsilon in zip(
                net.params["out"][:2], net.taus("out"), net.params["out"][4:], strict=True
            )
        ]
        hidden = net.blobs["hidden"].data
        assert net.blobs["out"].data == pytest.approx(hidden @ weights[0].T + weights[1], rel=1e-4)


def test_the_noise_is_that_of_one_tau(tmp_path, digits):
    noise = []
    for kind in ("SHARED", *KINDS):
        net = make_net(tmp_path, text_of(digits, kind))
        net.set_draw(5)
        net.forward()
        noise.append(net.params["hidden"][4].data.copy())
    assert np.array_equal(noise[0], noise[1]) and np.array_equal(noise[0], noise[2])


# ---- Files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["caffemodel", "h5"])
@pytest.mark.parametrize("kind", KINDS)
def test_files_keep_each_tau(tmp_path, digits, kind, form):
    net = make_net(tmp_path, text_of(digits, kind))
    randomize(net)
    path = tmp_path / f"net.{form}"
    (net.save if form == "caffemodel" else net.save_hdf5)(str(path))
    again = make_net(tmp_path, text_of(digits, kind), weights=path)
    for name in ("conv", "hidden", "out"):
        for one, other in zip(net.taus(name), again.taus(name), strict=True):
            assert np.array_equal(one, other)


@pytest.mark.parametrize("form", ["caffemodel", "h5"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_tau_of_a_file_is_that_of_all_weights(tmp_path, digits, kind, form):
    net = make_net(tmp_path, text_of(digits, "SHARED"))
    net.params["hidden"][2].data[...] = -3
    path = tmp_path / f"net.{form}"
    (net.save if form == "caffemodel" else net.save_hdf5)(str(path))
    net = make_net(tmp_path, text_of(digits, kind), weights=path)
    tau, tau_b = net.taus("hidden")
    assert tau.shape == SHAPES[kind]["hidden"][0]
    assert tau == pytest.approx(softplus(np.float32(-3)))
    assert tau_b == pytest.approx(0.1)


@pytest.mark.parametrize("form", ["caffemodel", "h5"])
@pytest.mark.parametrize(
    ("kind", "other", "message"),
    [
        (
            "PER_WEIGHT",
            "SHARED",
            "layer 'conv': bayes_param.posterior is SHARED, which makes",
        ),
        ("PER_OUTPUT", "PER_WEIGHT", r"one of shape 4 1 1 1 \(4\); set posterior as in its train"),
    ],
)
def test_taus_that_do_not_fit_are_told(tmp_path, digits, kind, other, message, form):
    net = make_net(tmp_path, text_of(digits, kind))
    path = tmp_path / f"net.{form}"
    (net.save if form == "caffemodel" else net.save_hdf5)(str(path))
    with pytest.raises(pycaffe.Error, match=message) as caught:
        make_net(tmp_path, text_of(digits, other), weights=path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("form", ["", "HDF5"])
@pytest.mark.parametrize("kind", KINDS)
def test_resumed_training_is_the_uninterrupted_one(tmp_path, digits, kind, form):
    net = small_net(digits, options(kind))
    more = {"snapshot_format": form} if form else {}
    whole = pycaffe.get_solver(str(write_solver(tmp_path, net, 31, name="whole", **more)))
    start = whole.net.params["hidden"][2].data.copy()
    whole.step(31)
    assert np.count_nonzero(whole.net.params["hidden"][2].data != start) == start.size
    solver = str(write_solver(tmp_path, net, 31, name="part", snapshot=20, **more))
    pycaffe.get_solver(solver).step(20)
    resumed = pycaffe.get_solver(solver)
    resumed.restore(str(tmp_path / f"part_iter_20.solverstate{'.h5' if form else ''}"))
    resumed.step(11)
    assert_same_bits(blobs(resumed.net), blobs(whole.net))


# ---- Exports -------------------------------------------------------------------------------------


def test_a_draw_can_be_frozen(model, tmp_path):
    images = images_of(model, 3)
    model.caffe_net.set_draw(4)
    expected = model.caffe_net.sample([4], images, output="out")[0]
    bayescaffe.export(model, tmp_path, 4, to="caffe")
    found = run_pycaffe(tmp_path / "draw-4", images)
    expected = np.exp(expected) / np.exp(expected).sum(axis=1, keepdims=True)
    if not np.allclose(found.sum(axis=1), 1):
        found = np.exp(found) / np.exp(found).sum(axis=1, keepdims=True)
    assert found == pytest.approx(expected, rel=1e-4)
    shapes = [blob.shape for layer in stock_layers(model, 4) for blob in layer.blobs]
    assert shapes == [(4, 1, 3, 3), (4,), (16, 100), (16,), (4, 16), (4,)]


@pytest.mark.parametrize("kind", KINDS)
def test_noise_in_onnx_has_the_mean_and_variance_of_draws(tmp_path, kind):
    from test_onnx import layer_net, write_layer

    inner = "inner_product_param { num_output: 3 }"
    text = layer_net(
        "BayesInnerProduct",
        f"{inner} bayes_param {{ dataset_size: 1 posterior: {kind} }}",
        [(2, 3)],
        batch=1,
    )
    net = make_net(tmp_path, text)
    randomize(net)
    path = write_layer(tmp_path, text, net)
    count = 20_000
    image = np.random.default_rng(6).standard_normal((1, 2, 3)).astype(np.float32)
    drawn = net.sample(count, image, output="out")[:, 0]
    (found,) = onnx_session(path).run(None, {"in0": np.repeat(image, count, axis=0)})
    deviation = drawn.std(axis=0)
    error = 6 * deviation * np.sqrt(2 / count) + 1e-6
    assert np.all(np.abs(found.mean(axis=0) - drawn.mean(axis=0)) <= error)
    assert np.all(np.abs(found.std(axis=0) - deviation) <= error)


def test_the_means_make_a_stock_net(model, tmp_path):
    written = tmp_path / "stock"
    bayescaffe.convert(tmp_path / "net.prototxt", model.weights, to_stock=True, out=written)
    (path,) = written.rglob("*.caffemodel")
    stored = {layer.name: layer.blobs for layer in read_weights(path)}
    for name in ("conv", "hidden", "out"):
        means = [blob.data for blob in model.caffe_net.params[name][:2]]
        assert len(stored[name]) == 2
        assert all(map(np.array_equal, stored[name], means))


# ---- What is shown -------------------------------------------------------------------------------


def test_inspect_tells_the_range(model, tmp_path, capsys):
    net_file = tmp_path / "net.prototxt"
    net = model.caffe_net
    layers = {layer.name: layer for layer in bayescaffe.inspect(net_file, model.weights)}
    for name, layer in layers.items():
        tau, tau_b = net.taus(name)
        assert (layer.tau, layer.tau_bias) == pytest.approx((np.median(tau), np.median(tau_b)))
        assert (layer.tau_low, layer.tau_high) == (tau.min(), tau.max())
        assert (layer.tau_bias_low, layer.tau_bias_high) == (tau_b.min(), tau_b.max())
        assert layer.sign_certainty == pytest.approx(np.mean(stats.norm.cdf(1 / tau)))
        assert layer.kl == net.posteriors()[name].kl
    from bayescaffe.cli import main

    assert main(["inspect", str(net_file), str(model.weights)]) == 0
    tau = net.taus("hidden")[0]
    shown = f"{np.median(tau):.3g} ({tau.min():.2g} to {tau.max():.2g})"
    assert shown in capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_the_log_tells_the_median_and_the_range(tmp_path, digits, kind):
    net = small_net(digits, options(kind)).replace(
        'top: "hidden" bayes', 'top: "hidden" param { } param { } param { lr_mult: 100 } bayes'
    )
    done = caffe("train", "-solver", write_solver(tmp_path, net, 21))
    assert done.returncode == 0, done.stdout
    line = [line for line in done.stdout.splitlines() if "hidden: tau = " in line][-1]
    assert " to " in line and "), tau_b = " in line
    parser = LogParser()
    for line in done.stdout.splitlines():
        parser.feed(line)
    parser.end()
    trained = pycaffe.Net(
        str(tmp_path / "run.net.prototxt"), 1, weights=str(tmp_path / "run_iter_21.caffemodel")
    )
    # The log is from the update before the last.
    posterior = trained.posteriors()["hidden"]
    assert parser.taus()["hidden"] == pytest.approx(posterior.taus[0], rel=0.1)
    assert parser.taus("tau_b")["hidden"] == pytest.approx(posterior.taus[1], rel=0.1)


def test_check_takes_it(tmp_path, digits):
    net, weights = save_weights(tmp_path, small_net(digits, options("PER_WEIGHT")), randomize)
    found = bayescaffe.check(net, weights)
    assert found.is_good, found.findings
    assert found.kl > 0
    net.write_text(small_net(digits, options("SHARED")))
    (error,) = [one for one in bayescaffe.check(net, weights).findings if one.severity == "error"]
    assert "bayes_param.posterior is SHARED" in error.text
    with pytest.raises(BayesCaffeError, match="bayes_param.posterior is SHARED"):
        bayescaffe.inspect(net, weights)
    net.write_text(small_net(digits, options("PER_THING")))
    assert not bayescaffe.check(net).is_good
