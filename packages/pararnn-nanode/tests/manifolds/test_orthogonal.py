import math

import pytest
import torch

from pararnn.errors import ConfigError, ShapeError
from pararnn_nanode import BucketPath, ConstantPath, OrthogonalPath, TrigPath
from pararnn_nanode.manifolds.householder import reflections
from pararnn_nanode.manifolds.orthogonal import MAPS
from pararnn_nanode.manifolds.skew import cayley, exponential, skew

TIMES = torch.linspace(0, 1, 7, dtype=torch.float64)
every_map = pytest.mark.parametrize("name", MAPS)


def product_of_reflections(u):
    """`H(u_1) ... H(u_p)`, one after the other."""
    n = u.shape[0]
    product = torch.eye(n, dtype=u.dtype)
    for v in u.unbind(-1):
        product = product @ (torch.eye(n, dtype=u.dtype) - 2 * torch.outer(v, v.conj()) / torch.vdot(v, v))
    return product


def departure(weights):
    """How far the columns (rows of a wide matrix) are from orthonormal, computed in float64."""
    wide = weights.detach().to(torch.complex128 if weights.is_complex() else torch.float64)
    wide = wide.mH if wide.shape[-2] < wide.shape[-1] else wide
    return (wide.mH @ wide - torch.eye(wide.shape[-1])).abs().max().item()


def test_the_known_product_of_three_reflections():
    u = torch.tensor([[1.0, 2, 2], [0, 1, 1], [3, 0, 4]], dtype=torch.float64).T
    known = torch.tensor([[-47.0, 100, -196], [-4, 200, 103], [-220, -25, 40]], dtype=torch.float64) / 225
    torch.testing.assert_close(reflections(u), known, rtol=1e-14, atol=1e-15)


def test_the_first_of_them_alone():
    known = torch.tensor([[7.0], [-4], [-4]], dtype=torch.float64) / 9
    torch.testing.assert_close(reflections(torch.tensor([[1.0], [2], [2]], dtype=torch.float64)), known)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize(("n", "p"), [(1, 1), (4, 4), (7, 3), (6, 1)])
def test_reflections_at_once_equal_one_after_the_other(n, p, dtype):
    torch.manual_seed(0)
    u = torch.randn(n, p, dtype=dtype)
    torch.testing.assert_close(reflections(u), product_of_reflections(u)[:, :p], rtol=1e-12, atol=1e-12)


def test_parallel_vectors_reflect_back_and_forth():
    u = torch.ones(5, 4, dtype=torch.float64) * torch.tensor([1.0, -3.0, 1e-9, 1e9])
    torch.testing.assert_close(reflections(u), torch.eye(5, 4, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1e-300, 1e-30, 1e30, 1e300])
def test_the_length_of_a_vector_does_not_matter(size):
    torch.manual_seed(0)
    u = torch.randn(5, 5, dtype=torch.float64)
    torch.testing.assert_close(reflections(u * size), reflections(u), rtol=1e-12, atol=1e-12)


def test_a_vector_of_zeros_reflects_along_the_first_axis_and_has_no_gradient():
    torch.manual_seed(0)
    u = torch.randn(4, 4, dtype=torch.float64)
    axis = u.clone()
    u[:, 2], axis[:, 2] = 0, torch.eye(4, dtype=torch.float64)[0]
    u.requires_grad_()
    frame = reflections(u)
    torch.testing.assert_close(frame, product_of_reflections(axis), rtol=1e-12, atol=1e-12)
    (frame * torch.randn_like(frame)).sum().backward()
    assert u.grad.isfinite().all()
    assert not u.grad[:, 2].any()


@every_map
def test_a_value_that_is_not_a_number_is_not_hidden(name):
    x = torch.randn(4, 4, dtype=torch.float64)
    x[1, 2] = math.nan
    assert MAPS[name](x).isnan().any()


def test_the_cayley_transform_is_the_formula():
    x = torch.randn(5, 5, dtype=torch.float64)
    half = (x - x.T) / 2
    expected = torch.linalg.inv(torch.eye(5) + half) @ (torch.eye(5) - half)
    torch.testing.assert_close(cayley(x), expected)


def test_the_exponential_of_a_skew_matrix_of_two_turns_by_its_entry():
    angle = 0.7
    x = torch.tensor([[0.0, angle], [0.0, 0.0]], dtype=torch.float64)
    turn = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]], dtype=torch.float64)
    torch.testing.assert_close(exponential(x), turn)


