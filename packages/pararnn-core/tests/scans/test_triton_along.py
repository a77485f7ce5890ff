"""The diagonal scan in Triton of tensors whose steps lie next to each other in memory, as a transposed `(rows, state, time)`: its own kernels.

On the CPU where TRITON_INTERPRET is set, which takes a process of its own; on a GPU also with the tiles that are launched there.
"""

import pytest
import torch
from waiting import nothing_waits

from pararnn.errors import BackendError
from pararnn.scans import layout, scan, triton_along, triton_diagonal
from pararnn.scans.launches import Launch, along_for, in_lines, linked
from pararnn.scans.layout import lies_along
from pararnn.selection import Request, select
from pararnn.structures.diagonal import Diagonal

pytestmark = pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")

# Groups of two and of four steps, and tiles so small that few numbers have edges of every kind.
SMALL = {
    "lines": Launch(variant="lines", block_time=8, block_state=1, groups=4, stages=1),
    "lines ahead": Launch(variant="lines", block_time=8, block_state=1, groups=2, stages=2),
    "linked": Launch(variant="linked", block_time=8, block_state=1, groups=2, group=2),
}
ON_GPU = {
    "lines of one warp": Launch(variant="lines", block_time=128, block_state=1, groups=32, stages=2),
    "lines of pairs": Launch(variant="lines", block_time=256, block_state=1, groups=128, stages=1, warps=2),
    "linked": Launch(variant="linked", block_time=128, block_state=1, groups=32, group=4, warps=2),
    "auto": None,
}
gpu_places = [pytest.param((launch, "cuda"), id=f"triton, {name}, gpu", marks=pytest.mark.gpu) for name, launch in ON_GPU.items()]
everywhere = pytest.mark.parametrize("place", [*(pytest.param((launch, "cpu"), id=f"triton, {name}") for name, launch in SMALL.items()), *gpu_places])
on_gpu = pytest.mark.parametrize("place", gpu_places)
auto_on_gpu = pytest.mark.parametrize("place", gpu_places[-1:])
# Of what double precision gives.
BOUNDS = {torch.float64: 1e-12, torch.float32: 4e-5, torch.float16: 2**-9, torch.bfloat16: 2**-6}


@pytest.fixture
def device(place, monkeypatch):
    """Where the test runs, with the launch of its place."""
    numpy = pytest.importorskip("numpy")
    launch, device = place
    try:
        select(Request.of("scan/diagonal", device=device), "triton")
    except BackendError as error:
        pytest.skip(f"backend triton cannot serve here: {str(error).partition(chr(10))[0]}")
    # Short sequences have edges of every kind in few numbers.
    monkeypatch.setattr(layout, "SHORT", 0)
    if launch is not None:
        monkeypatch.setattr(triton_along, "along_for", lambda *_, **__: launch)
    with numpy.errstate(all="ignore"):
        yield device


@pytest.fixture
def decaying(device):
    """Maps in (0, 1), terms, initial states, and a gradient of the states, with the steps of each channel next to each other."""

    def make(rows, length, size, *, dtype=torch.float64):
        numbers = torch.Generator().manual_seed(rows + length + size)
        maps = torch.rand(rows, size, length, generator=numbers, dtype=torch.float64)
        others = [torch.randn(rows, size, count, generator=numbers, dtype=torch.float64) for count in (length, 1, length)]
        return [tensor.to(dtype).to(device).mT for tensor in (maps, *others)]

    return make


def results(maps, bias, start, grad, *, with_start=True, **options):
    """States and gradients of maps, terms and initial state through the public function."""
    leaves = [tensor.detach().requires_grad_() for tensor in ((maps, bias, start) if with_start else (maps, bias))]
    states = scan(Diagonal(leaves[0]), leaves[1], leaves[2][:, 0] if with_start else None, **options)
    return [states.detach(), *torch.autograd.grad(states, leaves, grad)]


def exact(oracle, maps, bias, start, grad, *, with_start=True, **options):
    """The same by the definition, in double precision."""
    leaves = [tensor.detach().double().requires_grad_() for tensor in ((maps, bias, start) if with_start else (maps, bias))]
    states = oracle(Diagonal(leaves[0]), leaves[1], leaves[2][:, 0] if with_start else None, **options)
    return [states.detach(), *torch.autograd.grad(states, leaves, grad.double())]


def hold(found, expected, bound):
    for one, other in zip(found, expected, strict=True):
        error = (one.to(other.dtype) - other).abs().max()
        assert error <= bound * other.abs().max().clamp_min(1), f"off by {error:.1e}"


