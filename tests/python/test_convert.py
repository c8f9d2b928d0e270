"""The command `bayescaffe convert`: nets of many kinds become Bayesian, train, and come back."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import REPO, small_net, write_solver

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe import BayesCaffeError, Model, convert  # noqa: E402
from bayescaffe.cli import main  # noqa: E402
from bayescaffe.net import starting  # noqa: E402
from bayescaffe.net.messages import parse_message, read_message, read_weights  # noqa: E402

UPSTREAM = REPO / "build/caffe-src"
TRAINED = [
    "examples/cifar10/cifar10_quick_train_test.prototxt",
    "examples/cifar10/cifar10_full_train_test.prototxt",
    "models/bvlc_alexnet/train_val.prototxt",
    "models/bvlc_reference_caffenet/train_val.prototxt",
    "models/bvlc_googlenet/train_val.prototxt",
]
DEPLOYED = [
    "examples/cifar10/cifar10_quick.prototxt",
    "examples/cifar10/cifar10_full.prototxt",
    "models/bvlc_alexnet/deploy.prototxt",
    "models/bvlc_reference_caffenet/deploy.prototxt",
    "models/bvlc_googlenet/deploy.prototxt",
]


def layer(name, kind, bottom="", more="", top=None):
    bottoms = " ".join(f'bottom: "{blob}"' for blob in bottom.split())
    return f'layer {{ name: "{name}" type: "{kind}" {bottoms} top: "{top or name}" {more} }}\n'


def dummy(top, *dims, value="type: 'gaussian'"):
    shape = " ".join(f"dim: {dim}" for dim in dims)
    return layer(
        top,
        "DummyData",
        more=f"dummy_data_param {{ shape {{ {shape} }} data_filler {{ {value} }} }}",
    )


PARTS = ("a", "a_scale", "b", "b_scale")
FILL = "weight_filler { type: 'xavier' }"
IP = f"inner_product_param {{ num_output: 5 {FILL} }}"
CONV = f"convolution_param {{ num_output: 4 kernel_size: 3 pad: 1 bias_term: false {FILL} }}"
LABEL = dummy("label", 4, value="value: 1")
LOSS = layer("loss", "SoftmaxWithLoss", "out label")


def block(name, bottom):
    """Convolution, BatchNorm and Scale, twice, and the sum with what came in."""
    text, blob = "", bottom
    for part in "ab":
        conv, norm = f"{name}{part}", f"{name}{part}_norm"
        text += layer(conv, "Convolution", blob, CONV) + layer(norm, "BatchNorm", conv)
        text += layer(f"{conv}_scale", "Scale", norm, "scale_param { bias_term: true }", top=norm)
        text += layer(f"{conv}_relu", "ReLU", norm, top=norm)
        blob = norm
    return text + layer(name, "Eltwise", f"{bottom} {blob}")


NETS = {
    "resnet": dummy("data", 4, 4, 8, 8)
    + LABEL
    + block("one", "data")
    + block("two", "one")
    + layer("out", "InnerProduct", "two", IP)
    + LOSS,
    "two inputs": dummy("picture", 4, 1, 6, 6)
    + dummy("numbers", 4, 3)
    + LABEL
    + layer("conv", "Convolution", "picture", CONV)
    + layer("left", "InnerProduct", "conv", IP)
    + layer("right", "InnerProduct", "numbers", IP)
    + layer("both", "Concat", "left right")
    + layer("out", "InnerProduct", "both", IP)
    + LOSS,
    "lstm": dummy("data", 3, 4, 6)
    + dummy("cont", 3, 4, value="value: 1")
    + dummy("label", 3, 4, value="value: 1")
    + layer("in", "InnerProduct", "data", IP.replace("{ num", "{ axis: 2 num"))
    + layer("lstm", "LSTM", "in cont", f"recurrent_param {{ num_output: 4 {FILL} }}")
    + layer("out", "InnerProduct", "lstm", IP.replace("{ num", "{ axis: 2 num"))
    + LOSS.replace("{ name", "{ softmax_param { axis: 2 } name"),
    "embed": dummy("word", 4, value="value: 2")
    + LABEL
    + layer("embed", "Embed", "word", f"embed_param {{ input_dim: 7 num_output: 3 {FILL} }}")
    + layer("out", "InnerProduct", "embed", IP)
    + LOSS,
}


def train_a_step(solver):
    """The means before and after one step, by layer, and the solver's net."""
    pycaffe.set_mode_cpu()
    solver = pycaffe.get_solver(str(solver))

    def parameters():
        return {
            name: [blob.data.copy() for blob in blobs] for name, blobs in solver.net.params.items()
        }

    before = parameters()
    solver.step(1)
    return before, parameters(), solver.net


