"""The one exception that this package raises on purpose, and what its messages share."""

from collections.abc import Sequence


class BayesCaffeError(Exception):
    """Something the user can put right; the message says what was found and what is expected."""


def times(shape: Sequence[int]) -> str:
    """A shape for people, such as 1x28x28."""
    return "x".join(map(str, shape))