@everywhere
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 37, 2), (1, 16, 3), (1, 29, 1)], ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("with_start", [False, True], ids=["from zero", "from a state"])
def test_states_and_gradients_are_those_of_the_walk(decaying, oracle, shape, reverse, with_start):
    tensors = decaying(*shape)
    found = results(*tensors, with_start=with_start, reverse=reverse, backend="triton")
    hold(found, exact(oracle, *tensors, with_start=with_start, reverse=reverse), 1e-12)


@everywhere
def test_results_lie_as_the_inputs_do(decaying):
    states, maps, terms, _ = results(*decaying(2, 21, 3), backend="triton")
    assert all(tensor.mT.is_contiguous() for tensor in (states, maps, terms))


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_other_precisions_are_off_by_their_rounding(decaying, oracle, dtype, reverse):
    tensors = decaying(1, 21, 2, dtype=dtype)
    hold(results(*tensors, reverse=reverse, backend="triton"), exact(oracle, *tensors, reverse=reverse), BOUNDS[dtype])


# What is made of maps, terms and gradient. The first four lie along time; of the others some are copied, by these kernels or before others.
MIXES = {
    "one step of maps": (lambda maps: maps[:, :1].expand_as(maps), None, None),
    "one number of maps": (lambda maps: maps[:1, :1, :1].expand_as(maps), None, None),
    "one channel of maps": (lambda maps: maps[..., :1].expand_as(maps), None, None),
    "one gradient": (None, None, lambda grad: grad[:1, :1, :1].expand_as(grad)),
    "maps by channels": (torch.Tensor.contiguous, None, None),
    "terms by channels": (None, torch.Tensor.contiguous, None),
    "gradient by channels": (None, None, torch.Tensor.contiguous),
    "every other step of terms": (None, lambda terms: terms.repeat_interleave(2, dim=1)[:, ::2], None),
    "every other channel": (lambda maps: maps.repeat_interleave(2, dim=2)[..., ::2], lambda terms: terms.repeat_interleave(2, dim=2)[..., ::2], None),
    "an odd beginning": (lambda maps: torch.cat((maps[:, :1], maps), 1).mT.contiguous().mT[:, 1:], None, None),
}


@everywhere
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_tensors_of_other_layouts_beside_them_are_read_as_they_lie(decaying, oracle, mix, reverse):
    maps, terms, start, grad = decaying(2, 19, 3)
    maps, terms, grad = (tensor if made is None else made(tensor) for made, tensor in zip(MIXES[mix], (maps, terms, grad), strict=True))
    hold(results(maps, terms, start, grad, reverse=reverse, backend="triton"), exact(oracle, maps, terms, start, grad, reverse=reverse), 1e-12)


@everywhere
def test_equal_inputs_give_equal_bits_also_in_the_gradients(decaying):
    tensors = decaying(1, 45, 3, dtype=torch.float32)
    first = results(*tensors, backend="triton")
    assert all(torch.equal(one, other) for one, other in zip(results(*tensors, backend="triton"), first, strict=True))


@everywhere
def test_memory_that_was_used_before_does_not_shine_through(decaying, monkeypatch):
    tensors = decaying(1, 21, 3)
    clean = results(*tensors, backend="triton")
    monkeypatch.setattr(triton_diagonal, "empty_along", lambda like: torch.full_like(like.mT, float("nan"), memory_format=torch.contiguous_format).mT)
    assert all(torch.equal(one, other) for one, other in zip(results(*tensors, backend="triton"), clean, strict=True))


@everywhere
@pytest.mark.parametrize("bad", [float("inf"), float("nan")], ids=str)
def test_what_is_not_finite_spoils_its_own_future_and_nothing_else(decaying, bad):
    maps, terms, *_ = decaying(1, 29, 3)
    clean = scan(Diagonal(maps), terms, backend="triton")
    terms[0, 20, 2] = bad
    spoilt = scan(Diagonal(maps), terms, backend="triton")
    assert not spoilt[0, 20:, 2].isfinite().any()
    clean[0, 20:, 2] = spoilt[0, 20:, 2] = 0
    torch.testing.assert_close(spoilt, clean, rtol=1e-12, atol=1e-12)


