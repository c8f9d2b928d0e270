"""Progress bars. They appear on a terminal and in notebooks, and only if tqdm is installed."""

from __future__ import annotations

import sys
import warnings

from bayescaffe.common.printing import printable


def is_notebook() -> bool:
    """Whether this runs in the kernel of a Jupyter notebook."""
    return "ipykernel.zmqshell" in sys.modules


def bar_class():
    """tqdm as it shows bars here; None if none can be shown."""
    # Imported here, because statistics must work with NumPy and SciPy alone.
    try:
        if is_notebook():
            with warnings.catch_warnings():
                # Without ipywidgets it warns, and shows bars as text.
                warnings.simplefilter("ignore")
                from tqdm.auto import tqdm
        elif sys.stderr.isatty():
            from tqdm import tqdm
        else:
            return None
    except ImportError:
        return None
    return tqdm


class ProgressBar:
    """A progress bar, for use in a `with` statement."""

    def __init__(
        self,
        total: float | None,
        description: str,
        *,
        show: bool,
        unit: str = " images",
        scale: bool = False,
        delay: float = 0,
    ) -> None:
        """Open the bar.

        Args:
            total: the count at the end, None if it is not known.
            show: False for no bar at all.
            scale: write counts with prefixes, such as 12.3k.
            delay: seconds before the bar appears; work that ends sooner shows none.
        """
        self._bar = None
        tqdm = bar_class() if show else None
        if tqdm is not None:
            self._bar = tqdm(
                total=total,
                desc=printable(description),
                unit=unit,
                unit_scale=scale,
                delay=delay,
                leave=False,
            )

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, count: float) -> None:
        """Add `count` to what is done."""
        if self._bar is not None:
            self._bar.update(count)

    def move_to(self, done: float) -> None:
        """Set what is done."""
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
