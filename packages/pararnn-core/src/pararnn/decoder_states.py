"""States that a decoder is given, and those at which its layers begin: whether they are like the ones it keeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pararnn.cell import check_cell
from pararnn.errors import ConfigError, DTypeError, ShapeError

if TYPE_CHECKING:
    from pararnn.layers import ParaRNN


def initial_states(model: ParaRNN, batch: int, held: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The states `(batch, state)` at which the layers of `model` begin.

    Raises:
        CellError: a layer is no cell.
        ConfigError: there are more or fewer states than in `held`, or some have another shape or dtype, or are on another device.
    """
    for cell in model.layers:
        check_cell(cell)
    with torch.inference_mode(False), torch.no_grad():
        initial = model.initial_state(batch)
    if len(initial) != len(held):
        raise ConfigError(f"the model has {len(initial)} layers by now, and had {len(held)} when this decoder was made; make a new one")
    for cell, new, mine in zip(model.layers, initial, held, strict=True):
        if (new.shape, new.dtype, new.device) != (mine.shape, mine.dtype, mine.device):
            now, before = (f"{tuple(state.shape)} {state.dtype} on {state.device}" for state in (new, mine))
            raise ConfigError(f"the states of {type(cell).__name__} are {now} by now, and were {before} when this decoder was made; make a new one")
    return initial


def given_states(states: Any, held: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """`states` as a tensor for each layer, such that they can be copied into `held`.

    Raises:
        ShapeError: there is not one `(batch, state)` tensor for each layer.
        DTypeError: `states` are no tensors, or are complex where the ones held are real.
    """
    given = tuple(states) if isinstance(states, Iterable) and not isinstance(states, Tensor) else (states,)
    for state in given:
        if not isinstance(state, Tensor):
            raise DTypeError(f"states are a tensor (batch, state) for each layer, got {type(state).__name__}")
    if [state.shape for state in given] != [mine.shape for mine in held]:
        wanted, found = ([tuple(state.shape) for state in some] for some in (held, given))
        raise ShapeError(f"states have shapes {found}; they must be (batch, state) for each layer, {wanted}")
    for depth, (state, mine) in enumerate(zip(given, held, strict=True)):
        if state.is_complex() and not mine.is_complex():
            raise DTypeError(f"the states given for layer {depth} are {state.dtype}, but its states are {mine.dtype}; pass their real part")
    return given
