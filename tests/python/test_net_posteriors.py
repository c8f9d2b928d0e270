"""Net.posteriors: tau and KL of each Bayesian layer, as the net has them."""

import numpy as np
import pytest
from conftest import make_net, small_net

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")

OPTIONS = (
    "kl_weight: 0.5 dataset_size: 330 prior_mean: 0.2 prior_std: 0.7 "
    "bias_prior_mean: -1 bias_prior_std: 3 tau_init: 0.25 bias_tau_init: 0.03"
)


def kl(m, tau, mu, zeta):
    """KL(N(m, (tau m)^2) || N(mu, zeta^2)), summed over means far from 0."""
    m = m.astype(np.float64)
    std = tau * np.abs(m)
    return np.sum(np.log(zeta / std) + (std**2 + (m - mu) ** 2) / (2 * zeta**2) - 0.5)


def test_taus_and_kl_of_each_bayesian_layer(tmp_path, digits):
    text = small_net(
        digits, OPTIONS, 'layer { name: "d" type: "Dropout" bottom: "hidden" top: "d" }'
    )
    text = text.replace("num_output: 4 weight", "num_output: 4 bias_term: false weight")
    text = text.replace(
        'type: "BayesInnerProduct" bottom: "conv"', 'type: "InnerProduct" bottom: "conv"'
    )
    net = make_net(tmp_path, text)
    random = np.random.default_rng(0)
    for name in ("conv", "out"):
        for blob in net.params[name]:
            blob.data[...] = random.uniform(0.1, 2, blob.shape)
    net.params["conv"][2].data[...] = -1.5
    net.params["conv"][3].data[...] = -30  # below the floor
    net.params["out"][1].data[...] = 0.5
    found = net.posteriors()
    # Not the stock layer, not the dropout.
    assert list(found) == ["conv", "out"]
    assert found["conv"].taus == pytest.approx((np.log1p(np.exp(-1.5)), 4.54e-5))
    assert found["out"].taus == pytest.approx((np.log1p(np.exp(0.5)),))
    m, m_b = (blob.data for blob in net.params["conv"][:2])
    taus = found["conv"].taus
    assert found["conv"].kl == pytest.approx(
        kl(m, taus[0], 0.2, 0.7) + kl(m_b, taus[1], -1, 3), rel=1e-5
    )
    out = net.params["out"][0].data
    assert found["out"].kl == pytest.approx(kl(out, found["out"].taus[0], 0.2, 0.7), rel=1e-5)
    for posterior in found.values():
        assert posterior.kl_term == pytest.approx(posterior.kl * 0.5 / 330)


def test_shared_parameters_count_for_their_owner(tmp_path, digits):
    """For each blob by itself: here the weights are shared, and the biases are not."""
    text = small_net(digits, OPTIONS).replace(
        'layer { name: "relu" type: "ReLU" bottom: "hidden" top: "hidden" }',
        "".join(
            f"""layer {{ name: "{name}" type: "BayesInnerProduct" bottom: "{bottom}" top: "{name}"
                 param {{ name: "m" }} param {{ }} param {{ name: "delta" }}
                 inner_product_param {{ num_output: 16 weight_filler {{ type: "xavier" }} }}
                 bayes_param {{ {OPTIONS} }} }}"""
            for name, bottom in (("one", "hidden"), ("two", "one"))
        ),
    )
    net = make_net(tmp_path, text)
    net.params["one"][1].data[...] = 0.7
    net.params["two"][1].data[...] = 1.3
    one, two = (net.posteriors()[name] for name in ("one", "two"))
    assert two.taus == one.taus
    m, biases = net.params["one"][0].data, [net.params[name][1].data for name in ("one", "two")]
    of_biases = [kl(m_b, one.taus[1], -1, 3) for m_b in biases]
    assert two.kl == pytest.approx(of_biases[1], rel=1e-5)
    # Some weights are near 0, where KL is not the formula's; the biases are not.
    assert one.kl > of_biases[0] + m.size
    assert two.kl_term == pytest.approx(two.kl * 0.5 / 330)


def test_kl_without_weight_adds_nothing_to_the_objective(tmp_path, digits):
    for posterior in make_net(tmp_path, small_net(digits, "kl_weight: 0")).posteriors().values():
        assert posterior.kl > 0
        assert posterior.kl_term == 0


def test_kl_by_default_depends_on_the_weights_of_the_whole_net(tmp_path, digits):
    net = make_net(tmp_path, small_net(digits, ""))
    weights = sum(
        blob.count
        for name, one in net.posteriors().items()
        for blob in net.params[name][: len(one.taus)]
    )
    assert weights == 1724
    assert [one.kl_scale for one in net.posteriors().values()] == [pytest.approx(1e-6)] * 3
    # As many as LeNet, in one layer of three.
    wide = small_net(digits, "").replace("num_output: 16", "num_output: 5000", 1)
    net = make_net(tmp_path, wide)
    weights += (5000 - 16) * (net.params["hidden"][0].shape[1] + 1 + 4)
    scales = [one.kl_scale for one in net.posteriors().values()]
    assert scales == [pytest.approx(0.017 / weights)] * 3
    assert scales[0] == pytest.approx(pycaffe.default_kl_scale(weights))
    few = wide.replace("bayes_param {", "bayes_param { dataset_size: 7500")
    scales = [one.kl_scale for one in make_net(tmp_path, few).posteriors().values()]
    assert scales == [pytest.approx(4 * 0.017 / weights)] * 3
    # What is set stays.
    mixed = wide.replace("bayes_param {", "bayes_param { kl_weight: 0.3 dataset_size: 10", 1)
    scales = [one.kl_scale for one in make_net(tmp_path, mixed).posteriors().values()]
    assert scales == [pytest.approx(0.03), *[pytest.approx(0.017 / weights)] * 2]


def test_a_stock_net_has_none(tmp_path, digits):
    assert make_net(tmp_path, small_net(digits, None)).posteriors() == {}
