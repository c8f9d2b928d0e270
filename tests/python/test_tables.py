"""Results as others' tables: pandas, xarray, ArviZ."""

import csv
import sys

import numpy as np
import pytest
from bayescaffe import BayesCaffeError, Draws, analyze

RANDOM = np.random.default_rng(3)
META = {
    "seed": 4,
    "is_random": True,
    "names": [f"{number}.png" for number in range(20)],
    "class_names": ["cat", "dog", "cow"],
}
DRAWS = Draws(
    RANDOM.dirichlet(np.ones(3), (50, 20)).astype(np.float32), RANDOM.integers(0, 3, 20), META
)
PLAIN = Draws(DRAWS.probabilities)


@pytest.mark.parametrize("draws", [DRAWS, PLAIN], ids=["labels", "plain"])
def test_a_data_frame_is_the_csv_file(draws, tmp_path):
    pandas = pytest.importorskip("pandas")
    analysis = analyze(draws)
    table = analysis.to_dataframe()
    analysis.write_csv(tmp_path / "images.csv")
    read = pandas.read_csv(tmp_path / "images.csv", index_col="image")
    for name in ("correct", "certain"):
        if name in read:
            assert table[name].dtype == bool
            read[name] = read[name].astype(bool)
    pandas.testing.assert_frame_equal(table, read, check_dtype=False, rtol=1e-8)
    assert table.confidence.dtype == analysis.confidence.dtype
    if draws is DRAWS:
        assert table.label.tolist() == [META["class_names"][label] for label in DRAWS.labels]
        assert table.correct.mean() == 1 - analysis.metrics["error"]
        with (tmp_path / "images.csv").open() as file:
            first = next(csv.DictReader(file))
        assert first["certain"] in ("0", "1") and first["name"] == "0.png"


def test_draws_as_an_array_of_xarray():
    pytest.importorskip("xarray")
    array = DRAWS.to_xarray()
    assert array.dims == ("draw", "image", "class") and array.name == "probability"
    assert np.shares_memory(array.to_numpy(), DRAWS.probabilities)
    one = array.sel({"image": "7.png", "class": "dog"})
    assert np.array_equal(one, DRAWS.probabilities[:, 7, 1])
    assert np.array_equal(array.label, DRAWS.labels)
    assert array.attrs == {"seed": 4, "is_random": 1}
    assert "model" not in array.coords
    two = {**META, "models": [{}, {}], "model_of_draw": [0, 1] * 25}
    array = Draws(DRAWS.probabilities, DRAWS.labels, two).to_xarray()
    assert np.array_equal(array[array.model == 1], DRAWS.probabilities[1::2])
    plain = PLAIN.to_xarray()
    assert plain.sel(image=3, draw=2).to_numpy().shape == (3,) and "label" not in plain.coords


def test_draws_as_inference_data(tmp_path):
    arviz = pytest.importorskip("arviz")
    data = DRAWS.to_inference_data()
    assert data.posterior.probability.dims == ("chain", "draw", "image", "class")
    assert np.array_equal(data.posterior.probability[0], DRAWS.probabilities)
    assert np.array_equal(data.observed_data.label, DRAWS.labels)
    summary = arviz.summary(data, var_names=["probability"], kind="stats", round_to="none")
    means = DRAWS.probabilities.mean(axis=0)
    assert summary["mean"]["probability[7.png, dog]"] == pytest.approx(means[7, 1], abs=1e-6)
    data.to_netcdf(tmp_path / "draws.nc")
    again = arviz.from_netcdf(tmp_path / "draws.nc")
    assert np.array_equal(again.posterior.probability[0], DRAWS.probabilities)
    assert list(PLAIN.to_inference_data().groups()) == ["posterior"]


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("pandas", lambda: analyze(DRAWS).to_dataframe()),
        ("xarray", DRAWS.to_xarray),
        ("arviz", DRAWS.to_inference_data),
    ],
)
def test_a_missing_package_is_named(monkeypatch, package, call):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BayesCaffeError, match=f"`pip install {package}` installs it"):
        call()
