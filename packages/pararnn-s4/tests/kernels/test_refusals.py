import pytest
import torch

from pararnn.errors import BackendError, DTypeError, ShapeError
from pararnn_s4 import cauchy, vandermonde, vandermonde_transpose

V = torch.ones(2, 3, dtype=torch.complex64)
U = torch.ones(2, 5)


def test_numerators_and_poles_of_different_numbers_are_refused():
    with pytest.raises(ShapeError, match="v ends in 3 and w in 4"):
        cauchy(V, U, torch.ones(4))
    with pytest.raises(ShapeError, match="v ends in 3 and x in 2"):
        vandermonde(V, V[..., :2], 4)


def test_leading_dimensions_that_do_not_broadcast_are_refused():
    with pytest.raises(ShapeError, match=r"\(2,\), \(\), \(3,\) cannot be broadcast"):
        cauchy(V, U[0], torch.ones(3, 3))


@pytest.mark.parametrize("length", [0, -1])
def test_a_length_below_one_is_refused(length):
    with pytest.raises(ShapeError, match=f"the length is {length}"):
        vandermonde(V, V, length)


@pytest.mark.parametrize("length", [5.0, "5", None], ids=repr)
def test_a_length_that_is_no_whole_number_is_refused(length):
    with pytest.raises(ShapeError, match=f"L={length!r} is no whole number"):
        vandermonde(V, V, length)


def test_a_length_that_is_not_that_of_u_is_refused():
    with pytest.raises(ShapeError, match="u has length 5 but L=4"):
        vandermonde_transpose(U, V, V, 4)


@pytest.mark.parametrize("wrong", [torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.bool), [1.0, 2.0, 3.0]], ids=["int", "bool", "list"])
def test_what_is_no_tensor_of_real_or_complex_numbers_is_refused(wrong):
    with pytest.raises(DTypeError, match="v is"):
        vandermonde(wrong, V, 4)


def test_tensors_without_dimensions_are_refused():
    with pytest.raises(ShapeError, match="w has no dimensions"):
        cauchy(V, U, torch.tensor(1.0))


def test_tensors_on_two_devices_are_refused():
    with pytest.raises(ShapeError, match="v on cpu, x on meta"):
        vandermonde(V, V.to("meta"), 4)


def test_an_unknown_backend_is_refused_with_the_names_that_exist():
    with pytest.raises(BackendError, match=r"no backend named 'best'; there are auto, .*naive"):
        cauchy(V, U, V, backend="best")


def test_nothing_to_compute_gives_an_empty_or_a_zero_result():
    assert vandermonde(V[:0], V[:0], 4).shape == (0, 4)
    assert cauchy(V[:0], U[0], V[:0]).shape == (0, 5)
    assert torch.equal(vandermonde(V[:, :0], V[:, :0], 4), torch.zeros(2, 4))
    assert vandermonde_transpose(U, V[:, :0], V[:, :0]).shape == (2, 0)
