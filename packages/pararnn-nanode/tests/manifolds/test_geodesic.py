import math

import pytest
import torch

from pararnn.errors import DTypeError, InputError, ShapeError
from pararnn_nanode import geodesic


@pytest.fixture
def q():
    torch.manual_seed(0)
    return torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))[0]


@pytest.fixture
def omega():
    torch.manual_seed(1)
    x = torch.randn(4, 4, dtype=torch.float64)
    return x - x.T


def test_the_geodesic_of_one_pair_of_axes_is_the_known_rotation():
    omega = torch.zeros(3, 3, dtype=torch.float64)
    omega[0, 2], omega[2, 0] = 1, -1
    c, s = math.cos(0.7), math.sin(0.7)
    known = torch.tensor([[c, 0, s], [0, 1, 0], [-s, 0, c]], dtype=torch.float64)
    torch.testing.assert_close(geodesic(torch.eye(3, dtype=torch.float64), omega, 0.7), known, rtol=0, atol=1e-15)


def test_it_starts_at_q_in_the_direction_q_omega(q, omega):
    place, speed = torch.func.jvp(lambda t: geodesic(q, omega, t), (torch.zeros((), dtype=torch.float64),), (torch.ones((), dtype=torch.float64),))
    torch.testing.assert_close(place, q)
    torch.testing.assert_close(speed, q @ omega)


def test_all_times_at_once_equal_one_at_a_time_and_stay_orthogonal(q, omega):
    times = torch.linspace(-3, 3, 6, dtype=torch.float64).reshape(2, 3)
    walk = geodesic(q, omega, times)
    assert walk.shape == (2, 3, 4, 4)
    torch.testing.assert_close(walk[1, 2], geodesic(q, omega, times[1, 2].item()))
    torch.testing.assert_close(walk.mT @ walk, torch.eye(4, dtype=torch.float64).expand(2, 3, 4, 4))


def test_float32_stays_orthogonal_to_a_millionth():
    torch.manual_seed(0)
    x = torch.randn(64, 64)
    walk = geodesic(torch.eye(64), x - x.T, torch.linspace(0, 1, 5)).double()
    assert (walk.mT @ walk - torch.eye(64)).abs().max().item() < 1e-6


def test_gradients_and_transforms_pass(q, omega):
    free = omega.clone().requires_grad_()
    torch.autograd.gradcheck(lambda x: geodesic(q, x - x.T, 0.3), free)
    torch.autograd.gradgradcheck(lambda x: geodesic(q, x - x.T, 0.3), free)
    several = torch.func.vmap(lambda o: geodesic(q, o, 0.3))(torch.stack([omega, 2 * omega]))
    torch.testing.assert_close(several[1], geodesic(q, omega, 0.6))


def test_it_compiles_to_one_graph(q, omega):
    times = torch.linspace(0, 1, 3, dtype=torch.float64)
    compiled = torch.compile(geodesic, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, omega, times), geodesic(q, omega, times))


def test_complex_matrices_walk_on_the_unitary_group():
    x = torch.randn(3, 3, dtype=torch.complex128)
    walk = geodesic(torch.eye(3, dtype=torch.complex128), x - x.mH, 0.4)
    torch.testing.assert_close(walk.mH @ walk, torch.eye(3, dtype=torch.complex128))


@pytest.mark.parametrize(
    ("q", "omega", "error", "message"),
    [
        (torch.eye(3), torch.ones(3, 3), InputError, "must be skew.*off by 2"),
        (torch.eye(3), torch.zeros(2, 2), ShapeError, r"direction of a geodesic needs the shape \(..., 3, 3\), got \(2, 2\)"),
        (torch.ones(3), torch.zeros(3, 3), ShapeError, r"start of a geodesic needs the shape \(..., n, n\), got \(3,\)"),
        (torch.eye(3, dtype=torch.int64), torch.zeros(3, 3), DTypeError, "start of a geodesic is a floating or complex matrix, got torch.int64"),
    ],
)
def test_what_cannot_work_is_refused(q, omega, error, message):
    with pytest.raises(error, match=message):
        geodesic(q, omega, 1.0)