def check_a_step(done):
    before, after, net = train_a_step(done.solver)
    posteriors = net.posteriors()
    assert set(posteriors) == set(done.layers)
    weights = sum(
        blob.count for name, one in posteriors.items() for blob in net.params[name][: len(one.taus)]
    )
    assert np.isfinite(net.blobs["loss"].data)
    for name, posterior in posteriors.items():
        blobs = len(posterior.taus)
        assert posterior.kl_term == pytest.approx(
            posterior.kl * starting.kl_weight(done.dataset_size, weights) / done.dataset_size
        )
        for i in range(2 * blobs):  # means and deltas learn
            assert np.isfinite(after[name][i]).all()
        assert not np.array_equal(before[name][0], after[name][0]), name
        assert not np.array_equal(before[name][blobs], after[name][blobs]), name


@pytest.mark.engine
@pytest.mark.parametrize("name", NETS)
def test_other_nets_train_a_step(tmp_path, name):
    (tmp_path / "net.prototxt").write_text(NETS[name])
    done = convert(tmp_path / "net.prototxt", dataset_size=1000)
    assert (
        done.layers
        == {
            "resnet": [
                *(f"{block}{part}" for block in ("one", "two") for part in PARTS),
                "out",
            ],
            "two inputs": ["conv", "left", "right", "out"],
            "lstm": ["in", "out"],
            "embed": ["embed", "out"],
        }[name]
    )
    check_a_step(done)


@pytest.mark.parametrize("path", [*TRAINED, *DEPLOYED])
def test_upstream_nets_come_back_as_they_were(tmp_path, path):
    text = (UPSTREAM / path).read_text()
    is_trained = path in TRAINED
    there = convert(
        UPSTREAM / path, out=tmp_path / "bayes", dataset_size=50000 if is_trained else None
    )
    bayes = there.nets[0].read_text()
    assert len(re.findall('type: "Bayes', bayes)) == len(there.layers) >= 4
    # Nothing but what was meant: the lines of the stock net are still there, in their order.
    lines = iter(bayes.replace('"Bayes', '"').splitlines())
    for line in text.splitlines():
        assert line in lines, line
    assert (there.solver is None) == (not is_trained)
    back = convert(there.nets[0], out=tmp_path / "stock", to_stock=True)
    assert back.nets[0].read_text() == text
    assert back.layers == there.layers


LAYERS = """\
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 } } }
layer {
  name: "frozen"  # as it was trained
  type: "InnerProduct"
  bottom: "data"
  top: "frozen"
  param { lr_mult: 0 }
  param { lr_mult: 0 decay_mult: 0 }
  inner_product_param { num_output: 3 }
}
layer {
  name: "left"
  type: "InnerProduct"
  bottom: "frozen"
  top: "left"
  param { name: "w" decay_mult: 2 }
  inner_product_param { num_output: 3 bias_term: false }
}
layer {
  name: "right"
  type: "InnerProduct"
  bottom: "left"
  top: "right"
  include { phase: TRAIN }
  param { name: "w" decay_mult: 2 }
  param { name: "b" lr_mult: 2 }
  inner_product_param { num_output: 3 }
}
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 2 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "right" bottom: "label"
        include { phase: TRAIN } }
"""


@pytest.fixture
def stock(tmp_path, monkeypatch):
    """A net of shared, frozen and bias-free layers, in the current directory."""
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(LAYERS)
    return "net.prototxt"


