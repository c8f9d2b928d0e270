"""Pictures with labels: a folder with a sub-folder for each class, or a list of files."""

import csv
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path

from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.reading import read_text
from bayescaffe.data.image_files import find_images

log = logging.getLogger(__name__)

SPLIT_FOLDERS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
HEADERS = {"path", "file", "filename", "image", "picture", "label", "class"}


@dataclass
class Pictures:
    """Picture files, and what their place or their list tells of them."""

    files: list[Path] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """As people call the files, relative to the folder or the list."""
    classes: list[str] = field(default_factory=list)
    """The name of each picture's class."""
    splits: list[str | None] = field(default_factory=list)
    """The split that each belongs to; None if that is to be chosen."""
    places: list[str] = field(default_factory=list)
    """Where each picture's class is written, for errors."""

    def rows(self, split: str | None) -> list[int]:
        """The pictures of a split."""
        return [row for row, found in enumerate(self.splits) if found == split]


def find_pictures(path: Path) -> Pictures:
    """The pictures of a folder or of a list (.csv, .txt)."""
    if not path.exists():
        raise BayesCaffeError(f"{path}: no such folder or list of pictures")
    if not path.is_dir():
        return read_list(path)
    found = Pictures()
    folders = _sub_folders(path)
    splits = [SPLIT_FOLDERS.get(folder.name.lower()) for folder in folders]
    if None in splits or "train" not in splits or len(splits) == 1:
        _add_classes(found, path, path, None)
        return found
    for split in set(splits):
        if splits.count(split) > 1:
            names = [one.name for one, kind in zip(folders, splits, strict=True) if kind == split]
            raise BayesCaffeError(f"{path}: {' and '.join(names)} are both {split}; keep one")
    for folder, split in zip(folders, splits, strict=True):
        _add_classes(found, path, folder, split)
    return found


def _add_classes(found: Pictures, top: Path, folder: Path, split: str | None) -> None:
    classes = _sub_folders(folder)
    if not classes:
        raise BayesCaffeError(
            f"{folder}: has no sub-folders; expected a sub-folder of pictures for each class, or "
            "train, val and test with a sub-folder for each class"
        )
    for one in classes:
        try:
            files = find_images(one)
        except BayesCaffeError as error:
            raise BayesCaffeError(
                f"{one}: this class has no pictures; add some, or remove the folder"
            ) from error
        found.files += files
        found.names += [str(file.relative_to(top)) for file in files]
        found.classes += [one.name] * len(files)
        found.splits += [split] * len(files)
        found.places += [str(one)] * len(files)
    _tell_of_others(folder, set(found.files))


def _tell_of_others(folder: Path, pictures: set[Path]) -> None:
    """Log the files that are no pictures, and pictures outside of class folders."""
    others = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path not in pictures and not path.name.startswith(".")
    ]
    if others:
        kinds = sorted({path.suffix or path.name for path in others})
        log.warning(
            "%s: %d files are left out: they are not known as pictures, or are in no class folder "
            "(%s; the first is %s)",
            *(folder, len(others), ", ".join(kinds), others[0].relative_to(folder)),
        )


def _sub_folders(path: Path) -> list[Path]:
    return sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))


def read_list(path: Path) -> Pictures:
    """The pictures of a list: in each line a file, relative to the list, and its class."""
    try:
        text = read_text(path, "utf-8-sig")
    except UnicodeDecodeError as error:
        raise BayesCaffeError(
            f"{path}: expected a folder of pictures or a text file that lists them: {error}"
        ) from error
    read = _csv_row if path.suffix.lower() == ".csv" else _text_row
    found, lines = Pictures(), {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        cells = read(line)
        if not found.files and HEADERS & {cell.lower() for cell in cells} and number == 1:
            continue
        place = f"{path}, line {number}"
        if len(cells) != 2 or not all(cells):
            raise BayesCaffeError(f"{place}: {line.strip()!r} is not a picture and its class")
        file = path.parent / cells[0]
        if file.resolve() in lines:
            raise BayesCaffeError(
                f"{place}: {cells[0]} is already in line {lines[file.resolve()]}; name each once"
            )
        lines[file.resolve()] = number
        found.files.append(file)
        found.names.append(cells[0])
        found.classes.append(cells[1])
        found.splits.append(None)
        found.places.append(place)
    if not found.files:
        raise BayesCaffeError(f"{path}: names no pictures")
    return found


def _csv_row(line: str) -> list[str]:
    delimiter = ";" if line.count(";") > line.count(",") else ","
    return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter))]


def _text_row(line: str) -> list[str]:
    """A file and its class, with a tab or spaces between them; the class is the last word."""
    if "\t" in line:
        return [cell.strip() for cell in line.rsplit("\t", 1)]
    match = re.fullmatch(r"\s*(.+?)\s+(\S+)\s*", line)
    return [match[1], match[2]] if match else [line]
