"""Divide MNIST's test digits in two: a half to calibrate decisions with, and a half that is new.

    .venv/bin/python models/lenet/halves.py

Writes held-out.npz and new.npz into data/mnist.
"""

from pathlib import Path

import numpy as np
from bayescaffe import open_images

DIGITS = Path(__file__).resolve().parents[2] / "data/mnist"


def main() -> None:
    digits = open_images(DIGITS / "test_lmdb")
    images, labels = digits.in_order()(len(digits))
    halves = np.split(np.random.default_rng(1).permutation(len(digits)), 2)
    for name, rows in zip(("held-out.npz", "new.npz"), map(np.sort, halves), strict=True):
        np.savez(DIGITS / name, images=images[rows], labels=labels[rows])


if __name__ == "__main__":
    main()
