"""Shifts of test images after the manner of MNIST-C, written with NumPy and SciPy.

A shift takes images (float, 0 to 255, images x channels x height x width), a strength from 1 to 5
and a random generator. The same images, shift and strength always give the same result.
"""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

STRENGTHS = (1, 2, 3, 4, 5)
ANGLES = (15, 25, 35, 45, 60)
"""Degrees, by strength."""


@dataclass(frozen=True)
class Shift:
    """One way to change images."""

    apply: Callable[[np.ndarray, int, np.random.Generator], np.ndarray]
    is_for_colour: bool = True

    def fits(self, images: np.ndarray) -> bool:
        return self.is_for_colour or images.shape[1] == 1


def shifted(images: np.ndarray, kind: str, strength: int) -> np.ndarray:
    """Images of bytes, shifted."""
    rng = np.random.default_rng([zlib.crc32(kind.encode()), strength])
    result = SHIFTS[kind].apply(images.astype(np.float64), strength, rng)
    return np.clip(np.rint(result), 0, 255).astype(np.uint8)


def _beyond(images: np.ndarray) -> str:
    """What is beyond the edge: of grey images the black of their ground; photographs go on."""
    return "constant" if images.shape[1] == 1 else "reflect"


def _affine(images: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Each pixel is taken from `matrix` times its place, seen from the centre (rows, columns)."""
    centre = (np.array(images.shape[2:]) - 1) / 2
    mode = _beyond(images)
    result = np.empty_like(images)
    for place in np.ndindex(images.shape[:2]):
        offset = centre - matrix @ centre
        result[place] = ndimage.affine_transform(images[place], matrix, offset, order=1, mode=mode)
    return result


def rotation(images, strength, rng):
    angle = math.radians(ANGLES[strength - 1])
    cosine, sine = math.cos(angle), math.sin(angle)
    return _affine(images, np.array([[cosine, -sine], [sine, cosine]]))


def shear(images, strength, rng):
    return _affine(images, np.array([[1, 0], [0.2 * strength, 1]]))


def scale(images, strength, rng):
    """Smaller, to half of the size."""
    return _affine(images, np.eye(2) * (1 + 0.2 * strength))


def translation(images, strength, rng):
    """To a random side, by up to a quarter of the width."""
    reach = images.shape[3] * strength / 20
    result = np.zeros_like(images)
    for image, moved, angle in zip(
        images, result, rng.uniform(0, 2 * np.pi, len(images)), strict=True
    ):
        way = (0, reach * math.sin(angle), reach * math.cos(angle))
        ndimage.shift(image, way, moved, order=1, mode=_beyond(images))
    return result


def noise(images, strength, rng):
    return images + rng.normal(0, 16 * strength, images.shape)


def salt_and_pepper(images, strength, rng):
    chance = rng.random((len(images), 1, *images.shape[2:]))
    share = 0.04 * strength
    return np.where(chance < share / 2, 0, np.where(chance < share, 255, images))


def blur(images, strength, rng):
    return ndimage.gaussian_filter(images, (0, 0, 0.4 * strength, 0.4 * strength))


def brightness(images, strength, rng):
    return images + 24 * strength


def contrast(images, strength, rng):
    mean = images.mean(axis=(1, 2, 3), keepdims=True)
    return mean + (images - mean) * (1 - 0.17 * strength)


def stripe(images, strength, rng):
    """A band of each image is inverted."""
    width = max(1, round(images.shape[3] * strength / 20))
    start = rng.integers(0, images.shape[3] - width + 1, (len(images), 1))
    columns = np.arange(images.shape[3])
    inside = (columns >= start) & (columns < start + width)
    return np.where(inside[:, np.newaxis, np.newaxis], 255 - images, images)


def dotted_line(images, strength, rng):
    """As many lines of dots across each image as the strength says."""
    for _ in range(strength):
        ends = rng.uniform(0, images.shape[2], (2, len(images), 1))
        way = np.linspace(0, 1, images.shape[3])
        images = _with_line(images, ends[0] + (ends[1] - ends[0]) * way, dash=2)
    return images


def zigzag(images, strength, rng):
    """As many zigzag lines across each image as the strength says."""
    for _ in range(strength):
        phase, height = rng.uniform(0, 1, (2, len(images), 1))
        wave = np.arange(images.shape[3]) / 7 + phase
        triangle = 2 * np.abs(wave - np.floor(wave) - 0.5)
        rows = height * images.shape[2] + 4 * (triangle - 0.5)
        images = _with_line(images, rows)
    return images


def _with_line(images: np.ndarray, rows: np.ndarray, dash: int = 0) -> np.ndarray:
    """A white line through the given row of each column (images x columns)."""
    distance = np.abs(np.arange(images.shape[2])[:, np.newaxis] - rows[:, np.newaxis])
    inside = distance < 0.8
    if dash:
        inside &= np.arange(images.shape[3]) // dash % 2 == 0
    return np.where(inside[:, np.newaxis], 255, images)


SHIFTS = {
    "rotation": Shift(rotation),
    "shear": Shift(shear),
    "scale": Shift(scale),
    "translation": Shift(translation),
    "noise": Shift(noise),
    "salt and pepper": Shift(salt_and_pepper),
    "blur": Shift(blur),
    "brightness": Shift(brightness),
    "contrast": Shift(contrast),
    "stripe": Shift(stripe),
    "dotted line": Shift(dotted_line, is_for_colour=False),
    "zigzag": Shift(zigzag, is_for_colour=False),
}
