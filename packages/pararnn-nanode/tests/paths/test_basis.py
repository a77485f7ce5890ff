import math

import pytest
import torch

from pararnn_nanode import CosinePath, PolyPath, TrigPath

QUARTER = torch.tensor(0.25, dtype=torch.float64)
CLOSE = {"rtol": 1e-14, "atol": 1e-14}


def columns(path, times):
    return path.basis(times, times)


def condition(path, points=101):
    return torch.linalg.cond(columns(path, torch.linspace(*path.span, points, dtype=torch.float64))).item()


@pytest.mark.parametrize(
    ("basis", "values"),
    [
        ("chebyshev", [1, -0.5, -0.5, 1, -0.5]),
        ("legendre", [1, -0.5, -0.125, 0.4375, -0.2890625]),
        ("monomial", [1, 0.25, 0.0625, 0.015625, 0.00390625]),
    ],
)
def test_polynomials_have_their_known_values_at_a_quarter(basis, values):
    path = PolyPath(1, 4, basis=basis)
    torch.testing.assert_close(columns(path, QUARTER), torch.tensor(values, dtype=torch.float64), **CLOSE)


def test_chebyshev_polynomials_are_cosines_of_multiples_of_an_angle():
    angle = torch.linspace(0, math.pi, 50, dtype=torch.float64)
    path = PolyPath(1, 12, basis="chebyshev", span=(-1.0, 1.0))
    torch.testing.assert_close(columns(path, angle.cos()), torch.cos(angle[:, None] * torch.arange(13)), rtol=1e-12, atol=1e-12)


