"""Small cells that each exercise one thing, and the obvious loop that every answer is held to."""

import itertools
from typing import NamedTuple

import torch
from torch import nn

from pararnn.structures import BlockDiagonal, Dense, Diagonal


class ToyCell(nn.Module):
    """The members that toys share; `step` and `drive` are left to each."""

    structure = Diagonal

    def __init__(self, state_size, dtype=torch.float64):
        super().__init__()
        self.state_size = state_size
        self.state_dtype = dtype

    def initial_state(self, batch):
        return torch.zeros(batch, self.state_size, dtype=self.state_dtype)

    def drive(self, x):
        return x

    def readout(self, states):
        return states


class Tanh(ToyCell):
    """`tanh(weight h + input_weight x + bias)`, channel by channel."""

    state_bounds = (-1.0, 1.0)

    def __init__(self, state_size, weight=0.7, input_weight=1.0, bias=0.0, dtype=torch.float64):
        super().__init__(state_size, dtype)
        self.weight = nn.Parameter(torch.full((state_size,), weight, dtype=dtype))
        self.input_weight, self.bias = input_weight, bias

    def step(self, state, drive):
        return torch.tanh(self.weight * state + self.input_weight * drive + self.bias)


class AnalyticTanh(Tanh):
    """The same with its own Jacobian."""

    def jacobian(self, state, drive):
        return Diagonal((1 - self.step(state, drive) ** 2) * self.weight)


class SignLatch(ToyCell):
    """`tanh(3 s h)` with `s = +-1`: each step depends on all before it, so that a parallel solve gains nothing."""

    state_bounds = (-1.0, 1.0)

    def step(self, state, drive):
        return torch.tanh(3 * drive * state)


class GRUDrive(NamedTuple):
    gates: torch.Tensor
    recurrent: torch.Tensor


class DiagonalGRU(ToyCell):
    """A GRU whose recurrent matrices are diagonal; `scale` of its weights, large ones being chaotic."""

    state_bounds = (-1.0, 1.0)

    def __init__(self, d_in, state_size, scale=0.5, dtype=torch.float64):
        super().__init__(state_size, dtype)
        self.W = nn.Linear(d_in, 3 * state_size, dtype=dtype)
        self.U = nn.Parameter(torch.empty(3 * state_size, dtype=dtype))
        self.scale = scale
        self.reset_parameters()

    def reset_parameters(self):
        self.W.reset_parameters()
        with torch.no_grad():
            self.U.normal_(std=self.scale)

    def drive(self, x):
        return GRUDrive(self.W(x), self.U)

    def step(self, state, drive):
        update, reset, candidate = drive.gates.chunk(3, -1)
        u_update, u_reset, u_candidate = drive.recurrent.chunk(3, -1)
        keep = torch.sigmoid(update + u_update * state)
        open_ = torch.sigmoid(reset + u_reset * state)
        return keep * state + (1 - keep) * torch.tanh(candidate + u_candidate * open_ * state)


class GateDrive(NamedTuple):
    keep: torch.Tensor
    candidate: torch.Tensor
    elapsed: torch.Tensor
    recurrent: torch.Tensor
    gain: torch.Tensor


class Gate(ToyCell):
    """A gated cell whose drive has leaves of every kind, and whose step reads a parameter besides."""

    def __init__(self, d_in, state_size, dtype=torch.float64):
        super().__init__(state_size, dtype)
        self.W = nn.Linear(d_in - 1, 2 * state_size, dtype=dtype)
        self.recurrent = nn.Parameter(torch.randn(state_size, dtype=dtype))
        self.gain = nn.Parameter(torch.tensor(0.8, dtype=dtype))
        self.lift = nn.Parameter(0.1 * torch.randn(state_size, dtype=dtype))

    def initial_state(self, batch):
        return self.gain.new_zeros(batch, self.state_size)

    def drive(self, x):
        keep, candidate = self.W(x[..., :-1]).chunk(2, -1)
        return GateDrive(keep, candidate, x[..., -1:].abs(), self.recurrent, self.gain)

    def step(self, state, drive):
        keep = torch.exp(-nn.functional.softplus(drive.keep) * drive.elapsed)
        return keep * state + (1 - keep) * torch.tanh(drive.candidate + drive.gain * drive.recurrent * state + self.lift)


class SlotLSTM(ToyCell):
    """An LSTM with diagonal recurrent matrices: two slots, output and cell, of `channels` each."""

    structure = BlockDiagonal

    def __init__(self, d_in, channels, dtype=torch.float64):
        super().__init__(2 * channels, dtype)
        self.W = nn.Linear(d_in, 4 * channels, dtype=dtype)
        self.U = nn.Parameter(0.5 * torch.randn(4 * channels, dtype=dtype))

    def drive(self, x):
        return self.W(x)

    def step(self, state, drive):
        hidden, cell = state.chunk(2, -1)
        write, keep, candidate, show = (drive + self.U * torch.cat([hidden] * 4, -1)).chunk(4, -1)
        cell = torch.sigmoid(keep) * cell + torch.sigmoid(write) * torch.tanh(candidate)
        return torch.cat((torch.sigmoid(show) * torch.tanh(cell), cell), -1)

    def readout(self, states):
        return states.chunk(2, -1)[0]


