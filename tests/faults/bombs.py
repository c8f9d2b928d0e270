"""Small files that hold gigabytes, and files that hold as much as the limits allow.

The first are refused, the second are read. Both take at most twice the memory of the limit.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import bayescaffe
import caffe
import lmdb
from bayescaffe.data.idx import load_set
from bayescaffe.stats.draws import load_draws
from caffe.proto import caffe_pb2
from child import attempt, run_command
from hostile_files import draws_bomb, idx_bomb, png
from PIL import Image
from trial import Found, Outcome
from world import World

SAMPLE = 4
# Each takes a pixel for 4 bytes, as libraries do.
PIXELS, UNPACKED = 4 * 100_000_000, 2**30
"""Bytes: the limits by default."""
NOISE = 2**25
"""Bytes that reading a small file takes, with all that is loaded for it."""


@dataclass(frozen=True)
class Bomb:
    """A file, and what reads it."""

    make: Callable[[Path], object]
    """Writes it into a folder."""
    read: Callable[[Path], object]
    limit: int
    """Bytes."""
    says: str = ""
    """How it is refused; nothing if it is allowed."""
    environment: dict[str, str] = field(default_factory=dict)


def make_pictures(folder: Path) -> None:
    """A picture of 0.6 MB with 600 million pixels, alone, among others and in an LMDB."""
    content = png(20_000, 30_000)
    (folder / "bomb.png").write_bytes(content)
    for name in ("a", "b"):
        (folder / "pictures" / name).mkdir(parents=True)
        for number in range(3):
            (folder / f"pictures/{name}/{number}.png").write_bytes(png(4, 4))
    (folder / "pictures/b/bomb.png").write_bytes(content)
    (folder / "list.txt").write_text(f"{folder}/bomb.png 0\n")
    with lmdb.open(str(folder / "lmdb"), map_size=2**24) as file, file.begin(write=True) as change:
        change.put(b"0", caffe_pb2.Datum(encoded=True, data=content).SerializeToString())


def read_pictures(name: str, folder: Path) -> None:
    images = bayescaffe.open_images(folder / name)
    images.fit((3, 20, 20))
    images.read([0])


def read_layer(kind: str, field: str, folder: Path) -> None:
    (folder / "net.prototxt").write_text(
        f"""layer {{ name: "d" type: "{kind}" top: "d" top: "l"
                     {field.replace("FOLDER", str(folder))} }}"""
    )
    caffe.Net(str(folder / "net.prototxt"), caffe.TEST).forward()


def command(words: str, folder: Path) -> None:
    run_command(*(word.replace("FOLDER", str(folder)) for word in words.split()))


def make_large_picture(folder: Path) -> None:
    """As much as a limit of 20 million pixels allows, and it must be turned."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGBA", (5000, 4000), (1, 2, 3, 100)).save(folder / "large.png", exif=exif)


def make_draws(folder: Path, draws: int = 750) -> None:
    draws_bomb(folder / "draws.npz", draws)


MANY_PIXELS = "has 20000 x 30000 pixels, more than the 100000000 that are allowed"
MUCH = "more than the 1073741824 that are allowed"
SMALL = {"BAYESCAFFE_MAX_PIXELS": "20000000", "BAYESCAFFE_MAX_UNPACKED": "64000000"}
BOMBS = {
    "picture": Bomb(make_pictures, partial(read_pictures, "bomb.png"), PIXELS, MANY_PIXELS),
    "picture, data folder": Bomb(
        make_pictures,
        partial(command, "data folder FOLDER/pictures --out FOLDER/out --size 8 --strict"),
        PIXELS,
        MANY_PIXELS,
    ),
    "picture, ImageData": Bomb(
        make_pictures,
        partial(
            read_layer, "ImageData", 'image_data_param { source: "FOLDER/list.txt" batch_size: 1 }'
        ),
        PIXELS,
        MANY_PIXELS,
    ),
    "picture in an LMDB, Data": Bomb(
        make_pictures,
        partial(
            read_layer, "Data", 'data_param { source: "FOLDER/lmdb" batch_size: 1 backend: LMDB }'
        ),
        PIXELS,
        MANY_PIXELS,
    ),
    "idx, 4 GB": Bomb(
        partial(idx_bomb, images=4000),
        partial(command, "data idx FOLDER --out FOLDER/out"),
        UNPACKED,
        MUCH,
    ),
    "idx, more than promised": Bomb(
        partial(idx_bomb, images=4000, promised=4), load_set, UNPACKED, "need 4000016"
    ),
    "draws, 3 GB, analyze": Bomb(
        make_draws, partial(command, "analyze FOLDER/draws.npz"), UNPACKED, MUCH
    ),
    "draws, 3 GB, report": Bomb(
        make_draws,
        partial(command, "report FOLDER/draws.npz --out FOLDER/report.html"),
        UNPACKED,
        MUCH,
    ),
    "array, 3 GB": Bomb(make_draws, partial(read_pictures, "draws.npz"), UNPACKED, MUCH),
    "as large as allowed, picture": Bomb(
        make_large_picture, partial(read_pictures, "large.png"), 80_000_000, environment=SMALL
    ),
    "as large as allowed, idx": Bomb(
        partial(idx_bomb, images=61), load_set, 64_000_000, environment=SMALL
    ),
    "as large as allowed, draws": Bomb(
        partial(make_draws, draws=15),
        lambda folder: load_draws(folder / "draws.npz").probabilities.sum(),
        64_000_000,
        environment=SMALL,
    ),
}


def try_bomb(name: str) -> Found:
    bomb, found = BOMBS[name], Found()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        bomb.make(folder)

        def read() -> None:
            os.environ.update(bomb.environment)
            bomb.read(folder)

        told = attempt(read, memory=2 * bomb.limit + 2**28)
    outcome, text = told.outcome, told.text
    if outcome in (Outcome.ACCEPTED, Outcome.CLEAN_ERROR):
        if told.peak > 2 * bomb.limit + NOISE:
            outcome, text = Outcome.OVER_MEMORY, f"took {told.peak:,} bytes"
        elif bomb.says and outcome is Outcome.ACCEPTED:
            outcome = Outcome.WRONG
        elif bomb.says not in text or (text and not bomb.says):
            outcome, text = Outcome.CRASH, f"does not say {bomb.says!r}: {text}"
    found.add(name, outcome, text)
    return found


def jobs(world: World, seed: str, full: bool) -> Iterator[Callable[[], Found]]:
    """One for each bomb."""
    for name in BOMBS if full else Random(f"{seed} bombs").sample(list(BOMBS), SAMPLE):
        yield partial(try_bomb, name)
