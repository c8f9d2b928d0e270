"""What is said of each layer: numbers against the layer itself, and files that do not fit."""

import csv

import numpy as np
import pytest
from conftest import make_net, small_net
from scipy import stats

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe.common.errors import BayesCaffeError  # noqa: E402
from bayescaffe.net.posterior import inspect, write_csv  # noqa: E402

OPTIONS = "kl_weight: 0.5 dataset_size: 330 tau_init: 0.25 bias_tau_init: 0.03"


def saved(folder, text, **blobs):
    """A net and its weights on disk; `hidden2=-10` fills blob 2 of layer `hidden`."""
    net = make_net(folder, text)
    for name, value in blobs.items():
        net.params[name[:-1]][int(name[-1])].data.flat[:] = value
    net.save(str(folder / "net.caffemodel"))
    return folder / "net.prototxt", folder / "net.caffemodel"


def without_bias(text):
    return text.replace("num_output: 4 weight", "num_output: 4 bias_term: false weight")


def test_taus_and_counts_of_each_bayesian_layer(tmp_path, digits):
    net, weights = saved(tmp_path, without_bias(small_net(digits, OPTIONS)), hidden2=-10)
    conv, hidden, out = inspect(net, weights)
    assert (conv.name, conv.type, conv.weights, conv.biases) == ("conv", "BayesConvolution", 36, 4)
    assert (conv.tau, conv.tau_bias) == pytest.approx((0.25, 0.03))
    assert conv.signal_to_noise == pytest.approx(4)
    assert (hidden.tau, hidden.signal_to_noise) == pytest.approx((4.53989e-5, 22026), rel=1e-4)
    assert (out.name, out.weights, out.biases, out.tau_bias) == ("out", 64, 0, None)
    assert [layer.outputs for layer in (conv, hidden, out)] == [4, 16, 4]
    assert [layer.is_output for layer in (conv, hidden, out)] == [False, False, True]
    assert conv.kl_scale == pytest.approx(0.5 / 330)


def test_norm_is_that_of_the_means(tmp_path, digits):
    net, weights = saved(tmp_path, small_net(digits, OPTIONS), conv0=np.arange(36), conv1=1e3)
    assert inspect(net, weights)[0].norm == pytest.approx(np.sqrt((np.arange(36) ** 2).sum()))


def test_kl_is_that_of_the_layers_own_kl_top(tmp_path, digits):
    text = small_net(
        digits,
        "kl_weight: 0.5 dataset_size: 330 prior_mean: 0.2 prior_std: 0.7 "
        "bias_prior_mean: -1 bias_prior_std: 3 tau_init: 0.6",
    )
    for name in ("conv", "hidden", "out"):
        text = text.replace(f'top: "{name}" bayes', f'top: "{name}" top: "kl_{name}" bayes')
    # Biases start at 0, and these means cross it: the guard near zero counts. The floor of tau too.
    means = np.linspace(-2e-3, 2e-3, 36)
    net, weights = saved(tmp_path, text, conv0=means, hidden2=-30, out1=[-2, 0, 1e-4, 7])
    outputs = make_net(tmp_path, text, weights=weights).forward()
    layers = inspect(net, weights)
    for layer in layers:
        assert layer.penalty == pytest.approx(outputs[f"kl_{layer.name}"].item(), rel=1e-5)
        assert layer.kl == pytest.approx(layer.penalty * 330 / 0.5)
    total = sum(layer.kl for layer in layers)
    assert [layer.kl_share for layer in layers] == [layer.kl / total for layer in layers]
    assert sum(layer.kl_share for layer in layers) == pytest.approx(1)
    assert layers[1].tau == pytest.approx(4.54e-5)


def delta_of(tau):
    return np.log(np.expm1(tau))


