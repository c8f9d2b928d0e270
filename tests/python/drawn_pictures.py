"""Pictures of circles, squares and triangles, as a person might have them in a folder.

    drawn_pictures.py FOLDER COUNT [SEED]

writes COUNT of each into sub-folders of FOLDER.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SHAPES = ("circle", "square", "triangle")


def draw_pictures(folder: Path, count: int, names=SHAPES, seed: int = 0) -> None:
    """A sub-folder for each shape with `count` pictures: of many sizes, PNG and JPEG, some grey."""
    random = np.random.default_rng(seed)
    for shape, name in zip(SHAPES, names, strict=True):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            picture = draw(shape, random)
            if number % 5 == 0:
                picture = picture.convert("L")
            picture.save(folder / name / f"{name} {number}.{('png', 'jpg')[number % 2]}")


def draw(shape: str, random: np.random.Generator) -> Image.Image:
    """A bright shape somewhere on a dark and noisy ground."""
    width, height = map(int, random.integers(70, 130, 2))
    ground = random.integers(0, 60, (height, width, 3)) + random.integers(0, 60, 3)
    picture = Image.fromarray(ground.astype(np.uint8))
    colour = tuple(map(int, random.integers(120, 256, 3)))
    radius = random.uniform(4, 20)
    x, y = (random.uniform(28, side - 28) for side in (width, height))
    box = (x - radius, y - radius, x + radius, y + radius)
    pen = ImageDraw.Draw(picture)
    if shape == "circle":
        pen.ellipse(box, fill=colour)
    elif shape == "square":
        pen.rectangle(box, fill=colour)
    else:
        pen.polygon([(x, box[1]), (box[0], box[3]), (box[2], box[3])], fill=colour)
    return picture


if __name__ == "__main__":
    draw_pictures(Path(sys.argv[1]), int(sys.argv[2]), seed=int((*sys.argv, 0)[3]))
