"""Packed sequences: each segment is a sequence of its own, whatever its neighbours hold, and an empty one is no trouble."""

import pytest
import torch

import pararnn.scans
from pararnn.structures.diagonal import Diagonal

PACKINGS = {
    "one": [0, 17],
    "two": [0, 5, 8],
    "empty ones": [0, 0, 4, 4, 7],
    "empty ends": [0, 0, 0, 9, 30, 30],
    "only empty ones": [0, 0, 0],
    "no segment": [0],
    "single steps": [0, 1, 2, 3, 4],
    "very unequal": [0, 1, 130, 132, 195],
    "equal": [0, 8, 16, 24, 32],
}


@pytest.fixture(params=PACKINGS)
def offsets(request):
    return torch.tensor(PACKINGS[request.param])


@pytest.fixture
def packed(recurrence):
    def make(structure, offsets, **options):
        return recurrence(structure, rows=1, length=int(offsets[-1]), segments=offsets.numel() - 1, **options)

    return make


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_segments_equal_their_walks(scan, structure, packed, offsets, oracle, tolerance, reverse):
    for initial in (True, False):
        case = packed(structure, offsets, initial=initial, scale=0.8)
        states = scan(case.transition, case.bias, case.initial, cu_seqlens=offsets, reverse=reverse)
        expected = oracle(case.transition, case.bias, case.initial, cu_seqlens=offsets, reverse=reverse)
        torch.testing.assert_close(states, expected, **tolerance["states"])


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_gradients_of_segments_equal_those_of_their_walks(scan, structure, packed, offsets, same_gradients, reverse):
    for initial in (True, False):
        same_gradients(scan, packed(structure, offsets, initial=initial, scale=0.8), cu_seqlens=offsets, reverse=reverse)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32], ids=str)
def test_offsets_of_any_integer_dtype_are_taken(scan, packed, dtype):
    offsets = torch.tensor([0, 5, 5, 9])
    case = packed("diagonal", offsets)
    expected = scan(case.transition, case.bias, case.initial, cu_seqlens=offsets)
    assert torch.equal(scan(case.transition, case.bias, case.initial, cu_seqlens=offsets.to(dtype)), expected)


def test_offsets_may_be_strided(scan, packed):
    offsets = torch.tensor([0, 5, 9])
    case = packed("diagonal", offsets)
    expected = scan(case.transition, case.bias, case.initial, cu_seqlens=offsets)
    assert torch.equal(scan(case.transition, case.bias, case.initial, cu_seqlens=torch.tensor([0, 1, 5, 7, 9])[::2]), expected)


def test_a_packed_sequence_needs_no_batch_dimension(scan, packed):
    offsets = torch.tensor([0, 5, 9])
    case = packed("diagonal", offsets)
    flat = scan(case.transition.map(lambda leaf: leaf[0]), case.bias[0], case.initial, cu_seqlens=offsets)
    assert torch.equal(flat, scan(case.transition, case.bias, case.initial, cu_seqlens=offsets)[0])


def test_an_empty_segment_gives_its_initial_state_no_gradient(scan, packed):
    offsets = torch.tensor([0, 0, 4, 4, 7])
    case = packed("diagonal", offsets).requiring_grad()
    scan(case.transition, case.bias, case.initial, cu_seqlens=offsets).sum().backward()
    assert case.initial.grad[[0, 2]].eq(0).all()
    assert case.initial.grad[[1, 3]].ne(0).all()


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_no_bit_passes_between_segments(scan, structure, packed, reverse):
    offsets = torch.tensor([0, 5, 8])
    case = packed(structure, offsets)
    before = scan(case.transition, case.bias, case.initial, cu_seqlens=offsets, reverse=reverse)
    case.bias[:, 5 if reverse else 4] += 1e6
    after = scan(case.transition, case.bias, case.initial, cu_seqlens=offsets, reverse=reverse)
    other = slice(0, 5) if reverse else slice(5, 8)
    assert torch.equal(after[:, other], before[:, other])
    assert not torch.equal(after, before)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")], ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_no_non_finite_number_passes_between_segments(scan, structure, packed, reverse, bad):
    offsets = torch.tensor([0, 9, 9, 20, 40])
    clean = packed(structure, offsets, scale=0.8, initial=False).requiring_grad()
    spoilt = packed(structure, offsets, scale=0.8, initial=False)
    spoilt.bias[:, 9:20] = bad
    for leaf in spoilt.transition.leaves():
        leaf[:, 9:20] = bad
    spoilt = spoilt.requiring_grad()
    weight = torch.ones_like(clean.bias)
    weight[:, 9:20] = bad
    results = []
    for case in (clean, spoilt):
        states = scan(case.transition, case.bias, cu_seqlens=offsets, reverse=reverse)
        results.append((states, *torch.autograd.grad(states, case.tensors, weight if case is spoilt else torch.ones_like(weight))))
    outside = [*range(9), *range(20, 40)]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other[:, outside], one[:, outside], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_growth_past_the_end_of_a_segment_is_not_seen(scan, oracle, tolerance, reverse):
    # Segments of similar length are scanned together, the shorter ones padded; what grows in the padding must not reach anything.
    offsets = torch.tensor([0, 33, 96, 140])
    decay = torch.full((1, 140, 1), 0.5, dtype=torch.float64)
    decay[:, [0, 32, 33, 95, 96, 139]] = 1e200
    bias = torch.ones_like(decay)
    states = scan(Diagonal(decay), bias, cu_seqlens=offsets, reverse=reverse)
    torch.testing.assert_close(states, oracle(Diagonal(decay), bias, cu_seqlens=offsets, reverse=reverse), **tolerance["states"])


def test_packed_complex_gradients_equal_those_of_the_walks(scan, structure, packed, same_gradients):
    offsets = torch.tensor([0, 3, 3, 10])
    same_gradients(scan, packed(structure, offsets, dtype=torch.complex128, scale=0.8), cu_seqlens=offsets)


@pytest.mark.parametrize("chunk", [None, 2], ids="chunk {}".format)
def test_packed_derivatives_of_derivatives_agree_with_finite_differences(packed, chunks, chunk):
    chunks(chunk)
    offsets = torch.tensor([0, 0, 1, 6])
    case = packed("diagonal", offsets, size=2).requiring_grad()

    def run(*tensors):
        now = case.rebuilt(tensors)
        return pararnn.scans.scan(now.transition, now.bias, now.initial, cu_seqlens=offsets, backend="torch")

    assert torch.autograd.gradcheck(run, case.tensors)
    assert torch.autograd.gradgradcheck(run, case.tensors)


def test_a_thousand_segments_equal_their_walks(scan, packed, oracle, tolerance):
    lengths = torch.randint(0, 4, (1000,), generator=torch.Generator().manual_seed(5))
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
    case = packed("diagonal", offsets, size=2)
    states = scan(case.transition, case.bias, case.initial, cu_seqlens=offsets)
    torch.testing.assert_close(states, oracle(case.transition, case.bias, case.initial, cu_seqlens=offsets), **tolerance["states"])
