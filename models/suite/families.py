"""The nets that the methods need, and how their prototxts are written.

A family is one way to train the net of a row. A new option of the Bayesian layers is one more
entry of `FAMILIES`.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import bayescaffe
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.net.messages import parse_message
from stock_nets import paper_lenet, solver
from swag import SNAPSHOTS
from tasks import TASKS, Task, prepare

POLY = 'lr_policy: "poly" power: 1'
PAPER_SCHEDULE = 'lr_policy: "inv" gamma: 0.0001 power: 0.75'
SWAG_SHARE = 4
"""SWAG spends the last quarter of the iterations at a constant rate."""


@dataclass(frozen=True, order=True)
class Settings:
    """The hyperparameters that are tuned."""

    rate: float = 1
    """Times the base_lr of the row."""
    decay: float = 1
    """Times the weight decay of the row."""
    kl: float = 1
    """Times the kl_weight of `bayescaffe convert`."""
    dropout: float = 0
    """The ratio of a Dropout layer before the last layer; 0 for none."""
    constant_rate: float = 0
    """SWAG's rate while it collects, times the base_lr of the row."""

    def __str__(self) -> str:
        shown = [f"{name}{value:g}" for name, value in asdict(self).items() if value]
        return "-".join(shown)  # no comma: Caffe takes it for the end of a path


@dataclass(frozen=True)
class Place:
    """Where things are."""

    known: Path = Path("data")
    out: Path = Path("results/suite")
    """Nets and predictions."""
    scores: Path = Path("models/suite/scores")


@dataclass(frozen=True)
class Training:
    """One net to be trained."""

    row: str
    family: str
    settings: Settings
    seed: int
    iterations: int

    @classmethod
    def of(
        cls, row: str, family: str, settings: Settings, seed: int, is_trial: bool = False
    ) -> "Training":
        """That of a family, which may share its nets with another. Trials of tuning are shorter in
        some rows."""
        found, task = FAMILIES[family], TASKS[row]
        iterations = task.iterations // (task.trial_share if is_trial and not found.after else 1)
        return cls(row, found.shares or family, settings, seed, iterations)

    @property
    def task(self) -> Task:
        return TASKS[self.row]

    def __str__(self) -> str:
        return f"{self.row} {self.family} {self.settings} seed {self.seed}"

    def folder(self, place: Place) -> Path:
        name = f"{self.family}_{self.settings}"
        return place.out / "nets" / self.row / str(self.iterations) / name / f"seed-{self.seed}"

    def data(self, place: Place) -> Path:
        where = place.known, place.out / "data"
        return prepare(self.task, self.row, *where, self.seed)


@dataclass(frozen=True)
class Written:
    """Prototxts that are ready to be trained."""

    net: Path
    solver: Path
    first: Training | None = None
    """What is trained before, to start from its weights."""
    weights: Path | None = None
    """A snapshot of that, if not its last."""

    @property
    def inputs(self) -> str:
        """Changes with what is trained."""
        texts = [path.read_text() for path in (self.net, self.solver)]
        return hashlib.sha256("".join(texts).encode()).hexdigest()


@dataclass(frozen=True)
class Family:
    """One way to train the net of a row."""

    write: Callable[[Training, Path, Place], Written]
    """Writes the prototxts of a training into a folder."""
    start: Settings
    choices: tuple[tuple[str, tuple[float, ...]], ...]
    """What tuning tries instead, one hyperparameter after the other."""
    after: str = ""
    """The family whose chosen settings this one starts from."""
    shares: str = ""
    """The family whose nets these are, tuned for another use."""

    @property
    def trials(self) -> int:
        return 1 + sum(len(values) for _, values in self.choices) if self.choices else 0


def write_stock(training: Training, folder: Path, place: Place) -> Written:
    """The row's net. It keeps a snapshot that SWAG starts from."""
    task = training.task
    text = with_dropout(task.net(training.data(place)), training.settings.dropout)
    decay = task.decay * training.settings.decay
    written = _write(training, folder, text, training.iterations, decay, POLY)
    with written.solver.open("a") as file:
        print(f"snapshot: {_swag_start(training)}", file=file)
    return written


def write_bayes(training: Training, folder: Path, place: Place, options: str = "") -> Written:
    """The row's net as `bayescaffe convert` makes it Bayesian, with more options of its layers."""
    stock = write_stock(training, folder, place)
    done = bayescaffe.convert(stock.solver, out=folder / "bayes")
    text = done.nets[0].read_text()

    def stronger(found: re.Match) -> str:
        return f"kl_weight: {float(found[1]) * training.settings.kl:.4g} {options}"

    text, count = re.subn(r"\bkl_weight: (\S+)", stronger, text)
    if count != len(done.layers):
        raise BayesCaffeError(
            f"{done.nets[0]}: has {count} kl_weight for {len(done.layers)} layers"
        )
    done.nets[0].write_text(text)
    return Written(done.nets[0], done.solver)


