"""States against the walk: every structure, every way, every kind of length, layout and dtype."""

import itertools

import pytest
import torch

from pararnn.structures.dense import Dense
from pararnn.structures.diagonal import Diagonal

LENGTHS = (0, 1, 2, 3, 5, 7, 31, 33, 64, 65, 129)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("length", LENGTHS, ids="T{}".format)
def test_states_equal_the_walk(scan, structure, recurrence, oracle, tolerance, length, reverse):
    case = recurrence(structure, length=length)
    states = scan(case.transition, case.bias, case.initial, reverse=reverse)
    torch.testing.assert_close(states, oracle(case.transition, case.bias, case.initial, reverse=reverse), **tolerance["states"])


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("length", [1, 2, 7, 64, 65], ids="T{}".format)
def test_no_initial_state_means_zero(scan, structure, recurrence, oracle, tolerance, length, reverse):
    case = recurrence(structure, length=length, initial=False)
    expected = oracle(case.transition, case.bias, torch.zeros_like(case.bias[:, 0]), reverse=reverse)
    torch.testing.assert_close(scan(case.transition, case.bias, reverse=reverse), expected, **tolerance["states"])
    torch.testing.assert_close(scan(case.transition, case.bias, torch.zeros_like(case.bias[:, 0]), reverse=reverse), expected, **tolerance["states"])


@pytest.mark.parametrize("length", [255, 257, 1000, 4097], ids="T{}".format)
def test_lengths_around_powers_of_two_equal_the_walk(scan, recurrence, oracle, tolerance, length):
    case = recurrence(rows=1, length=length, size=2, scale=0.8)
    torch.testing.assert_close(
        scan(case.transition, case.bias, case.initial), oracle(case.transition, case.bias, case.initial), **tolerance["states"]
    )


@pytest.mark.parametrize("rows", [0, 1], ids="B{}".format)
def test_a_batch_of_none_or_one_equals_the_walk(scan, structure, recurrence, oracle, tolerance, rows):
    for length, reverse in itertools.product((0, 1, 9), (False, True)):
        case = recurrence(structure, rows=rows, length=length)
        states = scan(case.transition, case.bias, case.initial, reverse=reverse)
        assert states.shape == (rows, length, 6)
        torch.testing.assert_close(states, oracle(case.transition, case.bias, case.initial, reverse=reverse), **tolerance["states"])


def test_one_channel_equals_the_walk(scan, structure, recurrence, oracle, tolerance):
    case = recurrence(structure, length=37, size={"blocks of 2": 2, "blocks of 3": 3}.get(structure, 1))
    torch.testing.assert_close(
        scan(case.transition, case.bias, case.initial), oracle(case.transition, case.bias, case.initial), **tolerance["states"]
    )


def test_no_channel_gives_no_numbers(scan):
    assert scan(Diagonal(torch.ones(2, 9, 0)), torch.ones(2, 9, 0), torch.ones(2, 0)).shape == (2, 9, 0)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 0)], ids=str)
def test_any_number_of_batch_dimensions_is_taken(scan, recurrence, oracle, tolerance, batch):
    rows = torch.Size(batch).numel()
    case = recurrence(rows=rows, length=11)
    expected = oracle(case.transition, case.bias, case.initial)
    shaped = case.transition.map(lambda leaf: leaf.reshape(*batch, 11, 6))
    states = scan(shaped, case.bias.reshape(*batch, 11, 6), case.initial.reshape(*batch, 6))
    torch.testing.assert_close(states, expected.reshape(*batch, 11, 6), **tolerance["states"])


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_complex_numbers_equal_the_walk(scan, structure, recurrence, oracle, tolerance, reverse):
    case = recurrence(structure, length=13, dtype=torch.complex128)
    states = scan(case.transition, case.bias, case.initial, reverse=reverse)
    torch.testing.assert_close(states, oracle(case.transition, case.bias, case.initial, reverse=reverse), **tolerance["states"])


def test_real_maps_meet_complex_terms(scan, recurrence, oracle, tolerance):
    real, other = recurrence(length=13), recurrence(length=13, dtype=torch.complex128)
    expected = oracle(real.to(torch.complex128).transition, other.bias, other.initial)
    torch.testing.assert_close(scan(real.transition, other.bias, other.initial), expected, **tolerance["states"])


