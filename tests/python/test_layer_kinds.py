"""What the type of a layer tells, for stock layers and for their Bayesian forms."""

import numpy as np
import pytest

pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe.net import layer_kinds  # noqa: E402
from bayescaffe.net.messages import LayerBlobs, parse_message  # noqa: E402

STOCK = ("Convolution", "Deconvolution", "Embed", "InnerProduct", "Scale")


def layer(text):
    return parse_message(text, "LayerParameter")


@pytest.mark.parametrize("kind", [*STOCK, "ReLU"])
def test_stock_layers(kind):
    one = layer(f'type: "{kind}" bottom: "a" top: "b" top: "c"')
    assert not layer_kinds.is_bayesian(one)
    assert layer_kinds.stock_type(one) == kind
    assert list(layer_kinds.data_tops(one)) == ["b", "c"]
    blobs = [np.zeros((2, 3)), np.zeros(2), np.zeros(1)]
    assert layer_kinds.means(LayerBlobs("x", kind, blobs)) is blobs


@pytest.mark.parametrize("kind", STOCK)
def test_bayesian_layers(kind):
    field = layer_kinds._PARAM_FIELDS[kind]
    for bias, stock in (("true", 2), ("false", 1)):
        one = layer(f'type: "Bayes{kind}" bottom: "a" top: "b" {field} {{ bias_term: {bias} }}')
        assert layer_kinds.is_bayesian(one)
        assert layer_kinds.stock_type(one) == kind
        assert layer_kinds.expected_blobs(one) == 3 * stock
        blobs = [np.full(1, number) for number in range(3 * stock)]
        stored = LayerBlobs("x", one.type, blobs)
        assert layer_kinds.means(stored) == blobs[:stock]
        assert layer_kinds.deltas(stored) == blobs[stock : 2 * stock]


def test_they_are_those_that_caffe_has():
    import caffe

    bayesian = {kind for kind in caffe.layer_type_list() if kind.startswith("Bayes")}
    assert bayesian == {f"Bayes{kind}" for kind in layer_kinds._PARAM_FIELDS}
    assert all(
        layer_kinds.has_bayesian_form(layer(f'type: "{kind}" bottom: "a"')) for kind in STOCK
    )
    for other in ("ReLU", "BayesScale", "LSTM"):
        assert not layer_kinds.has_bayesian_form(layer(f'type: "{other}" bottom: "a"'))
    assert not layer_kinds.has_bayesian_form(layer('type: "Scale" bottom: "a" bottom: "b"'))


def test_the_kl_is_behind_the_other_tops():
    one = layer('type: "BayesConvolution" bottom: "a" bottom: "b" top: "c" top: "d" top: "kl"')
    assert list(layer_kinds.data_tops(one)) == ["c", "d"]
    one = layer('type: "BayesScale" bottom: "a" top: "b" top: "kl"')
    assert list(layer_kinds.data_tops(one)) == ["b"]
