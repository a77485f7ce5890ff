"""Lengths in all forms that users give them."""

import pytest
import torch

from pararnn.errors import DTypeError, InputError, ShapeError
from pararnn_s4.layers.lengths import Checked, mask, row_lengths

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (3, [3, 3]),
        (Checked(torch.tensor([1, 4])), [1, 4]),
        (torch.tensor([1, 4]), [1, 4]),
        (torch.tensor([2]), [2, 2]),
        (torch.tensor(2), [2, 2]),
        (torch.tensor([0, 4], dtype=torch.int16), [0, 4]),
        ([1, 4], [1, 4]),
        ((0, 2), [0, 2]),
        ([torch.tensor(3), 1], [3, 1]),
        ([2], [2, 2]),
    ],
    ids=[
        "int",
        "checked before",
        "tensor",
        "one for all",
        "scalar",
        "int16",
        "list",
        "tuple",
        "list with a scalar",
        "list of one",
    ],
)
def test_every_form_becomes_one_length_a_row(given, expected):
    counts = row_lengths(given, 2, 4, CPU)
    assert counts.tolist() == expected
    assert counts.dtype == torch.int64


def test_numbers_of_numpy_are_lengths_too(numpy):
    assert [row_lengths(given, 2, 4, CPU).tolist() for given in (numpy.int64(3), numpy.array(3))] == [[3, 3], [3, 3]]


@pytest.mark.parametrize("given", [None, 4])
def test_whole_rows_need_no_mask(given):
    assert row_lengths(given, 2, 4, CPU) is None


def test_the_mask_is_true_where_samples_count():
    assert mask(torch.tensor([0, 2, 3]), 3).tolist() == [[False] * 3, [True, True, False], [True] * 3]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (5, InputError, "lengths are 5, but a row has 4"),
        (-1, InputError, "lengths are -1"),
        (torch.tensor([2, 9]), InputError, "from 2 to 9"),
        (torch.tensor([1.0, 2.0]), DTypeError, "float32"),
        (torch.tensor([True, False]), DTypeError, r"mask\.sum"),
        ([1.0, 2.0], DTypeError, r"one of them is 1\.0"),
        ([1, True], DTypeError, "one of them is True"),
        ([1, 2, 3], ShapeError, r"\(3,\) for a batch of 2"),
        ((1, 9), InputError, "from 1 to 9"),
        ("14", DTypeError, "list, tuple or tensor of one int a row, got str"),
        (True, DTypeError, "bool"),
        (2.0, DTypeError, "list, tuple or tensor of one int a row, got float"),
        (torch.tensor([1, 2, 3]), ShapeError, r"\(3,\) for a batch of 2"),
        (torch.ones(2, 1, dtype=torch.int64), ShapeError, r"\(2, 1\)"),
    ],
)
def test_lengths_that_cannot_be_meant_are_refused(given, error, message):
    with pytest.raises(error, match=message):
        row_lengths(given, 2, 4, CPU)
