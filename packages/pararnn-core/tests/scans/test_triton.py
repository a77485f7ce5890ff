"""What only the kernels in Triton can get wrong: tiles, groups, widths, strides, half precision, and products that say too little.

On the CPU where TRITON_INTERPRET is set, which takes a process of its own; on a GPU also with the tiles that are launched there.
"""

import subprocess
import sys

import pytest
import torch
from waiting import nothing_waits

from pararnn.errors import BackendError
from pararnn.scans import scan, triton_backend, triton_diagonal
from pararnn.scans.launches import Launch, in_chain, in_tiles, launch_for, streaming, walking
from pararnn.selection import Request, select
from pararnn.structures.diagonal import Diagonal

# The interpreter takes a maximum as numpy does, which warns where all numbers are none.
pytestmark = pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")

# Tiles of four lanes, so that few numbers have edges of every kind: of tiles, groups, eras and blocks of channels. On a GPU a lane is a thread.
TILES = {
    "stream": Launch(variant="stream", block_time=4, block_state=4, groups=2),
    "walk": Launch(variant="walk", block_time=4, block_state=4),
    "chain": Launch(variant="chain", block_time=4, block_state=4, groups=2, group=4),
    "tiles": Launch(variant="tiles", block_time=4, block_state=4, group=2),
}
LONG = {
    "tiles": Launch(variant="tiles", block_time=256, block_state=1),
    "chain": Launch(variant="chain", block_time=256, block_state=1, groups=2, group=4),
}
ON_GPU = {
    "stream": Launch(variant="stream", block_time=8, block_state=8, groups=4),
    "walk": Launch(variant="walk", block_time=8),
    "chain": Launch(variant="chain", block_time=16, groups=2, group=4, warps=2),
    "tiles": Launch(variant="tiles", block_time=8, group=2),
    "auto": None,
}
gpu_places = [pytest.param((launch, "cuda"), id=f"{name}, gpu", marks=pytest.mark.gpu) for name, launch in ON_GPU.items()]
all_places = [*(pytest.param((launch, "cpu"), id=name) for name, launch in TILES.items()), *gpu_places]
everywhere = pytest.mark.parametrize("place", all_places)
# The stream and the chain are for real numbers.
REAL = ("stream", "chain")
complex_places = pytest.mark.parametrize("place", [place for place in all_places if not place.id.startswith(REAL)])
on_gpu = pytest.mark.parametrize("place", gpu_places)
auto_on_gpu = pytest.mark.parametrize("place", gpu_places[-1:])
HALF = {torch.float16: 2**-11, torch.bfloat16: 2**-8}
# Of large shapes, to what double precision gives.
BOUNDS = {torch.float64: 1e-12, torch.float32: 4e-5, torch.float16: 2**-9, torch.bfloat16: 2**-6}


@pytest.fixture
def device(place, request):
    """Where the test runs, with the launch of its place."""
    launch, device = place
    try:
        select(Request.of("scan/diagonal", device=device), "triton")
    except BackendError as error:
        pytest.skip(f"backend triton cannot serve here: {str(error).partition(chr(10))[0]}")
    if launch is not None:
        request.getfixturevalue("launches")(launch)
    return device


@pytest.fixture
def decaying(device):
    """Maps in (0, 1), terms, initial states, and a gradient of the states."""

    def make(rows, length, size, *, dtype=torch.float64, segments=1):
        numbers = torch.Generator().manual_seed(rows + length + size)
        wide = torch.complex128 if dtype.is_complex else torch.float64
        maps = torch.rand(rows, length, size, generator=numbers, dtype=wide)
        others = [torch.randn(rows, count, size, generator=numbers, dtype=wide) for count in (length, segments, length)]
        return [tensor.to(dtype).to(device) for tensor in (maps, *others)]

    return make


def results(maps, bias, start, grad, **options):
    """States and gradients of maps, terms and initial state through the public function."""
    leaves = [tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_() for tensor in (maps, bias, start)]
    packed = "cu_seqlens" in options
    states = scan(Diagonal(leaves[0]), leaves[1], leaves[2][0] if packed else leaves[2][:, 0], **options)
    return [states.detach(), *torch.autograd.grad(states, leaves, grad)]


