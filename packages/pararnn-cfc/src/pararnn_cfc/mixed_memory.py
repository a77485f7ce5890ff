"""An LSTM in front of a CfC cell, as one cell whose state is the CfC state and the LSTM's memory side by side.

Within a sample the LSTM reads features and state and proposes a state; the CfC cell moves that proposal on. The memory carries what should
last, along a path that no squashing function touches.

Source: Lechner and Hasani, "Learning long-term dependencies in irregularly-sampled time series", 2020, arXiv 2006.04418.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pararnn.solver.problem import analytic_form
from pararnn.structures.dense import Dense
from pararnn_cfc.affine import is_plain
from pararnn_cfc.ncps_cell import CfCCell, CfCDrive, DroppedCfCDrive
from pararnn_cfc.wired import WiredCfC


class MixedDrive(NamedTuple):
    """`CfCDrive` and the feature part of the LSTM's gates."""

    gates: Tensor
    inputs: Tensor
    elapsed: Tensor


class DroppedMixedDrive(NamedTuple):
    """`DroppedCfCDrive` and the feature part of the LSTM's gates."""

    gates: Tensor
    inputs: Tensor
    elapsed: Tensor
    keep: Tensor


AnyMixedDrive: TypeAlias = MixedDrive | DroppedMixedDrive


