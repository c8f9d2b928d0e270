"""`prior_from`: what another net has learned is the prior."""

import shutil

import numpy as np
import pytest
from conftest import assert_same_bits, blobs, input_net, make_net, small_net, write_solver

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
import bayescaffe  # noqa: E402
from bayescaffe.net.messages import read_weights  # noqa: E402
from export_nets import randomize  # noqa: E402

pytestmark = pytest.mark.engine

KINDS = ("SHARED", "PER_OUTPUT", "PER_WEIGHT")
LAYERS = ("conv", "hidden", "out")


def text_of(digits, options):
    return input_net(small_net(digits, options), batch=3)


def trained(folder, digits, options="dataset_size: 330", name="prior.caffemodel"):
    """The weights of a net whose means are far from 0, and the net."""
    net = make_net(folder, text_of(digits, options))
    randomize(net)
    for layer in LAYERS:
        for blob in net.params[layer][:2]:
            blob.data[...] += np.where(blob.data < 0, -0.05, 0.05)
    net.save(str(folder / name))
    return folder / name, net


def kl(net):
    return sum(posterior.kl for posterior in net.posteriors().values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1, 3])
def test_kl_of_the_priors_own_posterior(tmp_path, digits, kind, scale):
    """0; with wider priors ln s + (1 / s^2 - 1) / 2 for each weight."""
    options = f"dataset_size: 330 posterior: {kind}"
    path, _ = trained(tmp_path, digits, options)
    more = f' prior_from: "{path}" prior_scale: {scale}'
    net = make_net(tmp_path, text_of(digits, options + more), weights=path)
    expected = 1724 * (np.log(scale) + (scale**-2 - 1) / 2)
    assert kl(net) == pytest.approx(expected, rel=1e-4, abs=1e-3)
    if scale == 1:
        net.params["hidden"][0].data[3, 5] *= 1.5
        assert kl(net) > 0.1


def test_a_stock_nets_weights_have_the_width_of_prior_std(tmp_path, digits):
    stock = make_net(tmp_path, text_of(digits, None))
    randomize(stock)
    path = tmp_path / "stock.caffemodel"
    stock.save(str(path))
    options = f'dataset_size: 330 prior_from: "{path}" prior_std: 0.3 bias_prior_std: 2'
    net = make_net(tmp_path, text_of(digits, options + " prior_scale: 0.5"))
    randomize(net)
    expected = 0
    for layer in LAYERS:
        for i, zeta in enumerate((0.15, 1)):
            blob = net.params[layer][i].data
            blob += np.where(blob < 0, -0.05, 0.05)
            m, mu = blob.astype(np.float64), stock.params[layer][i].data.astype(np.float64)
            std = net.taus(layer)[i] * np.abs(m)
            expected += np.sum(np.log(zeta / std) + (std**2 + (m - mu) ** 2) / (2 * zeta**2) - 0.5)
    assert kl(net) == pytest.approx(expected, rel=1e-5)


INNER = """layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 2 dim: 3 }} }} }}
    layer {{ name: "{name}" type: "{type}" bottom: "x" top: "y" {tops}
             inner_product_param {{ num_output: {outputs} bias_term: {bias} }} {bayes} }}"""


def inner(bayes=None, name="ip", outputs=2, tops="", bias="true"):
    kind = "InnerProduct" if bayes is None else "BayesInnerProduct"
    bayes = "" if bayes is None else f"bayes_param {{ {bayes} }}"
    return INNER.format(name=name, type=kind, outputs=outputs, tops=tops, bias=bias, bayes=bayes)


def saved_inner(folder, *arguments, **fields):
    net = make_net(folder, inner(*arguments, **fields))
    randomize(net)
    net.save(str(folder / "prior.caffemodel"))
    return folder / "prior.caffemodel", net


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_the_change_of_kl(tmp_path, kind):
    path, _ = saved_inner(tmp_path, "dataset_size: 1 posterior: PER_WEIGHT")
    options = f'kl_weight: 1 dataset_size: 1 posterior: {kind} prior_from: "{path}" prior_scale: 2'
    net = make_net(tmp_path, inner(options, tops='top: "kl" loss_weight: 0 loss_weight: 1'), 0)
    randomize(net)
    for blob in net.params["ip"][:2]:
        blob.data[...] += np.where(blob.data < 0, -0.4, 0.4)
    net.blobs["x"].data[...] = 1
    net.clear_param_diffs()
    net.forward()
    net.backward()
    for blob in net.params["ip"][:4]:
        for i in range(blob.count):
            kept = blob.data.flat[i]
            step = 1e-2 * abs(kept)
            change = []
            for sign in (1, -1):
                blob.data.flat[i] = kept + sign * step
                change.append(sign * kl(net))
            blob.data.flat[i] = kept
            expected = sum(change) / (2 * step)
            assert blob.diff.flat[i] == pytest.approx(expected, rel=1e-2, abs=1e-2)


def test_a_prior_is_never_narrower_than_its_floor(tmp_path):
    path, source = saved_inner(tmp_path, "dataset_size: 1")
    for blob in source.params["ip"][:2]:
        blob.data[...] = 0.02
    for blob in source.params["ip"][2:4]:
        blob.data[...] = np.log(np.expm1(0.01))  # tau |m| = 0.0002
    source.save(str(path))
    for floor, zeta in (("", 0.001), ("prior_std_min: 0.0005", 0.0005), ("prior_std_min: 1e-5", 0)):
        text = inner(f'dataset_size: 1 prior_from: "{path}" {floor}')
        expected = 8 * (np.log(zeta / 0.0002) + (0.0002 / zeta) ** 2 / 2 - 0.5) if zeta else 0
        assert kl(make_net(tmp_path, text, weights=path)) == pytest.approx(expected, abs=1e-4)
    source.params["ip"][0].data[...] = 0
    source.save(str(path))
    text = inner(f'dataset_size: 1 prior_from: "{path}"')
    assert np.isfinite(kl(make_net(tmp_path, text, weights=path)))


