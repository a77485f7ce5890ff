import copy

import pytest
import torch
from torch import nn
from toy_cells import ComplexPole, make_cell

from pararnn.compiler.native import toolchain
from pararnn.conformance import cell_checks, check_step_broadcasts, verify_cell
from pararnn.conformance.report import Verdict
from pararnn.errors import ConformanceError
from pararnn.structures import BlockDiagonal, Dense, Diagonal


def failures(case, **options):
    return verify_cell(*case, **options).failures


def test_a_good_cell_passes_every_check(define):
    report = verify_cell(*define()).raise_for_failures()
    assert [result.check for result in report.results] == list(cell_checks())
    without_a_compiler = {"compiled_equals_walk"} if toolchain.reasons() else set()
    idle = {result.check for result in report.results if result.verdict is Verdict.NOT_APPLICABLE}
    assert idle == {"linear_claim", "solve_ops"} | without_a_compiler


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1)], ids=str)
def test_a_few_samples_are_enough(define, shape):
    cell, x = define()
    assert failures((cell, x[:1, :1].expand(*shape, -1))) == {}


def test_a_cell_of_float32_is_checked_on_a_copy_and_stays_as_it_is(define):
    cell, x = define()
    cell = cell.float().eval()
    before = copy.deepcopy(cell.state_dict())
    assert failures((cell, x.float())) == {}
    assert not cell.training
    torch.testing.assert_close(cell.state_dict(), before, rtol=0, atol=0)


def test_equal_seeds_give_equal_reports(define):
    case = define(state_bounds=(-0.5, 0.5))
    assert failures(case, seed=3) == failures(case, seed=3)


def test_what_is_no_cell_is_told_so_by_every_check_and_stops_none():
    report = verify_cell(nn.Linear(4, 4), torch.randn(2, 3, 4))
    assert "lacks structure, state_size" in report.failures["protocol"]
    assert len(report.results) == len(cell_checks())


def test_a_wrong_analytic_jacobian_is_named(define):
    case = define(jacobian=lambda self, state, drive: Diagonal(drive.keep))
    found = failures(case)
    assert "the analytic Jacobian is wrong" in found["analytic_jacobian"]
    assert "mend jacobian" in found["analytic_jacobian"]
    assert "structure_holds_the_jacobian" not in found


def test_an_analytic_jacobian_of_another_structure_is_named(define):
    case = define(structure=Dense)
    assert "jacobian gives a Diagonal, but the cell's structure is Dense" in failures(case)["analytic_jacobian"]


def test_a_value_of_linearize_that_is_not_the_step_is_named(define):
    def linearize(self, state, drive):
        return 2 * self.step(state, drive), self.jacobian(state, drive)

    assert "linearize and step give states that differ" in failures(define(linearize=linearize))["analytic_jacobian"]


def test_dense_mixing_under_a_diagonal_structure_is_named_with_its_coupling(define):
    def step(self, state, drive):
        mixed = state + torch.nn.functional.pad(0.5 * state[..., 1:2], (3, 0))
        return drive.keep * state + (1 - drive.keep) * torch.tanh(drive.candidate + drive.recurrent * mixed)

    message = failures(define(step=step))["structure_holds_the_jacobian"]
    assert "the structure is wrong: channel 3 of the next state depends on channel 1" in message
    assert "Diagonal leaves out" in message
    assert "Dense always does" in message


def test_a_mixing_of_neighbours_under_two_slots_is_named(define):
    def step(self, state, drive):
        return torch.tanh(drive.candidate + 0.3 * state.roll(1, dims=-1))

    found = failures(define(step=step, structure=BlockDiagonal))
    assert "depends on channel" in found["structure_holds_the_jacobian"]


def test_a_structure_that_the_cell_calls_an_approximation_is_not_held_against_it(define):
    def step(self, state, drive):
        return torch.tanh(drive.candidate + drive.recurrent * state + 0.05 * state.roll(1, dims=-1))

    assert failures(define(step=step, exact_jacobian=False)) == {}