class LSTMGates(nn.Module):
    """The weights of the LSTM, named and initialised as in `ncps.torch.lstm.LSTMCell`: features and state to four gates."""

    def __init__(self, input_size: int, state_size: int) -> None:
        super().__init__()
        self.input_map = nn.Linear(input_size, 4 * state_size)
        self.recurrent_map = nn.Linear(state_size, 4 * state_size, bias=False)
        nn.init.xavier_uniform_(self.input_map.weight)
        nn.init.uniform_(self.input_map.bias, -0.1, 0.1)
        nn.init.orthogonal_(self.recurrent_map.weight)

    def advance(self, state: Tensor, memory: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
        """The proposed state and the new memory."""
        return remember(memory, *(gates + self.recurrent_map(state)).chunk(4, dim=-1))

    def linearize(self, state: Tensor, memory: Tensor, gates: Tensor) -> tuple[tuple[Tensor, Tensor], LSTMDerivatives]:
        """`advance` and its derivatives, for a `recurrent_map` that is a plain Linear layer."""
        preactivations = (gates + self.recurrent_map(state)).chunk(4, dim=-1)
        (shown, kept), by_memory, slopes = remember_with_slopes(memory, *preactivations)
        weights = self.recurrent_map.weight.chunk(4)
        proposal, remembered = (
            functools.reduce(torch.add, (slope.unsqueeze(-1) * weight for slope, weight in zip(of_result, weights, strict=True)))
            for of_result in slopes
        )
        return (shown, kept), LSTMDerivatives(proposal, remembered, *by_memory)


class LSTMDerivatives(NamedTuple):
    """Derivatives of proposed state and memory by the state, `(*lead, state, state)`, and by the memory, diagonals `(*lead, state)`."""

    proposal_by_state: Tensor
    memory_by_state: Tensor
    proposal_by_memory: Tensor
    memory_by_memory: Tensor


def remember(memory: Tensor, candidate: Tensor, admit: Tensor, keep: Tensor, show: Tensor) -> tuple[Tensor, Tensor]:
    """What an LSTM shows and the new memory; the constant in the forget gate lets it start half open."""
    memory = memory * torch.sigmoid(keep + 1.0) + torch.tanh(candidate) * torch.sigmoid(admit)
    return torch.tanh(memory) * torch.sigmoid(show), memory


def remember_with_slopes(
    memory: Tensor, candidate: Tensor, admit: Tensor, keep: Tensor, show: Tensor
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
    """`remember`, the derivatives of both results by the memory, and of both by the four gates; unit `i` sees unit `i` alone."""
    proposed, opened, held, visible = torch.tanh(candidate), torch.sigmoid(admit), torch.sigmoid(keep + 1.0), torch.sigmoid(show)
    kept = memory * held + proposed * opened
    level = torch.tanh(kept)
    by_gates = ((1.0 - proposed.square()) * opened, proposed * opened * (1.0 - opened), memory * held * (1.0 - held), torch.zeros_like(kept))
    through = visible * (1.0 - level.square())
    shown_by_gates = (*(through * slope for slope in by_gates[:3]), level * visible * (1.0 - visible))
    return (level * visible, kept), (through * held, held), (shown_by_gates, by_gates)


class MixedMemoryCell(nn.Module):
    """`lstm` in front of `cell`, with the state `(cell state, memory)` of twice the cell's size."""

    structure = Dense

    def __init__(self, cell: CfCCell | WiredCfC, lstm: LSTMGates) -> None:
        super().__init__()
        self.cell = cell
        self.lstm = lstm
        self.input_size = cell.input_size
        self.state_size = 2 * cell.state_size
        self.output_size = cell.output_size

    def initial_state(self, batch: int) -> Float[Tensor, "batch state"]:
        """Zeros, in the dtype and on the device of the weights."""
        state = self.cell.initial_state(batch)
        return torch.cat([state, torch.zeros_like(state)], dim=-1)

    def drive(self, x: Float[Tensor, "batch time input"]) -> AnyMixedDrive:
        """The drive of the inner cell and the feature part of the LSTM's gates.

        Raises:
            CellError: a layer of the inner cell that cannot be split.
            ShapeError: `x` is not as wide as the features and the elapsed time.
        """
        inner = self.cell.drive(x)
        gates: Tensor = self.lstm.input_map(x[..., : self.input_size])
        return DroppedMixedDrive(gates, *inner) if isinstance(inner, DroppedCfCDrive) else MixedDrive(gates, *inner)

    def step(self, state: Float[Tensor, "*lead state"], drive: AnyMixedDrive) -> Float[Tensor, "*lead state"]:
        """State and memory after one sample."""
        own, memory = state.chunk(2, dim=-1)
        proposal, memory = self.lstm.advance(own, memory, drive.gates)
        return torch.cat([self.cell.step(proposal, self._inner(drive)), memory], dim=-1)

    def linearize(self, state: Float[Tensor, "*lead state"], drive: AnyMixedDrive) -> tuple[Tensor, Dense]:
        """`step` and its Jacobian: the inner cell's after the LSTM's."""
        inner_form = analytic_form(self.cell, "auto")
        if inner_form is None or not is_plain(self.lstm.recurrent_map):
            return Dense.linearize(lambda inner: self.step(inner, drive), state)
        own, memory = state.chunk(2, dim=-1)
        (proposal, memory), derivatives = self.lstm.linearize(own, memory, drive.gates)
        following, inner_jacobian = inner_form(proposal, self._inner(drive))
        moved = inner_jacobian.to_dense()
        upper = torch.cat([moved @ derivatives.proposal_by_state, moved * derivatives.proposal_by_memory.unsqueeze(-2)], dim=-1)
        lower = torch.cat([derivatives.memory_by_state, torch.diag_embed(derivatives.memory_by_memory)], dim=-1)
        return torch.cat([following, memory], dim=-1), Dense(torch.cat([upper, lower], dim=-2))

    def readout(self, states: Float[Tensor, "*lead state"]) -> Float[Tensor, "*lead output"]:
        """What the inner cell shows of its part of the state."""
        return self.cell.readout(states.chunk(2, dim=-1)[0])

    def _inner(self, drive: AnyMixedDrive) -> CfCDrive | DroppedCfCDrive:
        if isinstance(drive, DroppedMixedDrive):
            return DroppedCfCDrive(drive.inputs, drive.elapsed, drive.keep)
        return CfCDrive(drive.inputs, drive.elapsed)
