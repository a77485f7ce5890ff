"""What a Jacobian structure must satisfy.

A structure is a class whose values are batches of linear maps on states of one form, closed under composition:

- `A.compose(B).to_dense() == A.to_dense() @ B.to_dense()`, so that products of step Jacobians stay in the family;
- `A.apply(v) == A.to_dense() @ v`;
- `A.transpose().to_dense() == A.to_dense().mT`;
- composition is associative, as far as rounding allows.

Scan, solver and adjoint use these members and never ask which structure they have. Every leaf starts with the same leading
dimensions, those of the batch of maps. `to_dense` is the oracle of the laws, not a path of the solver.
"""

from __future__ import annotations

import abc
import threading
import warnings
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

FORWARD_MODE = threading.RLock()
_has_pushed = False


class Structure(abc.ABC):
    """A batch of linear maps `(*lead, state, state)` stored compactly."""

    @abc.abstractmethod
    def leaves(self) -> tuple[Tensor, ...]:
        """The tensors that hold the maps, each `(*lead, ...)`."""

    @classmethod
    @abc.abstractmethod
    def from_leaves(cls, *leaves: Tensor) -> Self:
        """The maps that `leaves` hold; inverse of `leaves()`."""

    @classmethod
    @abc.abstractmethod
    def linearize(cls, step: Callable[[Tensor], Tensor], state: Tensor) -> tuple[Tensor, Self]:
        """`step(state)` and its derivative there, for `state` `(*lead, state)` and a step that treats each lead index apart."""

    @abc.abstractmethod
    def compose(self, earlier: Self) -> Self:
        """The map that applies `earlier`, then this."""

    @abc.abstractmethod
    def apply(self, vector: Tensor) -> Tensor:
        """This map applied to `vector` `(*lead, state)`."""

    @abc.abstractmethod
    def transpose(self) -> Self:
        """The transposed map, without conjugation."""

    @abc.abstractmethod
    def to_dense(self) -> Tensor:
        """The maps as matrices `(*lead, state, state)`."""

    @classmethod
    def of(cls, step: Callable[[Tensor], Tensor], state: Tensor) -> Self:
        """The derivative of `step` at `state`."""
        return cls.linearize(step, state)[1]

    @classmethod
    def cost(cls, state_size: int) -> tuple[int, int]:
        """Multiplications to compose two maps and to apply one, for the planner; override where a structure is cheaper than dense."""
        return state_size**3, state_size**2

    def gain(self) -> Tensor:
        """How large each channel of `apply(v)` is to be expected where every channel of `v` is one of random sign, `(*lead, state)`."""
        return self.to_dense().abs().square().sum(-1).sqrt()

    def apply_add(self, vector: Tensor, bias: Tensor, *, out: Tensor | None = None) -> Tensor:
        """`A vector + bias`, written into `out` where it is given; override where one operation does both."""
        return torch.add(self.apply(vector), bias, out=out)

    def leaf_cotangents(self, vector: Tensor, cotangent: Tensor) -> tuple[Tensor, ...]:
        """Gradients of the leaves where `apply(vector)` has gradient `cotangent`; override where a formula is cheaper."""
        pullback = torch.func.vjp(lambda *leaves: type(self).from_leaves(*leaves).apply(vector), *self.leaves())[1]
        return tuple(pullback(cotangent))

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The structure whose leaves are `function` of these."""
        return type(self).from_leaves(*map(function, self.leaves()))

    def adjoint(self) -> Self:
        """The conjugate transpose, which carries gradients backwards."""
        transposed = self.transpose()
        return transposed.map(torch.conj) if any(leaf.is_complex() for leaf in transposed.leaves()) else transposed

    def detach(self) -> Self:
        """The same maps, cut from the autograd graph."""
        return self.map(Tensor.detach)

    def where(self, keep: Tensor) -> Self:
        """These maps where `keep` `(*lead)` is true and the zero map elsewhere; safe for non-finite leaves."""
        return self.map(lambda leaf: torch.where(keep.reshape(keep.shape + (1,) * (leaf.ndim - keep.ndim)), leaf, 0))

    def is_finite(self, lead: int) -> Tensor:
        """Whether every number of each map is finite, of shape `(*lead)` for maps with `lead` leading dimensions."""
        flags = [leaf.isfinite().flatten(lead).all(-1) if leaf.ndim > lead else leaf.isfinite() for leaf in self.leaves()]
        return torch.stack(flags).all(0)


def push_forward(step: Callable[[Tensor], Tensor], state: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """`step(state)` and its derivative along `direction`, one forward-mode pass; what `linearize` of a structure is made of."""
    # Torch numbers forward-mode levels for the whole process: two threads that open and close them at once fail.
    with FORWARD_MODE:
        push = torch.func.jvp if _has_pushed else _push_first
        value, derivative = push(step, (state,), (direction,))[:2]
    return value, derivative


def _push_first(step: Callable[[Tensor], Tensor], states: tuple[Tensor], directions: tuple[Tensor]) -> tuple[Tensor, ...]:
    """`torch.func.jvp`, without what torch has to say of itself the first time."""
    global _has_pushed
    # It imports rules then that it compiles by torch.jit.script, which it deprecates itself, since 2.14 for everybody to see. No caller can do
    # anything about that, and where warnings are errors the import fails. A filter by the message would be a pattern, which torch.compile does not
    # trace.
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        warnings.simplefilter("ignore", DeprecationWarning)
        pushed: tuple[Tensor, ...] = torch.func.jvp(step, states, directions)
    _has_pushed = True
    return pushed


def unit_tangents(state: Tensor, size: int) -> tuple[Tensor, ...]:
    """The `size` basis directions of the last dimension of `state`, each broadcast to its shape."""
    return tuple(torch.eye(size, dtype=state.dtype, device=state.device).unbind(0))
