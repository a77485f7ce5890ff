"""The examples of plugins, built; a sentence where one is wrong."""

from __future__ import annotations

import importlib
import os
import pkgutil
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import pararnn
from pararnn.errors import ConformanceError, ParaRNNError, sentence
from pararnn.provenance import Entry

if TYPE_CHECKING:
    from pararnn.specs import CellSpec


def build_example(entry: Entry[CellSpec], batch: int, length: int, *, seed: int) -> tuple[Any, Any]:
    """The cell of an example and its inputs `(batch, length, input)`.

    Raises:
        PluginError: the record names what cannot be imported.
        ConformanceError: the example fails, or gives something else than a pair.
    """
    name = entry.spec.example
    try:
        made = entry.resolve(name)(batch, length, seed=seed)
    except ParaRNNError:
        raise
    except Exception as error:
        raise ConformanceError(f"the example {name} fails ({told(error)}); {_NEXT}") from error
    if not isinstance(made, tuple) or len(made) != 2:
        raise ConformanceError(f"the example {name} gives a {type(made).__name__}; {_NEXT}")
    return made


_NEXT = "it takes (batch, length, *, seed) and gives (cell, x)"


def told(error: Exception) -> str:
    """What an error of somebody else's code says, and where it was raised there."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_NOT_THEIRS)]
    return f"{sentence(error)}; {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else sentence(error)


_NOT_THEIRS = ("<frozen", pkgutil.__file__, *(module.__path__[0] + os.sep for module in (pararnn, torch, importlib)))