def test_a_mean_over_the_batch_is_named(define):
    def step(self, state, drive):
        return torch.tanh(drive.candidate + drive.recurrent * state + state.mean(0, keepdim=True))

    assert failures(define(step=step))["step_keeps_sequences_apart"].startswith("state leaks across the batch")


def test_a_flipped_drive_is_named(define, gated):
    case = define(drive=lambda self, x: gated.drive(self, x.flip(1)))
    assert failures(case)["drive_is_causal"].startswith("the future leaks into the past: the drive (keep)")


def test_a_centred_window_in_the_drive_is_named(define, gated):
    def drive(self, x):
        padded = torch.nn.functional.pad(x, (0, 0, 1, 1))
        return gated.drive(self, (padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]) / 3)

    assert failures(define(drive=drive))["drive_is_causal"].startswith("the future leaks into the past")


def test_a_mean_over_time_in_a_leaf_without_time_is_named(define, gated):
    def drive(self, x):
        return gated.drive(self, x)._replace(recurrent=self.recurrent * x.mean(dim=(0, 1)))

    message = failures(define(drive=drive))["drive_is_causal"]
    assert message.startswith("the future leaks into the past: the drive (recurrent)")


def test_a_drive_that_looks_back_is_named_where_decoding_would_break(define, gated):
    found = failures(define(drive=lambda self, x: gated.drive(self, x + x.roll(1, dims=1).index_fill(1, torch.tensor(0), 0.0))))
    assert "may not look back" in found["drive_takes_one_sample_at_a_time"]
    assert "decoding goes astray" in found["decoding"]
    assert "packed sequences leak" in found["packed_sequences"]
    assert "drive_is_causal" not in found


def test_statistics_over_the_batch_in_the_drive_are_named(define, gated):
    case = define(drive=lambda self, x: gated.drive(self, x - x.mean(0, keepdim=True)))
    assert failures(case)["drive_keeps_sequences_apart"].startswith("the drive leaks across the batch")


def test_a_step_that_writes_into_its_state_is_named(define):
    def step(self, state, drive):
        return state.mul_(drive.keep) + (1 - drive.keep) * torch.tanh(drive.candidate)

    assert "step writes in place into the state" in failures(define(step=step))["step_writes_nothing"]


def test_a_step_that_writes_into_its_drive_is_named(define):
    def step(self, state, drive):
        return drive.keep * state + (1 - drive.keep) * drive.candidate.tanh_()

    assert "into the drive (candidate)" in failures(define(step=step))["step_writes_nothing"]


def test_a_step_that_counts_in_a_buffer_is_named(define, gated):
    def build(self):
        gated.__init__(self)
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def step(self, state, drive):
        self.seen += 1
        return gated.step(self, state, drive)

    assert "into the buffer seen" in failures(define(__init__=build, step=step))["step_writes_nothing"]


def test_dropout_in_the_step_is_named(define, gated):
    def step(self, state, drive):
        return torch.nn.functional.dropout(gated.step(self, state, drive), 0.5, self.training)

    assert "step is not deterministic in training mode" in failures(define(step=step))["step_is_deterministic"]


def test_bounds_that_do_not_hold_are_named(define):
    message = failures(define(state_bounds=(-0.5, 0.5)))["state_bounds"]
    assert "state_bounds = (-0.5, 0.5) do not hold: step leads from" in message


def test_bounds_without_room_are_named(define):
    assert "low < high" in failures(define(state_bounds=(1.0, -1.0)))["state_bounds"]


def test_a_false_claim_of_linearity_is_named(define):
    assert failures(define(is_linear=True))["linear_claim"].startswith("is_linear is a false claim")


def test_a_true_claim_of_linearity_passes(define):
    def step(self, state, drive):
        return drive.keep * state + drive.candidate

    case = define(step=step, is_linear=True, jacobian=lambda self, state, drive: Diagonal(drive.keep), state_bounds=None)
    assert failures(case) == {}


@pytest.mark.parametrize("name", ["complex pole", "complex sine"])
def test_a_complex_cell_passes_every_check(name):
    torch.manual_seed(0)
    assert failures((make_cell(name), torch.randn(3, 20, 3, dtype=torch.float64))) == {}