def exact(oracle, maps, bias, start, grad, **options):
    """The same by the definition, in double precision."""
    wide = torch.complex128 if bias.is_complex() else torch.float64
    leaves = [tensor.detach().to(wide).requires_grad_() for tensor in (maps, bias, start)]
    packed = "cu_seqlens" in options
    states = oracle(Diagonal(leaves[0]), leaves[1], leaves[2][0] if packed else leaves[2][:, 0], **options)
    return [states.detach(), *torch.autograd.grad(states, leaves, grad.to(wide))]


def hold(found, expected, bound):
    for one, other in zip(found, expected, strict=True):
        error = (one.to(other.dtype) - other).abs().max()
        assert error <= bound * other.abs().max().clamp_min(1), f"off by {error:.1e}"


SHAPES = [((1, 1, 1), False), ((1, 9, 3), True), ((2, 37, 5), False), ((2, 37, 5), True)]


@everywhere
@pytest.mark.parametrize(("shape", "reverse"), SHAPES, ids=str)
def test_triton_states_and_gradients_are_those_of_the_walk(decaying, oracle, shape, reverse):
    tensors = decaying(*shape)
    hold(results(*tensors, reverse=reverse, backend="triton"), exact(oracle, *tensors, reverse=reverse), 1e-12)


@everywhere
def test_triton_works_in_single_precision(decaying, oracle):
    tensors = decaying(1, 19, 3, dtype=torch.float32)
    hold(results(*tensors, backend="triton"), exact(oracle, *tensors), 1e-5)


@complex_places
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_triton_works_in_complex_numbers(decaying, oracle, dtype):
    tensors = decaying(1, 19, 3, dtype=dtype)
    tensors[0] = tensors[0] / 2
    hold(results(*tensors, backend="triton"), exact(oracle, *tensors), 1e-12 if dtype == torch.complex128 else 1e-5)


@everywhere
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision_is_off_by_the_rounding_of_its_numbers(decaying, oracle, dtype):
    tensors = decaying(1, 19, 3, dtype=dtype)
    hold(results(*tensors, backend="triton"), exact(oracle, *tensors), 4 * HALF[dtype])


@everywhere
def test_half_precision_is_read_without_a_copy_and_carried_in_single(decaying, oracle, device):
    maps = torch.tensor([512.0, 512.0, 2**-9, 2**-9], device=device).reshape(1, 4, 1).half()
    bias = torch.tensor([1.0, 0.0, 0.0, 0.0], device=device).reshape(1, 4, 1).half()
    states = triton_diagonal.scan(Diagonal(maps), bias, torch.ones(1, 1, 1, device=device).half())
    assert states.dtype == torch.float16
    assert states.flatten().tolist() == [513.0, float("inf"), 513.0, 513.0 / 512]


@pytest.mark.parametrize("place", [*(pytest.param((launch, "cpu"), id=name) for name, launch in LONG.items()), *gpu_places])
def test_eight_thousand_odd_steps_are_those_of_the_walk(decaying, oracle, device):
    # One lane, because the interpreter takes its time over every number; apart in memory, because other kernels serve steps that lie together.
    tensors = [tensor.repeat_interleave(2, dim=1)[:, ::2] for tensor in decaying(1, 8193, 1 if device == "cpu" else 37)]
    states = scan(Diagonal(tensors[0]), tensors[1], tensors[2][:, 0], backend="triton")
    hold([states], [oracle(Diagonal(tensors[0]), tensors[1], tensors[2][:, 0])], 1e-12)


@everywhere
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_packed_segments_each_have_their_own_tiles(decaying, oracle, device, reverse):
    offsets = torch.tensor([0, 0, 1, 22, 22, 28, 31], device=device)
    tensors = decaying(1, 31, 3, segments=6)
    found = results(*tensors, reverse=reverse, cu_seqlens=offsets, backend="triton")
    hold(found, exact(oracle, *tensors, reverse=reverse, cu_seqlens=offsets), 1e-12)


STRIDES = {
    "time last": lambda tensor: tensor.mT.contiguous().mT,
    "time first": lambda tensor: tensor.transpose(0, 1).contiguous().transpose(0, 1),
    "every third channel": lambda tensor: tensor.repeat_interleave(3, dim=2)[..., ::3],
    "one step for all": lambda tensor: tensor[:, :1].expand_as(tensor),
    "one channel for all": lambda tensor: tensor[..., :1].contiguous().expand_as(tensor),
    "one number for all": lambda tensor: tensor[:1, :1, :1].expand_as(tensor),
}


