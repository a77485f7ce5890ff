"""A layer made from the state_dict of another library computes what that layer computed."""

from pathlib import Path

import pytest
import torch

NAMES = sorted(path.stem for path in (Path(__file__).parent / "golden").glob("*.json"))
# There the other library is wrong: it keeps the C prepared for one rate at all rates.
WRONG = ("lrnnx_s4_rate", "state_spaces_rate")
RIGHT = [name for name in NAMES if name not in WRONG]
STATES = [name for name in NAMES if name.endswith("_state")]


def outputs(layer, case, dtype):
    options = dict(case.call)
    if "state" in case.record:
        options |= {"state": torch.view_as_complex(case["state"].float()).to(dtype.to_complex()), "return_state": True}
    with torch.no_grad():
        return layer(case.x.to(dtype), **options)


def steps(layer, case):
    state, result = layer.init_state(case.x.shape[0]), []
    with torch.no_grad():
        for sample in case.x.double().unbind(case.time):
            y, state = layer.step(sample, state)
            result.append(y)
    return torch.stack(result, case.time)


@pytest.mark.parametrize("name", RIGHT)
def test_outputs_are_those_of_the_other_library(golden, name):
    case = golden(name)
    found = outputs(case.layer(), case, torch.float32)
    y = found[0] if isinstance(found, tuple) else found
    torch.testing.assert_close(y.double(), case.y, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", RIGHT)
def test_in_double_precision_nothing_but_rounding_is_left_between_them(golden, name):
    case = golden(name)
    found = outputs(case.layer(torch.float64), case, torch.float64)
    y = found[0] if isinstance(found, tuple) else found
    torch.testing.assert_close(y, case.y, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", STATES)
def test_a_state_means_the_same_in_both(golden, name):
    case = golden(name)
    _, state = outputs(case.layer(torch.float64), case, torch.float64)
    torch.testing.assert_close(torch.view_as_real(state), case["next_state"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["lrnnx_s4_gate", "lrnnx_s4d_legs", "state_spaces_legs", "state_spaces_diag"])
def test_steps_are_those_of_the_other_library(golden, name):
    case = golden(name)
    torch.testing.assert_close(steps(case.layer(torch.float64), case), case["steps"], rtol=0, atol=1e-9)


def test_steps_of_the_other_library_lay_swapped_channels_out_otherwise_than_its_calls_and_ours_do_not(golden):
    case = golden("lrnnx_s4_rank3_no_linear")
    assert (case["steps"] - case.y).abs().max() > 0.1
    torch.testing.assert_close(steps(case.layer(torch.float64), case), case.y, rtol=0, atol=1e-9)


def test_steps_beyond_a_kernel_that_is_cut_remember_in_both(golden):
    case = golden("lrnnx_s4d_cut_kernel")
    assert (case["steps"] - case.y).abs().max() > 1e-3
    torch.testing.assert_close(steps(case.layer(torch.float64), case), case["steps"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", WRONG)
def test_another_rate_is_another_time_step_here_and_something_else_there(golden, name):
    case = golden(name)
    layer, slower = case.layer(torch.float64), case.layer(torch.float64)
    with torch.no_grad():
        slower.ssm.inv_dt += torch.tensor(2.0, dtype=torch.float64).log()
        ours = layer(case.x.double(), rate=2.0)
        torch.testing.assert_close(ours, slower(case.x.double()), rtol=0, atol=1e-12)
    assert (ours - case.y).abs().max() > 1e-4


def test_single_precision_of_the_other_library_can_be_off_by_a_thousandth_where_ours_is_not(golden):
    case = golden("state_spaces_legt")
    assert case.float32_error > 5e-4
    torch.testing.assert_close(outputs(case.layer(), case, torch.float32).double(), case.y, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["lrnnx_s4_legs", "state_spaces_diag", "state_spaces_s4d"])
def test_what_was_loaded_is_saved_and_loaded_again_as_a_layer_of_ours(golden, name):
    case = golden(name)
    layer = case.layer()
    again = type(layer)(3, 8, transposed=True, mult_act=layer.options.mult_act, final_act=layer.options.final_act).eval()
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again(case.x), layer(case.x))


def test_loading_draws_no_random_numbers(golden):
    before = torch.random.get_rng_state()
    golden("lrnnx_s4_legs").layer()
    assert torch.equal(torch.random.get_rng_state(), before)
