"""One import replaced by another: the same arguments give the same shapes and numbers."""

import pytest
import torch

from pararnn_nanode import odeint, odeint_adjoint, odeint_event

RISING = torch.linspace(0.0, 1.0, 5, dtype=torch.float64)
FALLING = torch.linspace(2.0, -1.0, 7, dtype=torch.float64)
FIXED = ["euler", "midpoint", "heun2", "heun3", "rk4"]


@pytest.mark.parametrize("t", [RISING, FALLING], ids=["rising", "falling"])
@pytest.mark.parametrize("method", FIXED)
def test_fixed_methods_agree_to_rounding(torchdiffeq, swing, method, t):
    y0 = torch.randn(4, 3)
    torch.testing.assert_close(odeint(swing, y0, t, method=method), torchdiffeq.odeint(swing, y0, t, method=method), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("t", [RISING, FALLING], ids=["rising", "falling"])
@pytest.mark.parametrize(
    "options",
    [
        {"step_size": 0.03},
        {"step_size": 0.03, "interp": "cubic"},
        {"step_size": 0.1, "perturb": True},
        {"grid_constructor": lambda func, y0, t: torch.linspace(float(t[0]), float(t[-1]), 50)},
    ],
    ids=["step_size", "cubic", "perturb", "grid"],
)
@pytest.mark.parametrize("method", ["euler", "rk4"])
def test_options_of_fixed_methods_agree_to_rounding(torchdiffeq, swing, method, options, t):
    y0 = torch.randn(4, 3)
    ours, theirs = (solve(swing, y0, t, method=method, options=options) for solve in (odeint, torchdiffeq.odeint))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("t", [RISING, FALLING], ids=["rising", "falling"])
def test_the_adaptive_method_agrees_to_its_tolerance(torchdiffeq, swing, t):
    y0 = torch.randn(4, 3)
    torch.testing.assert_close(
        odeint(swing, y0, t, rtol=1e-9, atol=1e-9), torchdiffeq.odeint(swing, y0, t, rtol=1e-9, atol=1e-9), rtol=1e-7, atol=1e-7
    )


@pytest.mark.parametrize("method", ["dopri5", "bosh3", "adaptive_heun"])
def test_adaptive_methods_keep_their_tolerance_between_their_steps(swing, method):
    y0 = torch.randn(4, 3)
    exact = odeint(swing, y0, FALLING, rtol=1e-12, atol=1e-12)
    assert (odeint(swing, y0, FALLING, method=method, rtol=1e-5, atol=1e-7) - exact).abs().max() < 1e-4


@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_a_tuple_of_states_comes_back_as_a_tuple(torchdiffeq, method):
    y0 = (torch.ones(2, 3), torch.zeros(()))

    def func(t, state):
        return -state[0] * t, state[0].sum()

    ours, theirs = (solve(func, y0, RISING, method=method) for solve in (odeint, torchdiffeq.odeint))
    assert [part.shape for part in ours] == [part.shape for part in theirs] == [(5, 2, 3), (5,)]
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_tolerances_and_norms_of_a_tuple_are_taken_as_theirs(torchdiffeq):
    y0 = (torch.ones(2), torch.ones(1))
    arguments = {
        "rtol": (1e-6, 1e-8),
        "atol": (1e-8, 1e-9),
        "options": {"norm": lambda state: max(part.abs().max() for part in state)},
        "method": "dopri5",
    }
    ours, theirs = (solve(lambda t, y: (-y[0], y[1] * t), y0, RISING, **arguments) for solve in (odeint, torchdiffeq.odeint))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_complex_state_turns_as_it_should(torchdiffeq):
    y0 = torch.ones(1, dtype=torch.complex128)
    angle = torch.tensor(1.5, requires_grad=True)
    gradients = []
    for solve in (odeint, torchdiffeq.odeint, lambda *a: odeint_adjoint(*a, adjoint_params=(angle,))):
        found = solve(lambda t, y: 1j * angle * y, y0, RISING)
        torch.testing.assert_close(found[-1], torch.exp(1j * angle).reshape(1), rtol=1e-6, atol=1e-6)
        gradients.append(torch.autograd.grad(found[-1].real.sum(), angle)[0])
    torch.testing.assert_close(torch.stack(gradients), -torch.sin(angle.detach()).expand(3), rtol=1e-5, atol=1e-5)


def test_the_adjoint_gives_their_gradients(torchdiffeq, swing):
    y0, t = torch.randn(4, 3, requires_grad=True), RISING.clone().requires_grad_()
    found = [
        torch.autograd.grad(solve(swing, y0, t, rtol=1e-9, atol=1e-9)[1:].square().sum(), (y0, t, swing.weight))
        for solve in (odeint_adjoint, torchdiffeq.odeint_adjoint, odeint)
    ]
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[0], found[2], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{"norm": "seminorm"}, {"norm": lambda parts: max(part.abs().max() for part in parts)}, {}], ids=["semi", "own", "none"]
)
def test_the_adjoint_takes_options_of_its_own(swing, options):
    y0 = torch.randn(4, 3)
    exact = torch.autograd.grad(odeint(swing, y0, RISING)[-1].sum(), swing.weight)
    found = odeint_adjoint(swing, y0, RISING, method="dopri5", adjoint_method="bosh3", adjoint_rtol=1e-8, adjoint_atol=1e-9, adjoint_options=options)
    torch.testing.assert_close(torch.autograd.grad(found[-1].sum(), swing.weight), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "backward"])
def test_event_times_agree(torchdiffeq, reverse):
    def func(t, y):
        return torch.stack((y[1], -y[0]))

    def event(t, y):
        return y[0]

    y0, t0 = torch.tensor([1.0, 0.3]), torch.tensor(0.5)
    ours, theirs = (module(func, y0, t0, event_fn=event, reverse_time=reverse) for module in (odeint_event, torchdiffeq.odeint_event))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_callbacks_of_the_function_are_called(torchdiffeq):
    class Watched:
        def __init__(self):
            self.calls = []

        def __call__(self, t, y):
            return -y

        def callback_accept_step(self, t0, y0, dt):
            self.calls.append((float(t0), y0.shape, float(dt)))

    watched = Watched()
    odeint(watched, torch.ones(2), RISING)
    assert watched.calls[0][:2] == (0.0, (2,))
    assert sum(length for _, _, length in watched.calls) == pytest.approx(1.0)


def test_the_other_methods_are_those_of_torchdiffeq_itself(torchdiffeq, swing):
    y0 = torch.randn(4, 3)
    for method in ("dopri8", "explicit_adams"):
        ours = odeint(swing, y0, RISING, method=method, backend="torchdiffeq")
        assert torch.equal(ours, torchdiffeq.odeint(swing, y0, RISING, method=method))
