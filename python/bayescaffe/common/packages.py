"""Packages that some functions need, and that are no dependencies."""

import importlib

from bayescaffe.common.errors import BayesCaffeError


def import_optional(name: str, what: str):
    """The package `name`; if it is missing, raise an error that tells that `what` needs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BayesCaffeError(
            f"{what} needs the Python package {name}, which cannot be imported ({error}); "
            f"`pip install {name}` installs it"
        ) from error