@everywhere
@pytest.mark.parametrize("strides", STRIDES)
def test_tensors_are_read_as_they_lie(decaying, strides):
    tensors = decaying(2, 9, 3)
    moved = [STRIDES[strides](tensor) for tensor in tensors]
    plain = [tensor.contiguous() for tensor in moved]
    # Each kind of strides has a kernel of its own on a GPU, whose compiler may fuse another product with its sum.
    hold(results(*moved, backend="triton"), results(*plain, backend="triton"), 1e-14)


@complex_places
def test_complex_numbers_are_read_as_they_lie(decaying):
    tensors = decaying(2, 9, 3, dtype=torch.complex128)
    moved = [STRIDES["every third channel"](tensor) for tensor in tensors]
    hold(results(*moved, backend="triton"), results(*tensors, backend="triton"), 1e-14)


@complex_places
def test_conjugated_views_of_maps_and_terms_are_read_as_what_they_are(decaying):
    tensors = decaying(1, 9, 3, dtype=torch.complex128)
    lazy = [tensor.conj() for tensor in tensors[:3]]
    found = scan(Diagonal(lazy[0]), lazy[1], lazy[2][:, 0], backend="triton")
    plain = [tensor.resolve_conj() for tensor in lazy]
    assert torch.equal(found, scan(Diagonal(plain[0]), plain[1], plain[2][:, 0], backend="triton"))


@everywhere
def test_equal_inputs_give_equal_bits_also_in_the_gradients(decaying):
    tensors = decaying(1, 21, 5, dtype=torch.float32)
    first = results(*tensors, backend="triton")
    assert all(torch.equal(one, other) for one, other in zip(results(*tensors, backend="triton"), first, strict=True))


@everywhere
def test_memory_that_was_used_before_does_not_shine_through(decaying, monkeypatch):
    tensors = decaying(1, 21, 5)
    clean = results(*tensors, backend="triton")
    empty = torch.empty_like

    def poisoned(*arguments, **options):
        tensor = empty(*arguments, **options)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty_like", poisoned)
    assert all(torch.equal(one, other) for one, other in zip(results(*tensors, backend="triton"), clean, strict=True))


@everywhere
@pytest.mark.parametrize("bad", [float("inf"), float("nan")], ids=str)
def test_what_is_not_finite_spoils_its_own_future_and_nothing_else(decaying, bad):
    tensors = decaying(1, 29, 3)
    clean = scan(Diagonal(tensors[0]), tensors[1], backend="triton")
    tensors[1][0, 20, 2] = bad
    spoilt = scan(Diagonal(tensors[0]), tensors[1], backend="triton")
    assert not spoilt[0, 20:, 2].isfinite().any()
    clean[0, 20:, 2] = spoilt[0, 20:, 2] = 0
    torch.testing.assert_close(spoilt, clean, rtol=1e-12, atol=1e-12)


@everywhere
@pytest.mark.parametrize("factor", [1e-30, 1e30], ids=["underflow", "overflow"])
def test_products_that_leave_the_range_of_numbers_are_walked_again(decaying, oracle, device, factor):
    # The state goes down to 1e-30 and up again, or up and down; the products of maps go twice as far, out of the range of single precision.
    start = torch.full((1, 2), 1 / factor, device=device)
    maps = torch.ones(1, 41, 2, device=device)
    maps[:, 10:12], maps[:, 13:15] = factor, 1 / factor
    maps[:, 30:32], maps[:, 33:35] = factor, 1 / factor
    states = scan(Diagonal(maps), torch.zeros_like(maps), start, backend="triton")
    torch.testing.assert_close(states, oracle(Diagonal(maps), torch.zeros_like(maps), start), rtol=1e-5, atol=0)


@pytest.mark.parametrize("place", [place for place in all_places if place.id.startswith(REAL)])
def test_a_state_that_was_too_small_for_products_is_right_when_it_grows_again(oracle, device):
    # In the first group it falls to 1e-30, by maps whose product is too small; then it grows by 1e10 a tile, which no tile alone would notice.
    maps = torch.ones(1, 80, 2, device=device)
    maps[:, :2] = 1e-30
    maps[:, 17:80:16] = 1e10
    start = torch.full((1, 2), 1e30, device=device)
    states = scan(Diagonal(maps), torch.zeros_like(maps), start, backend="triton")
    torch.testing.assert_close(states, oracle(Diagonal(maps), torch.zeros_like(maps), start), rtol=1e-5, atol=0)


AS_LAUNCHED = [
    pytest.param((Launch(variant="chain", block_time=128, block_state=1, groups=2, group=4), "cpu"), id="chain"),
    pytest.param((in_chain(1000, itemsize=4), "cuda"), id="chain, gpu", marks=pytest.mark.gpu),
]


