"""The command `bayescaffe check`: each mistake is found, and named with what to change.

And stock weights in a Bayesian net: they are no posterior, for `sample`, `predict` and `report`.
"""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from bad_numbers import SOLVERS
from conftest import REPO, input_net, make_net, small_net, write_solver

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe import BayesCaffeError, Model, analyze, check, report, sample  # noqa: E402
from bayescaffe.cli import main  # noqa: E402

GOOD = "dataset_size: 330 kl_weight: 1e-5"

PLACES = 'bottom: "map" bottom: "labels" top: "loss"'
FOUR_PLACES = """
layer { name: "map" type: "Reshape" bottom: "out" top: "map"
        reshape_param { shape { dim: 0 dim: 4 dim: 2 dim: 2 } } }
layer { name: "labels" type: "DummyData" top: "labels"
        dummy_data_param { shape { dim: 20 dim: 2 dim: 2 } } }"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def findings(text, weights=None, name="net.prototxt", **options):
    Path(name).write_text(text)
    return [str(finding) for finding in check(name, weights, **options).findings]


def test_a_good_net_has_no_findings(here, digits):
    found = check(write_solver(here, small_net(digits, GOOD), 5))
    assert (found.findings, found.is_good, found.is_itemwise) == ([], True, True)
    assert {layer.name: (layer.tops, layer.parameters) for layer in found.layers} == {
        "data": ({"data": (20, 1, 12, 12), "label": (20,)}, 0),
        "conv": ({"conv": (20, 4, 5, 5)}, 4 * 9 + 4),
        "hidden": ({"hidden": (20, 16)}, 16 * 100 + 16),
        "relu": ({"hidden": (20, 16)}, 0),
        "out": ({"out": (20, 4)}, 4 * 16 + 4),
        "loss": ({"loss": ()}, 0),
    }
    # One delta for the weights and one for the biases of each layer.
    learned = 1724 + 3 * 2
    assert found.memory.weights == found.memory.gradients == found.memory.history == 4 * learned
    # Noise, drawn weights and their gradients.
    assert found.memory.draws == 4 * 3 * 1724
    assert found.memory.activations == 4 * (20 * (144 + 1 + 100 + 16 + 4) + 1)
    # Images and labels have none.
    assert found.memory.activation_gradients == 4 * (20 * (100 + 16 + 4) + 1)
    assert found.stock_memory.weights == 4 * 1724 and found.stock_memory.draws == 0
    assert found.stock_memory.activations == found.memory.activations
    net = make_net(here, small_net(digits, GOOD))
    kl = sum(posterior.kl for posterior in net.posteriors().values())
    assert found.kl == pytest.approx(kl, rel=0.01)  # of other random weights
    assert found.kl_term == pytest.approx(found.kl * 1e-5 / 330)


@pytest.mark.parametrize("path", sorted((REPO / "models").rglob("solver.prototxt")))
def test_our_models_have_no_findings(path, monkeypatch):
    monkeypatch.chdir(REPO)
    found = check(path, shape=(1, 28, 28))
    assert not found.findings and len(found.layers) >= 9


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "num_output: 16",
            "num_outputs: 16",
            "error: net.prototxt:2.: inner_product_param has no field num_outputs; did you mean "
            r"num_output\?",
        ),
        (
            "layer {",
            "layr {",
            r"error: net.prototxt:\d+: a net has no field layr; did you mean lay",
        ),
        ("layer {", "qqq: 1 layer {", r"error: net.prototxt:\d+: a net has no field qqq$"),
        (
            '"BayesInnerProduct"',
            '"BayesInnerProdukt"',
            "error: net.prototxt, layer 'hidden': Caffe has no layer of type 'BayesInnerProdukt'; "
            r"did you mean BayesInnerProduct\?",
        ),
        (
            "dataset_size: 330",
            "dataset_size: 60000",
            r"warning: net.prototxt: dataset_size is 60000 in conv, but .*train_lmdb has 330 "
            "records; set dataset_size: 330",
        ),
        (
            "bayes_param",
            "param { lr_mult: 0 } bayes_param",
            "warning: net.prototxt, layer 'conv': a parameter of this Bayesian layer has lr_mult",
        ),
        ("dataset_size: 330", "", "error: net.prototxt: .*layer 'conv'.*dataset_size"),
        ("num_output: 4 kernel_size: 3", "num_output: 4", "error: net.prototxt: .*kernel"),
        ("phase: TRAIN", "phase: TRIAN", "error: net.prototxt: not a NetParameter .*TRIAN"),
        (
            "train_lmdb",
            "nowhere",
            r"warning: net.prototxt: its data, .*nowhere, is not here; .* as shape; until then",
        ),
    ],
)
def test_mistakes_are_found(here, digits, old, new, expected):
    text = small_net(digits, GOOD)
    assert old in text
    found = findings(text.replace(old, new, 1))
    assert re.match(expected, found[0]), found
    assert len(found) == 1


def test_kl_that_dwarfs_the_loss(here, digits):
    (found,) = findings(small_net(digits, "dataset_size: 330 kl_weight: 1"))
    head, value = re.match(
        r"warning: net.prototxt: (KL adds \S+ to a loss that starts near 1.39), .*; "
        r"kl_weight is 1, try kl_weight: (\S+)$",
        found,
    ).groups()
    term = float(head.split()[2])
    assert term > 5 * math.log(4)
    assert float(value) == pytest.approx(min(9e-6 * 330, math.log(4) / term), rel=0.05)
    assert findings(small_net(digits, f"dataset_size: 330 kl_weight: {value}")) == []


def test_images_that_depend_on_each_other(here, digits):
    more = 'layer { name: "mix" type: "MVN" bottom: "hidden" top: "hidden" }'
    (found,) = findings(small_net(digits, GOOD, more))
    assert found.startswith(
        "note: net.prototxt, layer 'mix': images of a batch depend on each other"
    )
    assert check("net.prototxt").is_itemwise is False
    # Only where it is behind a random layer, and only in nets that have one.
    assert findings(small_net(digits, None, more)) == []
    net = make_net(here, small_net(digits, GOOD, more))
    assert (net.mixing_layer("out"), net.mixing_layer("conv")) == ("mix", None)


def test_data_that_is_not_here(here, digits):
    text = small_net(Path("nowhere"), GOOD)
    assert findings(text, shape=(1, 12, 12)) == []
    (found,) = findings(text)
    assert "give the shape of its images as shape; until then" in found
    with_crop = text.replace("transform_param {", "transform_param { crop_size: 9")
    Path("net.prototxt").write_text(with_crop)
    assert check("net.prototxt", shape=(3, 12, 12)).layers[0].tops["data"] == (20, 3, 9, 9)


def test_a_net_for_deployment_and_an_old_one(here, digits):
    assert findings(input_net(small_net(digits, "kl_weight: 0"), batch=3)) == []
    assert check("net.prototxt").is_itemwise
    old = """input: "data" input_dim: 1 input_dim: 2 input_dim: 3 input_dim: 3
             layers { name: "ip" type: INNER_PRODUCT bottom: "data" top: "ip"
                      inner_product_param { num_output: 2 } }"""
    assert findings(old) == []
    assert check("net.prototxt").layers[-1].parameters == 2 * 18 + 2


@pytest.mark.parametrize("name, value, says", SOLVERS)
def test_bad_numbers_of_a_solver(here, digits, name, value, says):
    solver = write_solver(here, small_net(digits, None), 2, **{name: value})
    (finding,) = check(solver).findings
    assert str(finding).startswith(f"error: {solver}: solver: {name} is {value}, {says}")


def test_bad_numbers_of_a_data_layer(here, digits):
    net = small_net(digits, None).replace("batch_size: 20", "batch_size: 0")
    (finding,) = check(write_solver(here, net, 2)).findings
    assert "layer 'data': data_param.batch_size is 0, but must be 1" in str(finding)


def test_solvers_that_name_no_net(here):
    assert findings("base_lr: 1", name="solver") == [
        "error: solver: the solver names no net; set net or train_net"
    ]
    (found,) = findings('net: "nowhere.prototxt"', name="solver")
    assert found.startswith("error: solver: its net nowhere.prototxt is not here;")
    (found,) = findings('net: "x" base_rl: 1', name="solver")
    assert found == "error: solver:1: a solver has no field base_rl; did you mean base_lr?"


def test_the_command(here, digits, capsys):
    Path("net.prototxt").write_text(small_net(digits, "dataset_size: 330 kl_weight: 1"))
    assert main(["check", "net.prototxt"]) == 0
    out = capsys.readouterr().out
    assert "hidden  BayesInnerProduct  hidden 20x16" in out
    total, stock = re.search(
        r"training: ([\d.]+) MB .*\n.* stock layers, ([\d.]+) MB", out
    ).groups()
    assert "\n1,724 parameters\nmemory in training: " in out
    assert float(total) >= float(stock) > 0
    assert out.endswith("0 errors, 1 warnings\n")
    Path("bad.prototxt").write_text('layer { nam: "x" }')
    assert main(["check", "bad.prototxt", "--json"]) == 1
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["findings"][0]["text"] == "layer has no field nam; did you mean name?"
    assert found["is_good"] is False
    assert err == "bayescaffe: error: bad.prototxt: 1 error\n"


# ---- Stock weights ------------------------------------------------------------------------------


@pytest.fixture
def stock(here, digits):
    """The weights of the stock net; the prototxt is of the Bayesian one."""
    make_net(here, small_net(digits, None)).save("stock.caffemodel")
    Path("net.prototxt").write_text(small_net(digits, GOOD))
    return "stock.caffemodel"


def test_check_tells_stock_weights_and_untrained_ones(stock, digits, here):
    (found,) = check("net.prototxt", stock).findings
    assert (found.severity, found.where) == ("error", stock)
    assert found.text.startswith(
        "is no posterior: it has stock weights for the Bayesian layers conv, hidden, out; train"
    )
    net = make_net(here, small_net(digits, GOOD))
    net.save("start.caffemodel")
    (found,) = check("net.prototxt", "start.caffemodel").findings
    assert (found.severity, found.text.split(",")[0]) == ("warning", "every tau is where it starts")
    net.params["hidden"][2].data[...] += 0.1
    net.save("trained.caffemodel")
    assert check("net.prototxt", "trained.caffemodel").findings == []


def test_check_tells_taus_at_their_ends(here, digits):
    net = make_net(here, small_net(digits, GOOD))
    net.params["hidden"][2].data[...] = 12  # delta, of which tau is the softplus
    net.params["out"][2].data[...] = -10
    net.save("odd.caffemodel")
    noisy, low = check("net.prototxt", "odd.caffemodel").findings
    assert (noisy.severity, noisy.where) == ("warning", "odd.caffemodel")
    assert noisy.text.startswith("tau has run away in hidden (12): these weights are mostly noise")
    assert low.text.startswith("tau is at its floor, tau_min, in out, so")


@pytest.mark.parametrize(
    ("old", "new", "guess"),
    [
        ("", "", math.log(4)),
        ('top: "loss"', 'top: "loss" loss_weight: 0.3', 0.3 * math.log(4)),
        ('top: "loss"', 'top: "loss" loss_param { normalize: false }', math.log(4)),
        ('top: "loss"', 'top: "loss" loss_param { normalization: NONE }', None),
        ('"SoftmaxWithLoss"', '"MultinomialLogisticLoss"', None),
        # KL, or another loss beside it.
        ('top: "out" ', 'top: "out" top: "kl" loss_weight: 0 loss_weight: 1 ', math.log(4)),
        ('top: "conv" ', 'top: "conv" top: "kl" loss_weight: 1 loss_weight: 1 ', None),
        # A score for each of four places; Caffe's labels have as many.
        ('bottom: "out" bottom: "label" top: "loss"', PLACES, math.log(4)),
        (
            'bottom: "out" bottom: "label" top: "loss"',
            PLACES + " loss_param { normalization: BATCH_SIZE }",
            None,
        ),
    ],
)
def test_the_loss_of_a_constant_guess(here, digits, old, new, guess):
    text = small_net(digits, GOOD)
    if new.startswith(PLACES):
        text = text.replace("num_output: 4 weight", "num_output: 16 weight").replace(
            'layer { name: "loss"', f'{FOUR_PLACES} layer {{ name: "loss"'
        )
    Path("net.prototxt").write_text(text.replace(old, new))
    found = check("net.prototxt")
    assert found.is_good, found.findings
    assert found.objective.guess == (guess and pytest.approx(guess))


def test_check_tells_weights_that_do_not_fit(stock, digits):
    text = small_net(digits, GOOD)
    found = findings(text.replace('name: "hidden"', 'name: "other"'), stock)
    assert found[1] == f"error: {stock}: has no weights for other of net.prototxt"
    found = findings(text.replace("num_output: 16", "num_output: 15"), stock)
    assert re.match("error: net.prototxt: .*hidden.*shape", found[1])
    Path("broken.caffemodel").write_bytes(b"xyz")
    assert "broken.caffemodel: damaged" in findings(text, "broken.caffemodel")[0]


def test_stock_weights_are_no_posterior(stock, capsys):
    with pytest.raises(BayesCaffeError, match="is no posterior.*conv, hidden, out.*untrained=True"):
        Model("net.prototxt", stock)
    command = ["sample", "net.prototxt", stock, "--passes", "3", "--out", "x.npz"]
    assert main(command) == 1
    assert "stock.caffemodel: is no posterior" in capsys.readouterr().err
    assert not Path("x.npz").exists()
    Path("x.png").touch()
    assert main(["predict", "net.prototxt", stock, "x.png"]) == 1
    assert "--untrained" in capsys.readouterr().err
    assert main([*command, "--untrained"]) == 0
    assert main(["report", "x.npz", "--out", "x.html"]) == 1
    assert "the draws are of no posterior: stock.caffemodel" in capsys.readouterr().err
    assert not Path("x.html").exists()
    assert main(["report", "x.npz", "--out", "x.html", "--untrained"]) == 0
    assert Path("x.html").exists()


def test_the_same_in_python(stock, digits, here):
    draws = sample(Model("net.prototxt", stock, untrained=True), passes=3, progress=False)
    assert draws.meta["untrained"]
    assert np.ptp(draws.probabilities, axis=0).max() > 0
    with pytest.raises(BayesCaffeError, match="untrained=True"):
        report("x.html", draws, analyze(draws, progress=False))
    # A stock net is what it is.
    Path("stock.prototxt").write_text(small_net(digits, None))
    assert not Model("stock.prototxt", stock).untrained
