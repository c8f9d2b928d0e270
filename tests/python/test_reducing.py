"""Smaller layers: the text keeps its form, Caffe takes the result, what cannot work is refused."""

import numpy as np
import pytest
from conftest import REPO, layer_posterior, make_net, small_net

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe.common.errors import BayesCaffeError  # noqa: E402
from bayescaffe.net.inference_net import TEST, TRAIN, layers_of_phase  # noqa: E402
from bayescaffe.net.messages import parse_message, read_weights  # noqa: E402
from bayescaffe.net.reducing import (  # noqa: E402
    advice,
    count_parameters,
    output_layers,
    reduce_net,
)

LENET = REPO / "models/lenet"


def conv(name, bottom, outputs, more="", kind="Convolution", options=""):
    return f"""layer {{ name: "{name}" type: "{kind}" bottom: "{bottom}" top: "{name}" {options}
                convolution_param {{ num_output: {outputs} kernel_size: 1 {more} }} }}\n"""


def dense(name, bottom, outputs, more="", kind="InnerProduct", options=""):
    return f"""layer {{ name: "{name}" type: "{kind}" bottom: "{bottom}" top: "{name}" {options}
                inner_product_param {{ num_output: {outputs} {more} }} }}\n"""


def plain(name, kind, *bottoms, more=""):
    bottoms = " ".join(f'bottom: "{bottom}"' for bottom in bottoms)
    return f'layer {{ name: "{name}" type: "{kind}" {bottoms} top: "{name}" {more} }}\n'


INPUT = """layer { name: "x" type: "Input" top: "x"
           input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } } }\n"""
BAYES = "bayes_param { kl_weight: 0 }"
PAIR = INPUT + conv("a", "x", 8) + conv("b", "x", 8)

# Nets that a reduction leaves sound, and what to reduce.
SOUND = {
    "chain": (
        INPUT
        + conv("a", "x", 8, kind="BayesConvolution", options=BAYES)
        + plain("pool", "Pooling", "a", more="pooling_param { kernel_size: 2 stride: 2 }")
        + plain("relu", "ReLU", "pool")
        + dense("out", "relu", 4, kind="BayesInnerProduct", options=BAYES),
        {"a": 3},
    ),
    "normalised": (
        INPUT
        + conv("a", "x", 8, more="bias_term: false")
        + plain("bn", "BatchNorm", "a")
        + plain("scale", "Scale", "bn", more="scale_param { bias_term: true }")
        + plain("prelu", "PReLU", "scale")
        + conv("out", "prelu", 4),
        {"a": 3},
    ),
    "concat": (
        PAIR + plain("cat", "Concat", "a", "b") + conv("c", "cat", 6) + dense("out", "c", 4),
        {"a": 3, "c": 5},
    ),
    "flat": (
        INPUT + conv("a", "x", 8) + plain("flat", "Flatten", "a") + dense("out", "flat", 4),
        {"a": 2},
    ),
    "sum": (
        PAIR + plain("sum", "Eltwise", "a", "b") + dense("out", "sum", 4),
        {"a": 3, "b": 3},
    ),
    "groups": (
        INPUT + conv("a", "x", 8) + conv("b", "a", 4, more="group: 2") + dense("out", "b", 4),
        {"a": 6, "b": 2},
    ),
    "deconvolution": (
        INPUT + conv("a", "x", 8) + conv("b", "a", 5, kind="Deconvolution") + dense("out", "b", 4),
        {"a": 6, "b": 2},
    ),
    "shared": (
        PAIR.replace('top: "a"', 'top: "a" param { name: "w" }').replace(
            'top: "b"', 'top: "b" param { name: "w" }'
        )
        + plain("cat", "Concat", "a", "b")
        + dense("out", "cat", 4),
        {"a": 4, "b": 4},
    ),
}

