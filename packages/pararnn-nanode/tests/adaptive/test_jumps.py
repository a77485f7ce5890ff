"""Times, inputs and their gradients where weights jump and where samples have times of their own."""

import itertools

import pytest
import torch

from pararnn.errors import ShapeError
from pararnn_nanode import BucketPath, CallableField, ConstantPath, DenseField, odeint, odeint_solution
from pararnn_nanode.integrate.adaptive import integrate

WAYS = ["backprop", "checkpoint", "adjoint"]
CASES = {
    "one end": [0.0, 0.9],
    "two times": [0.0, 0.2, 0.9],
    "at the jump": [0.0, 0.5, 0.9],
    "repeated": [0.0, 0.0, 0.7, 0.7],
    "falling": [0.9, 0.6, 0.1],
}


def stairs():
    """`x' = 1 + x / 10` before 0.5 and `10 + x / 10` after, with weights in buckets."""
    field = DenseField(1, ConstantPath((1, 1)), bias=BucketPath((1,), 2), activation=None)
    with torch.no_grad():
        field.path.coefficients.fill_(0.1)
        field.bias.coefficients[:, 0] = torch.tensor([1.0, 10.0])
    return field


def exact(x, t):
    """The solution of `stairs` at times that may lie on either side of the jump."""

    def part(x, start, end, rate):
        return (x + 10 * rate) * torch.exp((end - start) / 10) - 10 * rate

    def between(x, start, end):
        jump = torch.tensor(0.5)
        if float(start.detach()) < 0.5 < float(end.detach()):
            return part(part(x, start, jump, 1.0), jump, end, 10.0)
        if float(end.detach()) < 0.5 < float(start.detach()):
            return part(part(x, start, jump, 10.0), jump, end, 1.0)
        return part(x, start, end, 1.0 if float((start + end).detach()) < 1.0 else 10.0)

    states = [x]
    for start, end in itertools.pairwise(t):
        states.append(between(states[-1], start, end))
    return torch.stack(states)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("samples", [None, 2], ids=["shared", "of samples"])
@pytest.mark.parametrize("times", CASES.values(), ids=CASES)
def test_times_have_the_gradient_of_the_solution_where_weights_jump(way, samples, times):
    t = torch.tensor(times)
    weights = torch.arange(1.0, len(times) + 1)
    known = t.clone().requires_grad_()
    (right,) = torch.autograd.grad(exact(torch.ones(()), known) @ weights, known)
    given = (t if samples is None else t.expand(samples, -1).clone()).requires_grad_()
    found = integrate(stairs(), torch.ones(samples or 1, 1), given, gradient=way).x[:, :, 0]
    torch.testing.assert_close(found[:, 0], exact(torch.ones(()), t), rtol=1e-6, atol=1e-6)
    (by_time,) = torch.autograd.grad((found * weights[:, None]).sum(), given)
    # A time that is on the jump itself has one derivative from each side.
    smooth = [k for k, time in enumerate(times) if time != 0.5]
    torch.testing.assert_close(by_time[..., smooth], right[smooth].expand_as(by_time[..., smooth]), rtol=1e-5, atol=1e-5)


def test_samples_that_meet_a_jump_at_different_times_have_gradients_of_their_own():
    t = torch.tensor([[0.0, 0.9], [0.4, 0.6], [0.8, 0.1], [0.1, 0.3]], requires_grad=True)
    (found,) = torch.autograd.grad(integrate(stairs(), torch.ones(4, 1), t).last.sum(), t)
    rows = t.detach().clone().requires_grad_()
    (right,) = torch.autograd.grad(sum(exact(torch.ones(()), row)[-1] for row in rows), rows)
    torch.testing.assert_close(found, right, rtol=1e-6, atol=1e-6)


def test_the_start_has_first_and_second_derivatives_across_a_jump():
    def func(t, y):
        return torch.where(t < 0.5, 1.0, 10.0) * y

    def end(start):
        t = torch.stack((start, torch.tensor(0.9)))
        return odeint(func, torch.ones(1), t, options={"jump_t": [0.5]}, rtol=1e-9, atol=1e-11)[-1].sum()

    start = torch.tensor(0.1, requires_grad=True)
    (first,) = torch.autograd.grad(end(start), start, create_graph=True)
    (second,) = torch.autograd.grad(first, start)
    value = torch.exp(torch.tensor(0.4 + 4.0))
    torch.testing.assert_close((first.detach(), second), (-value, value), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("way", WAYS)
def test_inputs_that_are_a_function_are_asked_at_the_times_of_each_sample(way):
    asked = set()
    rate = torch.tensor(2.0, requires_grad=True)

    def u(t):
        asked.add(t.ndim)
        return rate * t.unsqueeze(-1)

    t = torch.tensor([[0.0, 0.5, 1.0], [0.0, 0.25, 0.5]], requires_grad=True)
    field = CallableField(lambda t, x, u: u, parameters=(rate,))
    found = integrate(field, torch.zeros(2, 1), t, gradient=way, u=u)
    torch.testing.assert_close(found.x[:, :, 0], t.mT.square(), rtol=1e-8, atol=1e-8)
    assert asked == {2}
    by_rate, by_time = torch.autograd.grad(found.last.sum(), (rate, t))
    torch.testing.assert_close(by_rate, t[:, -1].square().sum() / 2, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(by_time[:, -1], 2 * t[:, -1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("samples", [False, True], ids=["shared", "of samples"])
def test_inputs_of_a_layer_may_be_a_function_of_the_times(samples):
    field = DenseField(1, ConstantPath((1, 1)), input=ConstantPath((1, 1)), activation=None)
    with torch.no_grad():
        field.path.coefficients.zero_()
        field.input.coefficients.fill_(1.0)
    t = torch.tensor([[0.0, 1.0], [0.0, 0.5]]) if samples else torch.tensor([0.0, 1.0])
    seen = []

    def u(t):
        seen.append(t.shape)
        return t.unsqueeze(-1) if samples else t.reshape(-1, 1, 1).expand(-1, 2, 1)

    found = integrate(field, torch.zeros(2, 1), t, u=u)
    torch.testing.assert_close(found.last[:, 0], torch.tensor([0.5, 0.125 if samples else 0.5]))
    assert all(len(shape) == 1 + samples for shape in seen)


def test_a_field_that_changes_the_shape_of_the_state_is_refused():
    with pytest.raises(ShapeError, match=r"\(2,\).* \(3, 2\)"):
        integrate(CallableField(lambda t, x: x * torch.ones(3, 1)), torch.ones(2), [0.0, 1.0])


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["forward", "backward"])
def test_a_walk_without_an_end_reads_the_right_side_of_a_jump(sign):
    def func(t, y):
        return torch.where(sign * t < 0.5, 1.0, 10.0) * torch.ones_like(y)

    t0 = torch.zeros(1, requires_grad=True)
    options = {"jump_t": [0.5 * sign]}
    found = odeint_solution(func, torch.zeros(1), torch.cat((t0, t0.detach() + sign)), event_fn=lambda t, y: sign * y - 4.5, options=options)
    assert found.event.item() == pytest.approx(0.9 * sign, abs=1e-12)
    assert found.rejected == 0
    torch.testing.assert_close(torch.autograd.grad(found.event, t0)[0], torch.tensor([0.1]), rtol=1e-9, atol=0.0)
