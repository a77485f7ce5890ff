"""`verify_agreement`: honest about agreement, and about the lack of it."""

import json

import pytest
import torch
from torch import nn
from toy_cells import ComplexPole, DiagonalGRU, SignLatch, SlotLSTM, Tanh, ToyCell, make_cell

from pararnn import AgreementError, AgreementReport, Diagonal, NewtonConfig, ParaRNN, ShapeError, verify_agreement


def inputs(length=60, batch=2):
    return torch.randn(batch, length, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def two_layers():
    return ParaRNN([DiagonalGRU(3, 4), SlotLSTM(4, 2)])


class WrongGradient(ToyCell):
    """Right values, and for one parameter a gradient that is cut where autograd through a loop is not."""

    def __init__(self):
        super().__init__(3)
        self.weight = nn.Parameter(torch.full((3,), 0.5, dtype=torch.float64))

    def step(self, state, drive):
        # At all times at once the weight counts, at a single step it is taken as a constant.
        weight = self.weight if state.ndim == 3 else self.weight.detach()
        return torch.tanh(weight * state + drive)


class WrongValue(ToyCell):
    """Sees whether it is asked for one step or for many."""

    def step(self, state, drive):
        return torch.tanh(0.5 * state + drive + (0.01 if state.ndim == 3 else 0.0))


class PoleWithFormula(ComplexPole):
    """A linear cell whose analytic Jacobian computes something, which autograd has to see."""

    def step(self, state, drive):
        return torch.polar(torch.exp(self.log_decay), self.angle) * state + drive

    def jacobian(self, state, drive):
        return Diagonal(torch.polar(torch.exp(self.log_decay), self.angle).expand(state.shape))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_a_good_layer_agrees():
    report = verify_agreement(two_layers(), inputs())
    assert isinstance(report, AgreementReport)
    assert report.ok
    assert report.max_abs <= report.atol
    assert (report.shape, report.dtype, report.device) == ((2, 60, 2), "float64", "cpu")
    assert report.newton_iters >= 1
    assert "the parallel solve by torch agrees with the walk" in str(report)
    assert report.walked == (0.0, 0.0)
    assert "compared" not in str(report)
    assert "verify_cell" not in str(report)


def test_a_layer_that_was_walked_is_said_to_prove_nothing():
    report = verify_agreement(Tanh(3), inputs(1))
    assert (report.status, report.walked) == (("WALKED",), (1.0,))
    assert "in layer 0 (WALKED) 100% of the sequences were walked in that solve too, so there a walk was compared with a walk" in str(report)


def test_sequences_that_were_repaired_by_a_walk_are_counted():
    latch, x = SignLatch(1), torch.randn(2, 1024, 1, dtype=torch.float64).sign()
    # Random signs make the first sequence stall; without inputs the second settles at once.
    x[1] = 0
    report = verify_agreement(latch, x, h0=torch.ones(2, 1, dtype=torch.float64), config=NewtonConfig(interval=16, backend="torch"), gradients=False)
    assert (report.status, report.walked) == (("REPAIRED",), (0.5,))
    assert "in layer 0 (REPAIRED) up to 50% of the sequences were walked in that solve too" in str(report)


@pytest.mark.parametrize("name", ["complex pole", "complex sine"])
def test_complex_states_are_compared_too(name):
    assert verify_agreement(make_cell(name), inputs()).ok


def test_the_formula_of_a_linear_cell_is_differentiated():
    assert verify_agreement(PoleWithFormula(3, 4), inputs()).ok


def test_gradients_of_inputs_states_and_every_parameter_are_compared():
    layer = two_layers()
    starts = [0.1 * torch.randn(2, 4, dtype=torch.float64), 0.1 * torch.randn(2, 4, dtype=torch.float64)]
    report = verify_agreement(layer, inputs(), h0=starts)
    assert report.ok
    assert set(report.gradients) == {"x", "h0.0", "h0.1", *(name for name, _ in layer.named_parameters())}
    assert max(report.gradients.values()) <= report.gradient_tolerance
    assert verify_agreement(layer, inputs(), gradients=False).gradients == {}


def test_a_cell_whose_gradient_is_wrong_is_not_ok():
    report = verify_agreement(WrongGradient(), inputs())
    assert report.max_abs <= report.atol
    assert not report.ok
    assert report.gradients["layers.0.weight"] > report.gradient_tolerance
    assert "does NOT agree" in str(report)
    assert "layers.0.weight" in str(report)
    assert "pararnn.conformance.verify_cell(cell, x)" in str(report)
    with pytest.raises(AgreementError, match="does NOT agree") as caught:
        verify_agreement(WrongGradient(), inputs(), raise_on_fail=True)
    assert not caught.value.data["report"].ok


def test_a_cell_whose_values_differ_is_not_ok():
    report = verify_agreement(WrongValue(3), inputs(), gradients=False)
    assert not report.ok
    assert report.max_abs > 1e-3


def test_the_report_is_plain_data():
    read = json.loads(json.dumps(verify_agreement(two_layers(), inputs()).to_dict()))
    assert read["ok"] is True
    assert read["shape"] == [2, 60, 2]
    assert len(read["plan"]) == len(read["status"]) == len(read["path"]) == 2


def test_the_config_is_honoured():
    report = verify_agreement(two_layers(), inputs(), config=NewtonConfig(interval=7))
    assert all("interval=7 was asked for" in plan for plan in report.plan)
    layer = ParaRNN(DiagonalGRU(3, 4), config=NewtonConfig(interval=5))
    assert "interval=5" in verify_agreement(layer, inputs()).plan[0]


def test_there_is_something_to_compare_where_the_planner_would_walk():
    report = verify_agreement(DiagonalGRU(3, 4), inputs(8))
    assert "walk," not in report.plan[0]
    assert report.newton_iters >= 1


def test_the_initial_state_is_honoured():
    seen = []

    class Watches(DiagonalGRU):
        def step(self, state, drive):
            seen.append(float(state.detach().abs().max()))
            return super().step(state, drive)

    verify_agreement(Watches(3, 4), inputs(), h0=torch.full((2, 4), 50.0, dtype=torch.float64))
    assert max(seen) >= 50.0


def test_packed_sequences_are_honoured():
    layer = two_layers()
    report = verify_agreement(layer, inputs(batch=1), cu_seqlens=torch.tensor([0, 20, 20, 60]))
    assert report.ok
    assert "40 steps" in report.plan[0]
    with pytest.raises(ShapeError, match="packed sequences lie in one row"):
        verify_agreement(layer, inputs(), cu_seqlens=torch.tensor([0, 60]))


def test_a_cell_and_a_module_that_holds_a_layer_are_taken_too():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = two_layers()

    assert verify_agreement(DiagonalGRU(3, 4), inputs()).ok
    assert len(verify_agreement(Model(), inputs()).plan) == 2


def test_the_module_is_left_as_it_was():
    layer, x = two_layers(), inputs()
    before, state = {key: value.clone() for key, value in layer.state_dict().items()}, torch.random.get_rng_state()
    verify_agreement(layer, x, config=NewtonConfig(interval=3))
    assert layer.config == NewtonConfig()
    assert layer.solver == "auto"
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())
    assert all(weight.grad is None for weight in layer.parameters())
    assert not x.requires_grad
    assert torch.equal(torch.random.get_rng_state(), state)


def test_tolerances_can_be_given():
    report = verify_agreement(WrongValue(3), inputs(), atol=1.0, rtol=0.0, gradients=False)
    assert (report.ok, report.atol, report.rtol) == (True, 1.0, 0.0)


def test_dropout_between_layers_is_the_same_on_both_sides():
    layer = ParaRNN([DiagonalGRU(3, 4), DiagonalGRU(4, 4)], dropout=0.5).train()
    assert verify_agreement(layer, inputs()).ok


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 60, 3), (2, 1, 3)], ids=["T0", "B0", "T1"])
def test_tiny_inputs_agree(shape):
    assert verify_agreement(Tanh(3), torch.zeros(shape, dtype=torch.float64)).ok
