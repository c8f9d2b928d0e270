"""Several models sampled together: whose draws they are, what the file tells, what is refused."""

import json
import re

import numpy as np
import pytest
from conftest import assert_same, input_net, make_net, small_net

pycaffe = pytest.importorskip("caffe", reason="pycaffe is not built")
from bayescaffe import (  # noqa: E402
    BayesCaffeError,
    Mixture,
    Model,
    analyze,
    cli,
    load_draws,
    pack,
    predict,
    sample,
)
from bayescaffe.common.files import sha256  # noqa: E402
from bayescaffe.data.lmdb import LmdbImages  # noqa: E402
from bayescaffe.net import mixture as mixing  # noqa: E402

pytestmark = pytest.mark.engine
BAYES = "kl_weight: 0.01 dataset_size: 330"


def save(folder, text, seed, name=None):
    """The weights that a net starts with."""
    path = folder / f"{name or seed}.caffemodel"
    make_net(folder, text, seed=seed).save(str(path))
    return path


@pytest.fixture
def files(tmp_path, digits):
    """A net, and the caffemodels of three seeds."""
    weights = [save(tmp_path, small_net(digits, BAYES), seed) for seed in (1, 2, 3)]
    return tmp_path / "net.prototxt", weights


@pytest.fixture
def stock(tmp_path, digits):
    folder = tmp_path / "stock"
    folder.mkdir()
    weights = [save(folder, small_net(digits, None), seed) for seed in (1, 2, 3)]
    return folder / "net.prototxt", weights


@pytest.fixture
def images(digits):
    return LmdbImages(digits / "test_lmdb").read(range(100))


def models_of(files, **options):
    net, weights = files
    return [Model(net, one, **options) for one in weights]


def run(capsys, *arguments):
    assert cli.main(["sample", *map(str, arguments)]) == 0
    return capsys.readouterr().out


# ---- The draws


@pytest.mark.parametrize("passes", [3, 8])
def test_draw_k_is_draw_k_of_model_k_mod_m(files, images, passes):
    models = models_of(files, seed=9)
    singles = [sample(model, images, passes).probabilities for model in models]
    found = sample(Mixture(models), images, passes)
    for draw in range(passes):
        assert_same(found.probabilities[draw], singles[draw % 3][draw])
    assert len({draw.tobytes() for draw in found.probabilities}) == passes
    assert found.meta["model_of_draw"] == [draw % 3 for draw in range(passes)]


def test_neither_parts_nor_numbers_of_draws_change_a_draw(files, images, monkeypatch):
    mixture = Mixture(models_of(files))
    whole = mixture.sample(images, 9)
    assert_same(mixture.sample(images, 5), whole[:5])
    assert_same(mixture.sample(images, [7, 2, 2, 0]), whole[[7, 2, 2, 0]])
    asked = []

    def read(first, count):
        asked.append((first, count))
        return images[first : first + count]

    # Three draws of four classes are fewer numbers than an image of 144.
    monkeypatch.setattr(mixing, "PART_BYTES", 45 * 4 * 144)
    out = np.zeros((9, 100, 4), np.float32)
    shares = []
    assert mixture.sample_parts(read, 100, 9, out, shares.append) is out
    assert_same(out, whole)
    assert asked == [(0, 40), (40, 40), (80, 20)]  # each image once, in whole batches of 20
    assert shares == sorted(shares) and shares[0] > 0 and shares[-1] == pytest.approx(1)


def test_mean_is_that_of_the_models(files, images):
    models = models_of(files)
    found = sample(Mixture(models), images, 6).probabilities
    means = [model.sample(images, [k, k + 3]).mean(axis=0) for k, model in enumerate(models)]
    np.testing.assert_allclose(found.mean(axis=0), np.mean(means, axis=0), rtol=1e-5, atol=1e-7)


def test_default_is_as_many_draws_of_each_model(files, images):
    models = models_of(files)
    assert len(sample(Mixture(models), images[:2]).probabilities) == 102
    assert len(sample(Mixture(models[:2]), images[:2]).probabilities) == 100
    assert len(sample(models[0], images[:2]).probabilities) == 100


def test_a_list_of_weights_is_a_mixture(files, images):
    net, weights = files
    expected = sample(Mixture(models_of(files)), images, 4)
    found = sample(net, images, 4, weights=weights)
    assert_same(found.probabilities, expected.probabilities)
    assert found.meta["models"] == expected.meta["models"]


