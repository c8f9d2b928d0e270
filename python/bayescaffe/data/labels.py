"""Labels from names: which number each class has, and what to say of a name that is no class."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument, nearest

log = logging.getLogger(__name__)

SHOWN = 20
MISSPELT = 4
"""Letters; of shorter names, many are one edit apart."""


def sorted_classes(names: Sequence[str]) -> tuple[str, ...]:
    """The different names in the order of their labels: numbers by value, others by name.

    Warns of two that differ by one letter.
    """
    found = sorted(set(names))
    folded: dict[str, str] = {}
    for name in found:
        other = folded.setdefault(name.strip().casefold(), name)
        if other != name:
            raise BayesCaffeError(
                f"the classes {other!r} and {name!r} differ only in case or spaces; give them one "
                "name, or two that differ"
            )
    _warn_of_misspelt(names)
    if all(map(_is_number, found)):
        found.sort(key=int)
    return tuple(found)


def _warn_of_misspelt(names: Sequence[str]) -> None:
    """Warn of two classes that differ by one letter. `names` has that of each image.

    Names with digits are left out, as `cell1` and `cell2` differ on purpose, and so are short ones,
    as `cat` and `rat` do.
    """
    counts = Counter(names)
    words = [
        name
        for name in counts
        if len(name) >= MISSPELT and not any(letter.isdigit() for letter in name)
    ]
    for one, two in combinations(sorted(words), 2):
        if _is_one_edit(one, two):
            log.warning(
                "the classes %r (%d images) and %r (%d) differ by one letter; if one is misspelt, "
                "correct it, or give the right names as %s",
                *(one, counts[one], two, counts[two], argument("class_names")),
            )


def _is_one_edit(one: str, two: str) -> bool:
    """Whether a letter was changed, left out, added, or swapped with the next one."""
    if abs(len(one) - len(two)) > 1:
        return False
    start = len(os.path.commonprefix([one, two]))
    a, b = one[start:], two[start:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or a[1:2] + a[:1] + a[2:] == b


def to_labels(
    names: Sequence[str], class_names: Sequence[str], where: Callable[[int], str]
) -> np.ndarray:
    """The label of each name, which is its place in `class_names`.

    Numbers that are no class names are places themselves. `where` tells for an error where the name
    at an index was found.
    """
    places = {name: label for label, name in enumerate(class_names)}
    if not places.keys() & set(names) and all(map(_is_number, names)):
        places = {name: int(name) for name in set(names) if int(name) < len(class_names)}
    for index, name in enumerate(names):
        if name not in places:
            raise BayesCaffeError(f"{where(index)}: {not_a_class(name, class_names)}")
    return np.array([places[name] for name in names], np.int64)


def not_a_class(name: str, class_names: Sequence[str]) -> str:
    """What to say of a name that is no class."""
    more = f" and {len(class_names) - SHOWN} more" if len(class_names) > SHOWN else ""
    known = f"these are {', '.join(class_names[:SHOWN])}{more}"
    near = nearest(name, class_names)
    hint = f"did you mean {near!r}?" if near else known
    return f"{name!r} is none of the classes; {hint}"


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()
