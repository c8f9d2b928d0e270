"""Image files named in a table of pandas.

pandas is no dependency: whoever has a table has imported it.
"""

import sys
from collections.abc import Sequence

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument
from bayescaffe.data.image_files import ImageFiles
from bayescaffe.data.labels import to_labels


def is_table(data: object) -> bool:
    """Whether this is a DataFrame or a Series of pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, (pandas.DataFrame, pandas.Series))


class TableImages(ImageFiles):
    """Image files named by a table of pandas: a Series, or a DataFrame with a column `path`.

    A DataFrame may have a column `label`, of whole numbers or of class names. A column that is the
    only one may have any name.
    """

    def __init__(self, table, *, invert: bool = False) -> None:
        paths, labels = _columns(table)
        for row, path in zip(paths.index, paths, strict=True):
            if isinstance(path, float) or path is None:  # a missing value
                raise BayesCaffeError(f"the table has no path in row {row!r}")
        super().__init__(paths.tolist(), invert=invert)
        self._classes: list[str] | None = None
        if labels is None:
            return
        if labels.dtype.kind in "iu":
            self.labels = labels.to_numpy(np.int64)
        elif all(isinstance(label, str) for label in labels):
            self._classes = labels.tolist()
        else:
            raise BayesCaffeError(
                f"the table's column 'label' is {labels.dtype}, expected a whole number or a class "
                "name in every row"
            )

    def name_classes(self, class_names: Sequence[str]) -> None:
        if self._classes is None:
            return
        if not class_names:
            raise BayesCaffeError(
                "the table's column 'label' has names, but those of the net's classes are not "
                f"known; give them as {argument('class_names')}, or numbers as labels"
            )
        self.labels = to_labels(self._classes, class_names, self.describe)


def _columns(table) -> tuple:
    """The paths, and the labels or None."""
    if table.ndim == 1:
        return table, None
    if len(table.columns) == 1 and "path" not in table:
        return table.iloc[:, 0], None
    if "path" not in table:
        raise BayesCaffeError(
            f"the table has the columns {', '.join(map(str, table.columns))}; expected a column "
            "'path', and maybe 'label'"
        )
    return table["path"], table.get("label")
