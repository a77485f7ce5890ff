"""Inputs that cannot work are refused with a sentence, in training and evaluation, by every solver."""

import pytest
import torch
from torch import nn
from toy_cells import DiagonalGRU, Tanh, make_cell

from pararnn import BackendError, CellError, DTypeError, InputError, NewtonConfig, ParaRNN, ShapeError, StructureError, newton_apply, sequential_apply

X = torch.randn(2, 40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
START = torch.zeros(2, 4, dtype=torch.float64)


def with_value(value):
    x = X.clone()
    x[1, 7, 0] = value
    return x


@pytest.fixture(params=["newton", "sequential", "auto"])
def solver(request):
    return request.param


@pytest.fixture(params=[True, False], ids=["train", "eval"])
def layer(request, solver):
    return ParaRNN(DiagonalGRU(3, 4), solver=solver).train(request.param)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        pytest.param((X[None],), ShapeError, r"\(batch, time, input\), got \(1, 2, 40, 3\)", id="4-D x"),
        pytest.param((X[0],), ShapeError, r"got \(40, 3\)", id="2-D x"),
        pytest.param(([[1.0]],), ShapeError, "got list", id="list"),
        pytest.param((X, START[:1]), ShapeError, r"shape \(1, 4\); it must be \(batch, state\) = \(2, 4\)", id="broadcastable h0"),
        pytest.param((X, START[0]), ShapeError, r"shape \(4,\)", id="1-D h0"),
        pytest.param((X, torch.zeros(2, 5, dtype=torch.float64)), ShapeError, r"shape \(2, 5\)", id="wide h0"),
        pytest.param((X, START.to(torch.complex128)), DTypeError, "h0 is torch.complex128", id="complex h0"),
        pytest.param((X, [[0.0]]), DTypeError, "h0 must be a tensor, got list", id="list h0"),
        pytest.param((X, float("nan") * START), InputError, "initial state", id="NaN h0"),
        pytest.param((with_value(float("nan")),), InputError, "batch 1, step 7", id="NaN x"),
        pytest.param((X, None, torch.tensor([0, 40])), ShapeError, "packed sequences lie in one row", id="packed batch"),
        pytest.param((X[:1], None, torch.tensor([0.0, 40.0])), DTypeError, "cu_seqlens must be an integer tensor", id="float offsets"),
        pytest.param((X[:1], None, [0, 40]), DTypeError, "got list", id="list offsets"),
        pytest.param((X[:1], None, torch.tensor([0, 30])), InputError, "from 0 to 30, but the packed sequence from 0 to 40", id="short offsets"),
        pytest.param((X[:1], None, torch.tensor([0, 30, 20, 40])), InputError, "decreases from 30 to 20", id="decreasing offsets"),
        pytest.param((X[:1], None, torch.tensor([[0, 40]])), ShapeError, "one-dimensional", id="2-D offsets"),
        pytest.param((X[:1], START[:1], torch.tensor([0, 10, 40])), ShapeError, r"\(segments, state\) = \(2, 4\)", id="h0 of a pack"),
    ],
)
def test_a_bad_argument_is_named(layer, arguments, error, words):
    with pytest.raises(error, match=words):
        layer(*arguments)


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 40, 3), (0, 0, 3)], ids=["T0", "B0", "B0 T0"])
def test_empty_inputs_give_empty_outputs_with_gradients_of_zero(layer, shape):
    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    output = layer(x)
    assert output.shape == (*shape[:2], 4)
    output.sum().backward()
    assert x.grad.shape == x.shape
    assert all(weight.grad is None or not weight.grad.any() for weight in layer.parameters())


@pytest.mark.parametrize("interval", [1, 4, "auto", "parallel"])
@pytest.mark.parametrize("name", ["tanh", "slot LSTM", "dense RNN", "complex pole", "quasi RNN"])
@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 40, 3)], ids=["T0", "B0"])
def test_every_cell_takes_empty_inputs(name, interval, shape):
    cell = make_cell(name)
    states = newton_apply(cell, torch.zeros(shape, dtype=torch.float64), NewtonConfig(interval=interval))
    assert states.shape == (*shape[:2], cell.state_size)


def test_an_infinite_input_that_the_cell_can_use_is_used(layer):
    assert layer(with_value(float("inf"))).isfinite().all()


def test_a_float64_drive_of_a_float32_cell_is_refused_and_not_promoted(layer):
    cell = Tanh(3, dtype=torch.float32)
    for apply in (newton_apply, sequential_apply):
        with pytest.raises(DTypeError, match=r"drive is torch.float64, but the states are torch.float32; convert the inputs"):
            apply(cell, X)


