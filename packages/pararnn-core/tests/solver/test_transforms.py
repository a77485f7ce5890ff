"""The solve under torch.func, activation checkpointing and autocast."""

import copy

import pytest
import torch
from torch import func, nn
from torch.utils.checkpoint import checkpoint
from toy_cells import DenseRNN, DiagonalGRU, loop, make_cell, weighted_sum

from pararnn import DifferentiationError, NewtonConfig, newton_apply

CELLS = ("tanh", "analytic tanh", "diagonal GRU", "slot LSTM", "dense RNN")
TWICE = {"derivatives": "twice"}


class Losses(nn.Module):
    """A loss of the states by the solve and by the loop, so that `functional_call` can exchange the weights of both."""

    def __init__(self, cell, **options):
        super().__init__()
        self.cell, self.config = cell, NewtonConfig(interval=4, **options)

    def forward(self, x, by_loop):
        return weighted_sum(loop(self.cell, x) if by_loop else newton_apply(self.cell, x, self.config))


def inputs(length=30, seed=0):
    return torch.randn(2, length, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def problem(name, **options):
    """The loss as a function of one weight, by solve and by loop, and that weight."""
    torch.manual_seed(0)
    module, x = Losses(make_cell(name), **options), inputs()
    key, weight = list(module.named_parameters())[-1]

    def loss(by_loop):
        return lambda value, data=x: func.functional_call(module, {key: value}, (data, by_loop))

    return loss(False), loss(True), weight.detach().clone()


FIRST = {
    "grad": lambda loss, weight: func.grad(loss)(weight),
    "vjp": lambda loss, weight: func.vjp(loss, weight)[1](torch.ones((), dtype=weight.dtype))[0],
    "jvp": lambda loss, weight: func.jvp(loss, (weight,), (torch.cos(weight),))[1],
    "jacrev": lambda loss, weight: func.jacrev(loss)(weight),
    "jacfwd": lambda loss, weight: func.jacfwd(loss)(weight),
    "vmap of grad": lambda loss, weight: func.vmap(func.grad(loss, argnums=1), (None, 0))(weight, torch.stack((inputs(), inputs(seed=1)))),
}
SECOND = {
    "hessian": lambda loss, weight: func.hessian(loss)(weight),
    "reverse over reverse": lambda loss, weight: func.jacrev(func.jacrev(loss))(weight),
    "reverse over forward": lambda loss, weight: func.jacrev(func.jacfwd(loss))(weight),
    "hessian vector product": lambda loss, weight: func.jvp(func.grad(loss), (weight,), (torch.cos(weight),))[1],
}


@pytest.mark.parametrize("transform", FIRST.values(), ids=FIRST.keys())
@pytest.mark.parametrize("name", CELLS)
def test_first_derivatives_by_torch_func_equal_the_loop(name, transform, tolerance):
    ours, truth, weight = problem(name)
    torch.testing.assert_close(transform(ours, weight), transform(truth, weight), **tolerance["gradients"])


@pytest.mark.parametrize("transform", SECOND.values(), ids=SECOND.keys())
@pytest.mark.parametrize("name", CELLS)
def test_second_derivatives_by_torch_func_are_exact_where_asked_for(name, transform, tolerance):
    ours, truth, weight = problem(name, **TWICE)
    torch.testing.assert_close(transform(ours, weight), transform(truth, weight), **tolerance["gradients"])


@pytest.mark.parametrize("transform", SECOND.values(), ids=SECOND.keys())
@pytest.mark.parametrize("name", ["analytic tanh", "diagonal GRU"])
def test_second_derivatives_by_torch_func_are_refused_where_not(name, transform):
    ours, _, weight = problem(name)
    with pytest.raises(DifferentiationError):
        transform(ours, weight)


@pytest.mark.parametrize("transform", [FIRST["grad"], FIRST["jvp"], FIRST["vmap of grad"]], ids=["grad", "jvp", "vmap of grad"])
def test_a_coarse_jacobian_is_refused_inside_transforms(transform):
    ours, _, weight = problem("quasi RNN")
    with pytest.raises(DifferentiationError, match="coarse Jacobian cannot be taken inside"):
        transform(ours, weight)


def test_third_derivatives_by_torch_func_are_refused():
    ours, _, weight = problem("diagonal GRU", **TWICE)
    with pytest.raises(DifferentiationError):
        func.grad(lambda value: func.grad(lambda inner: func.grad(ours)(inner).square().sum())(value).square().sum())(weight)


def test_forward_over_forward_is_refused_because_torch_would_drop_a_part():
    ours, _, weight = problem("diagonal GRU", **TWICE)
    with pytest.raises(DifferentiationError, match="forward-mode derivatives of forward-mode"):
        func.jacfwd(func.jacfwd(ours))(weight)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("interval", [1, 4, "auto"])
def test_an_ensemble_under_vmap_equals_its_members(name, interval, tolerance):
    members = []
    for seed in range(3):
        torch.manual_seed(seed)
        members.append(Losses(make_cell(name)))
    for member in members:
        member.config = NewtonConfig(interval=interval)
    weights, buffers = func.stack_module_state(members)
    shell, x = copy.deepcopy(members[0]), inputs(60)

    def loss(weights, buffers):
        return func.functional_call(shell, (weights, buffers), (x, False))

    values = func.vmap(loss, (0, 0))(weights, buffers)
    torch.testing.assert_close(values, torch.stack([member(x, True) for member in members]), **tolerance["gradients"])
    gradients = func.vmap(func.grad(loss), (0, 0))(weights, buffers)
    for index, member in enumerate(members):
        truth = torch.autograd.grad(member(x, True), list(member.parameters()))
        torch.testing.assert_close([gradients[key][index] for key, _ in member.named_parameters()], list(truth), **tolerance["gradients"])


def test_per_sample_gradients_under_vmap_equal_those_one_by_one(tolerance):
    torch.manual_seed(0)
    module, x = Losses(DiagonalGRU(3, 4)), torch.stack([inputs(seed=seed) for seed in range(3)])
    weights = dict(module.named_parameters())
    ours = func.vmap(func.grad(lambda weights, x: func.functional_call(module, weights, (x, False))), (None, 0))(weights, x)
    for index in range(3):
        truth = torch.autograd.grad(module(x[index], True), list(weights.values()))
        torch.testing.assert_close([ours[key][index] for key in weights], list(truth), **tolerance["gradients"])


def test_a_hard_member_of_an_ensemble_is_repaired_beside_easy_ones(tolerance):
    torch.manual_seed(0)
    x, scales = inputs(120), torch.tensor([0.3, 4.0, 1.0], dtype=torch.float64)
    cell = DenseLike()
    states = func.vmap(lambda scale: newton_apply(cell.scaled(scale), x, NewtonConfig(interval=4)))(scales)
    for index, scale in enumerate(scales):
        torch.testing.assert_close(states[index], loop(cell.scaled(scale), x), **tolerance["states"])


class DenseLike(DiagonalGRU):
    """A GRU whose recurrent weights are scaled by a tensor that is no parameter."""

    def __init__(self):
        super().__init__(3, 4)
        self.factor = 1.0

    def scaled(self, factor):
        twin = copy.copy(self)
        twin.factor = factor
        return twin

    def drive(self, x):
        gates, recurrent = super().drive(x)
        return type(super().drive(x))(gates, self.factor * recurrent)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("name", CELLS)
def test_activation_checkpointing_changes_no_gradient(name, use_reentrant):
    torch.manual_seed(0)
    cell, x = make_cell(name), inputs().requires_grad_()
    sources = (x, *cell.parameters())

    def run(x):
        return newton_apply(cell, x, NewtonConfig(interval=4))

    weighted_sum(checkpoint(run, x, use_reentrant=use_reentrant)).backward()
    kept = [source.grad for source in sources]
    plain = torch.autograd.grad(weighted_sum(run(x)), sources)
    assert all(torch.equal(left, right) for left, right in zip(kept, plain, strict=True))


@pytest.mark.parametrize("interval", [4, "auto", 60])
def test_autocast_leaves_the_recurrence_in_its_own_dtype(interval):
    torch.manual_seed(0)
    cell, x = DenseRNN(3, 4, dtype=torch.float32), inputs(60).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states = newton_apply(cell, x, NewtonConfig(interval=interval))
        drive = cell.drive(x).float()
    assert states.dtype == torch.float32
    # Only the projection of the inputs ran in bfloat16.
    state, expected = cell.initial_state(2), []
    for time in range(60):
        state = cell.step(state, drive[:, time])
        expected.append(state)
    torch.testing.assert_close(states, torch.stack(expected, 1), rtol=1e-5, atol=1e-5)
    states.sum().backward()
    assert all(weight.grad.isfinite().all() for weight in cell.parameters())
