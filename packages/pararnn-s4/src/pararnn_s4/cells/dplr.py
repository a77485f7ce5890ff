"""`ParaS4`: S4 as a cell, with the transition in its low-rank form for a step and its powers for all of them.

The conjugate partners, which a diagonal model need not mention, meet the half that is stored in the low-rank term: it sees real parts, which is no
complex-linear map. So states are real here, `[Re x, Im x]`, and each feature is one dense block of `pararnn.BlockDiagonal`.
"""
# ruff: noqa: N803 -- D is the name of the literature.

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from pararnn import BlockDiagonal
from pararnn.scans.dispatch import full_precision
from pararnn_s4.cells.base import StateSpaceCell, made_or_given
from pararnn_s4.state_space.dplr import DPLRSSM
from pararnn_s4.state_space.real_form import columns, diagonal_matrix, halves, rows


class LowRankDrive(NamedTuple):
    """The inputs `(batch, time, d_model)` and the constants of every step: `x -> transition * x - left Re(right x) + gain u`.

    All but the inputs hold `size` numbers a feature, `(size, d_model)`: real and imaginary parts of the transition, and real forms of the rest; the
    `rank` parts of `left` and `right` lie one after the other, `(rank * size, d_model)`.
    """

    u: Tensor
    transition: Tensor
    left: Tensor
    right: Tensor
    gain: Tensor

    def matrices(self, *, is_real: bool) -> Tensor:
        """The transitions as matrices `(d_model, size, size)`, in double precision."""
        size = self.gain.shape[0]
        transition, left, right = (leaf.double() for leaf in (self.transition, self.left, self.right))
        own = diagonal_matrix(transition.mT if is_real else halves(transition.mT))
        # (rank, size, d_model) twice, to one matrix a feature.
        return own - torch.einsum("rih,rjh->hij", left.unflatten(0, (-1, size)), right.unflatten(0, (-1, size)))


class ParaS4(StateSpaceCell):
    """State-space models with a diagonal plus low-rank transition as a linear cell, `x[t] = A x[t-1] + B u[t]`, `y[t] = C x[t] + D u[t]`.

    States are real, `[Re, Im]` of one of each conjugate pair. A step costs a few operations a state; whole sequences are solved by powers of the
    transition, see `pararnn_s4.cells.powers`, and by the general solver where that backend cannot serve. `pararnn_s4.S4` computes the same outputs by
    a convolution.

    Args:
        d_model: features of the input.
        ssm: a `DPLRSSM` to share, such as a layer's; made from `options` if left out.
        D: skip weights `(channels, d_model)` to share; normal random ones if left out.
        rate: the time between samples over that of training: 2 for data sampled half as often. Exact: the state space is sampled anew.
        options: what `DPLRSSM` takes, such as `d_state`, `rank`, `init`.

    Raises:
        ConfigError: values that cannot work.
        ShapeError: `D` does not fit.
    """

    solve_ops: ClassVar[tuple[str, ...]] = ("s4/solve",)

    def __init__(self, d_model: int, *, ssm: DPLRSSM | None = None, D: nn.Parameter | None = None, rate: float = 1.0, **options: Any) -> None:
        model, made_with = made_or_given(d_model, ssm, DPLRSSM, options)
        size = model.state_size * (1 if model.is_real else 2)
        super().__init__(model, D, rate, size, made_with)
        self.structure = BlockDiagonal.sized(self.slots)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Another step is another recurrence, which the backend of this one does not solve.
        if "step" in vars(cls) and "solve_ops" not in vars(cls):
            cls.solve_ops = ()

    def initial_state(self, batch: int) -> Tensor:
        """Zeros `(batch, state_size)`, real."""
        return torch.zeros(batch, self.state_size, dtype=self.ssm.dtype, device=self.ssm.C.device)

    def drive(self, x: Tensor) -> LowRankDrive:
        """The inputs `x` `(batch, time, d_model)` and the constants of a step."""
        with full_precision(x):
            step = self.constants()
            left, right = columns(step.left).mT.flatten(0, 1), rows(step.right).mT.flatten(0, 1)
            return LowRankDrive(x, columns(step.transition).mT, left, right, columns(step.drive).mT)

    def step(self, state: Tensor, drive: LowRankDrive) -> Tensor:
        """The next state."""
        slotted = self.slotted(state)
        before, size = slotted[..., :-1, :], self.slots - 1
        left, right = (leaf.unflatten(0, (-1, size)) for leaf in (drive.left, drive.right))
        seen = (right * before.unsqueeze(-3)).sum(-2, keepdim=True)
        following = self._turn(before, drive.transition) - (left * seen).sum(-3) + drive.gain * drive.u.unsqueeze(-2)
        u = drive.u.unsqueeze(-2).to(following.dtype)
        return torch.cat((following, u.expand(*following.shape[:-2], 1, self.d_model)), dim=-2).flatten(-2)

    def linearize(self, state: Tensor, drive: LowRankDrive) -> tuple[Tensor, BlockDiagonal]:
        """The next state and its derivative, which is the same everywhere."""
        blocks = drive.matrices(is_real=self.ssm.is_real).permute(1, 2, 0).to(state.dtype)
        # The last row and column are those of the input, which comes from no state and stays for no step.
        blocks = torch.nn.functional.pad(blocks, (0, 0, 0, 1, 0, 1))
        return self.step(state, drive), BlockDiagonal.sized(self.slots)(blocks.expand(*state.shape[:-1], *blocks.shape))

    def as_slots(self, weights: Tensor) -> Tensor:
        """Weights of the outputs `(channels, d_model, state)` as rows over real states, `(channels, slots - 1, d_model)`."""
        return rows(weights).mT

    def pack(self, state: Tensor) -> Tensor:
        """A state of the model `(*lead, d_model, state)`, such as a layer's, as one of this cell."""
        real = columns(state)
        return torch.cat((real.mT, torch.zeros_like(real[..., 0]).unsqueeze(-2)), dim=-2).flatten(-2)

    def unpack(self, state: Tensor) -> Tensor:
        """A state of this cell as one of the model, `(*lead, d_model, state)`."""
        real = self.slotted(state)[..., :-1, :].mT
        return real if self.ssm.is_real else halves(real)

    def _turn(self, state: Tensor, transition: Tensor) -> Tensor:
        """The diagonal part: rotations with scaling of the pairs of real and imaginary parts, `(*lead, size, d_model)`."""
        if self.ssm.is_real:
            return transition * state
        (real, imag), (cosine, sine) = state.chunk(2, dim=-2), transition.chunk(2, dim=-2)
        return torch.cat((cosine * real - sine * imag, sine * real + cosine * imag), dim=-2)
