"""Draws pictures to learn from: a folder with a sub-folder for each class, as a user has it.

Two kinds: shapes (what is it, anywhere, in any colour) and textures (how is it woven).
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

SIDE = 32


def write_pictures(folder: Path, kind: str, count: int, seed: int) -> None:
    """Write `count` PNG files of a kind, the same number of each class."""
    classes = KINDS[kind]
    rng = np.random.default_rng([seed, count])
    for number in range(count):
        name = list(classes)[number % len(classes)]
        path = folder / name / f"{number:05}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        classes[name](rng).save(path)


# ---- Shapes -------------------------------------------------------------------------------------


def _shape(corners: Callable[[], list[tuple[float, float]]]) -> Callable:
    """A function that draws a shape on a noisy ground, with a bar across it."""

    def draw(rng: np.random.Generator) -> Image.Image:
        ground, ink = rng.integers(20, 120, 3), rng.integers(120, 230, 3)
        image = Image.new("RGB", (SIDE, SIDE), tuple(map(int, ground)))
        pen = ImageDraw.Draw(image)
        radius, angle = rng.uniform(8, 13), rng.uniform(-0.4, 0.4)
        x, y = rng.uniform(SIDE / 2 - 3, SIDE / 2 + 3, 2)
        turn = complex(math.cos(angle), math.sin(angle)) * radius
        points = [complex(*corner) * turn for corner in corners()]
        pen.polygon([(x + p.real, y + p.imag) for p in points], fill=tuple(map(int, ink)))
        ends = [tuple(rng.uniform(0, SIDE, 2)) for _ in range(2)]
        pen.line(ends, fill=tuple(map(int, rng.integers(0, 256, 3))), width=2)
        return _noisy(image, 25, rng)

    return draw


def _ring(count: int, inner: float = 1.0) -> list[tuple[float, float]]:
    """The corners of a regular polygon, or with `inner` of a star."""
    return [
        (radius * math.cos(angle), radius * math.sin(angle))
        for k in range(2 * count)
        for radius, angle in [(inner if k % 2 else 1.0, math.pi * k / count)]
        if inner < 1 or k % 2 == 0
    ]


def _cross() -> list[tuple[float, float]]:
    arm = [(1, 0.3), (1, -0.3), (0.3, -0.3)]
    turns = [complex(0, -1) ** k for k in range(4)]
    points = [complex(*corner) * turn for turn in turns for corner in arm]
    return [(p.real, p.imag) for p in points]


# ---- Textures -----------------------------------------------------------------------------------


def _texture(weave: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable:
    """A function that draws a texture of random scale, direction and contrast."""

    def draw(rng: np.random.Generator) -> Image.Image:
        angle, wave = rng.uniform(-0.5, 0.5), rng.uniform(7, 12)
        y, x = np.mgrid[:SIDE, :SIDE] + rng.uniform(0, 99, (2, 1, 1))
        u = 2 * math.pi / wave * (x * math.cos(angle) + y * math.sin(angle))
        v = 2 * math.pi / wave * (y * math.cos(angle) - x * math.sin(angle))
        grey = weave(u, v)[..., np.newaxis]
        low, high = rng.uniform(60, 110, 3), rng.uniform(130, 190, 3)
        pixels = np.clip(low + (high - low) * (grey + 1) / 2, 0, 255).astype(np.uint8)
        return _noisy(Image.fromarray(pixels), 40, rng)

    return draw


def _noisy(image: Image.Image, noise: float, rng: np.random.Generator) -> Image.Image:
    blurred = np.asarray(image.filter(ImageFilter.GaussianBlur(0.6)), np.float64)
    return Image.fromarray(
        np.clip(blurred + rng.normal(0, noise, blurred.shape), 0, 255).astype(np.uint8)
    )


KINDS: dict[str, dict[str, Callable[[np.random.Generator], Image.Image]]] = {
    "shapes": {
        "circle": _shape(lambda: _ring(16)),
        "cross": _shape(_cross),
        "square": _shape(lambda: _ring(4)),
        "star": _shape(lambda: _ring(5, 0.45)),
        "triangle": _shape(lambda: _ring(3)),
    },
    "textures": {
        "checks": _texture(lambda u, v: np.sign(np.sin(u) * np.sin(v))),
        "dots": _texture(lambda u, v: np.where(np.cos(u) + np.cos(v) > 0.9, 1.0, -1.0)),
        "stripes": _texture(lambda u, v: np.sign(np.sin(u))),
        "waves": _texture(lambda u, v: np.sign(np.sin(u + 1.5 * np.sin(v)))),
    },
}
"""By kind and class: a function that draws one picture."""
