"""Cells as they are named on the command line: by an installed plugin, or as `module:attribute` of a module in reach."""

from __future__ import annotations

import contextlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from pararnn.compiler.explaining import cell_in
from pararnn.errors import CellError, ParaRNNError, UnknownNameError, sentence
from pararnn.examples import build_example, told
from pararnn.registry import installed

BATCH, LENGTH, INPUT, STATE = 2, 8, 3, 8
NEXT = "a cell that is not installed is given as module:attribute, such as my_cells:MyCell, where the module can be imported from here"


def cell_named(name: str, dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    """The cell that `name` gives, in `dtype`, and inputs for it `(batch, length, input)`.

    An installed cell is that of its example. Behind `module:attribute` is a cell, a class that is called with `(input_size, state_size)`, or a
    function that is called as an example is, or without arguments, and returns a cell or `(cell, x)`; the current directory is importable as for
    `python -m`.

    Raises:
        UnknownNameError: nobody offers it, and it names no module.
        CellError: what it names gives no cell, or none whose inputs are known.
        ConformanceError: the example of the plugin fails.
    """
    made = _own(name) if ":" in name and name not in installed().cells else _installed(name)
    module, x = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    cell = cell_in(module, name).to(dtype)
    if x is None:
        return cell, _inputs(cell, name, dtype)
    if not isinstance(x, Tensor):
        raise CellError(f"{name} gives a cell and a {type(x).__name__}; give (cell, x), with x a tensor (batch, length, input)")
    return cell, x.to(dtype)


def _installed(name: str) -> Any:
    try:
        entry = installed().cells[name]
    except UnknownNameError as error:
        raise UnknownNameError(f"{error}; {NEXT}", **error.data) from None
    return build_example(entry, BATCH, LENGTH, seed=0)


def _own(name: str) -> Any:
    """What an attribute of a module in reach gives."""
    module, _, attribute = name.partition(":")
    with _here():
        try:
            found = pkgutil.resolve_name(f"{module.removesuffix('.py')}:{attribute}")
        except Exception as error:
            raise UnknownNameError(
                f"{name!r} is no installed cell, and cannot be imported ({told(error)}); {NEXT}", name=name, kind="cell"
            ) from error
        if isinstance(found, nn.Module) or not callable(found):
            return found
        positional, keywords = _arguments(found, name)
        try:
            return found(*positional, **keywords)
        except ParaRNNError:
            raise
        except Exception as error:
            shown = ", ".join((*map(str, positional), *(f"{key}={value}" for key, value in keywords.items())))
            raise CellError(f"{name}({shown}) fails ({told(error)}); {_CALLED}") from error


_CALLED = (
    "a class is called with (input_size, state_size), a function as the example of a plugin, (batch, length, *, seed), or without arguments: "
    "name a function that returns the cell, or (cell, x)"
)


def _arguments(found: Any, name: str) -> tuple[tuple[int, ...], dict[str, int]]:
    """How to call it."""
    ways: list[tuple[tuple[int, ...], dict[str, int]]] = [((INPUT, STATE), {})] if isinstance(found, type) else [((BATCH, LENGTH), {"seed": 0})]
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError) as error:
        raise CellError(f"{name} cannot be called in a known way ({sentence(error)}); {_CALLED}") from error
    for positional, keywords in (*ways, ((), {})):
        with contextlib.suppress(TypeError):
            signature.bind(*positional, **keywords)
            return positional, keywords
    raise CellError(f"{name} takes {signature}; {_CALLED}")


def _inputs(cell: nn.Module, name: str, dtype: torch.dtype) -> Tensor:
    """Inputs of the size that the cell takes: what it says, or its first linear layer."""
    sizes = [getattr(cell, "input_size", None), *(inner.in_features for inner in cell.modules() if isinstance(inner, nn.Linear)), INPUT]
    size = next(one for one in sizes if isinstance(one, int))
    x = torch.zeros(BATCH, LENGTH, size, dtype=dtype)
    try:
        cell.drive(x)  # type: ignore[operator]
    except Exception as error:
        raise CellError(
            f"{name} gives no inputs, and the cell does not take {tuple(x.shape)} ({told(error)}); let a function return (cell, x)"
        ) from error
    return x


@contextlib.contextmanager
def _here() -> Iterator[None]:
    """The current directory is importable."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path.remove("")
