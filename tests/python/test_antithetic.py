"""Draws in pairs with noise of opposite sign: which networks they are, and what they gain."""

import json

import numpy as np
import pytest
from conftest import assert_same, make_net, save_weights, small_net

pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe import BayesCaffeError, Mixture, Model, cli, load_draws, merge, sample  # noqa: E402
from bayescaffe.data.lmdb import LmdbImages  # noqa: E402
from bayescaffe.net.stock import stock_layers  # noqa: E402

pytestmark = pytest.mark.engine
BAYES = "kl_weight: 0.01 dataset_size: 330 tau_init: 0.3"


@pytest.fixture
def files(tmp_path, digits):
    return save_weights(tmp_path, small_net(digits, BAYES))


@pytest.fixture
def pair(files):
    """The same model with both kinds of noise."""
    return Model(*files), Model(*files, antithetic=True)


@pytest.fixture
def images(digits):
    return LmdbImages(digits / "test_lmdb").read(range(50))


def test_odd_draws_are_the_mirror_images_of_even_ones(pair):
    independent, antithetic = pair
    means = stock_layers(antithetic, None)
    for even in (0, 2, 40):
        first, second = (stock_layers(antithetic, draw) for draw in (even, even + 1))
        same = stock_layers(independent, even)
        for mean, one, other, expected in zip(means, first, second, same, strict=True):
            for m, a, b, e in zip(mean.blobs, one.blobs, other.blobs, expected.blobs, strict=True):
                assert np.array_equal(a, e)
                assert np.abs(a + b - 2 * m).max() <= 1e-6 * np.abs(m).max()
        (hidden,) = [n for n, layer in enumerate(means) if layer.param.name == "hidden"]
        assert np.any(first[hidden].blobs[0] != means[hidden].blobs[0])


def test_sample_gives_what_exported_draws_give(pair, images):
    """`net.sample`, in any order, and `set_draw` mean the same network."""
    _, model = pair
    found = model.sample(images, 6)
    assert_same(model.sample(images, [5, 0, 3]), found[[5, 0, 3]])
    for draw in (2, 3):
        model.caffe_net.set_draw(model.caffe_draw(draw))
        model.caffe_net.blobs[model.caffe_net.inputs[0]].reshape(50, *model.input_shape)
        model.caffe_net.blobs[model.caffe_net.inputs[0]].data[...] = model.transform(images)
        model.caffe_net.forward()
        given = model.caffe_net.blobs[model.output].data.reshape(50, -1)
        assert np.abs(given - found[draw]).max() < 1e-6


def test_pairs_need_fewer_draws_for_the_mean(pair, images):
    """The variance of the mean of eight draws, over 40 sets of eight, is less than half."""
    variances = []
    for model in pair:
        found = model.sample(images, 320)
        variances.append(found.reshape(40, 8, *found.shape[1:]).mean(1).var(0).mean())
    assert variances[1] < 0.5 * variances[0]


def test_mc_dropout_drops_what_the_other_keeps(tmp_path, digits):
    drop = 'layer { name: "drop" type: "Dropout" bottom: "hidden" top: "hidden" }'
    files = save_weights(tmp_path, small_net(digits, None, drop))
    model = Model(*files, mc_dropout=True, antithetic=True)

    def mask(draw):
        (layer,) = [one for one in stock_layers(model, draw) if one.param.name == "drop"]
        return layer.blobs[0] != 0

    assert 0 < mask(0).sum() < mask(0).size
    assert np.array_equal(mask(1), ~mask(0))
    assert not np.array_equal(mask(2), mask(0))


def test_models_of_a_mixture_take_turns_in_pairs(tmp_path, digits, images):
    text, paths = small_net(digits, BAYES), []
    for seed in (1, 2):
        paths.append(tmp_path / f"{seed}.caffemodel")
        make_net(tmp_path, text, seed=seed).save(str(paths[-1]))
    models = [Model(tmp_path / "net.prototxt", path, antithetic=True) for path in paths]
    both = Mixture(models)
    assert [both.model_of(draw) for draw in range(6)] == [0, 0, 1, 1, 0, 0]
    assert both.passes_for(None) == 100
    found = both.sample(images, 6)
    for draw in range(6):
        expected = models[both.model_of(draw)].sample(images, [draw])
        assert_same(found[draw], expected[0])
    with pytest.raises(BayesCaffeError, match="2 models need 4 draws or more"):
        both.passes_for(3)
    other = Model(tmp_path / "net.prototxt", paths[1])
    with pytest.raises(BayesCaffeError, match="has antithetic False, not True"):
        Mixture([models[0], other])


def test_stock_models_take_turns_one_by_one(tmp_path, digits, images):
    """Their draws do not differ, so there are no pairs."""
    text, models = small_net(digits, None), []
    for seed in (1, 2):
        make_net(tmp_path, text, seed=seed).save(str(tmp_path / f"{seed}.caffemodel"))
        files = tmp_path / "net.prototxt", tmp_path / f"{seed}.caffemodel"
        models.append(Model(*files, antithetic=True))
    both = Mixture(models)
    assert both.passes_for(None) == 2
    assert [both.model_of(draw) for draw in range(2)] == [0, 1]


def test_commands_take_it_and_files_tell_it(files, digits, tmp_path, capsys):
    net, weights = map(str, files)
    common = [net, weights, "--data", str(digits / "test_lmdb"), "--passes", "4", "--quiet"]
    whole = tmp_path / "all.npz"
    assert cli.main(["sample", *common, "--antithetic", "--out", str(whole)]) == 0
    draws = load_draws(whole)
    assert draws.meta["antithetic"] is True
    assert_same(draws.probabilities, sample(Model(net, weights, antithetic=True), passes=4,
                                                 progress=False).probabilities)  # fmt: skip
    parts = []
    for name, some in (("a", "0-2"), ("b", "3-3")):
        parts.append(tmp_path / f"{name}.npz")
        cli.main(["sample", *common, "--antithetic", "--draws", some, "--out", str(parts[-1])])
    merge(parts, tmp_path / "merged.npz")
    assert_same(load_draws(tmp_path / "merged.npz").probabilities, draws.probabilities)
    cli.main(["sample", *common, "--draws", "3-3", "--out", str(parts[1])])
    with pytest.raises(BayesCaffeError, match="antithetic"):
        merge(parts, tmp_path / "mixed.npz")
    capsys.readouterr()
    assert cli.main(["analyze", str(whole), "--json"]) == 0
    json.loads(capsys.readouterr().out)
