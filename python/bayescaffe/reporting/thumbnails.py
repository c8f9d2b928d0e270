"""Images as data URIs, so that the page needs no other file."""

import base64
import io
from collections.abc import Callable, Sequence

import numpy as np

from bayescaffe.common.errors import BayesCaffeError

PNG_SIDE, JPEG_SIDE = 64, 160
"""Up to the first, an image is a PNG; a larger one is a JPEG of at most the second."""


def thumbnails(
    read: Callable[[Sequence[int]], np.ndarray] | None, indices: Sequence[int]
) -> dict[int, str]:
    """Data URIs of images by index; empty if there is no `read` to get them from.

    Args:
        read: from indices to images x channels x height x width; colours are blue, green, red.
    """
    if read is None or not indices:
        return {}
    pixels = np.asarray(read(indices))
    if pixels.ndim != 4 or len(pixels) != len(indices) or pixels.shape[1] not in (1, 3):
        raise BayesCaffeError(
            f"images of shape {pixels.shape}, expected {len(indices)} x 1 or 3 channels x "
            "height x width"
        )
    if pixels.dtype != np.uint8:
        low, high = float(pixels.min()), float(pixels.max())
        pixels = (255 * (pixels - low) / ((high - low) or 1)).astype(np.uint8)
    return {index: _data_uri(image) for index, image in zip(indices, pixels, strict=True)}


def _data_uri(image: np.ndarray) -> str:
    from PIL import Image

    # From blue, green, red.
    picture = Image.fromarray(image[0] if len(image) == 1 else np.moveaxis(image[::-1], 0, -1))
    kind = "png" if max(picture.size) <= PNG_SIDE else "jpeg"
    picture.thumbnail((JPEG_SIDE, JPEG_SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, kind, optimize=True)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
