"""How large a state is along a walk, and whether what a reversible method carries beside it has stayed near it.

All sizes are those of elements of a state or of samples: a large sample says nothing about the digits of a small one beside it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pararnn_nanode.fields.base import Weights
from pararnn_nanode.integrate.methods import Evaluate, Method, State, Width
from pararnn_nanode.integrate.undoing import ReversibleMethod

EARLY = 16
"""One of so many steps is early: a state that starts at zero has the size that it soon gets."""
FLOOR = 1e-2
"""Below this part of the largest element of its sample, an element is not asked to agree with itself."""
TOGETHER = 16
"""States that are looked at together where they are small, since a walk of small states is bound by the number of operations."""
SMALL = 1 << 16
"""Elements of the largest state that is small in this sense."""


class Measured(Method):
    """A method that notes how large each element of the state has been.

    Attributes:
        path: the largest absolute value of each element so far; `early`: the same in the first steps of the walk.
    """

    def __init__(self, method: Method, x: Tensor, steps: int) -> None:
        self.method = method
        self.name, self.order, self.nodes = method.name, method.order, method.nodes
        self.evaluations, self.opening, self.reversible = method.evaluations, method.opening, method.reversible
        self.path = self.early = x.abs()
        self._step = method.step
        self._together = TOGETHER if x.numel() <= SMALL else 1
        self._seen: list[Tensor] = []
        self._first = max(1, steps // EARLY)
        self._due = min(self._first, self._together)

    def begin(self, x: Tensor) -> State:
        return self.method.begin(x)

    def open(self, evaluate: Evaluate, state: State, weights: Weights) -> State:
        return self.method.open(evaluate, state, weights)

    def step(self, evaluate: Evaluate, state: State, h: Width, weights: tuple[Weights, ...]) -> State:
        state = self._step(evaluate, state, h, weights)
        self._seen.append(state[0])
        if len(self._seen) == self._due:
            self.look()
        return state

    def look(self) -> None:
        """Take the states since the last look into account."""
        if self._seen:
            largest = torch.stack(self._seen).abs().amax(0) if len(self._seen) > 1 else self._seen[0].abs()
            self.path = torch.maximum(self.path, largest)
            self._first -= len(self._seen)
            self._seen = []
            if self._first >= 0:
                self.early = self.path
            self._due = min(self._first, self._together) if self._first > 0 else self._together


def of_sample(sizes: Tensor) -> Tensor:
    """The largest of each sample, the first dimension, shaped to broadcast; of all where there are no samples."""
    return sizes.amax(dim=tuple(range(1, sizes.ndim)), keepdim=True) if sizes.ndim > 1 else sizes.amax()


def relative(away: Tensor, sizes: Tensor) -> Tensor:
    """The largest of `away / sizes`; nothing is no part of nothing."""
    return torch.where(away == 0, 0.0, away / sizes).max()


def parted(method: Method, state: State, h: Width, path: Tensor) -> Tensor:
    """How far what the method carries has parted from the state, as a part of its size along the walk: more than 1 where it is unstable."""
    if not isinstance(method, ReversibleMethod) or path.numel() == 0:
        return torch.zeros((), device=path.device)
    return relative(method.gap(state, h), torch.maximum(path, FLOOR * of_sample(path)))


def advice(method: Any, ratio: float) -> str:
    """What there is to say of a walk that has parted."""
    return (
        f"what {method.name} carries beside the state parted from it by {ratio:.1e} of its size: the method is unstable for this equation, as it is "
        "for decaying ones over long times"
    )
