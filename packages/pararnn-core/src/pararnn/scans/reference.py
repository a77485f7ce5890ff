"""The scan as its definition: one step after the other, differentiated by autograd. The oracle of every backend."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.structures.base import Structure


def walk(transition: Structure, bias: Tensor, initial: Tensor | None = None, *, reverse: bool = False) -> Tensor:
    """`h[t] = A[t] h[t-1] + b[t]` for `bias` `(rows, time, state)` and `initial` `(rows, state)`; zero where it is left out.

    With `reverse`, `h[t] = A[t] h[t+1] + b[t]`, from the last step to the first.
    """
    state = bias.new_zeros(bias.shape[0], bias.shape[2]) if initial is None else initial
    states: list[Tensor] = [state] * bias.shape[1]
    order = range(bias.shape[1])
    for time in reversed(order) if reverse else order:
        state = transition.map(lambda leaf, time=time: leaf[:, time]).apply(state) + bias[:, time]  # type: ignore[misc]
        states[time] = state
    return torch.stack(states, dim=1) if states else torch.zeros_like(bias)
