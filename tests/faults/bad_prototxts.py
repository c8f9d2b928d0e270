"""Nets and solvers with numbers that make no sense. Each is refused, and the error names the field.

Each case of tests/python/bad_numbers.py goes through `caffe train`, `bayescaffe train` and
`bayescaffe check`.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

from bad_numbers import (
    BAYES_PARAMS,
    CONVOLUTION_KINDS,
    CONVOLUTIONS,
    LAYERS,
    SHARE,
    SIZES,
    SOLVERS,
    STEPS,
    one_layer,
)
from bayescaffe.common.errors import BayesCaffeError
from child import attempt, run_whole_command
from conftest import small_net, write_solver
from trial import CAFFE, Found, Outcome, run
from world import World

SAMPLE = 12
ALL = ("caffe train", "bayescaffe train", "bayescaffe check")
TRAIN = ALL[:2]


@dataclass(frozen=True)
class Bad:
    """A net and its solver, and what must be said of them."""

    name: str
    says: str
    net: str
    solver: dict[str, object] = field(default_factory=dict)
    commands: tuple[str, ...] = ALL
    """`bayescaffe check` does not train."""


def cases(data: Path) -> Iterator[Bad]:
    """All of them, with the images of a folder."""
    for kind in CONVOLUTION_KINDS:
        for parameters, says in CONVOLUTIONS:
            fields = f"convolution_param {{ num_output: 4 kernel_size: 3 {parameters} }}"
            yield Bad(f"{kind}, {parameters}", f"convolution_param.{says}", one_layer(kind, fields))
    for kind, parameters, says in (*LAYERS, *SIZES):
        yield Bad(f"{kind}, {parameters}", says, one_layer(kind, parameters))
    for parameters, says in BAYES_PARAMS:
        fields = f"inner_product_param {{ num_output: 3 }} bayes_param {{ {parameters} }}"
        net = one_layer("BayesInnerProduct", fields)
        yield Bad(f"bayes_param, {parameters}", f"layer 'x': bayes_param.{says}", net)
    good = small_net(data, None)
    for name, value, says in (*SOLVERS, ("max_iter", "-1", "but must be 0 to 2147483647")):
        says = f"solver: {name} is {value}, {says}"
        yield Bad(f"{name}: {value}", says, good, {name: value})
    for policy, says in STEPS:
        yield Bad(f"lr_policy: {policy}", says, good, {"lr_policy": policy})
    yield Bad(
        "Adam's momentum2",
        f"solver: momentum2 is 1, {SHARE}",
        good,
        {"type": '"Adam"', "momentum2": 1},
    )
    yield Bad(
        "batch of 0",
        "layer 'data': data_param.batch_size is 0, but must be 1",
        good.replace("batch_size: 20", "batch_size: 0"),
    )
    yield Bad(
        "two layers of one name",
        "layer 'hidden': another layer of the same net has this name",
        good.replace('name: "out"', 'name: "hidden"'),
        commands=TRAIN,
    )
    yield Bad(
        "no loss",
        "has no loss in the TRAIN phase",
        good[: good.index('layer { name: "loss"')],
        commands=TRAIN,
    )
    yield Bad("diverges", "diverge", good, {"base_lr": 1e30}, TRAIN)
    large = 'weight_filler { type: "xavier" }'
    yield Bad(
        "KL overflows",
        "layer 'conv': its KL overflows",
        small_net(data, "kl_weight: 1 dataset_size: 330").replace(
            large, "weight_filler { value: 1e30 }"
        ),
        commands=TRAIN,
    )


def try_case(bad: Bad) -> Found:
    """Let each command refuse a case."""
    found = Found()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        options = {"max_iter": 2, **bad.solver}
        solver = write_solver(folder, bad.net, options.pop("max_iter"), **options)
        for command in bad.commands:
            outcome, text = COMMANDS[command](solver)
            if outcome is Outcome.ACCEPTED:
                outcome = Outcome.WRONG
            elif outcome is Outcome.CLEAN_ERROR and bad.says not in text:
                outcome, text = Outcome.CRASH, f"does not say {bad.says!r}: {text}"
            found.add(f"{command}: {bad.name}", outcome, text)
    return found


def caffe_train(solver: Path) -> tuple[Outcome, str]:
    done = run((CAFFE, "train", "-solver", solver), solver.parent)
    return done.outcome, done.text


def bayescaffe(command: str, solver: Path) -> tuple[Outcome, str]:
    said = solver.with_name("said.txt")

    def call() -> None:
        code, text = run_whole_command(command, solver)
        said.write_text(text)
        if code:
            raise BayesCaffeError(text)

    told = attempt(call)
    return told.outcome, told.text or said.read_text()


COMMANDS: dict[str, Callable[[Path], tuple[Outcome, str]]] = {
    "caffe train": caffe_train,
    "bayescaffe train": partial(bayescaffe, "train"),
    "bayescaffe check": partial(bayescaffe, "check"),
}


def jobs(world: World, seed: str, full: bool) -> Iterator[Callable[[], Found]]:
    """One for each case."""
    found = list(cases(world.folder))
    for bad in found if full else Random(f"{seed} prototxts").sample(found, SAMPLE):
        yield partial(try_case, bad)
