"""The columns of the suite: ways to get class probabilities from trained nets.

A method is one entry of `METHODS`: the family of its nets, and the function that predicts.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import laplace
import numpy as np
import swag
from bayescaffe import Model, calibrate
from bayescaffe.net.calibrated_weights import write_calibrated
from bayescaffe.stats.metrics import nll
from bayescaffe.stats.temperature import NoTemperatureError, tempered
from families import Place, Settings, Training
from tasks import Measured, held_out, to_test
from trained import Trained, is_trained, train


@dataclass(frozen=True)
class Fit:
    """What is fitted on held-out images, without a training."""

    temperature: float = 1
    prior_precision: float = 0
    """Of the last-layer Laplace approximation."""
    draw_temperature: float = 1
    noise: float = 1
    """Those of `bayescaffe calibrate`."""


@dataclass(frozen=True)
class Use:
    """How a trained net predicts."""

    trained: Trained
    draws: int
    fit: Fit

    def model(self, **options: object) -> Model:
        return Model(
            self.trained.net, self.trained.weights, seed=self.trained.training.seed, **options
        )


def by_net(use: Use, images: np.ndarray) -> np.ndarray:
    return use.model().sample(images, 1)[0]


def by_draws(use: Use, images: np.ndarray) -> np.ndarray:
    return use.model().sample(images, use.draws).mean(axis=0)


def by_calibrated(use: Use, images: np.ndarray) -> np.ndarray:
    with TemporaryDirectory() as folder:
        path, model = Path(folder) / "calibrated.caffemodel", use.model()
        write_calibrated(model, path, use.fit.draw_temperature, use.fit.noise)
        return model.with_weights(path).sample(images, use.draws).mean(axis=0)


def best_calibration(use: Use, images: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """What `bayescaffe calibrate` finds with held-out images; nothing if all of them are right."""
    colours = "bgr" if images.shape[1] == 3 else None
    with TemporaryDirectory() as folder, suppress(NoTemperatureError):
        found = calibrate(
            use.model(),
            images,
            use.draws,
            labels=labels,
            channels=colours,
            out=Path(folder) / "calibrated.caffemodel",
            progress=False,
        )
        return {"draw_temperature": found.fit.temperature, "noise": found.noise}
    return {}


def by_dropout(use: Use, images: np.ndarray) -> np.ndarray:
    return use.model(mc_dropout=True).sample(images, use.draws).mean(axis=0)


def by_swag(use: Use, images: np.ndarray) -> np.ndarray:
    trained = use.trained
    return swag.predict(trained.net, trained.folder, images, use.draws, trained.training.seed)


def by_laplace(use: Use, images: np.ndarray) -> np.ndarray:
    model = use.model()
    layer = laplace.of_training(model, use.trained.data)
    found = laplace.features_and_scores(model, images)
    return layer.predict(*found, use.fit.prior_precision, use.trained.training.seed)


def best_prior(use: Use, images: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The prior precision of `by_laplace` with the lowest NLL on held-out images."""
    model = use.model()
    layer = laplace.of_training(model, use.trained.data)
    found = laplace.features_and_scores(model, images)
    best = min(
        laplace.PRECISIONS, key=lambda precision: nll(layer.predict(*found, precision, 1), labels)
    )
    return {"prior_precision": best}


@dataclass(frozen=True)
class Method:
    """One column."""

    title: str
    family: str
    predict: Callable[[Use, np.ndarray], np.ndarray]
    members: int = 1
    """Nets whose predictions are averaged, from as many seeds."""
    is_tempered: bool = False
    """Whether its probabilities are those after temperature scaling."""
    fit: Callable[[Use, np.ndarray, np.ndarray], dict[str, float]] | None = None
    """Finds the fields of `Fit` that it needs before it can predict, from held-out images."""

    def seeds(self, group: int) -> range:
        """The seeds of the group-th result, from 1 on: an ensemble has five of its own."""
        return range((group - 1) * self.members + 1, group * self.members + 1)


