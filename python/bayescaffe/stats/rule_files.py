"""Files of rules that promise something: JSON with a sha256, so that a change is noticed."""

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import scratch_file
from bayescaffe.common.reading import parse_json, read_text

Check = tuple[Callable[[object], bool], str]
"""Whether a value is valid, and what is expected, for messages."""


@dataclass(frozen=True)
class RuleFile:
    """One kind of file."""

    key: str
    """Its member in the JSON object."""
    name: str
    """What messages call it."""
    command: str
    """What writes it."""
    expected: Mapping[str, Check]
    """All fields."""

    def save(self, path: str | os.PathLike, said: dict) -> None:
        """Write the file."""
        text = json.dumps({self.key: said, "sha256": digest(said)}, indent=2)
        with scratch_file(Path(path)) as scratch:
            scratch.write_text(text + "\n")

    def load(self, path: str | os.PathLike) -> dict:
        """The fields of a file of `save`, lists as tuples. A file that was changed is an error."""
        try:
            said = parse_json(read_text(path))
        except ValueError as error:
            raise BayesCaffeError(f"{path}: not {self.name}, it is not JSON: {error}") from error
        known = said.get(self.key) if isinstance(said, dict) else None
        if not isinstance(known, dict):
            raise BayesCaffeError(f"{path}: not {self.name}; `{self.command}` writes them")
        if known.keys() != self.expected.keys():
            raise BayesCaffeError(
                f"{path}: not {self.name} of this version: it has the fields "
                f"{', '.join(known)}, expected {', '.join(sorted(self.expected))}"
            )
        if digest(known) != said.get("sha256"):
            raise BayesCaffeError(
                f"{path}: was changed, its numbers do not have its sha256; the bound would not hold"
            )
        for key, (is_valid, expected) in self.expected.items():
            if not is_valid(known[key]):
                raise BayesCaffeError(
                    f"{path}: not {self.name}, {key!r} is {known[key]!r:.100}, expected {expected}"
                )
        return {k: tuple(v) if isinstance(v, list) else v for k, v in known.items()}


def digest(said: dict) -> str:
    """Of what a file tells."""
    return sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def as_json(fields: Mapping[str, object]) -> dict:
    """Fields as JSON has them."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_share(value: object) -> bool:
    return _is_number(value) and 0 <= value <= 1


def one_of(values: tuple[str, ...], what: str) -> Check:
    """A check for one of these texts."""
    return (lambda value: value in values, what)


def or_null(check: Check) -> Check:
    """The same check, which null passes, too."""
    is_valid, expected = check
    return (lambda value: value is None or is_valid(value), f"{expected} or null")


def each(check: Check, expected: str, fewest: int = 1) -> Check:
    """A check for a list whose members pass one."""
    is_valid = check[0]
    return (
        lambda value: (
            isinstance(value, list) and len(value) >= fewest and all(map(is_valid, value))
        ),
        expected,
    )


COUNT: Check = (_is_count, "a whole number")
NUMBER: Check = (_is_number, "a number")
SHARE: Check = (_is_share, "a number from 0 to 1")
TEXT: Check = (lambda value: isinstance(value, str), "a text")
FLAG: Check = (lambda value: isinstance(value, bool), "true or false")
HASHES = each(or_null(TEXT), "texts")
