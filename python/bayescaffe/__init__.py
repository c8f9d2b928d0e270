"""Driver of Bayesian Caffe: what comes before and after `caffe train`, as library and command.

The functions behind the commands are here, such as `bayescaffe.load_draws(…)`; their modules are
imported when they are first used.
"""

import importlib

__version__ = "0.1.0"

_MODULES = {
    "Analysis": "analysis",
    "Draws": "draws",
    "LayerPosterior": "posterior",
    "Model": "nets",
    "analyze": "analysis",
    "inspect": "posterior",
    "load_draws": "draws",
    "open_images": "images",
    "read_curve": "training",
    "reproduce": "reproduction",
    "reduce_net": "reducing",
    "sample": "sampling",
    "save_draws": "draws",
    "train": "training",
    "write_report": "report",
}
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
