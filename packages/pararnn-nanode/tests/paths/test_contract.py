"""What every weight path owes to the code that reads it, whatever its kind."""

import copy
import pickle

import pytest
import torch

from pararnn.errors import ConfigError, InputError

N = 3


def test_a_grid_stacks_the_weights_of_single_times(path, times):
    alone = torch.stack([path.at(t) for t in times.tolist()])
    assert alone.shape == (len(times), N, N)
    torch.testing.assert_close(path.grid(times), alone, rtol=1e-13, atol=1e-13)


def test_times_may_have_any_shape(path, times):
    table = path.grid(times.reshape(2, 3))
    torch.testing.assert_close(table, path.grid(times).reshape(2, 3, N, N), rtol=1e-13, atol=1e-13)
    assert path.grid(times[:0]).shape == (0, N, N)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_weights_have_the_dtype_of_the_parameters_and_are_right_to_its_rounding(path, dtype, times):
    low = copy.deepcopy(path).to(dtype)
    exact = copy.deepcopy(low).to(torch.float64)
    eps = torch.finfo(dtype).eps
    found = low.grid(times)
    assert found.dtype is dtype
    torch.testing.assert_close(found.double(), exact.grid(times), rtol=8 * eps, atol=8 * eps)


@pytest.mark.parametrize("times", [[0.1, 0.2], (0.1, 0.2), [[0.1], [0.2]], 1], ids=str)
def test_times_may_be_numbers_and_lists(path, times):
    tensor = torch.tensor(times, dtype=torch.float64)
    assert torch.equal(path.at(times), path.at(tensor))
    torch.testing.assert_close(path.derivative(times), path.derivative(tensor), rtol=0, atol=0)


def test_times_may_be_arrays(path):
    numpy = pytest.importorskip("numpy")
    assert torch.equal(path.at(numpy.array([0.1, 0.2])), path.at([0.1, 0.2]))
    assert torch.equal(path.at(numpy.float64(0.1)), path.at(0.1))


@pytest.mark.parametrize("times", ["path", [0.1, "end"], [[0.1], [0.2, 0.3]], None], ids=str)
def test_what_is_no_time_is_refused(path, times):
    with pytest.raises(InputError, match="times are a number, or a list, array or tensor of numbers, got"):
        path.at(times)


def test_autocast_does_not_touch_the_weights(path, times):
    low = path.to(torch.float32)
    expected = low.grid(times)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(low.grid(times), expected, rtol=0, atol=0)


def test_reading_weights_leaves_nothing_on_the_module(path, times):
    before = {name: set(vars(module)) for name, module in path.named_modules()}
    path.grid(times)
    path.derivative(0.3)
    assert {name: set(vars(module)) for name, module in path.named_modules()} == before


def test_copies_and_pickles_give_the_same_weights(path, times):
    expected = path.grid(times)
    for twin in (copy.deepcopy(path), pickle.loads(pickle.dumps(path))):
        assert torch.equal(twin.grid(times), expected)
        assert {id(parameter) for parameter in twin.parameters()}.isdisjoint(map(id, path.parameters()))


def test_the_state_dict_holds_all_of_it(path, make, times):
    twin = make()
    twin.load_state_dict(path.state_dict())
    assert torch.equal(twin.grid(times), path.grid(times))


def test_the_derivative_is_the_slope_in_time(path, kind):
    h = 1e-5
    for t in (0.13, 0.61):
        slope = (path.at(t + h) - path.at(t - h)) / (2 * h)
        torch.testing.assert_close(path.derivative(t), slope, rtol=1e-6, atol=1e-6)
    if kind in ("constant", "bucket"):
        assert not path.derivative(0.61).any()


def test_new_parameters_are_drawn_on_request(path, kind):
    if kind == "function":
        with pytest.raises(ConfigError, match="its caller gave"):
            path.reset_parameters()
        return
    with torch.no_grad():
        for parameter in path.parameters():
            parameter.zero_()
    path.reset_parameters()
    assert path.at(0.3).any()


def test_steps_are_read_at_their_starts(path):
    ends = torch.arange(9, dtype=torch.float64) / 8
    grid = path.grid(ends[:-1], ends[:-1])
    torch.testing.assert_close(torch.stack([path.step(k, 8) for k in range(8)]), grid, rtol=1e-13, atol=1e-13)
