"""`ParaS4D`: S4D as a cell, solved by the core's scan of diagonal maps."""
# ruff: noqa: N803 -- D is the name of the literature.

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pararnn import Diagonal
from pararnn.scans.dispatch import full_precision
from pararnn_s4.cells.base import StateSpaceCell, made_or_given
from pararnn_s4.state_space.diagonal import DiagonalSSM


class DiagonalDrive(NamedTuple):
    """The inputs `(batch, time, d_model)`, and the constants of every step, `(slots, d_model)`."""

    u: Tensor
    transition: Tensor
    gain: Tensor


class ParaS4D(StateSpaceCell):
    """Diagonal state-space models as a linear cell: `x[t] = A x[t-1] + B u[t]`, `y[t] = 2 Re C x[t] + D u[t]`.

    States are complex, one of each conjugate pair, or real with `is_real`. One scan gives them all, whatever the length, the packing and the
    initial state; `pararnn_s4.S4D` computes the same outputs by a convolution, which holds no states.

    Args:
        d_model: features of the input.
        ssm: a `DiagonalSSM` to share, such as a layer's; made from `options` if left out.
        D: skip weights `(channels, d_model)` to share; normal random ones if left out.
        rate: the time between samples over that of training: 2 for data sampled half as often. Exact: the state space is sampled anew.
        options: what `DiagonalSSM` takes, such as `d_state`, `channels`, `init`, `disc`.

    Raises:
        ConfigError: values that cannot work.
        ShapeError: `D` does not fit.
    """

    structure = Diagonal

    def __init__(self, d_model: int, *, ssm: DiagonalSSM | None = None, D: nn.Parameter | None = None, rate: float = 1.0, **options: Any) -> None:
        model, made_with = made_or_given(d_model, ssm, DiagonalSSM, options)
        super().__init__(model, D, rate, model.state_size, made_with)

    def initial_state(self, batch: int) -> Tensor:
        """Zeros `(batch, state_size)`, complex unless the model is real."""
        return torch.zeros(batch, self.state_size, dtype=self.ssm.state_dtype, device=self.ssm.C.device)

    def drive(self, x: Tensor) -> DiagonalDrive:
        """The inputs `x` `(batch, time, d_model)` and the constants of a step."""
        with full_precision(x):
            step = self.constants()
            forget, take = torch.zeros_like(step.drive[:, 0]), torch.ones_like(step.drive[:, 0])
            transition = torch.cat((step.transition.mT, forget.unsqueeze(0)))
            return DiagonalDrive(x, transition, torch.cat((step.drive.mT, take.unsqueeze(0))))

    def step(self, state: Tensor, drive: DiagonalDrive) -> Tensor:
        """The next state."""
        return torch.addcmul((drive.gain * drive.u.unsqueeze(-2)).flatten(-2), drive.transition.flatten(), state)

    def linearize(self, state: Tensor, drive: DiagonalDrive) -> tuple[Tensor, Diagonal]:
        """The next state and its derivative, which is the same everywhere."""
        return self.step(state, drive), Diagonal(drive.transition.flatten().expand(state.shape))

    def pack(self, state: Tensor) -> Tensor:
        """A state of the model `(*lead, d_model, state)`, such as a layer's, as one of this cell."""
        return torch.cat((state.mT, torch.zeros_like(state[..., 0]).unsqueeze(-2)), dim=-2).flatten(-2)

    def unpack(self, state: Tensor) -> Tensor:
        """A state of this cell as one of the model, `(*lead, d_model, state)`."""
        return self.slotted(state)[..., :-1, :].mT
