"""Files from elsewhere that want to be obeyed: by a report, by a terminal, by a browser.

A draws file names files that are none of its business, or none at all; texts in files are commands
of terminals and of HTML. The report must show no file that was not sampled and have the elements
that it has for plain names, and nothing that a terminal obeys is printed.
"""

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import numpy as np
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.stats.draws import save_draws
from child import Wrong, attempt, run_whole_command
from conftest import input_net, small_net
from hostile_files import ESCAPE, png, special_files
from PIL import Image
from trial import Found
from world import World

SAMPLE = 25
IMAGES, CLASSES = 20, 3
PROBABILITIES = (
    np.random.default_rng(0).dirichlet(np.ones(CLASSES), (50, IMAGES)).astype(np.float32)
)
TEXTS = {
    "plain": "cat",
    "a terminal's": ESCAPE,
    "a terminal's title": "\x1b]0;owned\x07",
    "turned round": "\u202egnp.exe",
    "not Unicode": "\udcff\udcfe",
    "a script": "<script>alert(1)</script>",
    "the end of a script": "</script><script>alert(1)</script>",
    "an attribute": "\"' onmouseover=alert(1) x='\"",
    "an image": '"><img src=x onerror=alert(1)>',
    "a comment": "<!-- <script>",
    "a template": "{{ 7 * 191 }}{% raw %}",
    "a formula": "$\\frac{1}{$ \\input{x} a_b^c",
    "long": "x" * 100_000,
}
"""Names of classes, files and layers."""


def command(*words: object) -> str:
    """What a command prints. Raises if it fails, or prints what a terminal would obey."""
    code, printed = run_whole_command(*words)
    bad = sorted({sign for sign in printed if not (sign.isprintable() or sign in "\n\t")})
    if bad:
        raise Wrong(f"prints {bad}: {printed!r}")
    if code:
        raise BayesCaffeError(printed)
    return printed


def report(folder: Path, **meta: object) -> str:
    draws, page = folder / "draws.npz", folder / "report.html"
    save_draws(draws, PROBABILITIES, np.arange(IMAGES) % CLASSES, meta)
    command("report", draws, "--out", page)
    return page.read_text()


# ---- paths -------------------------------------------------------------------------------------


def secrets(folder: Path) -> dict[str, Path | str]:
    """By name: what draws of somebody else may name. None of it was sampled."""
    pictures = np.random.default_rng(1).integers(0, 256, (IMAGES, 1, 12, 12), np.uint8)
    np.save(folder / "secret.npy", pictures)
    (folder / "secrets").mkdir()
    for number, picture in enumerate(pictures):
        Image.fromarray(picture[0]).save(folder / f"secrets/private-{number}.png")
    return {
        **special_files(folder),
        "array": folder / "secret.npy",
        "pictures": folder / "secrets",
        "text": "/etc/passwd",
        "memory": "/proc/self/mem",
        "no name": "a\0b",
        "long name": "x" * 100_000,
        "terminal": "/dev/tty",
    }


def name_secret(fields: tuple[str, ...], secret: str, hashed: object, folder: Path) -> None:
    path = str(secrets(folder)[secret])
    meta = {**dict.fromkeys(fields, path), **{f"{field}_sha256": hashed for field in fields}}
    page = report(folder, **meta)
    if "<img" in page or "private-" in page or "root:" in page:
        raise Wrong("the report shows what was not sampled")


# ---- texts -------------------------------------------------------------------------------------


FIGURE = {"d", "x", "y", "style", "clip-path"}


