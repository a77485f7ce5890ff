"""What the scan refuses: each bad input raises one of our errors, which names the numbers and what to do."""

import pytest
import torch

from pararnn.errors import BackendError, DTypeError, InputError, ShapeError, StructureError
from pararnn.scans import scan
from pararnn.scans.dispatch import structure_path
from pararnn.structures.block_diagonal import BlockDiagonal
from pararnn.structures.dense import Dense
from pararnn.structures.diagonal import Diagonal

# Batch, time and state are equal, so that a tensor broadcast along the wrong dimension would not be noticed by torch.
DECAY, BIAS = torch.full((3, 3, 3), 0.5), torch.ones(3, 3, 3)

MISFITS = {
    "a decay without channels": (Diagonal(DECAY[..., 0]), BIAS),
    "a decay with one channel of three": (Diagonal(DECAY[..., :1]), BIAS),
    "a decay with two channels of three": (Diagonal(DECAY[..., :2]), BIAS),
    "a decay with too many channels": (Diagonal(torch.ones(3, 3, 5)), BIAS),
    "a decay with a dimension too many": (Diagonal(torch.ones(3, 3, 3, 3)), BIAS),
    "terms with one channel of three": (Diagonal(DECAY), BIAS[..., :1]),
    "terms without channels": (Diagonal(DECAY), BIAS[..., :0]),
    "matrices that are too small": (Dense(torch.ones(3, 3, 2, 2)), BIAS),
    "matrices of one row": (Dense(torch.ones(3, 3, 1, 3)), BIAS),
    "matrices of one column": (Dense(torch.ones(3, 3, 3, 1)), BIAS),
    "vectors for matrices": (Dense(torch.ones(3, 3, 3)), BIAS),
    "blocks of one channel for two": (BlockDiagonal(torch.ones(3, 3, 2, 2, 1)), torch.ones(3, 3, 4)),
    "blocks of three slots for two": (BlockDiagonal(torch.ones(3, 3, 3, 3, 2)), torch.ones(3, 3, 6)),
    "blocks that are not square": (BlockDiagonal(torch.ones(3, 3, 2, 3, 2)), torch.ones(3, 3, 4)),
    "an odd state for blocks of two": (BlockDiagonal(torch.ones(3, 3, 2, 2, 1)), BIAS),
}


@pytest.mark.parametrize("misfit", MISFITS)
@pytest.mark.parametrize("gradient", [False, True], ids=["without gradient", "with gradient"])
def test_maps_that_do_not_fit_the_state_are_refused(misfit, gradient):
    transition, bias = MISFITS[misfit]
    with torch.set_grad_enabled(gradient), pytest.raises(ShapeError, match=rf"after batch and time.* states of size {bias.shape[-1]}"):
        scan(transition, bias)


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_every_backend_is_kept_from_reading_past_the_end_of_its_maps(backend):
    if backend == "numba":
        pytest.importorskip("numba")
    with pytest.raises(ShapeError, match="matrices of shape"):
        scan(Diagonal(DECAY[..., :2]), BIAS, backend=backend)


@pytest.mark.parametrize("shape", [(2, 3, 3), (3, 2, 3), (3, 3), (3,), ()], ids=str)
def test_maps_that_do_not_fit_batch_and_time_are_refused(shape):
    with pytest.raises(ShapeError):
        scan(Diagonal(torch.ones(shape)), BIAS)


@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
def test_terms_without_time_are_refused(shape):
    with pytest.raises(ShapeError, match=r"must be \(\*batch, time, state\)"):
        scan(Diagonal(torch.ones(shape)), torch.ones(shape))


@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 1), (3, 3, 3), (2, 3), (3, 2), ()], ids=str)
def test_an_initial_state_of_another_shape_is_refused(shape):
    with pytest.raises(ShapeError, match=r"must be \(3, 3\)"):
        scan(Diagonal(DECAY), BIAS, torch.ones(shape))


@pytest.mark.parametrize("shape", [(1, 3), (3, 3), (2, 1), (1, 2, 3), (3,)], ids=str)
def test_a_packed_initial_state_of_another_shape_is_refused(shape):
    with pytest.raises(ShapeError, match=r"must be \(2, 3\), \(segments, state\)"):
        scan(Diagonal(DECAY[:1]), BIAS[:1], torch.ones(shape), cu_seqlens=torch.tensor([0, 1, 3]))


BAD_DTYPES = [torch.int64, torch.int32, torch.bool, torch.float8_e4m3fn]


@pytest.mark.parametrize("dtype", BAD_DTYPES, ids=str)
@pytest.mark.parametrize("place", ["maps", "terms", "initial state"])
def test_numbers_that_are_not_floating_point_are_refused(dtype, place):
    maps, bias, initial = (
        tensor.to(dtype) if place == name else tensor for name, tensor in (("maps", DECAY), ("terms", BIAS), ("initial state", torch.ones(3, 3)))
    )
    with pytest.raises(DTypeError, match=str(dtype)):
        scan(Diagonal(maps), bias, initial)


def test_a_tensor_instead_of_a_structure_is_refused():
    with pytest.raises(DTypeError, match=r"scan\(Diagonal\(decay\), bias\)"):
        scan(DECAY, BIAS)


@pytest.mark.parametrize("place", ["terms", "initial state"])
def test_lists_are_refused(place):
    with pytest.raises(DTypeError, match="got list"):
        scan(Diagonal(DECAY), BIAS.tolist() if place == "terms" else BIAS, [[1.0]] if place == "initial state" else None)


