"""One sample after the other: the constants of a step, held so that a step is a few small operations.

A decoder made by a module is a snapshot: training the module later does not change it. `enter` takes a state of the module (as its `advance`
gives it after a prompt) to the basis in which the decoder steps, `leave` brings it back. Steps write to nothing, so that gradients may flow
through them, and `torch.compile` and CUDA graphs may hold them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from pararnn.errors import ShapeError
from pararnn.scans.dispatch import full_precision
from pararnn_s4.kernels.products import exact_bmm
from pararnn_s4.state_space.real_form import columns, halves


@dataclass(frozen=True, kw_only=True)
class Decoder(ABC):
    """The recurrence `x[t+1] = A x[t] + B u[t]`, `y[t] = Re C x[t+1]` in some basis.

    Attributes:
        drive: `B`, `(d_model, state)`.
        output: `C`, `(channels, d_model, state)`, with the factor 2 of conjugate pairs.
    """

    drive: Tensor
    output: Tensor

    def snapshot(self) -> Self:
        """The same constants in memory of their own, without gradients."""
        own = {name: value.detach().clone() for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **own)

    def initial_state(self, batch: int) -> Tensor:
        """Zeros `(batch, d_model, state)`."""
        return self.drive.new_zeros(batch, *self.drive.shape)

    def enter(self, state: Tensor) -> Tensor:
        """A state of the module in the basis of this decoder."""
        return state

    def leave(self, state: Tensor) -> Tensor:
        """A state of this decoder in the basis of the module."""
        return state

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs `(batch, channels, d_model)` and the next state, for inputs `u` `(batch, d_model)`.

        Raises:
            ShapeError: `u` or `state` has another shape.
        """
        d_model = self.drive.shape[0]
        if u.ndim != 2 or u.shape[1] != d_model or state.shape != (u.shape[0], *self.drive.shape):
            expected = f"u (batch, {d_model}) and state (batch, {', '.join(map(str, self.drive.shape))})"
            raise ShapeError(
                f"a step takes {expected}, got {tuple(u.shape)} and {tuple(state.shape)}; decoder.initial_state(batch) gives a first state"
            )
        with full_precision(self.drive):
            drive = u.to(self.drive.dtype).unsqueeze(-1) * self.drive
            following = self.carry(state) + drive
            return self._outputs(following), following

    @abstractmethod
    def carry(self, state: Tensor) -> Tensor:
        """`A state`."""

    def _outputs(self, state: Tensor) -> Tensor:
        output, state = (torch.view_as_real(part).flatten(-2) if part.is_complex() else part for part in (self.output.conj().resolve_conj(), state))
        return (output * state.unsqueeze(1)).sum(-1)


@dataclass(frozen=True, kw_only=True)
class DiagonalDecoder(Decoder):
    """A diagonal transition `(d_model, state)`: a few operations a state."""

    transition: Tensor

    def carry(self, state: Tensor) -> Tensor:
        return self.transition * state


@dataclass(frozen=True, kw_only=True)
class LowRankDecoder(Decoder):
    """A diagonal transition and a correction of low rank: `A x = transition * x - left Re(right x)`, linear in the size of the state.

    Attributes:
        transition: `(d_model, state)`.
        left: `(rank, d_model, state)`.
        right: `(rank, d_model, state)`.
    """

    transition: Tensor
    left: Tensor
    right: Tensor

    def carry(self, state: Tensor) -> Tensor:
        carried = self.transition * state
        for left, right in zip(self.left.unbind(0), self.right.unbind(0), strict=True):
            weight = (right * state).sum(-1, keepdim=True)
            carried = carried - left * (weight.real if weight.is_complex() else weight)
        return carried


@dataclass(frozen=True, kw_only=True)
class DenseDecoder(Decoder):
    """The whole transition `(d_model, size, size)` over real states: one matrix product, of which devices with many cores have to spare.

    `complex_pairs` says that a state of the module is complex, of half the size.
    """

    transition: Tensor
    complex_pairs: bool

    def enter(self, state: Tensor) -> Tensor:
        return columns(state)

    def leave(self, state: Tensor) -> Tensor:
        return halves(state) if self.complex_pairs else state

    def carry(self, state: Tensor) -> Tensor:
        return exact_bmm(state.transpose(0, 1), self.transition.transpose(1, 2)).transpose(0, 1)


@dataclass(frozen=True, kw_only=True)
class EigenDecoder(DiagonalDecoder):
    """A diagonal transition in the eigenvectors of a dense one; the state is complex, and no pairs are left out.

    Attributes:
        basis: the eigenvectors as columns, `(d_model, size, size)`.
        inverse: the inverse of `basis`.
        complex_pairs: a state of the module is complex, of half the size.
    """

    basis: Tensor
    inverse: Tensor
    complex_pairs: bool

    def enter(self, state: Tensor) -> Tensor:
        return torch.einsum("hmn,bhn->bhm", self.inverse, columns(state).to(self.inverse.dtype))

    def leave(self, state: Tensor) -> Tensor:
        real = torch.einsum("hmn,bhn->bhm", self.basis, state).real
        return halves(real) if self.complex_pairs else real