def test_the_text_of_converted_layers(stock):
    done = convert(stock, dataset_size=60000)
    assert done.layers == ["left", "right"]
    assert done.notes == ["frozen (lr_mult: 0), so left stock: frozen; layers converts them"]
    expected = LAYERS
    for old, new in {
        'name: "left"\n  type: "Inner': 'name: "left"\n  type: "BayesInner',
        'name: "right"\n  type: "Inner': 'name: "right"\n  type: "BayesInner',
        """\
  param { name: "w" decay_mult: 2 }
  inner_product_param { num_output: 3 bias_term: false }
""": """\
  param { name: "w" decay_mult: 2 }
  param { name: "w_delta" lr_mult: 10 }
  inner_product_param { num_output: 3 bias_term: false }
  bayes_param {
    tau_init: 0.1
    kl_weight: 0.06
    dataset_size: 60000
    local_reparametrization: true
  }
""",
        """\
  param { name: "w" decay_mult: 2 }
  param { name: "b" lr_mult: 2 }
  inner_product_param { num_output: 3 }
""": """\
  param { name: "w" decay_mult: 2 }
  param { name: "b" lr_mult: 2 }
  param { name: "w_delta" lr_mult: 10 }
  param { name: "b_delta" lr_mult: 10 }
  inner_product_param { num_output: 3 }
  bayes_param {
    tau_init: 0.1
    kl_weight: 0.06
    dataset_size: 60000
    local_reparametrization: true
  }
""",
    }.items():
        assert expected.count(old) == 1, old
        expected = expected.replace(old, new)
    assert Path("bayes/net.prototxt").read_text() == expected
    net = pycaffe.Net("bayes/net.prototxt", pycaffe.TRAIN)
    assert net.params["left"][1].data == net.params["right"][2].data
    net.params["left"][1].data[...] = 0.25  # the delta is shared, too
    assert net.params["right"][2].data == 0.25
    convert("bayes/net.prototxt", to_stock=True, out="again")
    assert Path("again/net.prototxt").read_text() == LAYERS


@pytest.mark.parametrize(
    ("options", "layers", "note"),
    [
        ({"layers": "frozen"}, ["frozen"], None),
        ({"layers": ["f*"]}, ["frozen"], None),
        ({"layers": ["left"]}, ["left", "right"], "since they share parameters: right"),
        ({"last": 1}, ["left", "right"], "since they share parameters: left"),
        ({"layers": ["*"]}, ["frozen", "left", "right"], None),
    ],
)
def test_layers_are_chosen(stock, options, layers, note):
    done = convert(stock, dataset_size=9, **options)
    assert done.layers == layers
    net = read_message(done.nets[0], "NetParameter")
    assert [one.name for one in net.layer if one.type.startswith("Bayes")] == layers
    if note:
        assert note in done.notes[-1]


def test_frozen_layers_that_are_named_learn_their_tau_only(stock):
    done = convert(stock, dataset_size=9, layers=["frozen"])
    frozen = read_message(done.nets[0], "NetParameter").layer[1]
    assert [param.lr_mult for param in frozen.param] == [0, 0, 10, 10]
    assert [param.decay_mult for param in frozen.param[:2]] == [1, 0]  # as they were


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "net.prototxt: the number of training examples is not known.*as dataset_size"),
        ({"dataset_size": 0}, "dataset_size=0: must be 1 or more"),
        ({"layers": ["fc*"]}, r"layers='fc\*': no such layer .* are frozen, left, right$"),
        ({"layers": ["loss"]}, "layers='loss': no such layer can be converted"),
        ({"last": 3, "dataset_size": 5}, r"last=3: must be within 1\.\.2"),
        ({"dataset_size": 5, "out": "."}, "would overwrite net.prototxt"),
        ({"to_stock": True}, "has no Bayesian layer, so there is nothing to convert"),
    ],
)
def test_mistakes_are_told_and_write_nothing(stock, options, message):
    with pytest.raises(BayesCaffeError, match=message):
        convert(stock, **options)
    assert [path.name for path in Path.cwd().iterdir()] == ["net.prototxt"]


# ---- A solver, its data and its weights ---------------------------------------------------------


@pytest.fixture
def trained(tmp_path, digits, monkeypatch):
    """A stock net, its solver and its weights, in a directory whose name has a space."""
    folder = tmp_path / "my nets"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    solver = write_solver(
        Path("my nets"),
        small_net(digits, bayes=None),
        3,
        weight_decay=0.004,
        solver_mode="GPU",
        display=1,
    )
    text = solver.read_text().replace("solver_mode: GPU", "solver_mode: GPU  # a comment")
    solver.write_text(text)
    pycaffe.set_random_seed(3)
    net = pycaffe.Net("my nets/run.net.prototxt", pycaffe.TRAIN)
    net.save("my nets/stock.caffemodel")
    return solver