def write_fine_tuned(training: Training, folder: Path, place: Place) -> Written:
    """The row's net, from the weights of another row's."""
    return replace(write_stock(training, folder, place), first=_pretraining(training, "stock"))


def write_prior(training: Training, folder: Path, place: Place) -> Written:
    """The row's net made Bayesian, from the posterior of another row's, which is also its prior."""
    written, first = write_bayes(training, folder, place), _pretraining(training, "bayes")
    file = first.folder(place) / f"bayes/net_iter_{first.iterations}.caffemodel"
    message = parse_message(written.net.read_text(), "NetParameter")
    *others, _ = [layer for layer in message.layer if layer.type.startswith("Bayes")]
    for layer in others:  # the last is new
        layer.bayes_param.prior_from = str(file)
    written.net.write_text(str(message))
    return replace(written, first=first)


def _pretraining(training: Training, family: str) -> Training:
    return Training.of(training.task.pretrained, family, PRETRAINED, seed=1)


def write_paper(training: Training, folder: Path, place: Place) -> Written:
    """The paper's net with dropout, as models/lenet has it, with its schedule."""
    text = paper_lenet(training.data(place), training.task.images)
    return _write(training, folder, text, training.iterations, 0, PAPER_SCHEDULE)


def write_swag(training: Training, folder: Path, place: Place) -> Written:
    """The stock net from three quarters of its training on, at a constant rate."""
    task, settings = training.task, training.settings
    stock = replace(training, family="stock", settings=replace(settings, constant_rate=0))
    text = with_dropout(task.net(training.data(place)), settings.dropout)
    iterations = training.iterations - _swag_start(training)
    decay, rate = task.decay * settings.decay, settings.constant_rate
    written = _write(training, folder, text, iterations, decay, 'lr_policy: "fixed"', rate)
    with written.solver.open("a") as file:
        print(f"snapshot: {max(1, iterations // SNAPSHOTS)}", file=file)
    start = stock.folder(place) / f"net_iter_{_swag_start(training)}.caffemodel"
    return replace(written, first=stock, weights=start)


def _write(
    training: Training,
    folder: Path,
    net: str,
    iterations: int,
    decay: float,
    policy: str,
    rate: float | None = None,
) -> Written:
    written = Written(folder / "net.prototxt", folder / "solver.prototxt")
    written.net.write_text(net)
    base_lr = training.task.base_lr * (training.settings.rate if rate is None else rate)
    text = solver(folder, iterations, base_lr, decay, policy)
    written.solver.write_text(f"{text}random_seed: {training.seed}\n")
    return written


def _swag_start(training: Training) -> int:
    return training.iterations - training.iterations // SWAG_SHARE


def with_dropout(net: str, ratio: float) -> str:
    """A net with Dropout before its last inner product."""
    if not ratio:
        return net
    message = parse_message(net, "NetParameter")
    last = max(n for n, layer in enumerate(message.layer) if layer.type == "InnerProduct")
    blob = message.layer[last].bottom[0]
    layer = type(message.layer[last])(name="dropout", type="Dropout", bottom=[blob], top=[blob])
    layer.dropout_param.dropout_ratio = ratio
    behind = [*message.layer[last:]]
    del message.layer[last:]
    message.layer.extend([layer, *behind])
    return str(message)


PRETRAINED = Settings(dropout=0.5)
"""Of the nets that others start from."""
_RATES = ("rate", (0.5, 2))
_DECAYS = ("decay", (0.25, 4))
FAMILIES = {
    "stock": Family(write_stock, Settings(), (("dropout", (0.5,)), _DECAYS, _RATES)),
    "dropout": Family(
        write_stock,
        Settings(dropout=0.5),
        (("dropout", (0.25,)), _DECAYS, _RATES),
        shares="stock",
    ),
    "swag": Family(
        write_swag,
        Settings(constant_rate=0.1),
        (("constant_rate", (0.02, 0.05, 0.2, 0.5, 1)),),
        after="stock",
    ),
    "paper": Family(write_paper, Settings(), ()),
    "bayes": Family(
        write_bayes,
        Settings(),
        (("dropout", (0.5,)), ("decay", (4,)), ("rate", (2,)), ("kl", (0.5, 2))),
    ),
    "fine-tuned": Family(write_fine_tuned, Settings(), (("decay", (0, 10, 100)), _RATES)),
    "prior": Family(write_prior, Settings(kl=100, decay=0), (("kl", (1, 10, 1000)), _RATES)),
}
"""With the same number of trials for each, but the paper's net, which has its settings."""
