"""Fields integrated by torchdiffeq."""

import pytest
import torch

from pararnn.errors import DifferentiationError
from pararnn_nanode import BucketPath, ConstantPath, DenseField, odeint, odeint_adjoint
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("span", [(0.0, 1.0), (1.0, 0.0)], ids=["forward", "backward"])
@pytest.mark.parametrize("method", ["euler", "midpoint", "rk4", "dopri5"])
def test_each_step_reads_the_piece_that_it_lies_in(torchdiffeq, dtype, span, method):
    field = DenseField(1, ConstantPath((1, 1)), bias=BucketPath((1,), 10), activation=None).to(dtype)
    with torch.no_grad():
        field.path.coefficients.zero_()
        field.bias.coefficients[:, 0] = 2.0 ** torch.arange(10)
    times = torch.linspace(*span, 11)
    found = torchdiffeq_backend.integrate(field, torch.zeros(1, 1, dtype=dtype), times, method=method, rtol=1e-5, atol=1e-5)
    assert found.last.item() == pytest.approx(102.3 * (span[1] - span[0]), rel=1e-5)


@pytest.mark.parametrize("span", [(0.0, 1.0), (1.0, 0.0)], ids=["forward", "backward"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_its_adjoint_reads_the_piece_that_each_step_lies_in(torchdiffeq, dtype, span):
    field = DenseField(1, ConstantPath((1, 1)), bias=BucketPath((1,), 10), activation=None).to(dtype)
    with torch.no_grad():
        field.path.coefficients.zero_()
    times = torch.linspace(*span, 11)
    start = torch.zeros(1, 1, dtype=dtype)
    found = torchdiffeq_backend.integrate(field, start, times, method="rk4", gradient="adjoint")
    (by_bias,) = torch.autograd.grad(found.last.sum(), field.bias.coefficients)
    torch.testing.assert_close(by_bias, torch.full_like(by_bias, 0.1 * (span[1] - span[0])), rtol=1e-5, atol=1e-5)


def test_its_adjoint_refuses_tensors_that_it_would_count_twice(torchdiffeq):
    weight = torch.tensor(0.7, requires_grad=True)
    twice = weight * 2
    with pytest.raises(DifferentiationError, match="twice"):
        odeint_adjoint(
            lambda t, y: -twice * weight * y, torch.ones(1), torch.tensor([0.0, 1.0]), adjoint_params=(weight, twice), backend="torchdiffeq"
        )


@pytest.mark.filterwarnings("ignore:The following arguments have no effect")
def test_its_methods_of_scipy_read_the_right_piece_too(torchdiffeq):
    pytest.importorskip("scipy")
    field = DenseField(3, BucketPath((3, 3), 4))
    x = torch.randn(5, 3)
    found = torchdiffeq_backend.integrate(field, x, [0.0, 1.0], method="scipy_solver", options={"solver": "RK45"}, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.last, adaptive.integrate(field, x, [0.0, 1.0]).last, rtol=1e-3, atol=1e-3)
