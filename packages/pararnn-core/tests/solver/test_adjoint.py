"""Gradients are those of autograd through the loop, by everything that the states depend on, however it got there."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from toy_cells import ALL, AnalyticTanh, DenseRNN, DiagonalGRU, GRUDrive, SlotLSTM, Tanh, ToyCell, loop, make_cell, weighted_sum

from pararnn import NewtonConfig, StructureError, newton_apply, sequential_apply, solve
from pararnn.structures import Dense, Diagonal

PARALLEL = NewtonConfig(interval=4)


def inputs(batch=2, length=60, channels=3, *, seed=0, dtype=torch.float64):
    return torch.randn(batch, length, channels, dtype=dtype, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def gradients(states, sources):
    return torch.autograd.grad(weighted_sum(states), sources)


def relative_error(ours, truth):
    return max(float((left - right).abs().max() / right.abs().max()) for left, right in zip(ours, truth, strict=True))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("interval", [1, 3, 16, "auto", "parallel", 60])
@pytest.mark.parametrize("name", ALL)
def test_gradients_equal_the_loop(name, interval):
    cell, x = make_cell(name), inputs()
    start = (0.3 * torch.randn(2, cell.state_size, dtype=cell.state_dtype)).requires_grad_()
    sources = (x, start, *cell.parameters())
    ours = gradients(newton_apply(cell, x, NewtonConfig(interval=interval), h0=start), sources)
    assert relative_error(ours, gradients(loop(cell, x, start), sources)) <= 1e-9


@pytest.mark.parametrize("name", ["analytic tanh", "diagonal GRU"])
def test_gradients_over_a_long_sequence_equal_the_loop(name):
    cell, x = make_cell(name), inputs(1, 3000)
    sources = (x, *cell.parameters())
    assert relative_error(gradients(newton_apply(cell, x), sources), gradients(loop(cell, x), sources)) <= 1e-9


@pytest.mark.parametrize("interval", [4, "auto"])
def test_float64_gradients_are_accurate_to_float64(interval):
    cell, x = DiagonalGRU(3, 4), inputs(length=30)
    ours = gradients(newton_apply(cell, x, NewtonConfig(interval=interval)), (x, *cell.parameters()))
    assert relative_error(ours, gradients(loop(cell, x), (x, *cell.parameters()))) <= 1e-13


def test_finite_differences_agree():
    cell, x, start = DiagonalGRU(3, 2), inputs(1, 6), torch.randn(1, 2, dtype=torch.float64, requires_grad=True)

    def states(x, start, weight):
        return solve(cell.step, Diagonal, GRUDrive(cell.W(x), weight), start, config=PARALLEL).states

    assert torch.autograd.gradcheck(states, (x, start, cell.U))


@pytest.mark.parametrize("wanted", ["x", "h0", "weight"])
def test_a_single_source_may_ask_for_a_gradient(wanted):
    cell, x, start = Tanh(3), inputs(), torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    sources = {"x": x, "h0": start, "weight": cell.weight}
    for name, tensor in sources.items():
        tensor.requires_grad_(name == wanted)
    ours = gradients(newton_apply(cell, x, PARALLEL, h0=start), sources[wanted])
    assert relative_error(ours, gradients(loop(cell, x, start), sources[wanted])) <= 1e-9


def test_nothing_is_recorded_where_nothing_asks_for_a_gradient():
    cell = Tanh(3).requires_grad_(False)
    assert not newton_apply(cell, inputs().detach(), PARALLEL).requires_grad


def test_a_loss_of_the_final_state_alone_has_the_gradients_of_the_loop():
    cell, x = DiagonalGRU(3, 4), inputs()
    ours, truth = (torch.autograd.grad(states[:, -1].square().sum(), (x, cell.U)) for states in (newton_apply(cell, x, PARALLEL), loop(cell, x)))
    assert relative_error(ours, truth) <= 1e-9


def test_a_graph_can_be_walked_twice_with_different_cotangents():
    cell, x = DiagonalGRU(3, 4), inputs()
    ours, truth = newton_apply(cell, x, PARALLEL), loop(cell, x)
    for seed in (1, 2):
        cotangent = torch.randn(ours.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        pairs = [torch.autograd.grad(states, (x, cell.U), cotangent, retain_graph=True) for states in (ours, truth)]
        assert relative_error(*pairs) <= 1e-9


def test_gradients_accumulate_over_calls():
    cell, x = DiagonalGRU(3, 4), inputs()
    for _ in range(2):
        weighted_sum(newton_apply(cell, x, PARALLEL)).backward()
    (truth,) = gradients(loop(cell, x), [cell.U])
    assert relative_error([cell.U.grad], [2 * truth]) <= 1e-9


def test_a_call_without_gradients_leaves_the_next_one_right():
    cell, x = DiagonalGRU(3, 4), inputs()
    with torch.no_grad():
        newton_apply(cell, x, PARALLEL)
    with torch.inference_mode():
        newton_apply(cell, x, PARALLEL)
    assert relative_error(gradients(newton_apply(cell, x, PARALLEL), [cell.U]), gradients(loop(cell, x), [cell.U])) <= 1e-9


def test_expanded_and_strided_inputs_get_the_gradients_of_the_loop():
    cell, base = DiagonalGRU(3, 4), inputs(1, 3, 60)
    x = base.transpose(1, 2).expand(3, -1, -1)
    ours, truth = (gradients(states, [base, cell.U]) for states in (newton_apply(cell, x, PARALLEL), loop(cell, x)))
    assert relative_error(ours, truth) <= 1e-9


@pytest.mark.parametrize("interval", [1, 4, "auto", 60])
@pytest.mark.parametrize("name", ALL)
def test_weights_edited_between_forward_and_backward_are_refused_or_do_not_matter(name, interval):
    cell, x = make_cell(name), inputs()
    sources = (x, *cell.parameters())
    truth = gradients(loop(cell, x), sources)
    states = newton_apply(cell, x, NewtonConfig(interval=interval))
    with torch.no_grad():
        for weight in cell.parameters():
            weight.add_(0.1)
    # A step whose backward pass reads nothing that was edited gives the gradient of the states as they were made.
    with contextlib.suppress(RuntimeError):
        assert relative_error(gradients(states, sources), truth) <= 1e-9


@pytest.mark.parametrize("interval", [1, 4, "auto", 60])
@pytest.mark.parametrize("name", ["slot LSTM", "dense RNN", "quasi RNN"])
def test_a_weight_edited_between_forward_and_backward_is_refused_as_autograd_does(name, interval):
    cell, x = make_cell(name), inputs()
    states = newton_apply(cell, x, NewtonConfig(interval=interval))
    with torch.no_grad():
        cell.W.weight.add_(0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        weighted_sum(states).backward()


def test_functional_call_gives_gradients_of_the_weights_that_were_given():
    cell, x = DiagonalGRU(3, 4), inputs()

    class Solve(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell

        def forward(self, x):
            return newton_apply(self.cell, x, PARALLEL)

    other = {f"cell.{name}": (weight + 0.2 * torch.randn_like(weight)).detach().requires_grad_() for name, weight in cell.named_parameters()}
    states = torch.func.functional_call(Solve(), other, (x,))
    ours = gradients(states, list(other.values()))
    reference = torch.func.functional_call(Reference(cell), other, (x,))
    torch.testing.assert_close(states, reference, rtol=1e-10, atol=1e-10)
    assert relative_error(ours, gradients(reference, list(other.values()))) <= 1e-9


class Reference(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        return loop(self.cell, x)


class Halved(DiagonalGRU):
    """A subclass that overrides the step alone."""

    def step(self, state, drive):
        return 0.5 * super().step(state, drive) + 0.1 * torch.sin(state)


class HalvedAnalytic(Tanh):
    """Inherits nothing analytic from below it: its parent's Jacobian describes another step."""

    def jacobian(self, state, drive):
        return Diagonal((1 - self.step(state, drive) ** 2) * self.weight)