def test_legendre_polynomials_are_orthogonal_over_the_span():
    start, end = 2.0, 5.0
    times = start + (end - start) * (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    values = columns(PolyPath(1, 6, span=(start, end)), times)
    gram = values.T @ values / 4000
    torch.testing.assert_close(gram, torch.diag(1 / (2 * torch.arange(7, dtype=torch.float64) + 1)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("basis", ["chebyshev", "legendre"])
def test_polynomials_have_slopes_at_both_ends_of_the_span(basis):
    path = PolyPath(1, 5, basis=basis, dtype=torch.float64)
    for t in (0.0, 1.0):
        assert path.derivative(t).isfinite().all()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (PolyPath(1, 4, basis="monomial"), 665),
        (PolyPath(1, 8, basis="monomial"), 6.6e5),
        (PolyPath(1, 4, basis="chebyshev"), 2.33),
        (PolyPath(1, 8, basis="chebyshev"), 2.82),
        (PolyPath(1, 12, basis="chebyshev"), 2.93),
        (PolyPath(1, 4), 2.90),
        (PolyPath(1, 8), 3.96),
        (PolyPath(1, 12), 4.86),
        (TrigPath(1, 1, omega=1.0), 51.4),
        (TrigPath(1, 2, omega=1.0), 3.28e3),
        (TrigPath(1, 4, omega=1.0), 1.25e7),
        (TrigPath(1, 1, omega=math.pi), 4.56),
        (TrigPath(1, 2, omega=math.pi), 21.3),
        (TrigPath(1, 4, omega=math.pi), 595),
        (TrigPath(1, 1), 1.42),
        (TrigPath(1, 4), 1.42),
        (TrigPath(1, 6), 1.42),
        (CosinePath(1, 2), 1.41),
        (CosinePath(1, 8), 1.42),
    ],
    ids=lambda value: f"{value.columns} {type(value).__name__}" if hasattr(value, "columns") else str(value),
)
def test_the_condition_on_101_points_is_the_tabulated_one(path, expected):
    assert condition(path) == pytest.approx(expected, rel=0.01)


def test_the_condition_does_not_depend_on_the_span():
    assert condition(TrigPath(1, 4, span=(3.0, 10.0))) == pytest.approx(condition(TrigPath(1, 4)), rel=1e-2)
    assert condition(CosinePath(1, 4, span=(3.0, -1.0))) == pytest.approx(condition(CosinePath(1, 4)), rel=1e-9)
    assert condition(PolyPath(1, 4, span=(3.0, 10.0))) == pytest.approx(condition(PolyPath(1, 4)), rel=1e-9)


@pytest.mark.parametrize("degree", [4, 8])
def test_monomial_weights_blow_up_with_time_as_in_the_second_figure_and_trigonometric_ones_do_not(degree):
    def spread(path, t):
        return columns(path, torch.tensor(t, dtype=torch.float64)).norm().item()

    assert spread(PolyPath(1, degree, basis="monomial"), 3.0) == pytest.approx({4: 85.9, 8: 6.96e3}[degree], rel=2e-3)
    for t in (0.0, 1.7, 3.0):
        assert spread(TrigPath(1, degree, omega=1.0), t) == pytest.approx(math.sqrt(1 + degree))


TABLE = {
    "a": [[[0.2, -0.5], [0.4, 0.1]], [[0.3, 0.6], [-0.7, 0.2]], [[0.1, -0.2], [0.3, 0.4]]],
    "b": [[[-0.4, 0.1], [0.5, -0.3]], [[0.2, 0.2], [-0.1, 0.5]]],
}


@pytest.mark.parametrize(
    ("omega", "expected"),
    [
        (1.0, [[0.575355506721262, 0.026456444294605], [0.060795499136502, 0.810307090624023]]),
        ("period", [[-0.3, -0.2], [0.6, -0.6]]),
    ],
)
def test_a_trigonometric_path_has_its_known_weights_at_a_quarter(omega, expected):
    path = TrigPath((2, 2), 2, omega=omega, dtype=torch.float64)
    with torch.no_grad():
        path.coefficients.copy_(torch.tensor(TABLE["a"] + TABLE["b"]))
        path.coefficients.copy_(torch.tensor(TABLE["a"] + TABLE["b"], dtype=torch.float64))
    torch.testing.assert_close(path.at(0.25), torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=2e-15)


def test_the_basis_is_exact_in_float32_at_late_times():
    path = TrigPath((2, 2), 3, omega=1.0)
    exact = TrigPath((2, 2), 3, omega=1.0, dtype=torch.float64)
    exact.load_state_dict(path.state_dict())
    late = torch.tensor([1e4 + 0.1, 1e6 + 0.3], dtype=torch.float64)
    torch.testing.assert_close(path.grid(late).double(), exact.grid(late), rtol=1e-6, atol=1e-6)


def test_a_half_range_cosine_may_differ_at_the_ends_of_the_span_where_a_full_turn_may_not():
    half, full = CosinePath((2, 2), 1, span=(1.0, 3.0)), TrigPath((2, 2), 3, span=(1.0, 3.0))
    assert not torch.allclose(half.at(1.0), half.at(3.0))
    torch.testing.assert_close(full.at(1.0), full.at(3.0))


def test_a_learned_frequency_has_the_gradient_of_the_formula():
    path = TrigPath((2, 2), 1, omega=1.3, learn_omega=True, dtype=torch.float64)
    path.at(0.7).sum().backward()
    _, a, b = path.coefficients.detach()
    expected = ((b * math.cos(0.91) - a * math.sin(0.91)) * 0.7).sum()
    torch.testing.assert_close(path.omega.grad, expected)


def test_a_learned_frequency_is_set_back_with_the_other_parameters():
    path = TrigPath(2, 1, omega=1.3, learn_omega=True)
    with torch.no_grad():
        path.omega.fill_(7.0)
    path.reset_parameters()
    assert path.omega.item() == pytest.approx(1.3)


@pytest.mark.parametrize("path", [PolyPath((2, 2), 0), TrigPath((2, 2), 0), CosinePath((2, 2), 0)], ids=lambda path: type(path).__name__)
def test_order_zero_is_a_constant(path):
    grid = path.grid(torch.linspace(0, 1, 5, dtype=torch.float64))
    assert torch.equal(grid, path.coefficients[0].detach().expand(5, 2, 2))