def test_a_tall_matrix_is_padded_to_a_skew_one():
    x = torch.randn(5, 2)
    a = skew(x)
    assert torch.equal(a, -a.T)
    torch.testing.assert_close(a[2:, :2], x[2:])
    assert not a[2:, 2:].any()


@every_map
@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (6, 2), (2, 6), (4, 3, 3, 3), (64, 2, 3, 3)], ids=str)
def test_weights_are_orthonormal_at_all_times(name, shape):
    torch.manual_seed(0)
    weights = OrthogonalPath(TrigPath(shape, 2, dtype=torch.float64), map=name).grid(TIMES)
    assert weights.shape == (7, *shape)
    assert departure(weights.flatten(2)) < 1e-13


@every_map
@pytest.mark.parametrize("n", [16, 64, 128])
def test_float32_weights_are_orthogonal_to_a_millionth(name, n):
    torch.manual_seed(0)
    weights = OrthogonalPath(TrigPath((n, n), 2, gain=3.0), map=name).grid(TIMES[:3])
    assert weights.dtype is torch.float32
    assert departure(weights) <= 1e-6
    assert (weights.mT @ weights - torch.eye(n)).abs().max().item() <= 2e-6


@every_map
def test_complex_weights_are_unitary(name):
    torch.manual_seed(0)
    weights = OrthogonalPath(TrigPath((5, 5), 1, dtype=torch.complex128), map=name).grid(TIMES)
    assert departure(weights) < 1e-13


@every_map
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("n", [1, 4, 5])
def test_the_sign_picks_the_component(name, sign, n):
    torch.manual_seed(0)
    path = OrthogonalPath(TrigPath((n, n), 2, dtype=torch.float64), map=name, sign=sign)
    assert path.determinant == (sign * (-1) ** n if name == "householder" else sign)
    for weight in path.grid(TIMES):
        assert torch.linalg.det(weight).item() == pytest.approx(path.determinant)


def test_both_signs_differ_in_the_last_column_only():
    base = TrigPath((4, 4), 2)
    plus, minus = (OrthogonalPath(base, sign=sign).grid(TIMES) for sign in (1, -1))
    assert torch.equal(plus[..., :-1], minus[..., :-1])
    assert torch.equal(plus[..., -1], -minus[..., -1])


def test_what_does_not_fit_a_square_has_no_determinant():
    assert OrthogonalPath(ConstantPath((4, 3))).determinant is None


def test_pieces_and_matrices_are_those_of_the_base():
    path = OrthogonalPath(BucketPath((3, 3), 4))
    assert path.edges() == (0.25, 0.5, 0.75)
    assert path.n_matrices == 4
    held = path.grid(torch.tensor([0.2, 0.26]), torch.tensor([0.2, 0.2]))
    assert torch.equal(held[0], held[1])


@pytest.mark.parametrize("seed", range(3))
def test_gradients_through_an_orthogonal_equation_grow_and_shrink_no_faster_than_the_bound(seed):
    torch.manual_seed(seed)
    path = OrthogonalPath(TrigPath((6, 6), 2, gain=3.0, dtype=torch.float64))
    steps, span = 2000, 1.0
    weights = path.grid((torch.arange(steps, dtype=torch.float64) + 0.5) / steps).detach()

    def flow(x):
        for weight in weights:
            x = x + span / steps * torch.tanh(weight @ x)
        return x

    singular = torch.linalg.svdvals(torch.func.jacrev(flow)(torch.randn(6, dtype=torch.float64)))
    assert math.exp(-span) <= singular.min().item()
    assert singular.max().item() <= math.exp(span)
    assert singular.max().item() > 1.05


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: OrthogonalPath(ConstantPath(4)), ShapeError, r"two or more dimensions, got shape \(4,\)"),
        (lambda: OrthogonalPath(ConstantPath((4, 4)), map="qr"), ConfigError, "map must be one of householder, cayley, matrix_exp, got 'qr'"),
        (lambda: OrthogonalPath(ConstantPath((4, 4)), sign=0), ConfigError, "sign must be 1 or -1, got 0"),
    ],
)
def test_what_cannot_work_is_refused(build, error, message):
    with pytest.raises(error, match=message):
        build()
