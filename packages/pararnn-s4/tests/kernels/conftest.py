"""Problems of odd shapes, in double precision, and which backends are compared with the definition."""

import pytest
import torch

from pararnn.errors import BackendError
from pararnn.selection import Request, select

STATE, COPIES, NODES, LENGTH = 3, 2, 7, 41


@pytest.fixture
def random():
    """Complex numbers of a shape; the same at every call with a seed."""

    def draw(*shape, seed):
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.complex128)

    return draw


@pytest.fixture
def numerators(random):
    """`(groups, copies, state)`."""
    return random(2, COPIES, STATE, seed=1)


@pytest.fixture
def poles(random):
    """`(copies, state)`, decaying slowly."""
    values = random(COPIES, STATE, seed=2)
    return torch.complex(-0.05 * values.real.abs(), values.imag)


@pytest.fixture
def nodes(random):
    """One row of nodes for all copies, away from the poles."""
    return random(NODES, seed=3) + 3


@pytest.fixture
def drive(random):
    """`(groups, copies, length)`, real."""
    return random(2, COPIES, LENGTH, seed=4).real


@pytest.fixture
def require():
    """Skip the test unless a backend can serve an operation on the CPU."""

    def check(op, backend):
        try:
            select(Request.of(f"s4/{op}", dtype="complex128", groups=1, copies=1, state=1, length=1), backend)
        except BackendError as error:
            pytest.skip(f"backend {backend} cannot serve s4/{op}: {error}")

    return check
