"""`ParaS4D` and `ParaS4` as their users meet them."""

import copy

import pytest
import torch
from cell_models import cell_around, flat, inputs_and_state, loop, make_ssm

import pararnn
from pararnn import BackendError, CellError, ConfigError, NewtonConfig, ParaRNN, ShapeError
from pararnn_s4 import DPLRSSM, DiagonalSSM, ParaS4, ParaS4D

CELLS = [ParaS4D, ParaS4]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("kind", CELLS)
def test_the_core_offers_the_cell_under_its_name(kind):
    assert kind.__name__ in pararnn.cells
    assert getattr(pararnn, kind.__name__) is kind


@pytest.mark.parametrize("kind", CELLS)
def test_one_scan_without_iterations_solves_a_cell(kind):
    _, (result,) = ParaRNN(kind(3, d_state=4)).solve(torch.randn(2, 50, 3))
    assert (result.status.name, result.iterations, result.walked) == ("CONVERGED", 1, 0)


@pytest.mark.parametrize("kind", CELLS)
def test_outputs_lie_channel_after_channel(kind):
    cell = kind(3, d_state=4, channels=2, dtype=torch.float64)
    u, state = inputs_and_state(cell.ssm, 2, 5)
    y, _ = loop(cell.ssm, cell.D, u, state)
    assert cell.output_size == 6
    torch.testing.assert_close(ParaRNN(cell)(u.mT, cell.pack(state)), flat(y))


def test_packed_states_come_back(form):
    cell = cell_around(make_ssm(form))
    _, state = inputs_and_state(cell.ssm, 2, 1)
    torch.testing.assert_close(cell.unpack(cell.pack(state)), state, rtol=0, atol=0)
    assert cell.pack(state).shape == cell.initial_state(2).shape
    assert cell.pack(state).dtype == cell.initial_state(2).dtype


def test_a_cell_trains_the_very_parameters_it_was_given(form):
    ssm = make_ssm(form)
    cell = cell_around(ssm)
    ParaRNN(cell)(torch.randn(2, 9, 3, dtype=torch.float64)).sum().backward()
    names = {name for name, _ in cell.named_parameters()}
    assert names == {"D"} | {f"ssm.{name}" for name, _ in ssm.named_parameters()}
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in ssm.parameters())


@pytest.mark.parametrize("kind", CELLS)
def test_samples_decoded_one_by_one_give_what_the_whole_gives(kind):
    rnn = ParaRNN(kind(3, d_state=4, dtype=torch.float64), num_layers=2)
    x = torch.randn(2, 8, 3, dtype=torch.float64)
    states, outputs = None, []
    for sample in x.unbind(1):
        y, states = rnn.step(sample, states)
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, 1), rnn(x))


@pytest.mark.parametrize("kind", CELLS)
def test_layers_above_read_every_channel(kind):
    rnn = ParaRNN(kind(3, d_state=4, channels=2), num_layers=3)
    assert [cell.d_model for cell in rnn.layers] == [3, 6, 12]
    assert rnn(torch.randn(2, 5, 3)).shape == (2, 5, 24)


