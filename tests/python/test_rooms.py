"""The rooms of the package: a module imports only from its own room and those before it."""

import ast
from pathlib import Path

import bayescaffe
import pytest

PACKAGE = Path(bayescaffe.__file__).parent
ROOMS = (
    "common",
    "data",
    "net",
    "exporting",
    "training",
    "stats",
    "infer",
    "reporting",
    "serving",
    "cli",
)
# Statistics are for programs that have arrays and nothing else.
HIDDEN_FROM = {"stats": {"data", "net", "exporting", "training"}}


def imported_rooms(source: str) -> set[str]:
    """The rooms that a module imports from, also inside of its functions.

    What is imported for type checkers only does not count: it never runs.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "rooms are imported by their full names"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    parts = [name.split(".") for name in names if name.startswith("bayescaffe.")]
    return {part[1] for part in parts if part[1] in ROOMS}


def test_the_rooms_are_those():
    found = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert found == set(ROOMS)
    for room in ROOMS:
        assert ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text()))


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.glob("*/*.py")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_no_module_imports_from_a_later_room(path):
    room = path.parent.name
    allowed = set(ROOMS[: ROOMS.index(room) + 1]) - HIDDEN_FROM.get(room, set())
    assert imported_rooms(path.read_text()) <= allowed


def test_a_wrong_import_is_seen():
    assert imported_rooms("def f():\n    from bayescaffe.cli import main") == {"cli"}
    assert imported_rooms("from bayescaffe import reporting") == {"reporting"}
    assert imported_rooms("import bayescaffe.net.model") == {"net"}
    source = "if TYPE_CHECKING:\n    from bayescaffe.net.model import Model\n"
    assert imported_rooms(source) == set()