@everywhere
@pytest.mark.parametrize("bad", [float("inf"), float("nan")], ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_the_first_map_is_not_used_without_an_initial_state(decaying, bad, reverse):
    maps, terms, *_ = decaying(1, 11, 2)
    expected = scan(Diagonal(maps), terms, reverse=reverse, backend="triton")
    spoilt = maps.clone()
    spoilt[:, -1 if reverse else 0] = bad
    assert torch.equal(scan(Diagonal(spoilt), terms, reverse=reverse, backend="triton"), expected)


@everywhere
@pytest.mark.parametrize("factor", [1e-30, 1e30], ids=["underflow", "overflow"])
def test_products_that_leave_the_range_of_numbers_are_walked_again(oracle, device, factor):
    start = torch.full((1, 2), 1 / factor, device=device)
    maps = torch.ones(1, 2, 41, device=device).mT
    maps[:, 10:12], maps[:, 13:15] = factor, 1 / factor
    maps[:, 30:32], maps[:, 33:35] = factor, 1 / factor
    states = scan(Diagonal(maps), torch.zeros_like(maps), start, backend="triton")
    torch.testing.assert_close(states, oracle(Diagonal(maps), torch.zeros_like(maps), start), rtol=1e-5, atol=0)


@everywhere
def test_a_state_that_was_too_small_for_products_is_right_when_it_grows_again(oracle, device):
    maps = torch.ones(1, 2, 80, device=device).mT
    maps[:, :2] = 1e-30
    maps[:, 17:80:16] = 1e10
    start = torch.full((1, 2), 1e30, device=device)
    states = scan(Diagonal(maps), torch.zeros_like(maps), start, backend="triton")
    torch.testing.assert_close(states, oracle(Diagonal(maps), torch.zeros_like(maps), start), rtol=1e-5, atol=0)


DOUBTLESS = {
    "grow and shrink in turn": (lambda step: torch.where(step % 2 == 0, 3.0, 1 / 3.1), lambda step: torch.ones_like(step)),
    "forget a first impulse": (lambda step: torch.full_like(step, 0.99), lambda step: (step == 0).to(step.dtype)),
    "vanish": (lambda step: torch.full_like(step, 1e-3), lambda step: torch.ones_like(step)),
}
AS_LAUNCHED = [
    pytest.param((Launch(variant="linked", block_time=128, block_state=1, groups=32, group=4), "cpu"), id="triton, linked"),
    pytest.param((linked(20000, itemsize=4), "cuda"), id="triton, linked, gpu", marks=pytest.mark.gpu),
]


@pytest.mark.parametrize("place", AS_LAUNCHED)
@pytest.mark.parametrize("kind", DOUBTLESS)
def test_nothing_is_walked_again_without_need(oracle, device, monkeypatch, kind):
    from pararnn.scans.kernels import triton_lines

    class Recorded:
        marks = None

        def __getitem__(self, grid):
            def launch(*arguments, **kinds):
                # They stand before two counts.
                self.marks = arguments[-3]

            return launch

    recorded = Recorded()
    monkeypatch.setattr(triton_lines, "line_kernel", recorded)
    step = torch.arange(1000 if device == "cpu" else 20000, device=device, dtype=torch.float32)
    maps, terms = (made(step).expand(1, 2, -1).contiguous().mT for made in DOUBTLESS[kind])
    states = scan(Diagonal(maps), terms, backend="triton")
    assert recorded.marks.eq(-1).all()
    torch.testing.assert_close(states, oracle(Diagonal(maps.double()), terms.double()).float(), rtol=1e-4, atol=1e-20)


@everywhere
def test_second_derivatives_go_through_the_operator(decaying):
    maps, bias, start, _ = (tensor.requires_grad_() for tensor in decaying(1, 2, 1))
    assert torch.autograd.gradgradcheck(lambda a, b, s: scan(Diagonal(a), b, s[:, 0], backend="triton"), (maps, bias, start))


@everywhere
def test_packed_sequences_are_those_of_the_walk(decaying, oracle, device):
    maps, terms, _, grad = decaying(1, 21, 2)
    offsets = torch.tensor([0, 4, 4, 21], device=device)
    found = results(maps, terms, None, grad, with_start=False, cu_seqlens=offsets, backend="triton")
    hold(found, exact(oracle, maps, terms, None, grad, with_start=False, cu_seqlens=offsets), 1e-12)


@pytest.mark.parametrize("place", [pytest.param((SMALL["lines"], "cpu"), id="triton, lines"), *gpu_places[-1:]])
def test_a_compiled_scan_gives_what_the_compiler_was_told(decaying):
    maps, terms, *_ = decaying(2, 13, 3)
    compiled = torch.compile(lambda a, b: scan(Diagonal(a), b, backend="triton").mT.reshape(-1) * 2, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(maps, terms), scan(Diagonal(maps), terms, backend="triton").mT.reshape(-1) * 2)


LARGE = pytest.mark.parametrize("shape", [(3, 8193, 100), (1, 70001, 9), (300, 65, 7), (2, 4096, 256), (5, 8192, 1)], ids=str)


@on_gpu
@LARGE
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_large_shapes_agree_with_double_precision(decaying, shape, dtype, reverse):
    tensors = decaying(*shape, dtype=dtype)
    expected = results(*(tensor.double() for tensor in tensors), reverse=reverse, backend="torch")
    hold(results(*tensors, reverse=reverse, backend="triton"), expected, BOUNDS[dtype])


@on_gpu
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_large_tensors_of_other_layouts_are_read_as_they_lie(decaying, mix, dtype):
    maps, terms, start, grad = decaying(3, 1000, 100, dtype=dtype)
    maps, terms, grad = (tensor if made is None else made(tensor) for made, tensor in zip(MIXES[mix], (maps, terms, grad), strict=True))
    expected = results(*(tensor.double() for tensor in (maps, terms, start, grad)), backend="torch")
    hold(results(maps, terms, start, grad, backend="triton"), expected, BOUNDS[dtype])


@auto_on_gpu
def test_places_past_the_reach_of_32_bits_are_found(device):
    # The second row begins 3 * 2**30 numbers in; half precision keeps terms at 12 GiB.
    length = 3 << 30
    lines = torch.full((1, 1, 1), 0.5, device=device, dtype=torch.float16).expand(1, 64, length // 64)
    rows = torch.ones(2, 64, length // 64, device=device, dtype=torch.float16)
    rows[1] = 2
    states = triton_diagonal.scan(Diagonal(lines.expand(2, -1, -1).mT), rows.mT, None)
    assert states[0, -1].eq(2).all()
    assert states[1, 0].eq(2).all()
    assert states[1, -1].eq(4).all()


@on_gpu
def test_fifty_runs_have_equal_bits_on_a_busy_gpu(decaying):
    tensors = decaying(1, 20001, 96, dtype=torch.float32)
    first = results(*tensors, backend="triton")
    side = torch.cuda.Stream()
    for _ in range(50):
        with torch.cuda.stream(side):
            torch.randn(1 << 22, device="cuda").sin_()
        assert all(torch.equal(one, other) for one, other in zip(results(*tensors, backend="triton"), first, strict=True))


@on_gpu
def test_a_cuda_graph_captures_forward_and_backward_without_a_synchronisation(decaying):
    tensors = decaying(2, 3000, 64, dtype=torch.float32)
    expected = results(2 * tensors[0], *tensors[1:], backend="triton")
    results(*tensors, backend="triton")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), nothing_waits():
        captured = results(*tensors, backend="triton")
    tensors[0].mul_(2)
    graph.replay()
    assert all(torch.equal(one, other) for one, other in zip(captured, expected, strict=True))


def test_what_lies_along_time_is_told_from_what_does_not():
    steps = torch.ones(2, 3, 50).mT
    channels = torch.ones(2, 50, 3)
    assert lies_along(steps, steps)
    assert lies_along(steps, torch.ones(3).expand(2, 50, 3))
    assert lies_along(torch.ones(2, 50, 1))
    assert not lies_along(channels, channels)
    assert not lies_along(steps, channels)
    # Few steps are copied.
    assert not lies_along(steps[:, :32], steps[:, :32])
    # Nothing of these is large.
    assert not lies_along(torch.ones(2, 50, 1).expand(2, 50, 3), torch.ones(3).expand(2, 50, 3))


def test_many_lines_are_walked_and_few_share_the_time():
    facts = {"itemsize": 4, "processors": 132}
    assert along_for(8 * 1536, 4096, **facts).variant == "lines"
    assert along_for(64, 131072, **facts).variant == "linked"
    assert along_for(64, 100, **facts).variant == "lines"
    # A thread reads 16 bytes at once.
    assert [in_lines(4096, itemsize=size).block_time // in_lines(4096, itemsize=size).groups for size in (2, 4, 8)] == [4, 4, 2]
    # Only forward there are registers for the next tile.
    assert [in_lines(4096, itemsize=size, costate=costate).stages for size, costate in ((4, False), (4, True), (8, False))] == [2, 1, 1]
    assert [linked(length, itemsize=4).group for length in (2048, 8192, 1 << 20)] == [2, 4, 64]
    assert [in_lines(length, itemsize=4).block_time for length in (1, 200, 1 << 16)] == [128, 256, 2048]
