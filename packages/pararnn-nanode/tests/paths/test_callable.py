import pytest
import torch
from torch import nn

from pararnn.errors import ConfigError, ShapeError
from pararnn_nanode import CallablePath

TIMES = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)


def test_a_function_sees_all_times_at_once_with_room_for_the_weights():
    seen = []

    def fn(t, a):
        seen.append((t.shape, t.dtype, a.dtype))
        return a * t

    path = CallablePath((2, 2), fn, [torch.eye(2)])
    grid = path.grid(TIMES)
    assert seen == [((3, 1, 1), torch.float64, torch.float64)]
    assert grid.dtype is torch.float32
    torch.testing.assert_close(grid, torch.eye(2) * TIMES.float()[:, None, None])


def test_products_of_matrices_work_inside():
    a = torch.randn(3, 3)
    path = CallablePath((3, 3), lambda t, a: torch.linalg.matrix_exp(t * (a - a.mT)) @ a, [a])
    for t, found in zip(TIMES.tolist(), path.grid(TIMES), strict=True):
        torch.testing.assert_close(found, torch.linalg.matrix_exp(t * (a - a.T)) @ a, rtol=1e-5, atol=1e-5)


def test_a_given_parameter_is_kept_and_a_tensor_is_copied():
    shared, value = nn.Parameter(torch.ones(2)), torch.ones(2)
    path = CallablePath(2, lambda t, a, b: a + b * t, [shared, value])
    assert path.params[0] is shared
    value.fill_(5.0)
    assert path.at(1.0).tolist() == [2.0, 2.0]
    path.at(1.0).sum().backward()
    assert shared.grad.tolist() == [1.0, 1.0]


def test_without_parameters_the_weights_follow_the_dtype_of_the_path():
    path = CallablePath((2, 2), lambda t: torch.cos(t))
    assert path.at(0.0).dtype is torch.float32
    assert torch.equal(path.at(0.0), torch.ones(2, 2))
    assert path.double().at(0.0).dtype is torch.float64
    assert not path.state_dict()


def test_complex_parameters_and_complex_results_stay_complex():
    path = CallablePath(2, lambda t, a: a * torch.exp(1j * t), [torch.ones(2)])
    assert path.at(1.0).dtype is torch.complex64
    path = CallablePath(2, lambda t, a: a * t, [torch.full((2,), 1j, dtype=torch.complex128)])
    assert path.at(2.0).tolist() == [2j, 2j]


def test_a_module_is_called_in_its_own_dtype():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 4)

        def forward(self, t):
            return self.layer(t.flatten(-2)).unflatten(-1, (2, 2))

    path = CallablePath((2, 2), Net())
    assert path.grid(TIMES).shape == (3, 2, 2)
    assert path.n_matrices == 2
    assert path.double().grid(TIMES).dtype is torch.float64


def test_its_jumps_are_its_edges():
    assert CallablePath(2, lambda t: (t > 0.5).double(), jumps=[0.5]).edges() == (0.5,)


def test_a_result_of_the_wrong_shape_is_refused_with_both_shapes():
    path = CallablePath((2, 3), lambda t: torch.ones(3, 5))
    with pytest.raises(ShapeError, match=r"returned \(3, 5\) for \(3,\) times, which does not broadcast to \(3, 2, 3\); times come as \(3, 1, 1\)"):
        path.grid(TIMES)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: CallablePath(torch.cos, (2, 2)), "takes the shape first, then the function"),
        (lambda: CallablePath((2, 2), nn.Linear(1, 1), [torch.ones(1)]), "a module holds its own parameters, but 1 more were given"),
        (lambda: CallablePath((2, 2), torch.cos).reset_parameters(), "has the first values its caller gave"),
    ],
)
def test_what_cannot_work_is_refused(build, message):
    with pytest.raises(ConfigError, match=message):
        build()