def test_kl_is_zero_where_posterior_and_prior_agree_and_that_of_an_integral(tmp_path, digits):
    def kl(m, tau, prior_mean, prior_std):
        prior = f"prior_mean: {prior_mean} prior_std: {prior_std} kl_weight: 0"
        net = saved(tmp_path, without_bias(small_net(digits, prior)), out0=m, out1=delta_of(tau))
        return inspect(*net)[2].kl / 64

    assert kl(-2.0, 0.5, -2.0, 1.0) == pytest.approx(0, abs=1e-6)
    q, p = stats.norm(0.3, 0.3 * 0.8), stats.norm(-1, 2)
    w = np.linspace(-5, 5, 20001)
    integral = np.trapezoid(q.pdf(w) * (q.logpdf(w) - p.logpdf(w)), w)
    assert kl(0.3, 0.8, -1, 2) == pytest.approx(integral, rel=1e-6)


def test_shared_weights_count_once(tmp_path, digits):
    share = 'param { name: "w" } param { name: "b" } param { name: "d" } param { name: "e" } '
    text = small_net(digits, OPTIONS).replace(
        'layer { name: "relu" type: "ReLU" bottom: "hidden" top: "hidden" }',
        "".join(
            f"""layer {{ name: "{name}" type: "BayesInnerProduct" bottom: "{bottom}" top: "{name}"
                 {share} inner_product_param {{ num_output: 16 weight_filler {{ type: "xavier" }} }}
                 bayes_param {{ {OPTIONS} }} }}"""
            for name, bottom in (("one", "hidden"), ("two", "one"))
        ),
    )
    text = text.replace('bottom: "hidden" top: "out"', 'bottom: "two" top: "out"')
    one, two = (layer for layer in inspect(*saved(tmp_path, text)) if layer.name in ("one", "two"))
    assert one.kl > 0 and two.kl == 0
    assert one.norm == two.norm > 0


def test_kl_without_weight_adds_nothing_to_the_loss(tmp_path, digits):
    layers = inspect(*saved(tmp_path, small_net(digits, "kl_weight: 0")))
    assert all(layer.kl > 0 and layer.penalty == layer.kl_scale == 0 for layer in layers)


def test_sign_certainty_is_the_share_of_draws_with_the_means_sign(tmp_path, digits):
    text = small_net(digits, "kl_weight: 0 tau_init: 0.758")
    hidden = inspect(*saved(tmp_path, text))[1]
    assert hidden.sign_certainty == pytest.approx(stats.norm.cdf(1 / 0.758), rel=1e-6)
    net = make_net(tmp_path, text, weights=tmp_path / "net.caffemodel")
    net.set_draw(0)
    net.forward()
    weights = 1 + hidden.tau * net.params["hidden"][4].data  # as multiples of their means
    assert (weights > 0).mean() == pytest.approx(hidden.sign_certainty, abs=0.03)


def test_tau_is_softplus_in_both_tails(tmp_path, digits):
    options = "kl_weight: 0 tau_min: 1e-30"
    net = saved(tmp_path, small_net(digits, options), conv2=-60, hidden2=80, out2=delta_of(1))
    taus = [layer.tau for layer in inspect(*net)]
    assert taus == pytest.approx([np.exp(-60), 80, 1], rel=1e-6)


def test_every_kind_of_layer_without_its_data(tmp_path, digits):
    """Options that matter for the shapes of weights and inputs; the net is not built by them."""
    convolution = "kernel_size: 3 pad: 2 stride: 2 dilation: 2 group: 2"
    text = f"""
        input: "x" input_shape {{ dim: 2 dim: 4 dim: 9 dim: 8 }}
        layer {{ name: "a" type: "BayesConvolution" bottom: "x" top: "a" bayes_param {{ {OPTIONS} }}
                 convolution_param {{ num_output: 6 {convolution} weight_filler {{ type: "xavier" }}
                                      bias_term: false }} }}
        layer {{ name: "b" type: "BayesDeconvolution" bottom: "a" top: "b"
                 convolution_param {{ num_output: 4 {convolution} weight_filler {{ type: "xavier" }}
                 }} bayes_param {{ {OPTIONS} }} }}
        layer {{ name: "c" type: "BayesInnerProduct" bottom: "b" top: "c"
                 bayes_param {{ {OPTIONS} }}
                 inner_product_param {{ num_output: 3 axis: 2 transpose: true
                                        weight_filler {{ type: "xavier" }} }} }}"""
    net, weights = saved(tmp_path, text)
    expected = make_net(tmp_path, text, weights=weights).posteriors()
    found = {layer.name: layer for layer in inspect(net, weights)}
    assert list(found) == list(expected) == ["a", "b", "c"]
    for name, layer in found.items():
        assert layer.kl == expected[name].kl > 0
        assert layer.penalty == pytest.approx(expected[name].kl_term)
        assert (layer.tau, layer.tau_bias) == (*expected[name].taus, None)[:2]


