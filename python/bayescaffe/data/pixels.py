"""Arrays of images as other tools have them, turned into what an LMDB holds."""

from collections.abc import Sequence

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument, times
from bayescaffe.data.interface import Images

# The place of the channels, by the names of the axes: images, channels, height, width.
LAYOUTS = {"nhw": None, "nhwc": 3, "nchw": 1}


class PixelArray(Images):
    """An array of bytes, or of numbers from 0 to 1, as bytes; colours are blue, green, red."""

    def __init__(
        self, array: np.ndarray, name: str, layout: str | None, channels: str | None
    ) -> None:
        """Check an array.

        Args:
            name: what errors call it.
            layout: "nhwc", "nchw" or "nhw"; None if the shape tells it.
            channels: the order of its colours, "rgb" or "bgr".
        """
        self._name = name
        axis = LAYOUTS[_layout(array, name, layout)]
        self._is_float = _is_float(array, name)
        self._array = array[:, np.newaxis] if axis is None else np.moveaxis(array, axis, 1)
        self.shape = self._array.shape[1:]
        self.channels, self._is_reversed = _order(self.shape[0], name, channels)

    def __len__(self) -> int:
        return len(self._array)

    def read(self, indices: Sequence[int]) -> np.ndarray:
        images = self._ordered(self._array[np.asarray(indices)])
        if self._is_float:
            images = np.round(images * 255)
        return np.ascontiguousarray(images, np.uint8)

    def describe(self, index: int) -> str:
        return f"{self._name}: image {index}"


def _layout(array: np.ndarray, name: str, layout: str | None) -> str:
    if layout is not None and layout not in LAYOUTS:
        raise BayesCaffeError(f"{argument('layout', layout)} is not one of {', '.join(LAYOUTS)}")
    if array.ndim not in (3, 4) or not array.size or (layout and len(layout) != array.ndim):
        raise BayesCaffeError(
            f"{name}: is of shape {times(array.shape)}, expected images of the layout "
            f"{layout or 'nhw, nhwc or nchw'} (n images, c channels, h height, w width)"
        )
    if layout is not None or array.ndim == 3:
        return layout or "nhw"
    likely = [one for one in ("nhwc", "nchw") if array.shape[LAYOUTS[one]] in (1, 3)]
    if len(likely) != 1:
        raise BayesCaffeError(
            f"{name}: is of shape {times(array.shape)}, which does not tell where the channels "
            f"are; say {argument('layout', 'nhwc')} or nchw"
        )
    return likely[0]


def _is_float(array: np.ndarray, name: str) -> bool:
    low, high = (array.min(), array.max()) if array.dtype.kind in "uif" else (np.nan, np.nan)
    is_float = array.dtype.kind == "f"
    if not (low >= 0 and high <= (1 if is_float else 255)):
        raise BayesCaffeError(
            f"{name}: is {array.dtype} from {low} to {high}, expected whole numbers from 0 to 255, "
            "or floating-point numbers from 0 to 1"
        )
    return is_float


def _order(count: int, name: str, channels: str | None) -> tuple[str | None, bool]:
    """The order of the channels in the LMDB, and whether that is not the array's."""
    allowed = {1: (None, "grey"), 3: ("rgb", "bgr")}.get(count, (None,))
    if channels not in allowed:
        names = " or ".join(one for one in allowed if one) or "nothing"
        raise BayesCaffeError(
            f"{name}: has {count} channels, and {argument('channels')} says "
            f"{channels or 'nothing'}; expected {names}"
        )
    return {1: "grey", 3: "bgr"}.get(count), channels == "rgb"