# Nets that it would break, what to reduce, and what is said.
BROKEN = {
    "sum": (SOUND["sum"][0], {"a": 3}, r"'sum' \(Eltwise\) .* inputs 'a', 'b' would differ"),
    "its groups": (SOUND["groups"][0], {"b": 3}, "'b' .* group 2 does not divide its num_output 3"),
    "next groups": (SOUND["groups"][0], {"a": 5}, "'b' .* group 2 does not divide its input 5"),
    "shared": (SOUND["shared"][0], {"a": 4}, "'b' .* shares the parameter 'w' with 'a'"),
    "shared inputs": (
        INPUT
        + conv("a", "x", 8)
        + conv("b", "x", 8)
        + dense("c", "a", 4, options='param { name: "w" }')
        + dense("d", "b", 4, options='param { name: "w" }')
        + plain("sum", "Eltwise", "c", "d")
        + dense("out", "sum", 3),
        {"a": 4},
        "'d' .* shares the parameter 'w' with 'c'",
    ),
    "slice": (
        INPUT
        + conv("a", "x", 8)
        + """layer { name: "s" type: "Slice" bottom: "a" top: "s1" top: "s2" }"""
        + plain("sum", "Eltwise", "s1", "s2")
        + dense("out", "sum", 3),
        {"a": 7},
        r"'s' \(Slice\) would not work: its input would have fewer channels",
    ),
    "unknown partner": (
        INPUT + conv("a", "x", 8) + plain("cat", "Concat", "a", "x") + dense("out", "cat", 4),
        {"a": 4},
        "'cat' .* joins blobs whose channels the net does not tell",
    ),
    "flat partner": (
        PAIR
        + plain("flat a", "Flatten", "a")
        + plain("flat b", "Flatten", "b")
        + plain("cat", "Concat", "flat a", "flat b")
        + dense("out", "cat", 4),
        {"a": 4},
        "'cat' .* joins blobs whose channels the net does not tell",
    ),
    "axis": (
        INPUT + conv("a", "x", 8) + dense("b", "a", 4, more="axis: 2") + dense("out", "b", 3),
        {"a": 4},
        "'b' .* its axis is 2",
    ),
    "output": (SOUND["chain"][0], {"out": 2}, "'out' gives the net's answer"),
    "larger": (SOUND["chain"][0], {"a": 9}, "'a' cannot be reduced to 9; its num_output is 8"),
    "the same": (SOUND["chain"][0], {"a": 8}, "'a' cannot be reduced to 8; its num_output is 8"),
    "nothing": (SOUND["chain"][0], {"a": 0}, "'a' cannot be reduced to 0; .* at least 1"),
    "no size": (SOUND["sum"][0], {"sum": 2}, "no layer 'sum' with a num_output; .* a, b"),
    "no layer": (SOUND["sum"][0], {"z": 2}, "net: no layer 'z' with a num_output; there are a, b$"),
    "no text": ("layer {", {"a": 1}, "net: not a NetParameter in text format"),
}


