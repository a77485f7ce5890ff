import pytest
import torch

from pararnn.conformance.tolerances import KINDS, TOLERANCES, tolerance
from pararnn.errors import ConfigError, DTypeError


@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_no_tolerance_is_tighter_than_the_rounding_of_its_dtype(dtype, kind):
    assert min(tolerance(dtype, kind).values()) > torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
def test_gradients_are_never_held_tighter_than_states(dtype):
    states, gradients = tolerance(dtype, "states"), tolerance(dtype, "gradients")
    assert all(gradients[name] >= states[name] for name in states)


def test_a_complex_dtype_has_the_tolerance_of_its_parts():
    assert tolerance(torch.complex64, "states") == tolerance(torch.float32, "states")


def test_changing_what_was_returned_leaves_the_table_alone():
    tolerance(torch.float64, "states")["rtol"] = 1.0
    assert tolerance(torch.float64, "states")["rtol"] == 1e-10


def test_a_dtype_without_tolerance_is_named():
    with pytest.raises(DTypeError, match=r"torch\.int64"):
        tolerance(torch.int64, "states")


def test_an_unknown_kind_is_named():
    with pytest.raises(ConfigError, match="'losses'"):
        tolerance(torch.float64, "losses")


def test_the_fixture_is_float64_unless_the_test_says_otherwise(tolerance):
    assert tolerance["gradients"] == {"rtol": 1e-9, "atol": 1e-9}


@pytest.mark.parametrize("dtype", [torch.float32], ids=str)
def test_the_fixture_follows_the_dtype_of_the_test(tolerance, dtype):
    assert tolerance["states"] == {"rtol": 1e-5, "atol": 1e-5}
