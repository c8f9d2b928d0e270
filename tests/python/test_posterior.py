"""Reading the learned uncertainty out of a caffemodel."""

import numpy as np
import pytest
from conftest import small_net

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe.errors import BayesCaffeError  # noqa: E402
from bayescaffe.posterior import read_posterior, softplus  # noqa: E402


def test_taus_and_counts_of_each_bayesian_layer(tmp_path, digits):
    options = "kl_weight: 0 tau_init: 0.25 bias_tau_init: 0.03"
    text = small_net(digits, options).replace(
        "num_output: 4 weight_filler", "num_output: 4 bias_term: false weight_filler"
    )
    (tmp_path / "net.prototxt").write_text(text)
    net = pycaffe.Net(str(tmp_path / "net.prototxt"), pycaffe.TEST)
    net.params["hidden"][2].data[...] = -10
    net.save(str(tmp_path / "net.caffemodel"))
    conv, hidden, out = read_posterior(tmp_path / "net.caffemodel")
    assert (conv.name, conv.weights, conv.biases) == ("conv", 36, 4)
    assert (conv.tau, conv.tau_bias) == pytest.approx((0.25, 0.03))
    assert hidden.tau == pytest.approx(4.53989e-5, rel=1e-4)
    assert (out.name, out.weights, out.biases, out.tau_bias) == ("out", 64, 0, None)


def test_a_stock_net_has_no_posterior(tmp_path, digits):
    (tmp_path / "net.prototxt").write_text(small_net(digits, None))
    net = pycaffe.Net(str(tmp_path / "net.prototxt"), pycaffe.TEST)
    net.save(str(tmp_path / "net.caffemodel"))
    assert read_posterior(tmp_path / "net.caffemodel") == []


def test_damaged_file_is_named(tmp_path):
    (tmp_path / "bad.caffemodel").write_bytes(b"\xff" * 100)
    with pytest.raises(BayesCaffeError, match="bad.caffemodel: damaged, or no caffemodel"):
        read_posterior(tmp_path / "bad.caffemodel")
    with pytest.raises(FileNotFoundError, match="none.caffemodel"):
        read_posterior(tmp_path / "none.caffemodel")


def test_softplus_in_both_tails():
    assert softplus(-800) == 0
    assert softplus(800) == 800
    assert softplus(np.log(np.e - 1)) == pytest.approx(1)
