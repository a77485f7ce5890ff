"""The block-diagonal scan in Triton: at once and in chunks, for two to four slots. On the CPU where TRITON_INTERPRET is set, else on a GPU."""

import pytest
import torch

from pararnn.errors import BackendError
from pararnn.scans import scan, triton_backend, triton_blocks
from pararnn.selection import Request, select
from pararnn.structures.block_diagonal import BlockDiagonal

# The interpreter takes a maximum as numpy does, which warns where all numbers are none.
pytestmark = pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")

CHUNKS = {"at once": 1000, "chunks": 4}
PLACES = [pytest.param((chunk, "cpu"), id=f"triton, {name}") for name, chunk in CHUNKS.items()]
PLACES += [pytest.param((chunk, "cuda"), id=f"triton, {name}, gpu", marks=pytest.mark.gpu) for name, chunk in (*CHUNKS.items(), ("auto", None))]
everywhere = pytest.mark.parametrize("place", PLACES)


@pytest.fixture
def device(place, monkeypatch):
    """Where the test runs, with the chunks of its place."""
    numpy = pytest.importorskip("numpy")
    chunk, device = place
    try:
        select(Request.of("scan/block_diagonal", device=device), "triton")
    except BackendError as error:
        pytest.skip(f"backend triton cannot serve here: {str(error).partition(chr(10))[0]}")
    if chunk is not None:
        monkeypatch.setattr(triton_blocks, "chunk_of", lambda *_, **__: chunk)
    with numpy.errstate(all="ignore"):
        yield device


@pytest.fixture
def recurrence(device):
    """Maps, terms, initial states and a gradient of the states."""

    def make(slots, rows, length, channels, *, dtype=torch.float64, segments=1):
        numbers = torch.Generator().manual_seed(slots + length)
        shapes = [(rows, length, slots, slots, channels), *((rows, count, slots * channels) for count in (length, segments, length))]
        maps, *others = (torch.randn(shape, generator=numbers, dtype=torch.float64).to(dtype).to(device) for shape in shapes)
        return [maps * (0.7 / slots**0.5), *others]

    return make


def results(run, maps, bias, start, grad, **options):
    """States and gradients of maps, terms and initial state."""
    leaves = [tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_() for tensor in (maps, bias, start)]
    first = leaves[2][0] if "cu_seqlens" in options else leaves[2][:, 0]
    states = run(BlockDiagonal.sized(maps.shape[2])(leaves[0]), leaves[1], first, **options)
    return [states.detach(), *torch.autograd.grad(states, leaves, grad)]


def hold(found, expected, bound=1e-12):
    for one, other in zip(found, expected, strict=True):
        error = (one.to(other.dtype) - other).abs().max()
        assert error <= bound * other.abs().max().clamp_min(1), f"off by {error:.1e}"


@everywhere
@pytest.mark.parametrize(("slots", "length", "reverse"), [(2, 1, False), (2, 13, True), (3, 13, False), (4, 9, True)], ids=str)
def test_states_and_gradients_are_those_of_the_walk(recurrence, oracle, slots, length, reverse):
    tensors = recurrence(slots, 2, length, 3)
    hold(results(scan, *tensors, reverse=reverse, backend="triton"), results(oracle, *tensors, reverse=reverse))


@everywhere
def test_without_an_initial_state_the_first_map_is_not_read(recurrence, oracle):
    maps, bias, *_ = recurrence(2, 1, 13, 3)
    maps[:, 0] = float("nan")
    expected = oracle(BlockDiagonal(maps.nan_to_num(0)), bias)
    hold([scan(BlockDiagonal(maps), bias, backend="triton")], [expected])


@everywhere
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_packed_segments_each_have_their_own_chunks(recurrence, oracle, device, reverse):
    offsets = torch.tensor([0, 0, 1, 10, 10, 17], device=device)
    tensors = recurrence(2, 1, 17, 3, segments=5)
    options = {"reverse": reverse, "cu_seqlens": offsets}
    hold(results(scan, *tensors, backend="triton", **options), results(oracle, *tensors, **options))


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_lower_precision_is_off_by_the_rounding_of_its_numbers(recurrence, dtype):
    tensors = recurrence(2, 1, 13, 3, dtype=dtype)
    expected = results(scan, *(tensor.double() for tensor in tensors), backend="torch")
    hold(results(scan, *tensors, backend="triton"), expected, 8 * torch.finfo(dtype).eps)


@everywhere
def test_tensors_are_read_as_they_lie(recurrence):
    tensors = recurrence(2, 2, 9, 3)
    moved = [tensor.transpose(1, -1).contiguous().transpose(1, -1) for tensor in tensors]
    # Each kind of strides has a kernel of its own on a GPU, whose compiler may fuse another product with its sum.
    hold(results(scan, *moved, backend="triton"), results(scan, *tensors, backend="triton"), 1e-14)


@everywhere
def test_products_that_overflow_where_states_do_not_are_walked_again(device):
    # Each map swaps two slots of very different size: states stay, products of the two halves do not.
    maps = torch.zeros(1, 16, 2, 2, 1, device=device)
    maps[:, :8, 0, 0], maps[:, 8:, 1, 1] = 1e30, 1e30
    bias = torch.zeros(1, 16, 2, device=device)
    bias[:, 9, 1] = 1e-30
    states = scan(BlockDiagonal(maps), bias, backend="triton")
    expected = scan(BlockDiagonal(maps.double()), bias.double(), backend="torch").float()
    torch.testing.assert_close(states[:, :12], expected[:, :12])


@everywhere
def test_memory_that_was_used_before_does_not_shine_through(recurrence, monkeypatch):
    tensors = recurrence(2, 1, 13, 3)
    clean = results(scan, *tensors, backend="triton")
    empty = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *arguments, **options: empty(*arguments, **options).fill_(float("nan")))
    assert all(torch.equal(one, other) for one, other in zip(results(scan, *tensors, backend="triton"), clean, strict=True))


def test_larger_blocks_and_complex_numbers_are_refused_with_a_reason():
    found = triton_backend.block_reasons(Request.of("scan/block_diagonal", device="cuda", dtype="complex64", options={"slots": 5}))
    assert "it takes blocks of at most 4 slots, the maps have 5" in found
    assert any("the tensors are complex64" in reason for reason in found)
    with pytest.raises(BackendError, match="at most 4 slots"):
        scan(BlockDiagonal.sized(5)(torch.ones(1, 2, 5, 5, 1)), torch.ones(1, 2, 5), backend="triton")


@pytest.mark.gpu
def test_auto_takes_triton_for_small_real_blocks_on_a_gpu():
    for slots in (2, 3, 4):
        assert select(Request.of("scan/block_diagonal", device="cuda", options={"slots": slots})).backend.name == "triton"
