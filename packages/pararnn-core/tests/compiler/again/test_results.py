"""What recognised solves give is what the long way gives: states, gradients, records, errors."""

import copy

import pytest
import torch
from recognised_solves import Settings, Squash, anywhere, assert_right, everywhere, inputs, learnt
from toy_cells import Gate, loop

from pararnn import DifferentiationError, DTypeError, InputError, NewtonConfig, ParaRNN, ShapeError, newton_apply
from pararnn.solver import again

CELLS = {
    "gate": lambda: Gate(3, 4),
    "tanh": lambda: Squash(3),
    "settings": Settings,
}


@everywhere
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize(("batch", "length"), [(2, 9), (1, 1), (5, 1), (1, 70)], ids=str)
def test_solves_that_are_recognised_give_the_same_bits(place, config, recognised, name, batch, length):
    cell = CELLS[name]().to(place[1])
    x = inputs(place, batch=batch, length=length, requires_grad=True)
    sources = [x, *cell.parameters()]
    states = [newton_apply(cell, x, config) for _ in range(5)]
    gradients = [torch.autograd.grad(one.square().sum(), sources, allow_unused=True) for one in states]
    assert recognised == [False, False, True, True, True]
    for one, gradient in zip(states[1:], gradients[1:], strict=True):
        torch.testing.assert_close(one, states[0], rtol=0, atol=0)
        torch.testing.assert_close(gradient, gradients[0], rtol=0, atol=0)
    assert_right(cell, x, config)


@everywhere
def test_the_record_of_a_recognised_solve_is_the_same(place, config):
    cell, x = Gate(3, 4).to(place[1]), inputs(place, length=40)
    first, *_, last = (ParaRNN(cell, config=config).solve(x)[1][0] for _ in range(4))
    assert first.plan == last.plan
    assert (first.status, first.iterations, first.margin, first.backend) == (last.status, last.iterations, last.margin, last.backend)
    torch.testing.assert_close(last.final, first.final)
    assert last.explain() == first.explain()


@everywhere
def test_an_optimiser_goes_on_as_with_the_loop(place, config, recognised):
    ours, theirs = Gate(3, 4).to(place[1]), Gate(3, 4).to(place[1])
    theirs.load_state_dict(ours.state_dict())
    steps = [torch.optim.SGD(cell.parameters(), lr=0.1) for cell in (ours, theirs)]
    for turn in range(6):
        x = inputs(place) * (turn + 1)
        for cell, optimiser, solve in zip((ours, theirs), steps, (lambda cell, x: newton_apply(cell, x, config), loop), strict=True):
            optimiser.zero_grad()
            solve(cell, x).square().mean().backward()
            optimiser.step()
    assert sum(recognised) == 4
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-9, atol=1e-9)


@anywhere
def test_the_drive_runs_once_a_solve(place, config, recognised):
    cell, runs = Settings().to(place[1]), []
    cell.project.register_forward_hook(lambda module, args, output: runs.append(1))
    x = inputs(place)
    for turn in range(1, 9):
        newton_apply(cell, x[:, : 9 - turn // 4], config)
        if turn == 6:
            cell.gain = 0.9
        assert len(runs) == turn
    assert any(recognised)


@everywhere
def test_errors_are_those_of_the_first_solve(place, config):
    def outcome(cell, **given):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            newton_apply(cell, given.pop("x", inputs(place)), config, **given)
        return type(caught.value), str(caught.value)

    bad = [
        {"h0": torch.zeros(3, 4, dtype=torch.float64, device=place[1])},
        {"h0": torch.zeros(2, 4, dtype=torch.complex128, device=place[1])},
        {"h0": [0.0]},
        {"x": inputs(place)[0]},
        {"x": inputs(place, features=5)},
        {"x": [1.0]},
    ]
    if place[1] == "cpu":
        bad += [{"x": inputs(place) / 0.0 * 0.0}, {"h0": torch.full((2, 4), torch.nan, dtype=torch.float64)}]
    fresh, known = Gate(3, 4).to(place[1]), Gate(3, 4).to(place[1])
    learnt(known, inputs(place), config)
    learnt(known, inputs(place), config, h0=torch.zeros(2, 4, dtype=torch.float64, device=place[1]))
    for one in bad:
        expected = outcome(copy.deepcopy(fresh), **one)
        assert outcome(known, **one) == expected
        assert issubclass(expected[0], (ShapeError, DTypeError, InputError))


@anywhere
def test_transforms_are_left_to_the_long_way(place):
    cell, x = Gate(3, 4).to(place[1]), inputs(place, length=1100)
    config = NewtonConfig()
    for _ in range(3):
        learnt(cell, x, config)
        _, tangent = torch.func.jvp(lambda x: newton_apply(cell, x, config), (x,), (torch.ones_like(x),))
        _, truth = torch.func.jvp(lambda x: loop(cell, x), (x,), (torch.ones_like(x),))
        torch.testing.assert_close(tangent, truth, rtol=1e-8, atol=1e-8)


@anywhere
def test_a_graph_is_used_as_any_other(place, config):
    cell, x = Gate(3, 4).to(place[1]), inputs(place, requires_grad=True)
    learnt(cell, x, config)
    states = newton_apply(cell, x, config)
    first, second = (torch.autograd.grad(states.sum(), x, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(newton_apply(cell, x, config).sum(), x, create_graph=True)
    with pytest.raises(DifferentiationError, match="second derivatives"):
        gradient.sum().backward()
    states = newton_apply(cell, x, config)
    with torch.no_grad():
        cell.lift.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        states.sum().backward()


@pytest.mark.gpu
def test_single_steps_on_a_gpu_are_recognised(recognised):
    again.forget()
    layer = ParaRNN(Gate(3, 4)).cuda()
    x, states = inputs(("triton", "cuda")), torch.rand(2, 4, dtype=torch.float64, device="cuda")
    with torch.no_grad():
        found = [layer.step(x[:, 0], states) for _ in range(4)]
    assert recognised == [False, False, True, True]
    truth = loop(layer.layers[0], x[:, :1], states)[:, 0].detach()
    for output, (state,) in found:
        torch.testing.assert_close(output, truth, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(state, truth, rtol=1e-9, atol=1e-9)