@pytest.mark.parametrize(("kind", "model"), [(ParaS4D, DiagonalSSM), (ParaS4, DPLRSSM)])
def test_a_cell_around_a_given_model_cannot_make_another(kind, model):
    with pytest.raises(CellError, match="made around a given ssm"):
        ParaRNN(kind(3, ssm=model(3, d_state=4)), num_layers=2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"ssm": 3}, ConfigError, "ssm must be a DiagonalSSM, got int"),
        ({"ssm": DPLRSSM(3, d_state=4)}, ConfigError, "ssm must be a DiagonalSSM, got DPLRSSM"),
        ({"ssm": DiagonalSSM(4, d_state=4)}, ConfigError, "d_model is 3, but the given ssm has 4 features"),
        ({"ssm": DiagonalSSM(3, d_state=4), "d_state": 4}, ConfigError, "d_state say how to make a state-space model, but one is given"),
        ({"D": torch.nn.Parameter(torch.zeros(3))}, ShapeError, r"D has shape \(3,\); it must be \(channels, d_model\) = \(1, 3\)"),
    ],
    ids=["no model", "another kind", "another size", "options beside it", "another skip"],
)
def test_what_cannot_work_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        ParaS4D(3, **arguments)


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_modules_carry_float32_states(kind, dtype):
    cell = kind(3, d_state=4, dt_min=0.01)
    x = torch.randn(2, 20, 3)
    half = copy.deepcopy(cell).to(dtype)
    y, (result,) = ParaRNN(half).solve(x.to(dtype))
    assert (y.dtype, result.states.dtype.to_real()) == (dtype, torch.float32)
    torch.testing.assert_close(y.float(), ParaRNN(cell)(x), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("kind", CELLS)
def test_autocast_leaves_the_states_alone(kind):
    rnn = ParaRNN(kind(3, d_state=4))
    x = torch.randn(2, 20, 3)
    expected = rnn(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = rnn(x)
    torch.testing.assert_close(found.float(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", CELLS)
def test_second_derivatives_are_those_of_the_walk(kind):
    cell = kind(2, d_state=4, dtype=torch.float64)
    x = torch.randn(1, 6, 2, dtype=torch.float64, requires_grad=True)
    curvatures = []
    for solver in ("newton", "sequential"):
        y = ParaRNN(cell, solver=solver)(x)
        (slope,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
        curvatures.append(torch.autograd.grad((slope**2).sum(), [x, *cell.parameters()]))
    torch.testing.assert_close(*curvatures, rtol=1e-9, atol=1e-9)


def test_a_step_of_ones_own_is_not_solved_by_powers():
    class Leaky(ParaS4):
        def step(self, state, drive):
            return 0.5 * super().step(state, drive)

        def linearize(self, state, drive):
            _, jacobian = super().linearize(state, drive)
            return self.step(state, drive), jacobian.map(lambda leaf: 0.5 * leaf)

    cell = Leaky(2, d_state=4, dtype=torch.float64)
    x = torch.randn(2, 9, 2, dtype=torch.float64)
    _, (result,) = ParaRNN(cell).solve(x)
    _, (walk,) = ParaRNN(cell, solver="sequential").solve(x)
    assert result.backend == "torch"
    torch.testing.assert_close(result.states, walk.states)


def test_a_step_replaced_on_the_object_is_not_solved_by_powers():
    cell = ParaS4(2, d_state=4, dtype=torch.float64)
    original = cell.step
    cell.step = lambda state, drive: 0.5 * original(state, drive)
    x = torch.randn(2, 9, 2, dtype=torch.float64)
    _, (result,) = ParaRNN(cell).solve(x)
    _, (walk,) = ParaRNN(cell, solver="sequential").solve(x)
    assert result.backend == "torch"
    torch.testing.assert_close(result.states, walk.states)


def test_the_solver_can_be_named_and_says_what_it_did():
    _, (result,) = ParaRNN(ParaS4(2, d_state=4), config=NewtonConfig(backend="powers")).solve(torch.randn(2, 9, 2))
    assert result.backend == "powers"
    assert "its powers give all states" in result.explain()
    with pytest.raises(BackendError, match="no backend named 'powers'"):
        ParaRNN(ParaS4D(2, d_state=4), config=NewtonConfig(backend="powers"))(torch.randn(2, 9, 2))


def test_inputs_that_are_not_finite_are_named():
    x = torch.randn(2, 9, 2)
    x[1, 3, 0] = torch.nan
    with pytest.raises(pararnn.InputError, match="the drive's u is not"):
        ParaRNN(ParaS4(2, d_state=4))(x)


def test_a_model_that_grows_is_solved_as_long_as_its_states_are_finite():
    cell = ParaS4(1, d_state=4, dtype=torch.float64, real_transform="none")
    with torch.no_grad():
        cell.ssm.A_real.fill_(-3.0)
        cell.ssm.inv_dt.fill_(0.0)
    x = torch.randn(1, 40, 1, dtype=torch.float64)
    _, (result,) = ParaRNN(cell).solve(x)
    _, (walk,) = ParaRNN(cell, solver="sequential").solve(x)
    assert bool((walk.states.abs() > 1e6).any())
    torch.testing.assert_close(result.states, walk.states, rtol=1e-8, atol=0)
