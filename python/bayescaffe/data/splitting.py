"""Division of an image set into training, validation and test images."""

from collections.abc import Sequence

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument, nearest


def stratified(
    labels: np.ndarray,
    rows: Sequence[int],
    shares: dict[str, float],
    seed: int,
    class_names: Sequence[str],
) -> dict[str, np.ndarray]:
    """Divide `rows` at random, with the same shares of each class.

    Args:
        labels: of all images.
        shares: such as {"val": 0.2, "test": 0}; the rest is "train".

    Returns:
        By name, the sorted rows of each split. Every split has an image of every class.
    """
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise BayesCaffeError(f"{argument(name, share)} is not a share, 0 or more and below 1")
    if sum(shares.values()) >= 1:
        raise BayesCaffeError(
            f"{' + '.join(map(argument, shares))}: no images are left to train on"
        )
    wanted = {name: share for name, share in shares.items() if share}
    # RandomState, because NumPy promises that its numbers never change between versions.
    random = np.random.RandomState(seed)
    rows = np.asarray(rows)
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("train", *wanted)}
    for label in range(len(class_names)):
        members = rows[labels[rows] == label]
        if len(members) <= len(wanted):
            _refuse_small(len(members), label, labels[rows], list(parts), class_names)
        size = len(members)
        members = members[random.permutation(size)]
        for number, (name, share) in enumerate(wanted.items()):
            later = len(wanted) - number
            count = min(max(1, int(share * size + 0.5)), len(members) - later)
            parts[name].append(members[:count])
            members = members[count:]
        parts["train"].append(members)
    return {name: np.sort(np.concatenate(part)) for name, part in parts.items()}


def _refuse_small(
    count: int, label: int, labels: np.ndarray, splits: Sequence[str], class_names: Sequence[str]
) -> None:
    name = class_names[label]
    others = [other for other in class_names if other != name]
    near = nearest(name, others)
    hint = ""
    if near:
        size = int((labels == class_names.index(near)).sum())
        hint = f"; is it misspelt? {near!r} has {size}"
    raise BayesCaffeError(
        f"the class {name!r} has {count} images, but needs one for each of {', '.join(splits)}"
        f"{hint}"
    )
