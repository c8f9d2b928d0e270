"""What `import bayescaffe` offers."""

import bayescaffe
import pytest
from conftest import python


def test_every_name_it_lists_is_there():
    for name in bayescaffe.__all__:
        assert getattr(bayescaffe, name) is not None
    assert set(bayescaffe.__all__) == set(dir(bayescaffe))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        bayescaffe.nonsense  # noqa: B018


def test_importing_it_imports_nothing_heavy():
    code = "import sys, bayescaffe, bayescaffe.cli; bayescaffe.cli.build_parser()\n"
    heavy = "{'numpy', 'scipy', 'caffe', 'matplotlib', 'PIL', 'lmdb'}"
    assert python(code + f"print({heavy} & set(sys.modules))").split() == ["set()"]
