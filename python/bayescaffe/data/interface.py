"""What every source of images offers: `Images`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from bayescaffe.common.errors import BayesCaffeError, argument, times

Shape = tuple[int, int, int]
"""Channels, height, width."""
Labels = np.ndarray | None
Take = Callable[[int], tuple[np.ndarray, Labels]]
"""Gives the next images, as many as it is told, with their labels or None."""


class Images(ABC):
    """Images in a definite order, with labels and names if they have any.

    Images are arrays of images x channels x height x width before the transform, so bytes are 0 to
    255. No source holds all its images in memory.
    """

    path: Path | None = None
    """Where they are, None if in no file."""
    shape: Shape | None
    """Channels, height, width of each; None for image files before `fit`."""
    channels: str | None = None
    """Their own order of channels: "bgr", "rgb" or "grey"; None if it is not known, or if they
    take the order that is asked for, as image files do."""
    names: list[str] | None = None
    """The files' names, if each image is one."""
    labels: Labels = None
    """int64 per image; None if not known, or if only `in_order` tells them."""
    recipe: dict | None = None
    """The arguments of `open_images` that open them again in another process; None if they are
    not files."""
    _is_reversed = False

    def name_classes(self, class_names: Sequence[str]) -> None:  # noqa: B027
        """Tell which classes there are, for sources that name classes instead of labels."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, indices: Sequence[int]) -> np.ndarray:
        """The images with these indices, in that order."""

    def read_each(self, indices: Sequence[int]) -> Iterator[np.ndarray | BayesCaffeError]:
        """Each image with these indices, or the reason why it cannot be read."""
        yield from self.read(indices)

    @abstractmethod
    def describe(self, index: int) -> str:
        """What errors call an image."""

    def fit(self, shape: Shape, channels: str | None = None, resize: str | None = None) -> None:
        """Make the images of that shape: image files are resized, others must have it.

        Args:
            channels: the order of colours that the net takes, "bgr" or "rgb". Without it, colours
                whose order is known get Caffe's order, "bgr"; others are taken as they are.
            resize: how image files are brought to the shape: "squash" (the default) stretches
                them, "keep" cuts off what is too long.
        """
        if self.shape != shape:
            raise BayesCaffeError(
                f"{self.path or 'array'}: images are {times(self.shape or ())}, but the net takes "
                f"{times(shape)}"
            )
        if self.channels in ("bgr", "rgb"):
            self._is_reversed = self.channels != (channels or "bgr")
        elif self.channels is None and channels in ("bgr", "rgb"):
            raise BayesCaffeError(
                f"{self.path or 'array'}: the order of its colours is not known, and the net takes "
                f"{channels}; say {argument('channels', 'rgb')} or {argument('channels', 'bgr')}"
            )

    def _ordered(self, images: np.ndarray) -> np.ndarray:
        """Images x channels x …, in the order that `fit` was asked for."""
        return images[:, ::-1] if self._is_reversed else images

    def in_order(self, start: int = 0) -> Take:
        """A function that gives the images from `start` to the last, some at each call."""

        def take(count: int) -> tuple[np.ndarray, Labels]:
            nonlocal start
            rows = slice(start, start + count)
            start += count
            labels = None if self.labels is None else self.labels[rows]
            return self.read(range(rows.start, rows.stop)), labels

        return take