LAYOUTS = {
    "time last": lambda tensor: tensor.movedim(1, -1).contiguous().movedim(-1, 1),
    "every other step": lambda tensor: tensor.repeat_interleave(2, dim=1)[:, ::2],
    "every other channel": lambda tensor: tensor.repeat_interleave(2, dim=-1)[..., ::2],
    "flipped": lambda tensor: tensor.flip(1).flip(1),
    "time first": lambda tensor: tensor.transpose(0, 1).contiguous().transpose(0, 1),
    "inside a larger tensor": lambda tensor: torch.nn.functional.pad(tensor, (3, 2))[..., 3:-2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_do_not_matter(scan, structure, recurrence, layout):
    case = recurrence(structure, length=19)
    expected = scan(case.transition, case.bias, case.initial)
    moved = scan(case.transition.map(LAYOUTS[layout]), LAYOUTS[layout](case.bias), case.initial)
    torch.testing.assert_close(moved, expected, rtol=1e-14, atol=1e-14)


def test_overlapping_memory_is_read_only(scan, oracle, tolerance):
    bias = torch.arange(12.0, dtype=torch.float64).as_strided((2, 9, 2), (1, 1, 1))
    decay = torch.full((1, 1, 1), 0.5, dtype=torch.float64).expand(2, 9, 2)
    before = bias.clone()
    torch.testing.assert_close(scan(Diagonal(decay), bias), oracle(Diagonal(decay), bias), **tolerance["states"])
    assert torch.equal(bias, before)


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 19)], ids=str)
def test_maps_of_size_one_are_shared_over_batch_and_time(scan, structure, recurrence, oracle, tolerance, shape):
    case = recurrence(structure, length=19)
    shared = case.transition.map(lambda leaf: leaf[: shape[0], : shape[1]])
    full = shared.map(lambda leaf: leaf.expand(2, 19, *leaf.shape[2:]))
    torch.testing.assert_close(scan(shared, case.bias, case.initial), oracle(full, case.bias, case.initial), **tolerance["states"])


def test_lazily_conjugated_and_negated_inputs_are_resolved(scan, recurrence, oracle, tolerance):
    case = recurrence(length=17, dtype=torch.complex128)
    conjugated = case.rebuilt([tensor.conj() for tensor in case.tensors])
    materialised = case.rebuilt([tensor.conj().resolve_conj() for tensor in case.tensors])
    expected = oracle(materialised.transition, materialised.bias, materialised.initial)
    torch.testing.assert_close(scan(conjugated.transition, conjugated.bias, conjugated.initial), expected, **tolerance["states"])
    negated = case.rebuilt([tensor.conj().imag for tensor in case.tensors])
    assert negated.bias.is_neg()
    expected = oracle(negated.transition, negated.bias, negated.initial)
    torch.testing.assert_close(scan(negated.transition, negated.bias, negated.initial), expected, **tolerance["states"])


@pytest.mark.parametrize("decay", ["0.01 always", "zero now and then", "negative", "negative zero"])
def test_decays_that_break_divisions_and_logarithms_are_exact(scan, recurrence, oracle, tolerance, decay):
    case = recurrence(length=512, size=3, scale=0.9)
    (maps,) = case.transition.leaves()
    maps = {
        "0.01 always": torch.full_like(maps, 0.01),
        "zero now and then": torch.where(maps.abs() < 0.2, 0.0, maps),
        "negative": -maps.abs(),
        "negative zero": torch.where(maps.abs() < 0.2, -0.0, maps),
    }[decay]
    expected = oracle(Diagonal(maps), case.bias, case.initial)
    assert expected.isfinite().all()
    torch.testing.assert_close(scan(Diagonal(maps), case.bias, case.initial), expected, **tolerance["states"])


def test_a_reversed_sum_counts_from_the_end(scan):
    bias = torch.arange(18.0).reshape(2, 9, 1)
    states = scan(Diagonal(torch.ones(2, 9, 1)), bias, reverse=True)
    assert states[0, :, 0].tolist() == [36, 36, 35, 33, 30, 26, 21, 15, 8]