def test_csv_has_a_line_for_each_layer(tmp_path, digits):
    layers = inspect(*saved(tmp_path, without_bias(small_net(digits, OPTIONS))))
    write_csv(layers, tmp_path / "layers.csv")
    with (tmp_path / "layers.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["conv", "hidden", "out"]
    assert [float(row["kl"]) for row in rows] == [layer.kl for layer in layers]
    assert rows[2]["tau_bias"] == ""


def test_a_stock_net_is_told_so(tmp_path, digits):
    net, weights = saved(tmp_path, small_net(digits, None))
    with pytest.raises(BayesCaffeError, match=r"no Bayesian layer in .*net\.prototxt$"):
        inspect(net, weights)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("BayesInner", "Inner", "layer 'hidden' is InnerProduct in the net, BayesInnerProduct in"),
        ("Bayes", "", "no Bayesian layer in .*net has some: conv, hidden, out"),
        ('name: "out"', 'name: "scores"', "layer 'scores' is in the net only"),
        ("num_output: 16", "num_output: 8", "'hidden' has num_output 8 in the net, 16 in the w"),
        ("kernel_size: 3", "kernel_size: 5", r"'conv' has kernel \(5, 5\) in the net, \(3, 3\)"),
        ("kernel_size: 3", "kernel_h: 2 kernel_w: 3", r"'conv' has kernel \(2, 3\) in the net"),
        ("t: 16", "t: 16 bias_term: false", "'hidden' has 6 blobs .* bias_term: false .* have 3"),
    ],
)
def test_weights_of_another_net_are_refused(tmp_path, digits, old, new, message):
    text = small_net(digits, OPTIONS)
    net, weights = saved(tmp_path, text)
    net.write_text(text.replace(old, new))
    with pytest.raises(BayesCaffeError, match=message.replace("net has", "caffemodel has")):
        inspect(net, weights)


@pytest.mark.parametrize("blob", ["hidden0", "hidden1", "hidden2"])
def test_nan_is_an_error_that_names_the_layer(tmp_path, digits, blob):
    net, weights = saved(tmp_path, small_net(digits, OPTIONS), **{blob: np.nan})
    with pytest.raises(BayesCaffeError, match="layer 'hidden' has .* that are NaN or infinite"):
        inspect(net, weights)


def test_weights_without_the_shape_of_weights_are_refused(tmp_path, digits):
    net, weights = saved(tmp_path, small_net(digits, OPTIONS))
    message = pycaffe.proto.caffe_pb2.NetParameter.FromString(weights.read_bytes())
    blob = next(layer for layer in message.layer if layer.name == "hidden").blobs[0]
    blob.shape.dim[:] = [1600]
    weights.write_bytes(message.SerializeToString())
    with pytest.raises(BayesCaffeError, match=r"layer 'hidden' has weights of shape \(1600,\)"):
        inspect(net, weights)


def test_damaged_files_are_named(tmp_path, digits):
    net, weights = saved(tmp_path, small_net(digits, OPTIONS))
    (tmp_path / "bad").write_bytes(b"\xff" * 100)
    with pytest.raises(BayesCaffeError, match="bad: damaged, or no caffemodel"):
        inspect(net, tmp_path / "bad")
    with pytest.raises(BayesCaffeError, match="bad: not a prototxt: "):
        inspect(tmp_path / "bad", weights)
    with pytest.raises(FileNotFoundError, match="none"):
        inspect(net, tmp_path / "none")