def test_a_solver_its_net_and_its_weights(trained, capsys):
    weights = "my nets/stock.caffemodel"
    assert main(["convert", str(trained), "--weights", weights, "--cpu", "--out", "out"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "3 layers are now Bayesian: conv, hidden, out",
        "net      out/run.net.prototxt",
        "solver   out/run.solver.prototxt",
        "weights  out/stock.caffemodel",
        "next: bayescaffe train out/run.solver.prototxt",
    ]
    old, new = trained.read_text(), Path("out/run.solver.prototxt").read_text()
    expected = old.replace("my nets/", "out/").replace("GPU", "CPU")
    assert new.replace('\nweights: "out/stock.caffemodel"', "") == expected
    stock = {one.name: one.blobs for one in read_weights(weights)}
    kl_weight = starting.kl_weight(330, sum(blob.size for one in stock.values() for blob in one))
    net = read_message("out/run.net.prototxt", "NetParameter")
    for one in (one for one in net.layer if one.type.startswith("Bayes")):
        assert one.bayes_param.dataset_size == 330
        assert one.bayes_param.kl_weight == pytest.approx(kl_weight)
        assert one.bayes_param.tau_init == pytest.approx(0.1)
        # Images of a batch have noise of their own.
        noise = one.bayes_param.draws_per_batch, one.bayes_param.local_reparametrization
        assert noise == ((4, False) if one.name == "conv" else (1, True))
    # The means are the stock weights, and tau is at its start.
    stock = {one.name: one.blobs for one in read_weights(weights)}
    net = pycaffe.Net("out/run.net.prototxt", pycaffe.TRAIN, weights="out/stock.caffemodel")
    for name, one in net.posteriors().items():
        assert one.taus == pytest.approx((0.1, 0.1), rel=1e-5)
        for mean, blob in zip(net.params[name], stock[name], strict=False):
            assert np.array_equal(mean.data, blob)
    # They are no posterior until they are trained.
    with pytest.raises(BayesCaffeError, match="stock.caffemodel: is no posterior.*untrained=True"):
        Model("out/run.net.prototxt", "out/stock.caffemodel")


def test_the_rule_for_the_kl_weight():
    # The net of models/lenet keeps its 0.0024 for 60,000 images, about.
    assert starting.kl_weight(60_000, 431_080) == pytest.approx(0.0024, rel=0.02)
    # Fewer examples get a stronger prior, up to nine times as strong; more get no weaker one.
    assert starting.kl_weight(7500, 10**6) == pytest.approx(4 * 0.017 * 7500 / 10**6)
    assert starting.kl_weight(500, 10**6) == pytest.approx(9 * 0.017 * 500 / 10**6)
    assert starting.kl_weight(10**6, 10**6) == pytest.approx(0.017)
    assert starting.kl_weight(500, 12) == pytest.approx(9e-6 * 500)
    assert pycaffe.default_kl_scale(10**6) == pytest.approx(0.017 / 10**6)


def test_weights_are_counted_where_the_shape_is_known(trained):
    path = Path("my nets/run.net.prototxt")
    source = read_message(path, "NetParameter").layer[0].data_param.source
    path.write_text(path.read_text().replace(source, "nowhere"))

    def kl_weight(**options):
        done = convert(path, dataset_size=330, out="bayes", **options)
        (value,) = {
            one.bayes_param.kl_weight if one.bayes_param.HasField("kl_weight") else None
            for one in read_message(done.nets[0], "NetParameter").layer
            if one.type.startswith("Bayes")
        }
        return done.notes, value and pytest.approx(value)

    # 4 maps of 99 x 99 go to 16 neurons.
    weights = 4 * 9 + 4 + 4 * 99**2 * 16 + 16 + 16 * 4 + 4
    assert kl_weight(shape=(1, 200, 200)) == ([], starting.kl_weight(330, weights))
    assert kl_weight(shape=(1, 200, 200), last=1) == ([], starting.kl_weight(330, 68))
    (note,), value = kl_weight()
    assert value is None
    assert note.startswith("kl_weight is left out, as the number of weights is not known (its data")
    assert "nowhere, is not here; give the shape" in note


def test_the_converted_net_trains_and_comes_back(trained, capsys):
    weights = "my nets/stock.caffemodel"
    convert(trained, weights, out="bayes")
    assert main(["train", "bayes/run.solver.prototxt", "--cpu", "--quiet", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["iterations"] == 3 and found["snapshot"] == "bayes/run_iter_3.caffemodel"
    # It started from the weights: a step at a rate of 0.01 does not go far.
    stock = {one.name: one.blobs for one in read_weights(weights)}
    for one in read_weights(found["snapshot"]):
        assert 0 < np.abs(one.blobs[0] - stock[one.name][0]).max() < 0.1
    done = convert("bayes/run.solver.prototxt", found["snapshot"], to_stock=True, out="stock")
    assert (
        Path("stock/run.net.prototxt").read_text() == Path("my nets/run.net.prototxt").read_text()
    )
    assert done.weights == Path("stock/run_iter_3.caffemodel")
    means = {one.name: one.blobs for one in read_weights(found["snapshot"])}
    for one in read_weights(done.weights):
        assert one.type in ("Convolution", "InnerProduct") and len(one.blobs) == 2
        assert np.array_equal(one.blobs[0], means[one.name][0])
    net = pycaffe.Net("stock/run.net.prototxt", pycaffe.TEST, weights=str(done.weights))
    assert np.isfinite(net.forward()["loss"])


def test_the_cpu_is_used_where_the_solver_says_gpu(trained, capsys):
    assert main(["train", str(trained), "--quiet"]) == 1
    assert "--cpu computes on the CPU" in capsys.readouterr().err
    assert main(["train", str(trained), "--cpu", "--quiet"]) == 0
    capsys.readouterr()
    with pytest.raises(SystemExit, match="2"):
        main(["train", str(trained), "--cpu", "--gpu", "0"])


def test_a_net_without_a_solver_gets_one(trained, digits):
    done = convert("my nets/run.net.prototxt", out="new")
    solver = read_message(done.solver, "SolverParameter")
    assert solver.net == "new/run.net.prototxt"
    # 330 images in batches of 20 are 17, 100 are 5; pixels are scaled. 59 epochs: 1,000 iterations.
    assert (solver.max_iter, list(solver.test_iter), solver.test_interval) == (1003, [5], 17)
    assert solver.base_lr == pytest.approx(0.01)
    train_a_step(done.solver)
    done = convert("my nets/run.net.prototxt", dataset_size=3000, out="more")
    assert read_message(done.solver, "SolverParameter").max_iter == 20 * 150


def test_weights_that_lack_a_layer_or_do_not_fit(trained):
    text = Path("my nets/run.net.prototxt").read_text().replace('name: "out"', 'name: "new"')
    Path("renamed.prototxt").write_text(text)
    done = convert("renamed.prototxt", "my nets/stock.caffemodel", out="renamed")
    assert done.notes == [
        "my nets/stock.caffemodel has no weights for new: they start from fillers"
    ]
    Path("larger.prototxt").write_text(text.replace("num_output: 16", "num_output: 17"))
    with pytest.raises(BayesCaffeError, match="stock.caffemodel: .*hidden.*shape"):
        convert("larger.prototxt", "my nets/stock.caffemodel", out="larger")
    assert not list(Path("larger").glob("*"))


def test_a_size_that_differs_from_the_data_is_told(trained):
    done = convert(trained, dataset_size=500, out="bayes")
    assert done.dataset_size == 500
    assert re.search("500, as you say; .*train_lmdb has 330 records", done.notes[0])


# ---- Nets of old --------------------------------------------------------------------------------

OLD = """\
# A comment
name: "old"
layers { name: "data" type: DATA top: "data" top: "label"
         data_param { source: "nowhere" batch_size: 5 } include { phase: TRAIN } }
layers { name: "conv" type: CONVOLUTION bottom: "data" top: "conv" blobs_lr: 1 blobs_lr: 2
         weight_decay: 1 weight_decay: 0 convolution_param { num_output: 4 kernel_size: 3 } }
layers { name: "loss" type: SOFTMAX_LOSS bottom: "conv" bottom: "label" }
"""


def test_an_old_net_is_upgraded(tmp_path, caplog):
    caplog.set_level("INFO", "bayescaffe")
    (tmp_path / "old.prototxt").write_text(OLD)
    done = convert(tmp_path / "old.prototxt", dataset_size=10)
    conv = read_message(done.nets[0], "NetParameter").layer[1]
    assert (conv.type, [param.lr_mult for param in conv.param]) == (
        "BayesConvolution",
        [1, 2, 10, 10],
    )
    assert "old.prototxt: upgraded from an old format" in caplog.text
    back = convert(done.nets[0], to_stock=True, out=tmp_path / "back")
    stock = parse_message(back.nets[0].read_text(), "NetParameter")
    assert [param.decay_mult for param in stock.layer[1].param] == [1, 0]


def test_input_fields_stay(tmp_path):
    text = 'input: "data"  # BGR\ninput_dim: 1\ninput_dim: 3\ninput_dim: 2\ninput_dim: 2\n' + layer(
        "out", "InnerProduct", "data", IP
    )
    (tmp_path / "deploy.prototxt").write_text(text)
    done = convert(tmp_path / "deploy.prototxt")
    assert done.solver is None
    found = done.nets[0].read_text()
    assert found.startswith(text[: text.index("layer")])
    assert "bayes_param { kl_weight: 0 }" in found
    assert len(pycaffe.Net(str(done.nets[0]), pycaffe.TEST).params["out"]) == 6
