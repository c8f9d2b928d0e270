"""The one exception that this package raises on purpose, and what its messages share."""

import contextlib
import difflib
from collections.abc import Iterator, Mapping, Sequence

from bayescaffe.common.printing import printable

_options: Mapping[str, str] = {}


class BayesCaffeError(Exception):
    """Something the user can put right; the message says what was found and what is expected.

    It may quote a file, so what a terminal would obey is escaped in it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def argument(name: str, value: object = None) -> str:
    """An argument of a function as the user writes it, for messages.

    In Python that is `name` or `name=value`; on the command line, the option `--name` or
    `--name value`. No value is shown for True on the command line, as such options have none.
    """
    option = _options.get(name)
    if option is None:
        return name if value is None else f"{name}={value!r}"
    return option if value is None or value is True else f"{option} {value}"


def known_options() -> Mapping[str, str]:
    """The options that messages name now, by the names of the arguments."""
    return _options


@contextlib.contextmanager
def arguments_are_options(options: Mapping[str, str]) -> Iterator[None]:
    """Let messages name the options of a command, given by the names of the arguments."""
    global _options
    before, _options = _options, options
    try:
        yield
    finally:
        _options = before


def times(shape: Sequence[int]) -> str:
    """A shape for people, such as 1x28x28."""
    return "x".join(map(str, shape))


def span(indices: range) -> str:
    """A range for people, as options take it: 0-99."""
    return f"{indices.start}-{indices.stop - 1}"


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name that is most like a name, whatever its case; None if none is."""
    folded = {other.casefold(): other for other in known}
    found = difflib.get_close_matches(name.casefold(), folded, 1, cutoff=0.7)
    return folded[found[0]] if found else None
