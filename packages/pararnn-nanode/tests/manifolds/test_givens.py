import math

import pytest
import torch

from pararnn.errors import ConfigError, DTypeError, InputError, ShapeError
from pararnn_nanode import ConstantPath, GivensWalk, OrthogonalPath, TrigPath, geodesic

PAIRS = [(0, 1), (1, 2), (0, 2)]
KNOWN = [
    [0.886859379865705, 0.282321236697518, 0.365752866911253],
    [-0.365752866911253, 0.912667807454839, 0.182379586527045],
    [-0.282321236697518, -0.295520206661340, 0.912667807454839],
]
# a0, a1, a2, a3, b1, b2, b3 of each entry of the walk over PAIRS.
HARMONICS = {
    (0, 0): (0.5, 0, 0.5, 0, -0.75, 0, 0.25),
    (0, 1): (0, 0, 0, 0, 0, 0.5, 0),
    (0, 2): (0, 0.25, 0, -0.25, 0, 0.5, 0),
    (1, 0): (0, -0.25, 0, 0.25, 0, -0.5, 0),
    (1, 1): (0.5, 0, 0.5, 0, 0, 0, 0),
    (1, 2): (-0.5, 0, 0.5, 0, 0.25, 0, 0.25),
    (2, 0): (0, 0, 0, 0, 0, -0.5, 0),
    (2, 1): (0, 0, 0, 0, -1, 0, 0),
    (2, 2): (0.5, 0, 0.5, 0, 0, 0, 0),
}
ANGLES = torch.linspace(-4, 4, 50, dtype=torch.float64)


def generator(n, i, j):
    h = torch.zeros(n, n, dtype=torch.float64)
    h[i, j], h[j, i] = 1, -1
    return h


def product(n, pairs, angles, start=None):
    """The walk as one exponential a rotation."""
    found = torch.eye(n, dtype=torch.float64) if start is None else start
    for (i, j), angle in zip(pairs, angles, strict=True):
        found = found @ torch.linalg.matrix_exp(angle * generator(n, i, j))
    return found


def test_the_known_walk_over_three_pairs():
    walk = GivensWalk(3, PAIRS, dtype=torch.float64)
    torch.testing.assert_close(walk.at(0.3), torch.tensor(KNOWN, dtype=torch.float64), rtol=0, atol=2e-15)


def test_every_entry_is_its_known_trigonometric_polynomial():
    trig = TrigPath((3, 3), 3, omega=1.0, dtype=torch.float64)
    with torch.no_grad():
        for (i, j), harmonics in HARMONICS.items():
            trig.coefficients[:, i, j] = torch.tensor(harmonics, dtype=torch.float64)
    torch.testing.assert_close(GivensWalk(3, PAIRS, dtype=torch.float64).grid(ANGLES), trig.grid(ANGLES), rtol=0, atol=1e-14)


def test_the_converse_is_false_a_trigonometric_path_is_not_orthogonal():
    torch.manual_seed(0)
    weight = TrigPath((3, 3), 3, omega=1.0).at(0.3)
    assert (weight.T @ weight - torch.eye(3)).abs().max().item() > 0.1


@pytest.mark.parametrize(("count", "degree"), [(5, 5), (12, 12)])
def test_the_degree_never_exceeds_the_number_of_rotations(count, degree):
    torch.manual_seed(0)
    pairs = [tuple(torch.randperm(8)[:2].tolist()) for _ in range(count)]
    turns = 2 * math.pi * torch.arange(64, dtype=torch.float64) / 64
    spectrum = torch.fft.rfft(GivensWalk(8, pairs, dtype=torch.float64).grid(turns), dim=0).abs() / 64
    assert spectrum[degree + 1 :].max().item() < 1e-14


def test_own_angles_equal_one_exponential_a_rotation():
    torch.manual_seed(0)
    start = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))[0]
    pairs = [(0, 3), (2, 1), (0, 1), (0, 3)]
    walk = GivensWalk(4, pairs, start=start, shared_angle=False, dtype=torch.float64)
    with torch.no_grad():
        walk.rate.normal_()
        walk.phase.normal_()
    for t in (-1.0, 0.0, 0.4):
        torch.testing.assert_close(walk.at(t), product(4, pairs, walk.phase + walk.rate * t, start), rtol=1e-13, atol=1e-13)


def test_a_learned_start_stays_orthogonal_and_learns():
    torch.manual_seed(0)
    walk = GivensWalk(3, PAIRS, start=OrthogonalPath(ConstantPath((3, 3))))
    weight = walk.at(0.9)
    assert (weight.T @ weight - torch.eye(3)).abs().max().item() < 1e-6
    weight[0, 0].backward()
    assert all(parameter.grad.any() for parameter in walk.parameters())


def test_many_rotations_stay_orthogonal_in_float32():
    torch.manual_seed(0)
    pairs = [tuple(torch.randperm(16)[:2].tolist()) for _ in range(300)]
    weight = GivensWalk(16, pairs).at(1.7).double()
    assert (weight.T @ weight - torch.eye(16)).abs().max().item() < 1e-6


def test_one_rotation_is_a_geodesic():
    walk = GivensWalk(3, [(0, 2)], dtype=torch.float64)
    torch.testing.assert_close(walk.grid(ANGLES), geodesic(torch.eye(3, dtype=torch.float64), generator(3, 0, 2), ANGLES), rtol=0, atol=1e-14)


def test_the_matrices_are_counted_in_full_ones():
    assert GivensWalk(3, PAIRS).n_matrices == 1
    assert GivensWalk(2, [(0, 1)] * 5, shared_angle=False).n_matrices == 3


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: GivensWalk(3, []), ConfigError, "at least one pair; got none"),
        (lambda: GivensWalk(3, [(0, 1), (1, 1), (0, 3)]), ConfigError, r"two different axes of 0 ... 2 each.*\[\(1, 1\), \(0, 3\)\]"),
        (lambda: GivensWalk(3, PAIRS, dtype=torch.complex64), DTypeError, "angles of a GivensWalk are real, got dtype=torch.complex64"),
        (lambda: GivensWalk(3, PAIRS, start=torch.eye(4)), ShapeError, r"needs the shape \(..., 3, 3\), got \(4, 4\)"),
        (lambda: GivensWalk(3, PAIRS, start=2 * torch.eye(3)), InputError, "must be orthogonal: off by 3, where"),
        (lambda: GivensWalk(3, PAIRS, start=ConstantPath((3, 2))), ShapeError, r"is a path of shape \(3, 3\), got \(3, 2\)"),
    ],
)
def test_what_cannot_work_is_refused(build, error, message):
    with pytest.raises(error, match=message):
        build()