METHODS = {
    "stock": Method("stock", "stock", by_net),
    "temperature": Method("stock, temperature", "stock", by_net, is_tempered=True),
    "mc-dropout": Method("MC dropout", "dropout", by_dropout),
    "swag": Method("SWAG", "swag", by_swag),
    "laplace": Method("last-layer Laplace", "stock", by_laplace, fit=best_prior),
    "paper": Method("the paper's net", "paper", by_draws),
    "ours": Method("ours", "bayes", by_draws),
    "calibrated": Method("ours, calibrated", "bayes", by_calibrated, fit=best_calibration),
    "fine-tuned": Method("stock, fine-tuned", "fine-tuned", by_net),
    "prior": Method("ours, from a prior", "prior", by_draws),
    "ensemble": Method("deep ensemble of 5", "stock", by_net, members=5),
    "ours-ensemble": Method("ours, ensemble of 5", "bayes", by_draws, members=5),
}
COMPARED = {
    "ours": ("stock", "temperature", "mc-dropout", "swag", "laplace", "paper"),
    "calibrated": ("stock", "temperature", "laplace"),
    "prior": ("stock", "ours", "fine-tuned"),
    "ours-ensemble": ("ensemble",),
}
"""Ours, and what it is compared with: as many nets each."""


HELD_OUT, TEST = "held-out", "test"
"""The images that hyperparameters are chosen on, and those that methods are compared on."""


def predicted(
    training: Training, method: Method, draws: int, fit: Fit, place: Place, of: str = TEST
) -> Path:
    """The file with what a method predicts by one net; both are made if missing."""
    trained = train(training, place)
    path = prediction_file(training, method, draws, fit, place, of)
    if not path.exists():
        started = time.monotonic()
        if of == HELD_OUT:
            images = held_out(training.task, place.known, training.seed)
        else:
            images = to_test(training.task, training.row, place.known, place.out / "data")
        use = Use(trained, draws, fit)
        found = images.apply(lambda pixels: method.predict(use, pixels).astype(np.float32))
        found.save(path, seconds=time.monotonic() - started, origin=trained.origin)
    return path


def prediction_file(
    training: Training, method: Method, draws: int, fit: Fit, place: Place, of: str = TEST
) -> Path:
    # by_net and by_laplace take no draws from the net.
    parts = [of, method.predict.__name__]
    if method.predict in (by_draws, by_calibrated, by_dropout, by_swag):
        parts.append(f"{draws} draws")
    if fit.prior_precision:
        parts.append(f"prior {fit.prior_precision:.3g}")
    if fit.draw_temperature != 1:
        parts.append(f"temperature {fit.draw_temperature:.3g} noise {fit.noise:g}")
    return training.folder(place) / f"{', '.join(parts)}.npz"


def origin(prediction: Path) -> str:
    """The commit and the machine of the net that predicted."""
    with np.load(prediction) as file:
        return str(file["origin"])


@dataclass(frozen=True)
class Result:
    """What a method predicts with its seeds."""

    found: Measured
    origins: set[str]
    """Of its nets."""


def result(
    row: str, method: Method, settings: Settings, fit: Fit, group: int, draws: int, place: Place
) -> Result | None:
    """What a method predicts with its seeds, from the files that are there; None if one is not."""
    trainings = [Training.of(row, method.family, settings, seed) for seed in method.seeds(group)]
    paths = [prediction_file(training, method, draws, fit, place) for training in trainings]
    if not all(path.exists() for path in paths):
        return None
    if not all(is_trained(training, place) for training in trainings):
        return None
    found = mixture([Measured.read(path) for path in paths])
    if method.is_tempered:
        found = found.apply(lambda given: tempered(given, fit.temperature))
    return Result(found, {origin(path) for path in paths})


def mixture(parts: list[Measured]) -> Measured:
    """The mean of the probabilities that several nets give."""

    def mean(name: str) -> np.ndarray:
        return np.mean([getattr(part, name) for part in parts], axis=0, dtype=np.float64)

    return Measured(mean("test"), parts[0].labels, mean("shifted"), mean("ood"))
