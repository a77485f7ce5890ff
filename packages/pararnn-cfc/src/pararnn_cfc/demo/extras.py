"""Modules of the extra `demo`, imported when they are needed, with an error that says how to get them."""

from __future__ import annotations

import importlib
from types import ModuleType

from pararnn.errors import ParaRNNError


class MissingExtraError(ParaRNNError, ImportError):
    """A package that only the demonstration needs is not installed, or cannot be imported."""


def extra(module: str) -> ModuleType:
    """The module called `module`.

    Raises:
        MissingExtraError: it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"the demonstration needs {package}, which cannot be imported ({error}); pip install 'pararnn-cfc[demo]'", package=package
        ) from error
