"""The projection inside of the kernels, against the program that is given projections, and against the plain solver."""

import os

import pytest
import torch

from pararnn import NewtonConfig, ParaRNN
from pararnn.compiler import reference
from pararnn_cfc import ParaCfC, fused_inside, fused_setting
from pararnn_cfc.fused_program import program

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
PLACES = [*([pytest.param("cpu", id="triton")] if INTERPRETED else []), pytest.param("cuda", id="triton on a GPU", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def samples(batch, length, features, dtype=torch.float64):
    return torch.cat((torch.randn(batch, length, features, dtype=dtype), 0.05 + torch.rand(batch, length, 1, dtype=dtype)), dim=-1)


@pytest.mark.parametrize("biased", [True, False], ids=["biased", "plain"])
@pytest.mark.parametrize("features", [1, 3, fused_inside.MOST_FEATURES], ids="K{}".format)
def test_samples_give_what_their_projections_give(features, biased):
    state = 5
    x, weight = samples(2, 7, features), torch.randn(2 * state, features, dtype=torch.float64)
    constants = tuple(torch.randn(state, dtype=torch.float64) for _ in range(3 if biased else 1))
    start, cotangent = torch.randn(2, state, dtype=torch.float64), torch.randn(2, 7, state, dtype=torch.float64)
    inside = fused_inside.program_inside(torch.float64, 0.5, features, guarded=True, biased=biased)
    outside = program(torch.float64, 0.5, guarded=True, biased=biased)
    given = fused_inside.operands(x, weight, constants)
    rate, candidate = (x[..., :-1] @ weight.t()).chunk(2, dim=-1)
    projected = (rate, candidate, x[..., -1:], *constants)
    states = reference.walk(inside, given, start, None)
    torch.testing.assert_close(states, reference.walk(outside, projected, start, None))
    *of_samples, of_start = reference.backward(inside, cotangent, states, given, start, None)
    of_rate, of_candidate, of_gap, *of_constants, truth = reference.backward(outside, cotangent, states, projected, start, None)
    of_projections = torch.cat((of_rate, of_candidate), dim=-1)
    torch.testing.assert_close(torch.cat(of_samples[: features + 1], dim=-1), torch.cat((of_projections @ weight, of_gap), dim=-1))
    torch.testing.assert_close(of_samples[features + 1 : -2 * features], of_constants)
    of_weight = fused_inside.weight_gradient(of_samples[-2 * features :], weight)
    torch.testing.assert_close(of_weight, of_projections.flatten(0, 1).t() @ x[..., :-1].flatten(0, 1))
    torch.testing.assert_close(of_start, truth)


def test_samples_are_next_to_each_other_however_the_input_lies():
    x = samples(2, 7, 3).transpose(0, 2).contiguous().transpose(0, 2)
    columns = fused_inside.operands(x, torch.randn(10, 3, dtype=torch.float64), ())[:4]
    assert [one.data_ptr() - columns[0].data_ptr() for one in columns] == [0, 8, 16, 24]
    torch.testing.assert_close(torch.cat(columns, dim=-1), x)


@pytest.fixture
def streamed(monkeypatch):
    """However few lanes and states there are, kernels that walk, and those of gradients, project by themselves."""
    monkeypatch.setattr(fused_setting, "STREAMED", 1)
    monkeypatch.setattr(fused_setting, "MANY_STATES", 1)
    fused_setting.setting.cache_clear()
    yield
    fused_setting.setting.cache_clear()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("needs_samples", [False, True], ids=["weights", "samples_too"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), pytest.param(torch.bfloat16, 5e-2, marks=pytest.mark.gpu)], ids=["float32", "bfloat16"]
)
@pytest.mark.parametrize("interval", [19, 5], ids=["walked", "parallel"])
def test_kernels_that_project_equal_the_plain_solver(streamed, place, needs_samples, dtype, tolerance, interval):
    cell = ParaCfC(4, 33, dtype=dtype)
    with torch.no_grad():
        cell.u[::3] = 0.7
    exact = ParaCfC(4, 33, dtype=torch.float64)
    exact.load_state_dict(cell.state_dict())
    x = samples(2, 19, 3).to(dtype)
    found = []
    for each, given, config in (
        (cell.to(place), x.to(place), NewtonConfig(backend="triton", interval=interval)),
        (exact, x.double(), NewtonConfig(backend="torch")),
    ):
        given = given.clone().requires_grad_(needs_samples)
        output = ParaRNN(each, config=config)(given)
        cotangent = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view_as(output).to(output)
        wanted = (*each.parameters(), *((given,) if needs_samples else ()))
        found.append([tensor.detach().cpu().double() for tensor in (output, *torch.autograd.grad(output, wanted, cotangent))])
    for ours, truth in zip(*found, strict=True):
        torch.testing.assert_close(ours, truth, rtol=tolerance, atol=tolerance * max(1, float(truth.abs().max())))
