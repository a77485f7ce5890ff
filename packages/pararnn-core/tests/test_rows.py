"""`rows.mask_of`: every form in which rows are named, against the list of booleans that it means, and what is refused."""

import pytest
import torch

from pararnn import DTypeError, ShapeError
from pararnn.rows import mask_of

CPU = torch.device("cpu")
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]

FIRST_AND_LAST = {
    "list": [0, 2],
    "tuple": (2, 0),
    "range": range(0, 3, 2),
    "set": {0, 2},
    "repeated": [2, 0, 2],
    "column": [[0], [2]],
    "list of tensors": [torch.tensor(0), torch.tensor(2)],
    "mask": torch.tensor([True, False, True]),
    "mask, list": [True, False, True],
    "mask, tuple": (True, False, True),
    "mask, list of tensors": list(torch.tensor([True, False, True])),
} | {str(dtype): torch.tensor([0, 2], dtype=dtype) for dtype in INTEGERS}


@pytest.mark.parametrize("rows", FIRST_AND_LAST.values(), ids=FIRST_AND_LAST.keys())
def test_each_form_names_its_rows(rows):
    mask = mask_of(rows, 3, CPU)
    assert mask.dtype == torch.bool
    assert mask.tolist() == [[True], [False], [True]]


@pytest.mark.parametrize("rows", [1, torch.tensor(1), torch.tensor([[1]])], ids=["int", "scalar", "column"])
def test_a_single_number_is_one_row(rows):
    assert mask_of(rows, 3, CPU).tolist() == [[False], [True], [False]]


@pytest.mark.parametrize("rows", [[], (), range(0), torch.tensor([], dtype=torch.int64)], ids=repr)
def test_no_numbers_are_no_rows(rows):
    assert not mask_of(rows, 3, CPU).any()


@pytest.mark.parametrize("rows", [3, -1, [0, 3], torch.tensor([-1]), torch.tensor([3], dtype=torch.uint32)], ids=repr)
def test_rows_that_are_not_there_are_refused_with_their_numbers(rows):
    with pytest.raises(ShapeError, match=r"from 0 to 2, got \["):
        mask_of(rows, 3, CPU)


@pytest.mark.parametrize(
    "rows", [[True, False], [True] * 4, torch.ones(3, 1, dtype=torch.bool), torch.ones(0, dtype=torch.bool), [[True], [True], [True]]], ids=repr
)
def test_a_mask_of_another_shape_is_refused(rows):
    with pytest.raises(ShapeError, match=r"a mask of rows has the shape \(batch,\) = \(3,\), got"):
        mask_of(rows, 3, CPU)


@pytest.mark.parametrize(
    "rows",
    [1.0, True, "1", None, [1.7], [None], ["0"], [0, True], [[0], [1, 2]], [2**80], torch.tensor([1.0]), torch.tensor([])],
    ids=repr,
)
def test_anything_else_is_refused_and_told_what_to_pass(rows):
    with pytest.raises(DTypeError, match="pass whole numbers from 0 to 2 as int64, or a mask of 3 booleans"):
        mask_of(rows, 3, CPU)


def test_unsigned_bytes_are_neither_mask_nor_numbers():
    rows = torch.tensor([1, 0, 0], dtype=torch.uint8)
    for given in (rows, list(rows)):
        with pytest.raises(DTypeError, match="uint8, which some take for a mask and others for numbers"):
            mask_of(given, 3, CPU)


def test_arrays_of_numpy_mean_what_tensors_mean():
    np = pytest.importorskip("numpy")
    numbers, mask = np.array([0, 2]), np.array([True, False, True])
    for rows in (numbers, numbers[::-1], numbers.astype(np.int32), numbers.astype(np.uint16), list(numbers), mask, mask[::-1], list(mask)):
        assert mask_of(rows, 3, CPU).tolist() == [[True], [False], [True]]
    assert mask_of(np.int64(1), 3, CPU).tolist() == mask_of(np.array(1), 3, CPU).tolist() == [[False], [True], [False]]


def test_arrays_of_numpy_that_cannot_be_rows_are_refused():
    np = pytest.importorskip("numpy")
    for rows in (np.array([7]), np.array([], dtype=bool), np.bool_(1)):
        with pytest.raises(ShapeError, match="rows"):
            mask_of(rows, 3, CPU)
    ones = np.array([1, 0, 0])
    for rows in (ones.astype(np.uint8), list(ones.astype(np.uint8)), ones.astype(float), list(ones.astype(float)), np.array(["0"]), np.array([None])):
        with pytest.raises(DTypeError, match="pass whole numbers from 0 to 2 as int64, or a mask of 3 booleans"):
            mask_of(rows, 3, CPU)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [[3], [-1]], ids=["beyond", "negative"])
def test_numbers_on_a_gpu_are_refused_before_they_can_do_harm(rows):
    with pytest.raises(ShapeError, match="from 0 to 2"):
        mask_of(torch.tensor(rows, device="cuda"), 3, torch.device("cuda"))
    assert torch.ones(1, device="cuda").item() == 1
