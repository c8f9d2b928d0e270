"""Write mnist_draws.npz: 10 draws of 4,000 digits that LeNet was not trained with.

    make demo && .venv/bin/python tests/python/mnist_draws.py

Probabilities are kept as multiples of 1/65535, so that the file stays small.
"""

from pathlib import Path

import numpy as np
from bayescaffe import Draws, load_draws

FILE = Path(__file__).with_suffix(".npz")
SOURCE = FILE.parents[2] / "models/lenet/bayes-plain/test.draws.npz"
STEPS = 65535


def read() -> Draws:
    """The draws of the file."""
    with np.load(FILE) as file:
        steps, labels = file["steps"], file["labels"]
    return Draws(steps.astype(np.float32) / STEPS, labels.astype(np.int64))


def write() -> None:
    """Make the file of the demo's draws."""
    draws = load_draws(SOURCE)
    steps = np.round(draws.probabilities[:10, :4000] * STEPS).astype(np.uint16)
    np.savez_compressed(FILE, steps=steps, labels=draws.labels[:4000].astype(np.uint8))


if __name__ == "__main__":
    write()