# ---- What is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ({"name": "other"}, {}, r"has no layer 'ip'; its layers with weights are 'other'"),
        ({"outputs": 5}, {}, r"the weights have the shape 5 3 \(15\), but those of the net have 2"),
        ({"bias": "false"}, {}, "layer 'ip' has 3 blobs, but must have 2, or 6 if it is Bayesian"),
        ({}, {"bias": "false"}, "layer 'ip' has 6 blobs, but must have 1, or 3 if it is Bayesian"),
    ],
)
def test_a_layer_that_does_not_fit_is_named(tmp_path, source, target, message):
    path, _ = saved_inner(tmp_path, "dataset_size: 1", **source)
    options = f'dataset_size: 1 prior_from: "{path}"'
    with pytest.raises(pycaffe.Error, match=message) as caught:
        make_net(tmp_path, inner(options, **target))
    for part in ("layer 'ip'", f"bayes_param.prior_from: {path}"):
        assert part in str(caught.value)


def test_a_missing_or_damaged_file_is_named(tmp_path):
    path = tmp_path / "none.caffemodel"
    text = inner(f'dataset_size: 1 prior_from: "{path}"')
    for content in (None, b"\xff" * 100):
        if content:
            path.write_bytes(content)
        with pytest.raises(pycaffe.Error, match=r"prior_from: .*none\.caffemodel"):
            make_net(tmp_path, text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('prior_from: "x" prior_mean: 1', 'bayes_param.prior_from is "x", but must be the only so'),
        ('prior_from: "x" bias_prior_mean: 0', "leave out prior_mean and bias_prior_mean"),
        ("prior_scale: 2", "bayes_param.prior_scale is 2, but must be left out without prior_from"),
        ('prior_from: "x" prior_scale: 0', "bayes_param.prior_scale is 0, but must be 1e-06 to"),
        ('prior_from: "x" prior_std_min: -1', "bayes_param.prior_std_min is -1, but must be"),
    ],
)
def test_nonsense_is_refused_by_name(tmp_path, options, message):
    with pytest.raises(pycaffe.Error, match=message):
        make_net(tmp_path, inner(f"dataset_size: 1 {options}"))


# ---- Training, and what comes after it -----------------------------------------------------------


def test_a_training_resumes_with_its_prior_and_knows_another(tmp_path, digits):
    path, _ = trained(tmp_path, digits)
    net = small_net(digits, f'kl_weight: 1 dataset_size: 330 prior_from: "{path}"')
    solver = str(write_solver(tmp_path, net, 31, name="part", snapshot=20))
    whole = pycaffe.get_solver(str(write_solver(tmp_path, net, 31, name="whole")))
    whole.step(31)
    pycaffe.get_solver(solver).step(20)
    resumed = pycaffe.get_solver(solver)
    resumed.restore(str(tmp_path / "part_iter_20.solverstate"))
    resumed.step(11)
    assert_same_bits(blobs(resumed.net), blobs(whole.net))
    # KL draws to the prior: without it, the net is another.
    plain = net.replace(f'prior_from: "{path}"', "")
    other = pycaffe.get_solver(str(write_solver(tmp_path, plain, 31, name="plain")))
    other.step(31)
    assert not np.array_equal(other.net.params["out"][0].data, whole.net.params["out"][0].data)

    # The prior is not in the file: it has the blobs that it has without one.
    stored = {
        layer.name: layer.blobs for layer in read_weights(tmp_path / "part_iter_20.caffemodel")
    }
    assert [len(stored[layer]) for layer in LAYERS] == [6, 6, 6]

    # The training is the same wherever the file is, and another with another prior.
    first = pycaffe.training_hash(solver)
    moved = tmp_path / "moved.caffemodel"
    shutil.move(path, moved)
    net_file = tmp_path / "part.net.prototxt"
    net_file.write_text(net.replace(str(path), str(moved)))
    assert pycaffe.training_hash(solver) == first
    _, prior = trained(tmp_path, digits, name="again.caffemodel")
    prior.params["conv"][2].data[...] = -1
    prior.save(str(moved))
    assert pycaffe.training_hash(solver) != first


def test_draws_do_not_need_the_file(tmp_path, digits):
    path, _ = trained(tmp_path, digits)
    text = text_of(digits, f'dataset_size: 330 prior_from: "{path}" prior_scale: 2')
    net = make_net(tmp_path, text, weights=path)
    images = np.random.default_rng(0).random((3, 1, 12, 12), np.float32)
    expected = net.sample(3, images)
    path.rename(tmp_path / "elsewhere")
    assert np.array_equal(net.sample(3, images), expected)
    model = bayescaffe.Model(tmp_path / "net.prototxt", tmp_path / "elsewhere")
    assert model.sample(images, 3).shape == (3, 3, 4)
    with pytest.raises(bayescaffe.BayesCaffeError, match=r"prior_from: .*prior\.caffemodel"):
        bayescaffe.inspect(tmp_path / "net.prototxt", tmp_path / "elsewhere")
    found = bayescaffe.check(tmp_path / "net.prototxt")
    assert any("prior.caffemodel" in one.text for one in found.findings)
