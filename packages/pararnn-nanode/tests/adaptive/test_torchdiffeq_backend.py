"""Fields integrated by torchdiffeq."""

import pytest
import torch

from pararnn.errors import DifferentiationError
from pararnn_nanode import BucketPath, DenseField, odeint
from pararnn_nanode.integrate import adaptive, torchdiffeq_backend


@pytest.mark.parametrize("span", [(0.0, 1.0), (1.0, 0.0)], ids=["forward", "backward"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_jumps_of_weights_are_told_to_it(torchdiffeq, span, dtype):
    field = DenseField(3, BucketPath((3, 3), 4)).to(dtype)
    x = torch.randn(5, 3, dtype=dtype)
    theirs = torchdiffeq_backend.integrate(field, x, span, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(theirs.last, adaptive.integrate(field, x, span).last, rtol=1e-4, atol=1e-4)
    assert theirs.nfe < 250


def test_repeated_times_are_asked_for_once(torchdiffeq):
    t = torch.tensor([0.0, 0.0, 0.5, 0.5, 1.0], requires_grad=True)
    found = odeint(lambda t, y: -y, torch.ones(1), t, backend="torchdiffeq")
    torch.testing.assert_close(found[:, 0], torch.exp(-t), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("gradient", ["backprop", "adjoint"])
def test_gradients_reach_parameters_and_what_is_named(torchdiffeq, gradient):
    weight = torch.tensor(1.0, requires_grad=True)
    found = odeint(lambda t, y: -weight * y, torch.ones(1), [0.0, 1.0], backend="torchdiffeq", gradient=gradient, parameters=(weight,))
    assert torch.autograd.grad(found[-1].sum(), weight)[0].item() == pytest.approx(-0.36787944, rel=1e-5)


def test_a_tensor_that_its_adjoint_would_forget_is_an_error(torchdiffeq):
    weight = torch.tensor(1.0, requires_grad=True)
    with pytest.raises(DifferentiationError, match="parameters="):
        odeint(lambda t, y: -weight * y, torch.ones(1), [0.0, 1.0], backend="torchdiffeq", gradient="adjoint")


def test_steps_are_told(torchdiffeq):
    seen = []
    field = DenseField(3, BucketPath((3, 3), 2))
    torchdiffeq_backend.integrate(field, torch.randn(2, 3), [0.0, 1.0], progress=lambda step, steps: seen.append((step, steps)))
    assert [step for step, _ in seen] == list(range(1, len(seen) + 1))