@pytest.mark.parametrize("place", AS_LAUNCHED)
def test_maps_that_grow_and_shrink_in_turn_leave_nothing_to_walk_again(oracle, device, monkeypatch):
    from pararnn.scans.kernels import triton_walk

    class Recorded:
        marks = None

        def __getitem__(self, grid):
            def launch(*arguments, **kinds):
                # They stand before four counts.
                self.marks = arguments[-5]

            return launch

    recorded = Recorded()
    monkeypatch.setattr(triton_walk, "walk_kernel", recorded)
    maps = torch.full((1, 1000, 2), 3.0, device=device)
    maps[:, 1::2] = 1 / 3.1
    bias = torch.ones_like(maps)
    states = scan(Diagonal(maps), bias, backend="triton")
    assert recorded.marks.eq(-1).all()
    torch.testing.assert_close(states, oracle(Diagonal(maps), bias), rtol=1e-5, atol=0)


@everywhere
def test_second_derivatives_go_through_the_operator(decaying):
    maps, bias, start, _ = (tensor.requires_grad_() for tensor in decaying(1, 2, 1))
    assert torch.autograd.gradgradcheck(lambda a, b, s: scan(Diagonal(a), b, s[:, 0], backend="triton"), (maps, bias, start))


@everywhere
@pytest.mark.parametrize("wanted", [0, 1, 2], ids=["maps", "terms", "start"])
def test_a_gradient_that_is_asked_for_alone_is_the_same(decaying, wanted):
    tensors = decaying(1, 9, 3)
    expected = results(*tensors, backend="triton")[1 + wanted]
    leaves = [tensor.detach().requires_grad_(place == wanted) for place, tensor in enumerate(tensors[:3])]
    scan(Diagonal(leaves[0]), leaves[1], leaves[2][:, 0], backend="triton").backward(tensors[3])
    torch.testing.assert_close(leaves[wanted].grad, expected, rtol=1e-14, atol=1e-14)


LARGE = pytest.mark.parametrize("shape", [(3, 8193, 100), (1, 70001, 33), (300, 65, 7), (2, 4096, 256)], ids=str)


@on_gpu
@LARGE
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_large_shapes_agree_with_double_precision(decaying, shape, dtype):
    tensors = decaying(*shape, dtype=dtype)
    expected = results(*(tensor.double() for tensor in tensors), backend="torch")
    hold(results(*tensors, backend="triton"), expected, BOUNDS[dtype])