def test_a_complex_step_that_looks_at_a_conjugate_is_named():
    class Conjugating(ComplexPole):
        def step(self, state, drive):
            return 0.5 * state.conj() + drive

    found = failures((Conjugating(3, 4), torch.randn(3, 20, 3, dtype=torch.float64)))
    assert found["structure_holds_the_jacobian"].startswith("step is not holomorphic")


def test_a_step_for_two_dimensions_only_is_named(define, gated):
    def step(self, state, drive):
        following = gated.step(self, state, drive)
        return torch.cat((following[:, :2], 0.5 * following[:, 2:]), dim=1)

    case = define(step=step)
    assert failures(case)["step_broadcasts"].startswith("step does not broadcast: with leading dimensions (batch, time)")
    with pytest.raises(ConformanceError, match="step does not broadcast"):
        check_step_broadcasts(*case)


def test_an_output_that_reads_the_whole_trajectory_is_named(define):
    case = define(readout=lambda self, states: states - states.mean(-2, keepdim=True))
    assert "an output reads its own state alone" in failures(case)["readout_broadcasts"]


def test_a_gradient_that_is_cut_inside_the_step_is_named(define):
    def step(self, state, drive):
        return drive.keep * state + (1 - drive.keep) * torch.tanh(drive.candidate.detach() + drive.recurrent * state)

    assert "the gradient of step by the drive (candidate) is lost on the way" in failures(define(step=step))["step_gradients"]


def test_a_derivative_that_is_wrong_by_its_own_formula_is_named(define):
    class Doubled(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(value):
            return value.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            return None

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

        @staticmethod
        def jvp(ctx, tangent):
            return 2 * tangent

    def step(self, state, drive):
        return torch.tanh(Doubled.apply(drive.candidate) + drive.recurrent * state)

    message = failures(define(step=step))["step_gradients"]
    assert "the gradient of step by the drive (candidate) is wrong against finite differences" in message


def test_a_guess_of_the_wrong_shape_is_named(define):
    assert "guess gives (2, 4)" in failures(define(guess=lambda self, drive, initial: initial))["guess"]


def test_a_budget_of_nothing_is_named(define):
    assert "newton_iters(1) is 0" in failures(define(newton_iters=lambda self, length: 0))["newton_iters"]


def test_a_kernel_that_nobody_offers_is_named(define):
    assert "solve_ops names gated/newton" in failures(define(solve_ops=("gated/newton",)))["solve_ops"]


def test_a_layer_above_with_the_same_weights_is_named(define):
    assert "shares weights" in failures(define(layer_above=lambda self: self))["stacking"]


def test_a_cell_that_cannot_be_pickled_is_named(define, gated):
    def build(self):
        gated.__init__(self)
        self.squash = lambda value: torch.tanh(value)

    message = failures(define(__init__=build))["copies"]
    assert message.startswith("pickle of the cell fails")


def test_constants_of_another_dtype_are_named(define):
    def step(self, state, drive):
        return torch.tanh(drive.candidate + drive.recurrent * state + torch.zeros(4, dtype=torch.float64))

    assert "float64" in failures(define(step=step))["float32"]


def test_one_check_that_breaks_does_not_hide_another(define):
    def step(self, state, drive):
        raise RuntimeError("no step today")

    report = verify_cell(*define(step=step, newton_iters=lambda self, length: 0))
    assert "newton_iters(1) is 0" in report.failures["newton_iters"]
    assert "no step today" in report.failures["parallel_equals_walk"]
    assert "[raised in test_cells.py:" in report.failures["parallel_equals_walk"]


def test_what_vmap_says_is_told_without_its_request_to_write_to_torch(define):
    def step(self, state, drive):
        return drive.keep * state * (1.0 if state.sum().item() > 1e9 else 0.9)

    found = failures(define(step=step))
    for check in ("ensembles", "single_samples"):
        assert "calling .item() on a Tensor" in found[check]
        assert "file a" not in found[check]
        assert "github.com" not in found[check]
        assert found[check].endswith("use no in-place writes, .item() or branches on values")
