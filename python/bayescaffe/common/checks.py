"""Checks of arguments that several functions take."""

from collections.abc import Iterable, Sequence

from bayescaffe.common.errors import BayesCaffeError, argument

SEEDS = 2**32
"""Seeds are smaller than this: Caffe keeps 32 bits."""
DEFAULT_PASSES = 100
"""The number of draws if nothing tells it."""


def check_seed(seed: int) -> None:
    """Raise if `seed` is not one."""
    if not 0 <= seed < SEEDS:
        raise BayesCaffeError(f"{argument('seed', seed)} is not within 0..{SEEDS - 1}")


def check_seeds(seeds: Iterable[int]) -> list[int]:
    """These seeds; raise if there are none, or one is none or there twice."""
    found: dict[int, None] = {}
    for seed in seeds:
        if not 0 <= seed < SEEDS:
            raise BayesCaffeError(f"{argument('seeds')}: {seed} is not within 0..{SEEDS - 1}")
        if seed in found:
            raise BayesCaffeError(f"{argument('seeds')}: {seed} is given twice")
        found[seed] = None
    if not found:
        raise BayesCaffeError(f"{argument('seeds')}: at least one seed is needed")
    return list(found)


def check_passes(passes: int) -> None:
    """Raise if the number of draws is not 1 or more."""
    if passes < 1:
        raise BayesCaffeError(f"{argument('passes', passes)}: at least one draw is needed")


def check_bytes(name: str, count: int) -> None:
    """Raise if an argument is not a number of bytes."""
    if count != int(count) or count < 0:
        raise BayesCaffeError(f"{argument(name, count)}: is not a number of bytes, 0 or greater")


def check_class_names(class_names: Sequence[str] | None, classes: int) -> None:
    """Raise if names are given, but not one for each class of the net."""
    if class_names is not None and len(class_names) != classes:
        raise BayesCaffeError(
            f"{argument('class_names')}: {len(class_names)} names for {classes} classes"
        )
