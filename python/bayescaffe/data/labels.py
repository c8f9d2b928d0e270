"""Labels from names: which number each class has, and what to say of a name that is no class."""

import difflib
from collections.abc import Callable, Sequence

import numpy as np

from bayescaffe.common.errors import BayesCaffeError

SHOWN = 20


def sorted_classes(names: Sequence[str]) -> tuple[str, ...]:
    """The different names in the order of their labels: numbers by value, others by name."""
    found = sorted(set(names))
    folded: dict[str, str] = {}
    for name in found:
        other = folded.setdefault(name.strip().casefold(), name)
        if other != name:
            raise BayesCaffeError(
                f"the classes {other!r} and {name!r} differ only in case or spaces; give them one "
                "name, or two that differ"
            )
    if all(map(_is_number, found)):
        found.sort(key=int)
    return tuple(found)


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


def near(name: str, class_names: Sequence[str]) -> str | None:
    """The class name that is most like a name, None if none is."""
    folded = {other.casefold(): other for other in class_names}
    found = difflib.get_close_matches(name.casefold(), folded, 1, cutoff=0.7)
    return folded[found[0]] if found else None


def not_a_class(name: str, class_names: Sequence[str]) -> str:
    """What to say of a name that is no class."""
    more = f" and {len(class_names) - SHOWN} more" if len(class_names) > SHOWN else ""
    known = f"these are {', '.join(class_names[:SHOWN])}{more}"
    nearest = near(name, class_names)
    hint = f"did you mean {nearest!r}?" if nearest else known
    return f"{name!r} is none of the classes; {hint}"


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()