@pytest.mark.parametrize("place", ["maps", "terms", "initial state", "offsets"])
def test_tensors_on_different_devices_are_refused(place):
    maps, bias, initial, offsets = (
        tensor.to("meta") if place == name else tensor
        for name, tensor in (("maps", DECAY[:1]), ("terms", BIAS[:1]), ("initial state", torch.ones(1, 3)), ("offsets", torch.tensor([0, 3])))
    )
    with pytest.raises(InputError, match="meta"):
        scan(Diagonal(maps), bias, initial, cu_seqlens=offsets)


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ([0, 2], "from 0 to 2, but the packed sequence from 0 to 3"),
        ([0, 4], "from 0 to 4"),
        ([1, 3], "from 1 to 3"),
        ([-1, 3], "from -1 to 3"),
        ([3], "from 3 to 3"),
        ([0], "from 0 to 0"),
        ([0, 2, 1, 3], "decreases from 2 to 1 at segment 1"),
        ([0, 5, 3], "decreases from 5 to 3 at segment 1"),
        ([0, -1, 3], "decreases from 0 to -1 at segment 0"),
    ],
    ids=str,
)
@pytest.mark.parametrize("gradient", [False, True], ids=["without gradient", "with gradient"])
def test_offsets_that_do_not_cover_the_sequence_in_order_are_refused(offsets, words, gradient):
    with torch.set_grad_enabled(gradient), pytest.raises(InputError, match=words):
        scan(Diagonal(DECAY[:1]), BIAS[:1], cu_seqlens=torch.tensor(offsets))


@pytest.mark.parametrize("offsets", [[0, 1], [1]], ids=str)
def test_offsets_are_checked_also_where_there_is_no_step(offsets):
    with pytest.raises(InputError, match="packed sequence from 0 to 0"):
        scan(Diagonal(DECAY[:1, :0]), BIAS[:1, :0], cu_seqlens=torch.tensor(offsets))


@pytest.mark.parametrize(
    "offsets", [[0, 3], torch.tensor([0.0, 3.0]), torch.tensor([False, True]), torch.tensor([0j, 3])], ids=["list", "float", "bool", "complex"]
)
def test_offsets_that_are_not_integers_are_refused(offsets):
    with pytest.raises(DTypeError, match="integer tensor"):
        scan(Diagonal(DECAY[:1]), BIAS[:1], cu_seqlens=offsets)


@pytest.mark.parametrize("offsets", [torch.tensor(3), torch.tensor([[0, 3]]), torch.tensor([], dtype=torch.int64)], ids=["scalar", "matrix", "empty"])
def test_offsets_that_are_not_a_list_of_numbers_are_refused(offsets):
    with pytest.raises(ShapeError, match="one-dimensional"):
        scan(Diagonal(DECAY[:1]), BIAS[:1], cu_seqlens=offsets)


@pytest.mark.parametrize("batch", [(2,), (0,), (1, 2)], ids=str)
def test_packed_sequences_in_several_rows_are_refused(batch):
    with pytest.raises(ShapeError, match="along one row"):
        scan(Diagonal(torch.ones(*batch, 3, 3)), torch.ones(*batch, 3, 3), cu_seqlens=torch.tensor([0, 3]))


@pytest.mark.parametrize("gradient", [False, True], ids=["without gradient", "with gradient"])
def test_an_unknown_backend_is_refused_with_the_names_there_are(gradient):
    with torch.set_grad_enabled(gradient), pytest.raises(BackendError, match="no backend named 'cuda'; there are auto, torch"):
        scan(Diagonal(DECAY), BIAS, backend="cuda")


@pytest.mark.parametrize("transition", [Dense(torch.ones(3, 3, 4, 4)), BlockDiagonal(torch.ones(3, 3, 2, 2, 2))], ids=["dense", "blocks"])
def test_a_backend_that_does_not_scan_the_structure_is_refused(transition):
    with pytest.raises(BackendError, match="no backend named 'numba'"):
        scan(transition, torch.ones(3, 3, 4), backend="numba")


def test_the_compiled_backend_names_every_obstacle():
    from pararnn.scans.numba_backend import reasons
    from pararnn.selection import Request

    found = reasons(Request.of("scan/diagonal", device="cuda", dtype="float16"))
    assert any("cuda" in reason for reason in found)
    assert any("float16" in reason for reason in found)


def test_a_structure_that_cannot_be_imported_again_is_refused():
    class Inner(Diagonal):
        pass

    with pytest.raises(StructureError, match="inside a function"):
        scan(Inner(DECAY), BIAS)
    with pytest.raises(StructureError, match="top level"):
        structure_path(Inner)


def test_a_structure_defined_anew_replaces_the_old_one(monkeypatch):
    import sys
    import types

    module = types.ModuleType("a_notebook")
    monkeypatch.setitem(sys.modules, "a_notebook", module)
    source = """
from pararnn.structures.diagonal import Diagonal
class Scaled(Diagonal):
    def apply_add(self, vector, bias, *, out=None):
        return Diagonal({factor} * self.diagonal).apply_add(vector, bias, out=out)
"""
    results = []
    for factor in (1, 2):
        exec(source.format(factor=factor), module.__dict__)
        results.append(scan(module.Scaled(torch.ones(1, 3, 1)), torch.ones(1, 3, 1), backend="torch").flatten().tolist())
    assert results == [[1, 2, 3], [1, 3, 7]]
