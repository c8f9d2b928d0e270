"""What `import bayescaffe` offers."""

import ast
import inspect

import bayescaffe
import pytest
from conftest import python


def test_every_name_it_lists_is_there():
    for name in bayescaffe.__all__:
        assert getattr(bayescaffe, name) is not None
    assert set(bayescaffe.__all__) == set(dir(bayescaffe))
    assert set(bayescaffe.__all__) == {"__version__", *bayescaffe._HOMES, *bayescaffe._MODULES}
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        bayescaffe.nonsense  # noqa: B018


def test_type_checkers_see_the_same_names():
    tree = ast.parse(inspect.getsource(bayescaffe))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name for line in block.body for alias in line.names}
    assert seen | {"__version__"} == set(bayescaffe.__all__)


def test_importing_it_imports_nothing_heavy():
    code = "import sys, bayescaffe, bayescaffe.cli; bayescaffe.cli.build_parser()\n"
    heavy = "{'numpy', 'scipy', 'caffe', 'matplotlib', 'PIL', 'lmdb'}"
    assert python(code + f"print({heavy} & set(sys.modules))").split() == ["set()"]
