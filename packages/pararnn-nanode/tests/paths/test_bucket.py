import math
from fractions import Fraction

import pytest
import torch

from pararnn_nanode import BucketPath


def numbered(buckets, span=(0.0, 1.0)):
    """A path whose weight is the number of its piece."""
    path = BucketPath(1, buckets, span=span, dtype=torch.float64)
    with torch.no_grad():
        path.coefficients.copy_(torch.arange(buckets).unsqueeze(-1))
    return path


def piece_of_step(k, buckets, steps, span):
    if span[0] < span[1]:
        return math.floor(Fraction(k * buckets, steps))
    return math.ceil(Fraction((k + 1) * buckets, steps)) - 1


@pytest.mark.parametrize("span", [(0.0, 1.0), (0.1, 0.7), (-3.0, 1e3), (1.0, 0.0), (0.7, -0.2)], ids=str)
@pytest.mark.parametrize(("buckets", "steps"), [(1, 10), (3, 10), (7, 100), (10, 10), (100, 100), (997, 997), (10, 3)])
def test_each_step_reads_the_piece_that_exact_arithmetic_gives(buckets, steps, span):
    path = numbered(buckets, span)
    start, end = span
    expected = [piece_of_step(k, buckets, steps, span) for k in range(steps)]
    knots = start + (end - start) * torch.arange(steps + 1, dtype=torch.float64) / steps
    anchors = torch.minimum(knots[:-1], knots[1:])
    assert path.grid(knots[:-1], anchors).flatten().tolist() == expected
    assert [path.step(k, steps).item() for k in range(steps)] == expected


def test_summed_up_times_in_float64_still_find_their_piece():
    steps = 1000
    times = torch.zeros(steps, dtype=torch.float64)
    t = 0.0
    for k in range(steps):
        times[k] = t
        t += 1 / steps
    assert numbered(steps).grid(times).flatten().tolist() == list(range(steps))


def test_all_stages_of_a_step_read_one_weight():
    path = numbered(2)
    stages = torch.tensor([0.4, 0.45, 0.5], dtype=torch.float64)
    assert path.grid(stages).flatten().tolist() == [0, 0, 1]
    assert path.grid(stages, torch.full_like(stages, 0.4)).flatten().tolist() == [0, 0, 0]


def test_a_walk_back_reads_the_same_pieces_as_the_walk_forth():
    path = numbered(4)
    knots = torch.linspace(0, 1, 9, dtype=torch.float64)
    forth = path.grid(knots[:-1], knots[:-1])
    back = knots.flip(0)
    found = path.grid(back[:-1], torch.minimum(back[:-1], back[1:]))
    assert torch.equal(found.flip(0), forth)


def test_the_first_and_last_pieces_go_on_outside_the_span():
    assert numbered(3).grid(torch.tensor([-5.0, 1.0, 9.0])).flatten().tolist() == [0, 2, 2]


@pytest.mark.parametrize(("span", "edges"), [((0.0, 1.0), (0.25, 0.5, 0.75)), ((2.0, 0.0), (0.5, 1.0, 1.5))])
def test_the_weights_jump_at_the_edges_and_nowhere_else(span, edges):
    path = numbered(4, span)
    assert path.edges() == edges
    for edge in edges:
        assert path.at(edge - 1e-6).item() != path.at(edge + 1e-6).item()
        assert path.at(edge - 1e-3).item() == path.at(edge - 1e-6).item()


def test_one_bucket_has_no_edges():
    assert numbered(1).edges() == ()


def test_gradients_reach_only_the_pieces_that_were_read():
    path = BucketPath((2, 2), 3)
    path.grid(torch.tensor([0.0, 0.1, 0.9])).sum().backward()
    assert path.coefficients.grad[:, 0, 0].tolist() == [2, 0, 1]


def test_a_linear_equation_with_two_pieces_reaches_a_map_that_no_autonomous_one_can():
    target = torch.diag(torch.tensor([-2.0, -0.5], dtype=torch.float64))
    path = BucketPath((2, 2), 2, dtype=torch.float64)
    turn, stretch = torch.tensor([[0.0, -1.0], [1.0, 0.0]]), torch.diag(torch.tensor([1.0, -1.0]))
    with torch.no_grad():
        path.coefficients[0] = 2 * math.pi * turn.double()
        path.coefficients[1] = 2 * math.log(2) * stretch.double()
    reached = torch.eye(2, dtype=torch.float64)
    for weight in path.grid(torch.arange(10, dtype=torch.float64) / 10):
        reached = torch.linalg.matrix_exp(weight / 10) @ reached
    torch.testing.assert_close(reached, target, rtol=0, atol=1e-13)

    torch.manual_seed(0)
    autonomous = torch.randn(64, 2, 2, dtype=torch.float64).mul_(3).requires_grad_()
    optimiser = torch.optim.Adam([autonomous], lr=0.05)
    for _ in range(300):
        optimiser.zero_grad()
        distance = torch.linalg.matrix_norm(torch.linalg.matrix_exp(autonomous) - target)
        distance.sum().backward()
        optimiser.step()
    assert 0.75 < distance.min().item() < 0.9


@pytest.mark.parametrize("span", [(0.0, 1.0), (1.0, 0.0)], ids=str)
def test_steps_that_divide_the_pieces_read_them_in_turn_in_both_directions(span):
    assert [numbered(3, span).step(k, 6).item() for k in range(6)] == [0, 0, 1, 1, 2, 2]
