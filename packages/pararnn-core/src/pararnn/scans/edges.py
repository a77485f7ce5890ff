"""Where sequences begin: states moved by one step, heads of packed sequences, and rows that hold mapped instances."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.scans.segments import Offsets


def shift(states: Tensor, initial: Tensor | None, offsets: Offsets | Tensor | None, *, reverse: bool) -> Tensor:
    """The state each step starts from: `states` `(rows, time, state)` moved by one, `initial` `(rows, segments, state)` at the edges."""
    if states.shape[1] == 0:
        return states
    first = torch.zeros_like(states[:, :1]) if initial is None else initial[:, :1]
    if offsets is None:
        return torch.cat((states[:, 1:], first) if reverse else (first, states[:, :-1]), dim=1)
    at, segments = heads(offsets, states, reverse=reverse)
    moved = states.roll(-1 if reverse else 1, dims=1)
    edge = torch.zeros_like(moved[:, at]) if initial is None else initial[:, segments]
    return moved.index_copy(1, at, edge)


def heads(offsets: Offsets | Tensor, like: Tensor, *, reverse: bool) -> tuple[Tensor, Tensor]:
    """Positions of the step that each non-empty segment starts from, and the indices of those segments."""
    bounds = offsets.to(like.device) if isinstance(offsets, Tensor) else torch.tensor(offsets, device=like.device)
    segments = (bounds[1:] > bounds[:-1]).nonzero().squeeze(-1)
    return (bounds[1:] - 1 if reverse else bounds[:-1])[segments].long(), segments


def fold(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """Merge a mapped dimension (made by repetition where `dim` is None) with the rows, which come first."""
    moved = tensor.unsqueeze(0).expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return moved.flatten(0, 1)


def unfold(tensor: Tensor, size: int) -> Tensor:
    """Undo `fold`: `(size * rows, ...)` to `(size, rows, ...)`."""
    # Without a member the rows cannot be told; whatever they are said to be, there are no numbers in them.
    rows = tensor.shape[0] // max(size, 1)
    unfolded: Tensor = tensor.unflatten(0, (size, rows))
    return unfolded