class Projecting(Tanh):
    """Its drive multiplies by weights, and its initial state may be in another dtype than they are."""

    def __init__(self, state_dtype):
        super().__init__(3, dtype=torch.float32)
        self.project = nn.Linear(3, 3)
        self.state_dtype = state_dtype

    def drive(self, x):
        return self.project(x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_inputs_of_another_dtype_than_the_weights_are_a_dtype_error_with_the_way_out(dtype):
    words = rf"x of shape \(2, 40, 3\) and {dtype}: .* weights are torch.float32, .*x.to\(torch.float32\)"
    for apply in (newton_apply, sequential_apply):
        with pytest.raises(DTypeError, match=words) as caught:
            apply(Projecting(torch.float32), X.to(dtype))
        assert isinstance(caught.value.__cause__, RuntimeError)


def test_inputs_of_another_width_are_a_shape_error_whatever_their_dtype():
    with pytest.raises(ShapeError, match="does not take x"):
        newton_apply(Projecting(torch.float32), X[..., :2])


def test_an_initial_state_of_another_dtype_than_the_weights_is_what_the_reader_is_told_to_mend():
    cell = Projecting(torch.float32).double()
    for apply in (newton_apply, sequential_apply):
        with pytest.raises(DTypeError, match=r"states are torch.float32; the weights are torch.float64 too, .*initial_state .*weight.new_zeros"):
            apply(cell, X)


def test_h0_of_another_real_dtype_is_brought_to_that_of_the_states():
    cell, start = DiagonalGRU(3, 4), torch.randn(2, 4)
    for apply in (newton_apply, sequential_apply):
        assert apply(cell, X, h0=start).dtype == torch.float64
        assert torch.equal(apply(cell, X, h0=start), apply(cell, X, h0=start.double()))


def test_an_unknown_backend_is_refused_with_those_there_are():
    with pytest.raises(BackendError, match=r"no backend named 'nope'; there are auto, triton, native, torch"):
        newton_apply(DiagonalGRU(3, 4), X, NewtonConfig(backend="nope"))
    with pytest.raises(BackendError, match="no backend named 'nope'"):
        newton_apply(DiagonalGRU(3, 4), X, NewtonConfig(interval=1, scan_backend="nope"))


def test_a_guess_of_the_wrong_shape_is_refused():
    with pytest.raises(ShapeError, match=r"guess has shape \(2, 40, 3\)"):
        newton_apply(DiagonalGRU(3, 4), X, guess=X)


@pytest.mark.parametrize("apply", [newton_apply, sequential_apply, lambda cell, x: ParaRNN(cell)(x)], ids=["newton", "sequential", "layer"])
def test_a_module_that_is_no_cell_is_refused_with_what_it_lacks(apply):
    with pytest.raises(CellError, match="Linear lacks structure, state_size, initial_state, drive, step, readout"):
        apply(nn.Linear(3, 3), X)


def test_members_of_the_wrong_form_are_refused():
    cell = Tanh(3)
    cell.structure = "diag"
    with pytest.raises(CellError, match="must be a Structure class"):
        newton_apply(cell, X)
    cell = Tanh(3)
    cell.state_size = 0
    with pytest.raises(CellError, match="state_size is 0"):
        newton_apply(cell, X)


class Shrinks(Tanh):
    def step(self, state, drive):
        return super().step(state, drive)[..., :2]


class Rounds(Tanh):
    def step(self, state, drive):
        return super().step(state, drive).float()


class Drops(Tanh):
    def step(self, state, drive):
        return nn.functional.dropout(super().step(state, drive), 0.5)


class Writes(Tanh):
    def step(self, state, drive):
        state += 0.1
        return torch.tanh(self.weight * state + drive)


class WrongValue(Tanh):
    def linearize(self, state, drive):
        value = self.step(state, drive)
        return value + 0.1, self.structure((1 - value**2) * self.weight)


class NotLinear(Tanh):
    is_linear = True


@pytest.mark.parametrize(
    ("cell", "error", "words"),
    [
        (Shrinks, CellError, "must keep shape and dtype"),
        (Rounds, CellError, "must keep shape and dtype"),
        (Drops, CellError, "equal arguments give different states"),
        (Writes, CellError, "writes into the state"),
        (WrongValue, CellError, "linearize of WrongValue gives another next state than its step"),
        (NotLinear, StructureError, "declared linear, but its step bends"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("interval", [4, "auto"])
def test_a_cell_that_breaks_its_promise_is_refused_and_not_solved_wrongly(cell, error, words, interval):
    with torch.no_grad(), pytest.raises(error, match=words):
        newton_apply(cell(3), X, NewtonConfig(interval=interval))