class DenseRNN(ToyCell):
    """`tanh(U h + W x)`; every channel sees every other."""

    structure = Dense
    state_bounds = (-1.0, 1.0)

    def __init__(self, d_in, state_size, scale=0.6, dtype=torch.float64):
        super().__init__(state_size, dtype)
        self.W = nn.Linear(d_in, state_size, dtype=dtype)
        self.U = nn.Parameter(scale * torch.randn(state_size, state_size, dtype=dtype) / state_size**0.5)

    def drive(self, x):
        return self.W(x)

    def step(self, state, drive):
        return torch.tanh(state @ self.U.T + drive)


class QuasiRNN(DenseRNN):
    """The same, solved with the diagonal of its Jacobian only, and saying so."""

    structure = Diagonal
    exact_jacobian = False

    def jacobian(self, state, drive):
        return Diagonal((1 - self.step(state, drive) ** 2) * self.U.diagonal())


class ComplexPole(ToyCell):
    """`h' = pole h + W x` with complex poles, declared linear."""

    is_linear = True

    def __init__(self, d_in, state_size):
        super().__init__(state_size, torch.complex128)
        self.W = nn.Linear(d_in, state_size, dtype=torch.complex128)
        self.log_decay = nn.Parameter(-0.1 - torch.rand(state_size, dtype=torch.float64))
        self.angle = nn.Parameter(torch.rand(state_size, dtype=torch.float64))

    def drive(self, x):
        return self.W(x.to(self.W.weight.dtype))

    def initial_state(self, batch):
        return self.W.weight.new_zeros(batch, self.state_size)

    def step(self, state, drive):
        return torch.polar(torch.exp(self.log_decay), self.angle) * state + drive

    def readout(self, states):
        return states.real


class ComplexTanh(ComplexPole):
    """A complex cell that is not linear; the step is holomorphic, so its Jacobian is complex diagonal."""

    is_linear = False

    def step(self, state, drive):
        return torch.sin(0.5 * super().step(state, drive))


def make_cell(name, dtype=torch.float64):
    """The cell called `name` with random weights, reading three channels (one where it has as many as its state)."""
    return {
        "tanh": lambda: Tanh(3, dtype=dtype),
        "analytic tanh": lambda: AnalyticTanh(3, dtype=dtype),
        "diagonal GRU": lambda: DiagonalGRU(3, 4, dtype=dtype),
        "slot LSTM": lambda: SlotLSTM(3, 3, dtype=dtype),
        "dense RNN": lambda: DenseRNN(3, 4, dtype=dtype),
        "complex pole": lambda: ComplexPole(3, 4),
        "complex sine": lambda: ComplexTanh(3, 4),
        "quasi RNN": lambda: QuasiRNN(3, 4, scale=0.3, dtype=dtype),
    }[name]()


SMOOTH = ("tanh", "analytic tanh", "diagonal GRU", "slot LSTM", "dense RNN")
ALL = (*SMOOTH, "complex pole", "complex sine", "quasi RNN")


def drive_at(drive, time):
    """The drive of one step, by plain indexing."""
    if isinstance(drive, torch.Tensor):
        return drive[:, time]
    return type(drive)(*(leaf[:, time] if leaf.ndim >= 3 else leaf for leaf in drive))


def loop(cell, x, h0=None):
    """The states `(batch, time, state)`, one step after the other, nothing clever."""
    drive = cell.drive(x)
    state = cell.initial_state(x.shape[0]) if h0 is None else h0
    states = []
    for time in range(x.shape[1]):
        state = cell.step(state, drive_at(drive, time))
        states.append(state)
    return torch.stack(states, dim=1)


def packed_loop(cell, x, offsets, h0=None):
    """The same for segments of one row, each on its own."""
    pieces = [x[:, start:end] for start, end in itertools.pairwise(offsets)]
    starts = [None if h0 is None else h0[segment : segment + 1] for segment in range(len(pieces))]
    return torch.cat([loop(cell, piece, start) for piece, start in zip(pieces, starts, strict=True) if piece.shape[1]], dim=1)


def weighted_sum(states, seed=7):
    """A fixed functional of `states` with irregular weights, real for complex ones, so that no gradient cancels."""
    real = torch.view_as_real(states) if states.is_complex() else states
    weights = torch.cos(seed + torch.arange(real.numel(), dtype=torch.float64) ** 2).reshape(real.shape)
    return (real * weights.to(real.dtype)).sum()
