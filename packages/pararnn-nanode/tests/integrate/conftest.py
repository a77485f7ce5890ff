"""Equations with known answers, and a small network whose weights move."""

import math
from collections.abc import Callable

import pytest
import torch

from pararnn_nanode.fields.base import Field
from pararnn_nanode.fields.dense import DenseField
from pararnn_nanode.paths.trigonometric import TrigPath


class Given(Field):
    """`activation(W(t) x)` with weights that a function of times gives."""

    def __init__(self, weights: Callable[[torch.Tensor], torch.Tensor], activation: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        super().__init__()
        self.given = weights
        self.activate = activation

    def weights(self, times, anchors=None, u=None):
        return (self.given(times),)

    def evaluate(self, x, weights):
        pre = (weights[0] @ x.unsqueeze(-1)).squeeze(-1)
        return pre if self.activate is None else self.activate(pre)


def matrix(*rows):
    return torch.tensor(rows, dtype=torch.float64)


OMEGA = matrix((0, 2, 0), (-2, 0, 1), (0, -1, 0))
MIDDLE = matrix((-0.3, 0.4, 0), (0.1, -0.2, 0.3), (0, 0.2, 0.1))
COMMUTING = matrix((0, 1, 0), (-1, 0, 0.5), (0, -0.5, -0.2))
TERMS = (
    matrix((0.2, -0.5), (0.4, 0.1)),
    matrix((0.3, 0.6), (-0.7, 0.2)),
    matrix((-0.4, 0.1), (0.5, -0.3)),
    matrix((0.1, -0.2), (0.3, 0.4)),
    matrix((0.2, 0.2), (-0.1, 0.5)),
)


def rotating(times):
    turn = torch.linalg.matrix_exp(times[..., None, None] * OMEGA)
    return turn @ MIDDLE @ turn.mT


def growing(times):
    return (1 + torch.cos(2 * times) + times / 2)[..., None, None] * COMMUTING


def trigonometric(omega):
    def weights(times):
        angle = omega * times[..., None, None]
        a0, a1, b1, a2, b2 = TERMS
        return a0 + a1 * torch.cos(angle) + b1 * torch.sin(angle) + a2 * torch.cos(2 * angle) + b2 * torch.sin(2 * angle)

    return weights


@pytest.fixture
def given():
    return Given


@pytest.fixture
def start():
    return torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64)


@pytest.fixture
def non_commuting():
    """The equation, and its state at time 1 from `start`."""
    return Given(rotating), torch.tensor([0.959765961418104, -0.386349958223206, 0.330956240776263], dtype=torch.float64)


@pytest.fixture
def commuting():
    """The equation, and its state at time 1 from `start`."""
    return Given(growing), torch.tensor([-0.378854609953522, -0.622228493200929, 0.764223624974027], dtype=torch.float64)


@pytest.fixture
def trig_equation():
    """The two-channel equation of one frequency."""
    return lambda omega: Given(trigonometric(omega), torch.tanh)


@pytest.fixture
def network():
    """A function of the channels and the path's class (or none) that makes a small float64 network with bias and inputs, always the same."""

    def make(channels=4, path=None, *, inputs=0):
        torch.manual_seed(0)
        found = DenseField(
            channels,
            TrigPath((channels, channels), order=2) if path is None else path,
            bias=TrigPath((channels,), order=1),
            input=TrigPath((channels, inputs), order=1) if inputs else None,
        ).double()
        for parameter in found.parameters():
            torch.nn.init.normal_(parameter, std=0.8 / math.sqrt(channels))
        return found

    return make


@pytest.fixture
def batch():
    return torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
