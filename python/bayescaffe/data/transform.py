"""What happens to the pixels of an image before they enter a net.

Caffe's own DataTransformer is not used: it takes one `Datum`, or a blob of floats, at a time, and
binding it to arrays would be more code than the formula. A test compares the bits of both.
"""

from dataclasses import dataclass

import numpy as np

from bayescaffe.common.errors import BayesCaffeError


@dataclass(frozen=True)
class Transform:
    """What a data layer of Caffe does in phase TEST: crop the centre, (pixel - mean) * scale."""

    scale: float = 1.0
    mean: np.ndarray | None = None
    """One number, one for each channel, or one for each pixel (channels x height x width)."""
    crop_size: int = 0
    """Height and width of the centre that is cut out; 0 for the whole image."""

    def input_shape(self, image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """Channels, height, width of what comes out for an image of `image_shape`."""
        channels, height, width = image_shape
        if self.crop_size > min(height, width):
            raise BayesCaffeError(
                f"crop_size is {self.crop_size}, but images are only {height} x {width} pixels"
            )
        if self.mean is not None and self.mean.shape not in ((1,), (channels,), image_shape):
            raise BayesCaffeError(
                f"the mean is of shape {self.mean.shape}, expected one number, one for each of "
                f"{channels} channels, or one for each pixel of {image_shape}"
            )
        size = self.crop_size
        return (channels, size, size) if size else image_shape

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Transform images x channels x height x width to float32, the same bits as Caffe's."""
        _, height, width = self.input_shape(images.shape[1:])
        top, left = (images.shape[2] - height) // 2, (images.shape[3] - width) // 2
        window = (..., slice(top, top + height), slice(left, left + width))
        result = images[window].astype(np.float32)
        if self.mean is not None:
            mean = self.mean.astype(np.float32)
            result -= mean[window] if mean.ndim == 3 else mean[:, np.newaxis, np.newaxis]
        if self.scale != 1:
            result *= np.float32(self.scale)
        return result
