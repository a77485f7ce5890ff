"""What users of other libraries reported, as it behaves in a block; the addresses are those of the reports."""

import math

import pytest
import torch
from torch import nn

from pararnn_nanode import NANODE, DenseField, TrigPath

GRADIENTS = [
    {},
    {"gradient": "checkpoint"},
    {"method": "reversible_heun", "gradient": "reversible"},
    {"method": "rk4", "gradient": "adjoint"},
    {"method": "dopri5"},
    {"method": "dopri5", "gradient": "checkpoint"},
    {"method": "dopri5", "gradient": "adjoint"},
]


class Idle(nn.Module):
    """A field one of whose layers it never calls."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, t, x):
        return torch.tanh(self.used(x))


@pytest.mark.parametrize("options", GRADIENTS, ids=str)
def test_a_parameter_without_use_has_no_gradient_and_does_no_harm(options):
    """github.com/DiffEqML/torchdyn/issues/206, 168."""
    block = NANODE(Idle(), **options)
    block(torch.randn(4, 3)).sum().backward()
    gradients = [parameter.grad for parameter in block.field.fn.unused.parameters()]
    assert all(gradient is None or not gradient.any() for gradient in gradients)
    assert all(parameter.grad.any() for parameter in block.field.fn.used.parameters())


@pytest.mark.parametrize("method", ["euler", "rk4", "dopri5"])
def test_vmap_over_a_solve_of_a_function(method):
    """github.com/rtqichen/torchdiffeq/issues/217."""
    block = NANODE(lambda t, x: -x, 100, method=method)
    answer = torch.vmap(block)(torch.ones(3, 2))
    torch.testing.assert_close(answer, torch.full((3, 2), math.exp(-1)), rtol={"euler": 0.01, "rk4": 1e-8, "dopri5": 1e-6}[method], atol=0)


def test_evaluations_are_counted_for_each_call_alone():
    """github.com/DiffEqML/torchdyn/issues/48, 131."""
    block = NANODE(DenseField(3, TrigPath((3, 3), 1)), 10, method="rk4")
    assert [block.solve(torch.ones(2, 3)).nfe for _ in range(3)] == [40, 40, 40]


@pytest.mark.parametrize("options", GRADIENTS, ids=str)
def test_counted_evaluations_are_those_of_the_function(options):
    calls = []
    rate = torch.nn.Parameter(torch.ones(()))

    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.rate = rate

        def forward(self, t, x):
            calls.append(t)
            return -self.rate * x

    counted = NANODE(Counted(), **options).solve(torch.ones(2)).nfe
    # Where gradients depend on knowing all that the function reads, it is called once more to find out.
    assert len(calls) - counted in ((0, 1) if options.get("gradient") in ("reversible", "adjoint") else (0,))


def test_a_parallel_solve_is_explained_once():
    block = NANODE(DenseField(3, TrigPath((3, 3), 1)), 1000, parallel="newton")
    found = block.solve(torch.ones(2, 3))
    text = found.explain()
    assert text.count("in parallel") == 1
    assert f"1000 steps of euler in {found.iterations} iterations" in text
    assert "exact gradient" in text
    assert "implicit" not in text


@pytest.mark.parametrize("method", ["euler", "rk4", "dopri5"])
def test_a_decreasing_span_is_walked(method):
    """github.com/soran-ghaderi/torchebm/issues/154."""
    answer = NANODE(lambda t, x: -x, 200, (1.0, 0.0), method=method)(torch.ones(1))
    torch.testing.assert_close(answer, torch.tensor([math.e]), rtol={"euler": 0.01, "rk4": 1e-8, "dopri5": 1e-5}[method], atol=0)


def test_a_span_of_many_steps_ends_at_its_end():
    """github.com/rtqichen/torchdiffeq/issues/138."""
    solution = NANODE(lambda t, x: torch.ones_like(x), 59, (0.0, 5.9)).solve(torch.zeros(1), output_times := [5.9])
    assert solution.t.tolist() == output_times
    torch.testing.assert_close(solution.last, torch.tensor([5.9]))


@pytest.mark.parametrize("method", ["euler", "midpoint", "heun", "rk4", "rk4_38", "reversible_heun", "alf", "dopri5"])
def test_a_field_is_called_at_times_inside_the_span_only(method):
    """github.com/martenlienen/torchode/issues/7."""
    times = []
    NANODE(lambda t, x: times.append(float(t)) or -x, 10, (0.79, 0.0), method=method)(torch.ones(1))
    assert min(times) >= -1e-12
    assert max(times) <= 0.79 + 1e-12
