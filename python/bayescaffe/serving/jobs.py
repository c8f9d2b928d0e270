"""What a request asks for, from its options and its body."""

import base64
import binascii
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bayescaffe.common.reading import parse_json
from bayescaffe.infer.prediction import Rule


class RequestError(Exception):
    """What is wrong with a request, for who sent it."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


@dataclass(frozen=True)
class Job:
    """Images of one request, and what to tell of them."""

    draws: int
    level: float
    rule: Rule
    invert: bool = False
    channels: str | None = None
    include_draws: bool = False
    explain: bool = False
    images: list[bytes | np.ndarray] = field(default_factory=list)
    """The contents of image files, or arrays of one image each."""
    names: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple:
        """Jobs of the same key can be computed together."""
        return self.draws, self.level, self.rule


def _bool(value: object) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    if str(value).lower() not in known:
        raise ValueError("true or false")
    return known[str(value).lower()]


def _number(value: object, low: float, high: float, what: str) -> float:
    number = float(value) if isinstance(value, (str, int, float)) else math.nan
    if isinstance(value, bool) or not low <= number <= high:
        raise ValueError(what)
    return number


def _level(value: object) -> float:
    return _number(value, math.ulp(0), 1 - 2**-53, "a number between 0 and 1")


def _share(value: object) -> float:
    return _number(value, 0, 1, "a number from 0 to 1")


def _order(value: object) -> str:
    if value not in ("rgb", "bgr"):
        raise ValueError("rgb or bgr")
    return value


OPTIONS: dict[str, Callable[[object], Any]] = {
    "level": _level,
    "accept_above": _share,
    "escalate_below": _share,
    "invert": _bool,
    "channels": _order,
    "include_draws": _bool,
    "explain": _bool,
}
"""Those that a request may have beside `draws`."""


def read_options(given: Mapping[str, Any], default: Job, max_passes: int) -> Job:
    """A job without images: the options of a request, over those of the service."""
    found = {}

    def draws(value: object) -> int:
        number = _number(value, 1, max_passes, what := f"a whole number from 1 to {max_passes}")
        if number != int(number):
            raise ValueError(what)
        return int(number)

    known = {"draws": draws, **OPTIONS}
    for name, value in given.items():
        if name not in known:
            raise RequestError(400, f"{name!r}: no such option; there are {', '.join(known)}")
        try:
            found[name] = known[name](value)
        except ValueError as error:
            # `float` has words of its own for what is no number.
            what = str(error) if "convert" not in str(error) else "a number"
            raise RequestError(400, f"{name}: {str(value)[:40]!r} is not {what}") from None
    rule = Rule(
        found.pop("accept_above", default.rule.accept_above),
        found.pop("escalate_below", default.rule.escalate_below),
    )
    values = {name: getattr(default, name) for name in ("draws", "level", "invert")}
    return Job(rule=rule, **{**values, **found})


def images_of_json(body: bytes) -> tuple[list, list[str], dict[str, Any]]:
    """Images, their names, and the options, from a body {"images": [...], "draws": 100, …}."""
    try:
        given = parse_json(body.decode())
    except ValueError as error:
        raise RequestError(400, f"the body is not JSON: {error}") from None
    if not isinstance(given, dict) or ("image" in given) == ("images" in given):
        raise RequestError(400, 'the body is not {"images": [...]} or {"image": ...}')
    items = [given.pop("image")] if "image" in given else given.pop("images")
    if not isinstance(items, list):
        raise RequestError(400, "images: is not a list")
    names = [f"image {number}" for number in range(len(items))]
    return [_image(*both) for both in zip(names, items, strict=True)], names, given


def _image(name: str, item: object) -> bytes | np.ndarray:
    if isinstance(item, str):
        text = item.partition(",")[2] if item.startswith("data:") else item
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise RequestError(422, f"{name}: is not base64") from None
    try:
        array = np.asarray(item, np.float32)
    except (ValueError, TypeError, OverflowError):
        raise RequestError(422, f"{name}: is no array of numbers") from None
    if array.ndim not in (2, 3) or not array.size or not np.isfinite(array).all():
        raise RequestError(
            422,
            f"{name}: is no array of finite numbers, height x width or with channels before or "
            "behind",
        )
    return array