@pytest.mark.parametrize("length", [1, 8, 33, 2049], ids="T{}".format)
def test_reverse_is_flip_scan_flip(scan, recurrence, length):
    case = recurrence(rows=1, length=length, size=2, scale=0.8)
    flipped = scan(case.transition.map(lambda leaf: leaf.flip(1)), case.bias.flip(1), case.initial).flip(1)
    torch.testing.assert_close(scan(case.transition, case.bias, case.initial, reverse=True), flipped, rtol=1e-12, atol=1e-12)


def test_maps_that_do_not_commute_are_multiplied_in_order(chunks):
    from pararnn.scans import scan

    chunks(2)
    generator = torch.Generator().manual_seed(3)
    maps = torch.randn(1, 7, 2, 2, generator=generator, dtype=torch.float64)
    start = torch.randn(1, 2, generator=generator, dtype=torch.float64)
    product = maps[0, 6] @ maps[0, 5] @ maps[0, 4] @ maps[0, 3] @ maps[0, 2] @ maps[0, 1] @ maps[0, 0]
    last = scan(Dense(maps), torch.zeros(1, 7, 2, dtype=torch.float64), start)[0, -1]
    torch.testing.assert_close(last, product @ start[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bfloat16, torch.float16], ids=str)
def test_lower_precision_is_as_good_as_its_inputs(recurrence, chunks, oracle, tolerance, structure, dtype):
    from pararnn.scans import scan

    for chunk in (None, 16):
        chunks(chunk)
        case = recurrence(structure, length=300, dtype=torch.complex64 if dtype.is_complex else torch.float32, scale=0.7).to(dtype)
        exact = case.to(torch.complex128 if dtype.is_complex else torch.float64)
        expected = oracle(exact.transition, exact.bias, exact.initial).to(dtype)
        states = scan(case.transition, case.bias, case.initial)
        assert states.dtype == dtype
        torch.testing.assert_close(states, expected, **tolerance["states"])


def test_mixed_precision_comes_out_in_the_widest():
    from pararnn.scans import scan

    maps, bias = torch.ones(1, 3, 2, dtype=torch.bfloat16), torch.ones(1, 3, 2)
    assert scan(Diagonal(maps), bias).dtype == torch.float32
    assert scan(Diagonal(maps), bias.bfloat16(), torch.ones(1, 2, dtype=torch.float64)).dtype == torch.float64
    assert scan(Diagonal(maps), bias.half()).dtype == torch.float32


def test_half_precision_carries_what_half_precision_cannot_hold(chunks):
    from pararnn.scans import scan

    for chunk in (None, 2):
        chunks(chunk)
        maps = torch.tensor([4.0, 4.0, 0.0625, 0.0625, 1.0], dtype=torch.float16).reshape(1, 5, 1)
        states = scan(Diagonal(maps), torch.zeros_like(maps), torch.full((1, 1), 65504.0, dtype=torch.float16))
        assert states.flatten().tolist() == [float("inf"), float("inf"), 65504.0, 4094.0, 4094.0]
        assert scan(Diagonal(maps), torch.zeros_like(maps), torch.full((1, 1), 65536.0)).flatten().tolist() == [
            2.0**18,
            2.0**20,
            2.0**16,
            2.0**12,
            2.0**12,
        ]


def test_twenty_thousand_decays_near_one_keep_the_past(recurrence, oracle, tolerance):
    from pararnn.scans import scan

    case = recurrence(rows=1, length=20_000, size=2)
    decay = Diagonal(1 - 1e-3 * case.transition.diagonal.sigmoid())
    expected = oracle(decay, case.bias, case.initial)
    for backend in ("torch", "auto"):
        torch.testing.assert_close(scan(decay, case.bias, case.initial, backend=backend), expected, **tolerance["states"])


