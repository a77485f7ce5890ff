import pytest
import torch

from pararnn.errors import ConfigError, DTypeError, InputError
from pararnn_nanode import BracketFlow

Q = torch.tensor([[2.0, 1, 0], [1, 3, 1], [0, 1, 1]], dtype=torch.float64)
N = torch.diag(torch.tensor([1.0, 2, 3], dtype=torch.float64))
AT_ONE = [
    [0.794245612404180, 0.509219659371559, 0.331465300878123],
    [-0.498391839670053, 0.233973891553041, 0.834782481980699],
    [0.347533424762302, -0.828221924716477, 0.439623659613482],
]
EIGENVALUES = (0.467911113762044, 1.652703644666139, 3.879385241571818)


def known(**more):
    flow = BracketFlow(3, dtype=torch.float64, **more)
    with torch.no_grad():
        flow.q.copy_(Q)
        flow.target.copy_(N)
    return flow


def turned(weight):
    return weight.mT @ Q @ weight


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


@torch.no_grad()
def test_the_known_flow_at_time_one():
    weight = known(steps=32, order=12).at(1.0)
    torch.testing.assert_close(weight, torch.tensor(AT_ONE, dtype=torch.float64), rtol=0, atol=5e-14)
    torch.testing.assert_close(weight.T @ weight, torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-14)
    h = turned(weight)
    torch.testing.assert_close(h.diag(), vector(0.989508234862489, 1.219515822473488, 3.790975942664167), rtol=0, atol=2e-13)
    assert abs(h[0, 2].item()) < 1e-13


@torch.no_grad()
def test_the_known_flow_sorts_the_eigenvalues_by_time_ten():
    h = turned(known(steps=200, order=12, span=(0.0, 10.0)).at(10.0))
    torch.testing.assert_close(h.diag(), vector(0.4679111142647, 1.6527036441635, 3.8793852415719), rtol=0, atol=1e-12)
    torch.testing.assert_close(h.diag(), vector(*EIGENVALUES), rtol=0, atol=1e-8)
    assert (h - h.diag().diag()).abs().max().item() == pytest.approx(2.4e-5, rel=0.05)


@torch.no_grad()
def test_weights_between_the_ends_of_steps_are_as_exact():
    coarse, fine = known(steps=16, order=14), known(steps=200, order=14)
    times = torch.linspace(0, 1, 37, dtype=torch.float64)
    torch.testing.assert_close(coarse.grid(times), fine.grid(times), rtol=0, atol=1e-12)


@torch.no_grad()
def test_the_spectrum_is_constant_and_the_trace_never_falls():
    h = turned(known(steps=64, order=12).grid(torch.linspace(0, 1, 40, dtype=torch.float64)))
    torch.testing.assert_close(torch.linalg.eigvalsh(h), vector(*EIGENVALUES).expand(40, 3), rtol=1e-12, atol=1e-12)
    traces = (N @ h).diagonal(dim1=-2, dim2=-1).sum(-1)
    assert (traces.diff() >= 0).all()


def test_it_solves_its_equation():
    flow = known(steps=32, order=12)
    for t in (0.0, 0.37, 0.9):
        weight = flow.at(t)
        h = turned(weight)
        torch.testing.assert_close(flow.derivative(t), weight @ (h @ N - N @ h), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_a_span_that_runs_backwards_is_the_flow_backwards():
    forward, backward = known(steps=32, order=12), known(steps=32, order=12, span=(1.0, 0.0))
    with torch.no_grad():
        backward.q.copy_(turned(forward.at(1.0)))
    torch.testing.assert_close(forward.at(1.0) @ backward.at(0.0), torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-12)


def test_only_the_symmetric_parts_matter():
    flow = known()
    expected = flow.at(0.4)
    with torch.no_grad():
        flow.q.add_(torch.tensor([[0.0, 1, 2], [-1, 0, 3], [-2, -3, 0]]))
    torch.testing.assert_close(flow.at(0.4), expected)


def test_float32_weights_are_orthogonal_to_a_millionth_at_first():
    torch.manual_seed(0)
    weights = BracketFlow(32).grid(torch.linspace(0, 1, 5)).double()
    assert (weights.mT @ weights - torch.eye(32)).abs().max().item() < 1e-6


def test_too_few_steps_raise_instead_of_leaving_the_group():
    with pytest.raises(InputError, match="BracketFlow of 16 steps of order 8 left the orthogonal group; give it more steps: off by"):
        known(span=(0.0, 10.0)).at(10.0)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: BracketFlow(3, steps=0), ConfigError, "steps is a whole number of at least 1, got 0"),
        (lambda: BracketFlow(3, order=0), ConfigError, "order is a whole number of at least 1, got 0"),
        (lambda: BracketFlow(3, dtype=torch.complex64), DTypeError, "matrices of a BracketFlow are real, got dtype=torch.complex64"),
    ],
)
def test_what_cannot_work_is_refused(build, error, message):
    with pytest.raises(error, match=message):
        build()