def parameters(net):
    """The weights and biases of a net, without deltas and noise."""
    return sum(
        blob.data.size
        for name, blobs in net.params.items()
        for blob in list(blobs)[: len(blobs) // 3 if "Bayes" in net.layer_dict[name].type else None]
    )


@pytest.mark.parametrize("name", SOUND)
def test_caffe_takes_the_reduced_net_and_counts_the_same_parameters(tmp_path, name):
    text, sizes = SOUND[name]
    reduced = reduce_net(text, sizes)
    before = make_net(tmp_path, text)
    before.save(str(tmp_path / "net.caffemodel"))
    after = make_net(tmp_path, reduced)
    assert np.isfinite(after.forward()["out"]).all()
    for layer, size in sizes.items():
        assert after.blobs[layer].shape[1] == size
    counted = count_parameters(text, reduced, read_weights(tmp_path / "net.caffemodel"))
    assert counted == (parameters(before), parameters(after))


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_work_is_refused(name):
    text, sizes, message = BROKEN[name]
    with pytest.raises(BayesCaffeError, match=message):
        reduce_net(text, sizes, "my.net")


def test_the_papers_reduction_gives_the_papers_reduced_net():
    full = (LENET / "bayes-dropout/train_test.prototxt").read_text()
    expected = (LENET / "bayes-reduced/train_test.prototxt").read_text()
    reduced = reduce_net(full, {"fc1": 250})
    assert reduced.replace("lenet-bayes-dropout", "lenet-bayes-reduced") == expected


def test_all_else_in_the_text_stays():
    text = r"""# layer { name: "a" convolution_param { num_output: 9 } }
    name: 'it has { "braces" # and more'   # num_output: 8
    layer: <  convolution_param{kernel_size:[1,1],num_output:8;}  # before the name
       type:"Convolution" bottom: "x" top: "a"
       name: 'a' >
    layer { name: "b" type: "Convolution" bottom: "x" top: "b"
            convolution_param { num_output	:  8  kernel_size: 1 } }
    layer { name: "a" type: "Convolution" bottom: "x" top: "a" include { phase: TEST }
            convolution_param { num_output: 0x8 } }
    """ + plain("cat", "Concat", "a", "b") + dense("out", "cat", 4)  # fmt: skip
    # The first `a` is in both phases, so that the second is a plain slip; it is reduced as well.
    reduced = reduce_net(text, {"a": 3})
    assert reduced == text.replace("num_output:8;", "num_output:3;").replace("0x8", "3")
    assert reduce_net(text, {"b": 5}) == text.replace("num_output	:  8", "num_output	:  5")


def test_layers_that_differ_between_the_phases_change_both(digits):
    train = conv("a", "data", 8, more="pad: 1", options="include { phase: TRAIN }")
    test = conv("a", "data", 8, options="include { phase: TEST }")
    text = small_net(digits).replace('bottom: "data" top: "conv"', 'bottom: "a" top: "conv"')
    net = parse_message(reduce_net(train + test + text, {"a": 5}), "NetParameter")
    assert [x.convolution_param.num_output for x in net.layer if x.name == "a"] == [5, 5]


def test_output_layers_are_those_before_an_end(digits):
    def outputs(text):
        return output_layers(parse_message(text, "NetParameter"))

    text = small_net(digits)
    assert outputs(text) == {"out"}
    # A KL top is no end that the layer's own outputs reach.
    assert outputs(text.replace('top: "hidden" bayes', 'top: "hidden" top: "kl" bayes')) == {"out"}
    two = text + dense("aux", "conv", 4) + plain("p", "Softmax", "aux")
    assert outputs(two) == {"out", "aux"}
    assert outputs(SOUND["sum"][0]) == {"out"}
    assert outputs(PAIR + plain("sum", "Eltwise", "a", "b")) == {"a", "b"}


def layer(name, tau, is_output=False):
    return layer_posterior(name, tau, 0.1, is_output=is_output)


def test_advice_draws_the_line_where_the_paper_did():
    text = SOUND["concat"][0]
    (one,) = advice(text, [layer("a", 0.758), layer("b", 0.567)])
    assert (one.layer, one.outputs, one.proposed, one.obstacle) == ("a", 8, 4, None)
    assert [one.layer for one in advice(text, [layer("a", 0.7), layer("b", 0.9)])] == ["b", "a"]
    assert advice(text, [layer("out", 3, is_output=True), layer("a", 0.607)]) == []


def test_advice_tells_why_a_layer_cannot_be_halved():
    (one,) = advice(SOUND["sum"][0], [layer("a", 0.758)], "my.net")
    assert one.proposed is None
    assert "my.net: layer 'sum' (Eltwise)" in one.obstacle


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_layers_of_a_phase_are_those_that_caffe_takes(tmp_path, phase):
    rules = {
        "train": "include { phase: TRAIN }",
        "test": "include { phase: TEST }",
        "no test": "exclude { phase: TEST }",
        "either": "include { phase: TRAIN } include { phase: TEST }",
        "level": "include { min_level: 2 max_level: 4 }",
        "high": "include { min_level: 4 }",
        "low": "include { max_level: 2 }",
        "stage": 'include { stage: "a" phase: TEST }',
        "stages": 'include { stage: "a" stage: "c" }',
        "not stage": 'include { not_stage: "b" }',
    }
    text = INPUT + 'state { level: 3 stage: "a" stage: "b" }' + "".join(
        plain(name, "ReLU", "x", more=rule) for name, rule in rules.items()
    )  # fmt: skip
    (tmp_path / "net.prototxt").write_text(text)
    caffes = pycaffe.Net(str(tmp_path / "net.prototxt"), phase, level=3)
    ours = layers_of_phase(parse_message(text, "NetParameter"), phase)
    # Caffe adds layers that split a blob.
    names = [name for name in caffes._layer_names if "split" not in name]
    assert [layer.name for layer in ours] == names
