"""Slow and obvious: every model as dense matrices of both conjugate partners, sampled by solving or exponentiating, run by a loop."""
# ruff: noqa: N806 -- A, B, C are the names of the literature.

from dataclasses import dataclass

import pytest
import torch


@dataclass
class Dense:
    """`x[t+1] = A x[t] + B u[t]`, `y = Re C x`: `A` (features, size, size), `B` (features, size), `C` (channels, features, size), complex."""

    A: torch.Tensor
    B: torch.Tensor
    C: torch.Tensor
    pairs: bool

    def full(self, state):
        return torch.cat((state, state.conj()), -1) if self.pairs else state

    def half(self, state):
        return state[..., : state.shape[-1] // 2] if self.pairs else state

    def kernel(self, length):
        state, outputs = self.B, []
        for _ in range(length):
            outputs.append(torch.einsum("chn,hn->ch", self.C, state).real)
            state = torch.einsum("hmn,hn->hm", self.A, state)
        return torch.stack(outputs, -1)

    def run(self, u, state):
        """Outputs (batch, channels, features, length) and the state after every sample, (batch, features, state, length)."""
        full, outputs, states = self.full(state.to(self.A.dtype)), [], []
        for sample in u.unbind(-1):
            full = torch.einsum("hmn,bhn->bhm", self.A, full) + self.B * sample.unsqueeze(-1)
            outputs.append(torch.einsum("chn,bhn->bch", self.C, full).real)
            states.append(self.half(full))
        states = torch.stack(states, -1)
        return torch.stack(outputs, -1), states if self.pairs else states.real


def continuous_matrices(model):
    """The dense matrices of a `Continuous` model and its time steps, with both partners of each pair."""
    pairs = model.rate.is_complex()

    def both(tensor):
        return torch.cat((tensor, tensor.conj()), -1) if pairs else tensor.to(torch.complex128)

    A = torch.diag_embed(both(model.rate))
    if model.low_rank is not None:
        for column in both(model.low_rank):
            A = A - torch.einsum("hm,hn->hmn", column, column.conj())
    dt = model.dt.expand(model.rate.shape)
    return A, both(model.input), both(model.output), torch.cat((dt, dt), -1) if pairs else dt, pairs


def sampled_bilinear(model):
    A, B, C, dt, pairs = continuous_matrices(model)
    identity = torch.eye(A.shape[-1], dtype=A.dtype)
    scaled = dt.unsqueeze(-1) * A
    A_bar = torch.linalg.solve(identity - scaled / 2, identity + scaled / 2)
    B_bar = torch.linalg.solve(identity - scaled / 2, (dt * B).unsqueeze(-1)).squeeze(-1)
    return Dense(A_bar, B_bar, C, pairs)


def matrix_exponential(matrix):
    """By the definition, after halving until it converges at once; torch.linalg.matrix_exp has errors of 2e-11 in double precision."""
    halvings = 20
    term = torch.eye(matrix.shape[-1], dtype=matrix.dtype).expand_as(matrix)
    small = matrix / 2**halvings
    # The sum without the identity, which would swallow the digits of the slow states.
    total = torch.zeros_like(matrix)
    for index in range(1, 12):
        term = term @ small / index
        total = total + term
    for _ in range(halvings):
        total = 2 * total + total @ total
    return total + torch.eye(matrix.shape[-1], dtype=matrix.dtype)


def sampled_zoh(model):
    A, B, C, dt, pairs = continuous_matrices(model)
    size = A.shape[-1]
    augmented = torch.zeros(A.shape[0], size + 1, size + 1, dtype=A.dtype)
    augmented[:, :size, :size] = dt.unsqueeze(-1) * A
    augmented[:, :size, size] = dt * B
    exponential = matrix_exponential(augmented)
    return Dense(exponential[:, :size, :size], exponential[:, :size, size], C, pairs)


@pytest.fixture
def dense():
    """The dense form of a module or of a continuous model: `dense(ssm, rate=1.0)`."""

    def build(ssm, rate=1.0):
        model = ssm.continuous(rate) if hasattr(ssm, "continuous") else ssm
        exact = getattr(ssm, "disc", "bilinear") == "zoh"
        with torch.no_grad():
            return sampled_zoh(model) if exact else sampled_bilinear(model)

    return build


@pytest.fixture
def relative():
    """The largest difference of two tensors over the largest number of the second."""

    def error(found, expected):
        return ((found.to(expected.dtype) - expected).abs().max() / expected.abs().max()).item()

    return error


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.manual_seed(0)


@pytest.fixture(name="matrix_exponential")
def _matrix_exponential():
    return matrix_exponential