def test_one_model_stays_as_it_was(files, images):
    net, weights = files
    single, listed = (sample(net, images, 3, weights=one) for one in (weights[0], weights[:1]))
    assert np.array_equal(single.probabilities, listed.probabilities)
    assert list(single.meta) == list(listed.meta)
    assert list(single.meta)[:6] == [
        *("seed", "net", "weights", "net_sha256", "weights_sha256", "data"),
    ]
    assert not {"models", "model_of_draw"} & single.meta.keys()
    assert single.models == [
        {
            "net": str(net),
            "weights": str(weights[0]),
            "net_sha256": sha256(net),
            "weights_sha256": sha256(weights[0]),
        }
    ]


def test_predict_takes_a_mixture(files, stock, images):
    for paths, passes in ((files, 60), (stock, None)):
        mixture = Mixture(models_of(paths))
        draws = sample(mixture, images, passes).probabilities
        found = predict(mixture, images, passes)
        means = np.array([one.probabilities for one in found])
        np.testing.assert_allclose(means, draws.mean(axis=0), rtol=1e-5, atol=1e-7)
        assert any(one.upper > one.lower for one in found)
        assert predict(paths[0], images, passes, weights=paths[1]) == found


# ---- Ensembles of stock nets


def test_stock_nets_have_one_draw_each(stock, images, caplog):
    caplog.set_level("INFO", "bayescaffe")
    models = models_of(stock)
    draws = sample(Mixture(models), images)
    assert caplog.text == ""
    expected = np.concatenate([model.sample(images, 1) for model in models])
    assert_same(draws.probabilities, expected)
    assert len({draw.tobytes() for draw in expected}) == 3
    found = analyze(draws)
    np.testing.assert_allclose(found.mean, expected.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(found.between_models, found.epistemic, atol=1e-9)
    assert found.epistemic.max() > 0.001
    assert not any("same" in warning for warning in found.warnings)


def test_more_draws_of_stock_nets_repeat_and_it_says_so(stock, images, caplog):
    caplog.set_level("INFO", "bayescaffe")
    found = sample(Mixture(models_of(stock)), images, 6).probabilities
    assert np.array_equal(found[:3], found[3:])
    assert "no layer is random, so draws repeat and 3 are enough" in caplog.text
    sample(Mixture(models_of(stock)), images, 4)
    assert "4 draws of 3 models: some have more than others" in caplog.text


def test_mc_dropout_gives_stock_nets_noise(tmp_path, digits, images):
    dropout = 'layer { name: "drop" type: "Dropout" bottom: "hidden" top: "hidden" }'
    weights = [save(tmp_path, small_net(digits, None, dropout), seed) for seed in (1, 2)]
    files = tmp_path / "net.prototxt", weights
    assert sample(Mixture(models_of(files)), images).probabilities.shape[0] == 2
    draws = sample(Mixture(models_of(files, mc_dropout=True)), images)
    assert len({draw.tobytes() for draw in draws.probabilities}) == 100
    assert draws.meta["mc_dropout"] is True


# ---- The command and its file


def test_the_file_tells_all_models(files, images, tmp_path, capsys, monkeypatch):
    net, weights = files
    monkeypatch.chdir(tmp_path)
    text = run(capsys, net, *weights, "--passes", 6, "--seed", 4)
    assert text.startswith("mixture.draws.npz: 6 draws from 3 models of 100 images, 4 classes\n")
    draws = load_draws("mixture.draws.npz")
    expected = Mixture(models_of(files, seed=4)).sample(images, 6)
    assert_same(draws.probabilities, expected)
    assert draws.meta["models"] == [
        {
            "net": str(net),
            "weights": str(one),
            "net_sha256": sha256(net),
            "weights_sha256": sha256(one),
            "is_random": True,
            "untrained": False,
        }
        for one in weights
    ]
    assert draws.meta["model_of_draw"] == [0, 1, 2, 0, 1, 2]
    assert (draws.meta["seed"], draws.meta["passes"]) == (4, 6)
    assert not {"net", "weights", "net_sha256", "weights_sha256"} & draws.meta.keys()
    assert f"models: {', '.join(map(str, weights))}" in repr(draws)
    result = json.loads(run(capsys, net, *weights, "--json", "--quiet"))
    assert (result["draws"], result["models"]) == (102, 3)


def test_caffemodels_that_carry_their_net_need_no_prototxt(files, tmp_path, capsys):
    net, weights = files
    expected = Mixture(models_of(files))
    for one in weights:
        pack(Model(net, one))
    run(capsys, *weights, "--passes", 6, "--out", tmp_path / "x.npz")
    draws = load_draws(tmp_path / "x.npz")
    assert_same(draws.probabilities, sample(expected, passes=6).probabilities)
    assert [model["net"] for model in draws.models] == list(map(str, weights))


def test_a_solver_may_stand_for_the_net(files, tmp_path, capsys):
    net, weights = files
    solver = tmp_path / "solver.prototxt"
    solver.write_text(f'net: "{net}" snapshot_prefix: "{tmp_path}/none" max_iter: 1')
    run(capsys, solver, *weights[:2], "--passes", 2, "--out", tmp_path / "x.npz")
    expected = sample(net, passes=2, weights=weights[:2]).probabilities
    assert_same(load_draws(tmp_path / "x.npz").probabilities, expected)
    assert cli.main(["sample", str(solver)]) == 1
    assert "there is no good snapshot" in capsys.readouterr().err


def test_options_may_stand_between_weights(files, tmp_path, capsys):
    net, weights = files
    text = run(capsys, net, weights[0], "--passes", 2, weights[1], "--out", tmp_path / "x.npz")
    assert "2 draws from 2 models" in text


def test_analyze_tells_what_is_between_the_models(files, tmp_path, capsys):
    net, weights = files
    out = tmp_path / "x.npz"
    run(capsys, net, *weights, "--out", out)
    found = analyze(out)
    assert 0 < found.between_models.mean() < found.epistemic.mean()
    assert (found.between_models <= found.epistemic + 1e-9).all()
    assert cli.main(["analyze", str(out)]) == 0
    line = re.search(r"^  between +(\S+) ", capsys.readouterr().out, flags=re.M)
    assert float(line[1]) == pytest.approx(found.between_models.mean(), abs=1e-4)
    assert found.summary()["between_models"] == found.between_models.mean()
    found.write_csv(tmp_path / "x.csv")
    columns = np.genfromtxt(tmp_path / "x.csv", delimiter=",", names=True)
    np.testing.assert_allclose(columns["between_models"], found.between_models, rtol=1e-8)
    run(capsys, net, weights[0], "--out", out)
    assert analyze(out).between_models is None
    assert cli.main(["analyze", str(out)]) == 0
    assert "between" not in capsys.readouterr().out.split("How uncertain")[1]


def test_report_shows_the_layers_of_each_model(files, tmp_path, capsys, caplog, monkeypatch):
    caplog.set_level("INFO", "bayescaffe")
    net, weights = files
    monkeypatch.chdir(tmp_path)
    run(capsys, net, *weights[:2], "--passes", 42, "--out", "x.npz")
    assert cli.main(["report", "x.npz"]) == 0
    page = (tmp_path / "report.html").read_text()
    for text in ("hidden, model 1", "hidden, model 2", "between models", f"{weights[1]} (SHA-256 "):
        assert text in page
    assert "42 networks drawn from the posteriors of 2 trainings" in page
    both = ["--net", str(net), "--weights", str(weights[0])]
    assert cli.main(["report", "x.npz", *both]) == 0
    assert "hidden, model" not in (tmp_path / "report.html").read_text()
    capsys.readouterr()
    assert cli.main(["report", "x.npz", *both[2:]]) == 1
    assert "of several models; give both --net and --weights" in capsys.readouterr().err
    # A file that has changed since is not read.
    weights[1].write_bytes(weights[0].read_bytes())
    assert cli.main(["report", "x.npz"]) == 0
    assert f"no layers: {weights[1]} has changed since it was sampled" in caplog.text
    assert "hidden, model" not in (tmp_path / "report.html").read_text()


def test_report_on_an_ensemble_of_stock_nets(stock, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(capsys, stock[0], *stock[1], "--out", "x.npz")
    assert cli.main(["report", "x.npz"]) == 0
    assert "classified by 3 trained networks together" in (tmp_path / "report.html").read_text()


def test_out_of_distribution_draws_are_of_the_same_models(files, images):
    net, weights = files
    two, same, other = (
        sample(net, images, 4, weights=chosen)
        for chosen in (weights[:2], weights[:2], weights[::2])
    )
    assert not any("different weights" in text for text in analyze(two, ood=same).warnings)
    assert any("different weights" in text for text in analyze(two, ood=other).warnings)


def test_untrained_models_are_named(files, stock, tmp_path, capsys):
    net, weights = files
    assert cli.main(["sample", str(net), str(weights[0]), str(stock[1][1])]) == 1
    assert f"{stock[1][1]}: is no posterior" in capsys.readouterr().err
    run(capsys, net, weights[0], stock[1][1], "--untrained", "--out", tmp_path / "x.npz")
    assert cli.main(["report", str(tmp_path / "x.npz"), "--out", str(tmp_path / "r.html")]) == 1
    assert f"no posterior: {stock[1][1]} has stock weights" in capsys.readouterr().err


# ---- What is refused


def test_models_that_do_not_fit_together_are_named(files, tmp_path, digits):
    net, weights = files
    first = Model(net, weights[0])
    folder = tmp_path / "other"
    folder.mkdir()

    def other(text, **options):
        return Model(folder / "net.prototxt", save(folder, text, 1), **options)

    large = input_net(small_net(digits, BAYES), 5).replace("dim: 12 dim: 12", "dim: 16 dim: 16")
    five = small_net(digits, BAYES).replace("num_output: 4 weight", "num_output: 5 weight")
    path = folder / "1.caffemodel"
    for make, message in (
        (lambda: Model(net, weights[0]), f"{weights[0]}: is given twice"),
        (
            lambda: Model(net, weights[1], seed=2),
            f"{weights[1]}: does not fit {weights[0]}: it has seed 2",
        ),
        (lambda: other(five), f"{path}: does not fit {weights[0]}: it has 5 classes, not 4"),
        (
            lambda: other(large),
            f"{path}: does not fit {weights[0]}: it takes images of 1x16x16, not",
        ),
    ):
        with pytest.raises(BayesCaffeError, match=re.escape(message)):
            Mixture([first, make()])
    for count, models in enumerate(([], [first])):
        with pytest.raises(BayesCaffeError, match=f"needs two models or more, not {count}"):
            Mixture(models)


def test_classes_of_other_names_are_refused(files):
    net, weights = files
    for one, names in zip(weights, ("abcd", "abcd", "abdc"), strict=True):
        pack(Model(net, one), class_names=list(names))
    models = [Model(one) for one in weights]
    assert Mixture(models[:2]).names_for(None) == tuple("abcd")
    with pytest.raises(BayesCaffeError, match=f"{weights[2]}: .* its classes are a, b, d, c, not"):
        Mixture(models)


def test_weights_of_another_net_are_named(files, tmp_path, digits, capsys):
    net, weights = files
    (tmp_path / "other").mkdir()
    text = small_net(digits, BAYES).replace("num_output: 16", "num_output: 17")
    other = save(tmp_path / "other", text, 1)
    missing = tmp_path / "none.caffemodel"
    for bad in (other, missing):
        assert cli.main(["sample", str(net), str(weights[0]), str(bad)]) == 1
        assert str(bad) in capsys.readouterr().err
    # The first carries its net, the second does not.
    pack(Model(net, weights[0]))
    assert cli.main(["sample", str(weights[0]), str(weights[1])]) == 1
    assert f"{weights[1]}: does not carry its net" in capsys.readouterr().err


def test_each_model_needs_a_draw(files, capsys):
    net, weights = files
    with pytest.raises(BayesCaffeError, match="passes=2: 3 models need 3 draws or more"):
        sample(net, passes=2, weights=weights)
    assert cli.main(["sample", str(net), *map(str, weights), "--passes", "2"]) == 1
    assert "--passes 2: 3 models need 3 draws or more" in capsys.readouterr().err
    with pytest.raises(BayesCaffeError, match="weights: at least one caffemodel is needed"):
        sample(net, passes=2, weights=[])
    with pytest.raises(BayesCaffeError, match="weights: the models have their weights already"):
        sample(Mixture(models_of(files)), weights=weights)


def test_what_is_no_number_names_image_and_model(files, tmp_path, digits, images, monkeypatch):
    net, weights = files
    monkeypatch.setattr(mixing, "PART_BYTES", 40 * 4 * 144)
    pixels = images.astype(np.float32)
    pixels[57, 0, 0, 0] = np.inf
    with pytest.raises(BayesCaffeError, match="array: image 57: has pixels that are no numbers"):
        sample(net, pixels, 3, weights=weights)
    large = make_net(tmp_path, small_net(digits, BAYES))
    for name in ("conv", "hidden", "out"):
        large.params[name][0].data[...] = 1e30
    large.save(str(weights[1]))
    with pytest.raises(BayesCaffeError, match=f"gives a .* in draw 1 of {weights[1]}, from layer"):
        sample(net, images, 3, weights=weights)