@on_gpu
@pytest.mark.parametrize("strides", STRIDES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_large_tensors_are_read_as_they_lie(decaying, strides, dtype):
    tensors = [STRIDES[strides](tensor) for tensor in decaying(3, 1000, 100, dtype=dtype)]
    expected = results(*(tensor.double() for tensor in tensors), backend="torch")
    hold(results(*tensors, backend="triton"), expected, BOUNDS[dtype])


@pytest.mark.parametrize("place", [place for place in gpu_places if not place.id.startswith(REAL)])
@LARGE
def test_large_shapes_of_complex_numbers_do_too(decaying, shape):
    maps, *others = decaying(*shape, dtype=torch.complex64)
    tensors = (maps / 2, *others)
    expected = results(*(tensor.to(torch.complex128) for tensor in tensors), backend="torch")
    hold(results(*tensors, backend="triton"), expected, 4e-5)


@on_gpu
def test_fifty_runs_have_equal_bits_on_a_busy_gpu(decaying):
    tensors = decaying(1, 20001, 96, dtype=torch.float32)
    first = results(*tensors, backend="triton")
    side = torch.cuda.Stream()
    for _ in range(50):
        with torch.cuda.stream(side):
            torch.randn(1 << 22, device="cuda").sin_()
        assert all(torch.equal(one, other) for one, other in zip(results(*tensors, backend="triton"), first, strict=True))


@auto_on_gpu
def test_places_past_the_reach_of_32_bits_are_found(device):
    # The second row begins 3 * 2**30 numbers in; half precision keeps it at 12 GiB.
    size, length = 64, 3 << 24
    maps = torch.full((1, 1, 1), 0.5, device=device, dtype=torch.float16).expand(2, length, size)
    bias = torch.ones(2, length, size, device=device, dtype=torch.float16)
    bias[1] = 2
    states = triton_diagonal.scan(Diagonal(maps), bias, None)
    assert states[0, -1].eq(2).all()
    assert states[1, 0].eq(2).all()
    assert states[1, -1].eq(4).all()


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


@auto_on_gpu
def test_forward_and_backward_need_no_memory_beyond_results(decaying):
    tensors = decaying(1, 65536, 512, dtype=torch.float32)
    results(*tensors, backend="triton")
    leaves = [tensor.requires_grad_() for tensor in tensors[:3]]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    scan(Diagonal(leaves[0]), leaves[1], leaves[2][:, 0], backend="triton").backward(tensors[3])
    # States, and the gradients of maps and terms.
    assert torch.cuda.max_memory_allocated() - before <= 3.2 * tensors[0].nbytes


@pytest.mark.gpu
def test_auto_takes_triton_on_a_gpu():
    for dtype in triton_backend.DTYPES:
        assert select(Request.of("scan/diagonal", device="cuda", dtype=dtype)).backend.name == "triton"


def test_without_triton_the_reasons_say_what_to_install():
    program = (
        "import importlib.util, sys; sys.modules['triton'] = None\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'triton' else find(name, *rest)\n"
        "import torch\nfrom pararnn import Diagonal, scan\n"
        "from pararnn.scans.triton_backend import reasons\nfrom pararnn.selection import Request\n"
        "print(reasons(Request.of('scan/diagonal'))[0])\n"
        "print(scan(Diagonal(torch.ones(1, 3, 1)), torch.ones(1, 3, 1)).flatten().tolist())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["triton is not installed; pip install 'pararnn-core[triton]'", "[1.0, 2.0, 3.0]"]


def test_every_obstacle_is_named(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    found = triton_backend.reasons(Request.of("scan/diagonal", device="cpu", dtype="int32", time=1 << 31))
    assert any("the tensors are int32" in reason for reason in found)
    assert any("at most 2147418112 steps" in reason for reason in found)
    assert any("the tensors are on the CPU" in reason for reason in found)
    assert any("on xpu" in reason for reason in triton_backend.reasons(Request.of("scan/diagonal", device="xpu")))
    if not torch.cuda.is_available():
        assert "it runs on CUDA devices, and torch sees none here" in triton_backend.reasons(Request.of("scan/diagonal", device="cuda"))


def test_an_interpreter_has_to_be_named():
    assert select(Request.of("scan/diagonal")).backend.name != "triton"
    assert select(Request.of("scan/block_diagonal")).backend.name != "triton"


def test_many_lanes_stream_and_few_share_the_time():
    facts = {"itemsize": 4, "processors": 132}
    assert launch_for(8, 4096, 8 * 4096, 1536, **facts).variant == "stream"
    assert launch_for(8, 4096, 8 * 4096, 1536, is_complex=True, **facts).variant == "walk"
    assert launch_for(32, 8192, 32 * 8192, 1024, **facts).variant == "chain"
    assert launch_for(32, 128, 32 * 128, 1024, **facts).variant == "stream"
    assert launch_for(1, 131072, 131072, 64, **facts).variant == "chain"
    assert launch_for(1, 131072, 131072, 64, is_complex=True, **facts).variant == "tiles"
    assert launch_for(1, 64, 64, 64, **facts).variant == "walk"
    # One long segment among many short ones is what everybody would wait for.
    assert launch_for(1000, 100000, 101000, 64, **facts).variant == "chain"
    # A tile is as many bytes in every precision, and half precision is carried in single.
    assert [streaming(itemsize=size).block_state for size in (2, 4, 8)] == [64, 32, 16]
    # So are the tiles on their way, of which there are fewer where three tensors are read.
    assert [streaming(itemsize=size).stages for size in (2, 4, 8)] == [5, 3, 3]
    assert [streaming(itemsize=size, costate=True).stages for size in (2, 4, 8)] == [4, 4, 4]
    assert [walking(itemsize=size).block_time for size in (2, 4, 8, 16)] == [16, 16, 8, 4]
    assert [in_tiles(itemsize=size).block_time for size in (2, 4, 8, 16)] == [64, 64, 32, 16]
    assert [in_chain(1 << 16, itemsize=size).block_time for size in (2, 4, 8)] == [256, 256, 128]
    assert [in_chain(1 << 16, itemsize=4, costate=costate).block_time for costate in (False, True)] == [256, 128]
    # There are about as many tiles in a link as links.
    assert [in_chain(length, itemsize=4).group for length in (100, 1 << 16, 1 << 17)] == [16, 16, 32]
