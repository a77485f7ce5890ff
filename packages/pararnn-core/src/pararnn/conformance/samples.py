"""What checks of a cell run on: inputs of any size made of the given samples, states near a trajectory, the cell in another mode or dtype."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from pararnn.errors import ShapeError
from pararnn.solver import drive as drives


def sized(x: Tensor, batch: int, length: int) -> Tensor:
    """Inputs `(batch, length, input)` made of the samples of `x` `(rows, time, input)`, which need not be that large.

    Raises:
        ShapeError: `x` has another number of dimensions, or holds no sample.
    """
    if x.ndim != 3 or not x.numel():
        raise ShapeError(f"checks need inputs x of shape (batch, time, input) with at least one sample, got {tuple(x.shape)}")
    row, time = torch.arange(batch).unsqueeze(1), torch.arange(length)
    # Rows beyond the given ones are given ones begun later, so that they differ.
    return x[row % x.shape[0], (time + row // x.shape[0]) % x.shape[1]]


def visited(cell: Any, x: Tensor) -> Tensor:
    """States `(batch, time, state)` near those of the trajectory over `x`, moved at random, within the cell's bounds."""
    states = stepped(cell, x)
    return bounded(cell, states + 0.1 * torch.randn_like(states))


def stepped(cell: Any, x: Tensor) -> Tensor:
    """The trajectory `(batch, time, state)` over `x` by the plainest loop, so that no fault of another member gets in its way."""
    state, states = cell.initial_state(x.shape[0]), []
    with torch.no_grad():
        for drive in drives.unbind(cell.drive(x), dim=1):
            # A step that writes in place must not rewrite what is already recorded.
            state = cell.step(state.clone(), drive)
            states.append(state)
    return torch.stack(states, dim=1)


def bounded(cell: Any, states: Tensor) -> Tensor:
    """`states`, limited to the bounds that the cell declares."""
    bounds = getattr(cell, "state_bounds", None)
    return states if bounds is None else states.clamp(*bounds)


def at(drive: Any, index: Callable[[Tensor], Tensor]) -> Any:
    """The drive with `index` applied to what runs along the sequence, cut from the graph."""
    return drives.map_leaves(Tensor.detach, drives.map_timed(index, drive))


def named_leaves(drive: Any) -> dict[str, Tensor]:
    """The tensors of a drive by name."""
    if isinstance(drive, Tensor):
        return {"drive": drive}
    names = getattr(drive, "_fields", None) or [f"leaf {index}" for index in range(len(drive))]
    return dict(zip(names, drive, strict=True))


@contextlib.contextmanager
def mode(cell: nn.Module, *, training: bool) -> Iterator[str]:
    """The cell in training or evaluation mode, and the name of the mode; every module's own mode is restored."""
    before = {module: module.training for module in cell.modules()}
    cell.train(training)
    try:
        yield "training mode" if training else "evaluation mode"
    finally:
        for module, flag in before.items():
            module.training = flag


def modes(cell: nn.Module) -> Iterator[str]:
    """Training mode, then evaluation mode, by name."""
    for training in (True, False):
        with mode(cell, training=training) as name:
            yield name


def in_dtype(cell: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of `cell` with its weights in the real `dtype`, complex ones in the complex dtype beside it."""

    def convert(weight: Tensor) -> Tensor:
        if weight.is_complex():
            return weight.to(dtype.to_complex())
        return weight.to(dtype) if weight.is_floating_point() else weight

    converted: nn.Module = copy.deepcopy(cell)._apply(convert)
    return converted


def varied(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Other values near `weights`, cut from the graph."""
    return {name: weight.detach() * (1 + 0.1 * torch.randn_like(weight)) if _is_real(weight) else weight.detach() for name, weight in weights.items()}


def _is_real(weight: Tensor) -> bool:
    return weight.is_floating_point() or weight.is_complex()