class OverriddenAnalytic(HalvedAnalytic):
    def step(self, state, drive):
        return torch.sin(self.weight * state + drive)


@pytest.mark.parametrize("make", [lambda: Halved(3, 4), lambda: OverriddenAnalytic(3)], ids=["step", "step with an inherited Jacobian"])
def test_a_subclass_that_overrides_the_step_gets_its_own_gradients(make):
    cell, x = make(), inputs()
    sources = (x, *cell.parameters())
    assert relative_error(gradients(newton_apply(cell, x, PARALLEL), sources), gradients(loop(cell, x), sources)) <= 1e-9


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * torch.tanh(weight)


def with_weight_norm(cell):
    parametrizations.weight_norm(cell.W)


def with_a_parametrized_weight(cell):
    parametrize.register_parametrization(cell, "U", Doubled())


class LowRank(nn.Module):
    """A linear layer with a trainable low-rank part beside a frozen weight, as LoRA wraps it."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(0.3 * torch.randn(2, base.in_features, dtype=torch.float64))
        self.up = nn.Parameter(0.3 * torch.randn(base.out_features, 2, dtype=torch.float64))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


def with_a_low_rank_wrapper(cell):
    cell.W = LowRank(cell.W)


@pytest.mark.parametrize("adapt", [with_weight_norm, with_a_parametrized_weight, with_a_low_rank_wrapper], ids=lambda adapt: adapt.__name__)
@pytest.mark.parametrize("interval", [4, "auto"])
def test_adapted_weights_get_their_gradients(adapt, interval):
    cell, x = DiagonalGRU(3, 4), inputs()
    adapt(cell)
    sources = [weight for weight in cell.parameters() if weight.requires_grad]
    ours = gradients(newton_apply(cell, x, NewtonConfig(interval=interval)), sources)
    assert relative_error(ours, gradients(loop(cell, x), sources)) <= 1e-9


class Hyper(ToyCell):
    """A cell whose recurrent weight is a tensor that another network made."""

    def __init__(self, size):
        super().__init__(size)
        self.made = None

    def step(self, state, drive):
        return torch.tanh(self.made * state + drive)


@pytest.mark.parametrize("interval", [1, 4, "auto"])
def test_a_tensor_in_the_step_that_is_no_parameter_gets_its_gradient(interval):
    cell, x, network, code = Hyper(3), inputs(), nn.Linear(2, 3, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    cell.made = torch.tanh(network(code))
    ours = gradients(newton_apply(cell, x, NewtonConfig(interval=interval)), list(network.parameters()))
    cell.made = torch.tanh(network(code))
    assert relative_error(ours, gradients(loop(cell, x), list(network.parameters()))) <= 1e-9


def test_a_weight_shared_by_two_cells_gets_both_gradients():
    first, second, x = Tanh(3), Tanh(3, input_weight=0.5), inputs()
    second.weight = first.weight
    ours, truth = (gradients(apply(second, apply(first, x)), [first.weight]) for apply in (lambda cell, x: newton_apply(cell, x, PARALLEL), loop))
    assert relative_error(ours, truth) <= 1e-9


class MisdeclaredRNN(DenseRNN):
    structure = Diagonal


@pytest.mark.parametrize("interval", [1, 4, "auto", "parallel"])
def test_a_mixing_cell_that_declares_itself_diagonal_is_refused(interval):
    with pytest.raises(StructureError, match="Diagonal Jacobian of MisdeclaredRNN is not the derivative of its step"):
        newton_apply(MisdeclaredRNN(3, 4), inputs(), NewtonConfig(interval=interval))


def test_a_wrong_analytic_jacobian_is_refused_even_after_a_solve_that_ignored_it():
    class Wrong(Tanh):
        def jacobian(self, state, drive):
            return Diagonal(torch.full_like(state, 0.3))

    cell = Wrong(3)
    newton_apply(cell, inputs(), NewtonConfig(jacobian="autograd"))
    with pytest.raises(StructureError, match="not the derivative"):
        newton_apply(cell, inputs(), PARALLEL)


def test_another_structure_for_the_same_step_is_checked_anew():
    cell, x = DenseRNN(3, 4), inputs()
    solve(cell.step, Dense, cell.drive(x), cell.initial_state(2), config=PARALLEL)
    with pytest.raises(StructureError, match="not the derivative"):
        solve(cell.step, Diagonal, cell.drive(x), cell.initial_state(2), config=PARALLEL)


def test_a_coupling_that_appears_later_is_refused():
    cell, x = MisdeclaredRNN(3, 4), inputs()
    mixing = cell.U.detach().clone()
    with torch.no_grad():
        cell.U.copy_(0.5 * torch.eye(4))
    newton_apply(cell, x, PARALLEL)
    with torch.no_grad():
        cell.U.copy_(mixing)
    with pytest.raises(StructureError):
        newton_apply(cell, x, PARALLEL).sum().backward()


@pytest.mark.parametrize("interval", [1, 4, "auto", 60])
def test_a_coarse_jacobian_that_says_so_gives_exact_gradients(interval):
    cell, x = make_cell("quasi RNN"), inputs()
    start = (0.3 * torch.randn(2, 4, dtype=torch.float64)).requires_grad_()
    sources = (x, start, *cell.parameters())
    ours = gradients(newton_apply(cell, x, NewtonConfig(interval=interval), h0=start), sources)
    assert relative_error(ours, gradients(loop(cell, x, start), sources)) <= 1e-9


def test_sequential_apply_is_differentiated_by_autograd_itself():
    cell, x = DiagonalGRU(3, 4), inputs()
    ours = gradients(sequential_apply(cell, x), (x, *cell.parameters()))
    assert relative_error(ours, gradients(loop(cell, x), (x, *cell.parameters()))) <= 1e-13


def train(seed, make):
    """Weights after a few steps of training on data of this seed."""
    generator = torch.Generator().manual_seed(seed)
    cell = make()
    with torch.no_grad():
        for weight in cell.parameters():
            weight.copy_(0.4 * torch.randn(weight.shape, dtype=torch.float64, generator=generator))
    optimiser = torch.optim.SGD(cell.parameters(), lr=0.01)
    for step in range(8):
        optimiser.zero_grad()
        weighted_sum(newton_apply(cell, inputs(seed=10 * seed + step), PARALLEL)).backward()
        optimiser.step()
    return [weight.detach() for weight in cell.parameters()]


@pytest.mark.parametrize(
    "make",
    [lambda: DiagonalGRU(3, 4), lambda: SlotLSTM(3, 3), lambda: DenseRNN(3, 3), lambda: AnalyticTanh(3)],
    ids=["GRU", "LSTM", "dense", "analytic"],
)
def test_training_in_four_threads_at_once_gives_what_one_thread_gives(make):
    alone = [train(seed, make) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda seed: train(seed, make), range(4)))
    assert all(torch.equal(left, right) for pair in zip(alone, together, strict=True) for left, right in zip(*pair, strict=True))