def test_half_a_million_steps_equal_two_halves_with_a_carry():
    from pararnn.scans import scan

    length = 524_288
    generator = torch.Generator().manual_seed(0)
    decay = torch.rand(1, length, 1, generator=generator, dtype=torch.float64)
    bias = torch.randn(1, length, 1, generator=generator, dtype=torch.float64)
    half = length // 2 + 1
    first = scan(Diagonal(decay[:, :half]), bias[:, :half], backend="torch")
    second = scan(Diagonal(decay[:, half:]), bias[:, half:], first[:, -1], backend="torch")
    torch.testing.assert_close(scan(Diagonal(decay), bias, backend="torch"), torch.cat((first, second), dim=1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dtype", "factor"), [(torch.float32, 4.0), (torch.float64, 1e4)], ids=["float32", "float64"])
def test_products_that_overflow_over_a_state_of_zero_do_no_harm(scan, oracle, tolerance, dtype, factor):
    maps = torch.full((1, 200, 2), factor, dtype=dtype)
    bias = torch.zeros_like(maps)
    bias[:, 190:] = 1
    for reverse in (False, True):
        turned = bias.flip(1) if reverse else bias
        expected = oracle(Diagonal(maps), turned, reverse=reverse)
        assert expected.isfinite().all()
        torch.testing.assert_close(scan(Diagonal(maps), turned, reverse=reverse), expected, **tolerance["states"])
        torch.testing.assert_close(scan(Diagonal(maps), turned, torch.zeros(1, 2, dtype=dtype), reverse=reverse), expected, **tolerance["states"])


@pytest.mark.parametrize("bad", [float("inf"), float("nan")], ids=str)
def test_a_non_finite_term_spoils_only_its_own_future(scan, structure, recurrence, bad):
    case = recurrence(structure, rows=3, length=20, size=6)
    clean = scan(case.transition, case.bias, case.initial)
    case.bias[1, 8] = bad
    spoilt = scan(case.transition, case.bias, case.initial)
    torch.testing.assert_close(spoilt[[0, 2]], clean[[0, 2]], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(spoilt[1, :8], clean[1, :8], rtol=1e-12, atol=1e-12)
    assert not spoilt[1, 8].isfinite().any()


def test_a_zero_map_ends_a_large_state_and_makes_an_infinite_one_nan(scan):
    maps = torch.full((1, 40, 1), 1e20, dtype=torch.float64)
    maps[0, 10] = 0
    maps[0, 11:] = 0.5
    states = scan(Diagonal(maps), torch.ones_like(maps))
    assert states[0, 10:12, 0].tolist() == [1.0, 1.5]
    states = scan(Diagonal(maps), torch.ones_like(maps), torch.full((1, 1), 1e150, dtype=torch.float64))
    assert states[0, 10].isnan()


def test_the_first_map_is_not_read_without_an_initial_state(scan, structure, recurrence):
    for length, reverse, bad in itertools.product((1, 2, 9, 33), (False, True), (float("inf"), float("nan"))):
        case = recurrence(structure, length=length, initial=False)
        clean = scan(case.transition, case.bias, reverse=reverse)
        for leaf in case.transition.leaves():
            leaf[:, -1 if reverse else 0] = bad
        torch.testing.assert_close(scan(case.transition, case.bias, reverse=reverse), clean, rtol=1e-12, atol=1e-12)


def test_equal_inputs_give_equal_bits(scan, structure, recurrence):
    case = recurrence(structure, rows=3, length=129)
    first = scan(case.transition, case.bias, case.initial)
    assert all(torch.equal(scan(case.transition, case.bias, case.initial), first) for _ in range(20))


def test_inputs_are_left_alone_and_not_shared_with_the_result(scan, structure, recurrence):
    for length in (1, 9):
        for initial in (True, False):
            case = recurrence(structure, rows=1, length=length, initial=initial)
            before = [tensor.clone() for tensor in case.tensors]
            scan(case.transition, case.bias, case.initial).fill_(7)
            assert all(torch.equal(one, other) for one, other in zip(case.tensors, before, strict=True))


@pytest.mark.parametrize("structure", ["diagonal", "dense"])
def test_the_planner_chooses_chunks_that_agree_with_the_walk(structure, recurrence, oracle, tolerance):
    from pararnn.costs import CPU
    from pararnn.scans import scan
    from pararnn.scans.chunked import chunk_length

    case = recurrence(structure, rows=1, length=1500, size=2, scale=0.8)
    assert chunk_length(1, 1500, 2, type(case.transition), CPU) < 1500
    states = scan(case.transition, case.bias, case.initial, backend="torch")
    torch.testing.assert_close(states, oracle(case.transition, case.bias, case.initial), **tolerance["states"])