class Elements(HTMLParser):
    """The elements of a page, with the names of their attributes; without those lines and words of
    figures whose number depends on the length of names."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        names = [name for name, _ in attrs]
        if tag not in ("path", "text") or not FIGURE.issuperset(names):
            self.found.append((tag, *names))


def page_of(text: str, folder: Path) -> str:
    return report(
        folder,
        names=[f"{number}{text}" for number in range(IMAGES)],
        class_names=[f"{number}{text}" for number in range(CLASSES)],
        **dict.fromkeys(("version", "created", "net", "weights", "data"), text),
    )


def name_in_draws(text: str, folder: Path) -> None:
    plain, hostile = page_of("cat", folder), page_of(TEXTS[text], folder)
    if Elements(hostile).found != Elements(plain).found:
        raise Wrong("the report has other elements than with plain names")
    if "1337" in hostile and "1337" not in plain:
        raise Wrong("the report computes what a name says")
    command("analyze", folder / "draws.npz")


def name_of_file(text: str, folder: Path) -> None:
    path = folder / (TEXTS[text].replace("/", "_")[:100] + ".npz")
    save_draws(path, PROBABILITIES, None, {})
    command("analyze", path)
    command("report", path, "--out", folder / "report.html")
    path.write_bytes(b"damaged")
    with contextlib.suppress(BayesCaffeError):
        command("analyze", path)


def name_of_picture(text: str, folder: Path) -> None:
    name = TEXTS[text].replace("/", "_")[:100]
    for number in range(2):
        (folder / "pictures" / f"{number}{name}").mkdir(parents=True)
        for count in range(3):
            (folder / f"pictures/{number}{name}/{count}{name}.png").write_bytes(png(12, 12))
        (folder / f"pictures/{number}{name}/bad{name}.png").write_bytes(b"damaged")
    command("data", "folder", folder / "pictures", "--out", folder / "out", "--size", 4)


def name_of_layer(text: str, folder: Path) -> None:
    """In a net, as prototxts write bytes."""
    name = "".join(f"\\{byte:03o}" for byte in TEXTS[text].encode(errors="surrogateescape"))
    net = folder / "net.prototxt"
    net.write_text(input_net(small_net(folder, "kl_weight: 0"), 4).replace("hidden", name))
    command("check", net)


# ---- what is no file ---------------------------------------------------------------------------

COMMANDS = (
    "analyze FILE",
    "report FILE --out OUT",
    "report DRAWS --out OUT --curve FILE",
    "report DRAWS --out OUT --ood FILE",
    "report DRAWS --out OUT --data FILE",
    "check FILE",
    "inspect FILE",
    "train FILE",
    "predict FILE FILE FILE",
    "sample FILE FILE --out OUT",
    "data folder FILE --out OUT --size 8",
    "data array FILE FILE --out OUT",
)


def read_special(words: str, kind: str, folder: Path) -> None:
    special = special_files(folder)[kind]
    save_draws(folder / "draws.npz", PROBABILITIES, None, {})
    places = {"FILE": special, "DRAWS": folder / "draws.npz", "OUT": folder / "out"}
    command(*(places.get(word, word) for word in words.split()))
    raise Wrong(f"{special} was read")


# ---- trials ------------------------------------------------------------------------------------


def cases() -> dict[str, Callable[[Path], object]]:
    """By name: each makes its files in a folder, and raises if something is wrong."""
    found: dict[str, Callable[[Path], object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        kinds = list(secrets(Path(folder)))
    for fields in (("net",), ("weights",), ("data",), ("net", "weights", "data")):
        for secret in kinds:
            for hashed in (None, "0" * 64):
                name = f"draws name {secret} as {' and '.join(fields)}, hash {hashed}"
                found[name] = partial(name_secret, fields, secret, hashed)
    for what in (name_in_draws, name_of_file, name_of_picture, name_of_layer):
        for text in TEXTS:
            found[f"{what.__name__}: {text}"] = partial(what, text)
    for words in COMMANDS:
        for kind in ("device", "pipe", "socket"):
            found[f"{words}: {kind}"] = partial(read_special, words, kind)
    return found


def try_case(name: str) -> Found:
    found = Found()
    with tempfile.TemporaryDirectory() as scratch:
        told = attempt(partial(cases()[name], Path(scratch)))
    found.add(name, told.outcome, told.text)
    return found


def jobs(world: World, seed: str, full: bool) -> Iterator[Callable[[], Found]]:
    """One for each case."""
    names = list(cases())
    for name in names if full else Random(f"{seed} hostile").sample(names, SAMPLE):
        yield partial(try_case, name)
