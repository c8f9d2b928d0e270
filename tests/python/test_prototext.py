"""Changes to the text of a prototxt: only what is meant changes."""

import logging

import pytest

pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe.net import prototext  # noqa: E402
from bayescaffe.net.messages import parse_message  # noqa: E402

NET = """\
# A comment with a brace {
name: "odd 'net' \\"x\\""  # and one behind
layer {
  name: "a#b"   # no comment within a string
  type: 'Convolution'
  bottom: "data" top: "conv"
  param { lr_mult: 1 }
  convolution_param < num_output: 4, kernel_size: 3; >

  # the end
}
layer { name: "fc" "1" type: "InnerProduct" bottom: "conv" top: "fc"
  inner_product_param: { num_output: 5 } }
layer {
  name: "loss"
  type: "SoftmaxWithLoss"
}
"""


def change(text, edit, kind="NetParameter"):
    before, after = parse_message(text, kind), parse_message(text, kind)
    edit(after)
    changed = prototext.update(text, before, after)
    assert parse_message(changed, kind) == after
    return changed


def test_nothing_changes_without_a_change():
    assert change(NET, lambda net: None) == NET


def test_values_are_replaced_where_they_stand():
    def edit(net):
        net.name = 'say "hi"'
        net.layer[0].type = "BayesConvolution"
        net.layer[0].convolution_param.kernel_size[0] = 5
        net.layer[1].name = "fc2"
        net.layer[1].inner_product_param.num_output = 7

    expected = NET
    for old, new in {
        '''"odd 'net' \\"x\\""''': '"say \\"hi\\""',
        "'Convolution'": '"BayesConvolution"',
        "kernel_size: 3": "kernel_size: 5",
        '"fc" "1"': '"fc2"',
        "num_output: 5": "num_output: 7",
    }.items():
        assert expected.count(old) == 1
        expected = expected.replace(old, new)
    assert change(NET, edit) == expected


def test_new_fields_stand_in_the_order_of_their_numbers_and_in_the_style_of_the_text():
    def edit(net):
        net.layer[0].param[0].decay_mult = 0
        net.layer[0].param.add(lr_mult=10)
        net.layer[0].bayes_param.dataset_size = 7
        net.layer[1].param.add(lr_mult=2)
        net.layer[2].loss_weight.append(0.5)
        net.layer[2].bottom.extend(["fc", "label"])

    changed = change(NET, edit)
    expected = NET
    for old, new in {
        "{ lr_mult: 1 }\n": "{ lr_mult: 1 decay_mult: 0 }\n  param { lr_mult: 10 }\n",
        "kernel_size: 3; >\n": "kernel_size: 3; >\n  bayes_param {\n    dataset_size: 7\n  }\n",
        'top: "fc"\n': 'top: "fc"\n  param {\n    lr_mult: 2\n  }\n',
        '"SoftmaxWithLoss"\n': '"SoftmaxWithLoss"\n  bottom: "fc"\n  bottom: "label"\n'
        "  loss_weight: 0.5\n",
    }.items():
        assert expected.count(old) == 1
        expected = expected.replace(old, new)
    assert changed == expected
    # And back again.
    assert (
        prototext.update(changed, *(parse_message(t, "NetParameter") for t in (changed, NET)))
        == NET
    )


@pytest.mark.parametrize(
    "text",
    [
        'layer { name: "a" type: "Scale" }',
        'layer { name: "a" type: "Scale" }  # end',
        'layer{name:"a"type:"Scale"}',
        'layer {\n\tname: "a"  # x\n\ttype: "Scale" # y\n}',
        'layer { name: "a"; type: "Scale"; }\n',
        'layer {\n  name: "a" type: "Scale"\n  scale_param { }\n}\n',
    ],
)
def test_odd_layouts_survive(text, caplog):
    caplog.set_level(logging.INFO, "bayescaffe")

    def edit(net):
        net.layer[0].type = "BayesScale"
        net.layer[0].param.add(lr_mult=3)
        net.layer[0].bayes_param.kl_weight = 0.5
        net.layer[0].scale_param.bias_term = True

    changed = change(text, edit)
    assert not caplog.records
    before, after = (parse_message(one, "NetParameter") for one in (changed, text))
    back = prototext.update(changed, before, after)
    assert back == text.replace("'", '"')
    for comment in ("# x", "# y", "# end"):
        assert changed.count(comment) == text.count(comment)


def test_a_field_behind_a_last_line_without_an_end():
    changed = change(
        'net: "x"  # the net', lambda one: setattr(one, "max_iter", 5), "SolverParameter"
    )
    assert changed == 'max_iter: 5\nnet: "x"  # the net'
    changed = change('net: "x"  # it', lambda one: setattr(one, "test_draws", 5), "SolverParameter")
    assert changed == 'net: "x"  # it\ntest_draws: 5'


def test_what_has_no_place_is_written_anew(caplog):
    caplog.set_level(logging.INFO, "bayescaffe")
    text = 'layer: [{ name: "a" }, { name: "b" }]'
    change(text, lambda net: setattr(net.layer[0], "type", "Scale"))
    (record,) = caplog.records
    assert record.getMessage() == "the text: written anew, without its comments and its layout"


def test_a_list_of_numbers_is_replaced_as_a_whole_or_the_text_is_written_anew():
    text = "layer { input_param { shape { dim: [1, 2] } } }"
    changed = change(text, lambda net: net.layer[0].input_param.shape[0].dim.append(3))
    assert "dim: 3" in changed


def test_names():
    assert prototext.field_names(NET) == {"name", "layer"}
    assert prototext.field_names("a: {") == set()
