"""What only the kernels in Triton can get wrong: tiles, groups, widths, strides, half precision, and products that say too little.

On the CPU where TRITON_INTERPRET is set, which takes a process of its own; on a GPU also with the tiles that are launched there.
"""

import subprocess
import sys

import pytest
import torch

from pararnn.errors import BackendError
from pararnn.registry import installed
from pararnn.scans import scan, triton_backend
from pararnn.scans.launches import Launch, group_of, in_chunks, launch_for, looking_back, walking
from pararnn.selection import Request, select
from pararnn.structures.diagonal import Diagonal

TILES = {
    "walk": Launch(variant="walk", block_time=8, block_state=4, warps=1),
    "look back": Launch(variant="lookback", block_time=8, block_state=4, warps=1, group=2),
    "chunks": Launch(variant="chunks", block_time=4, block_state=4, warps=1, group=2, tiles=2),
}
ON_GPU = {name: pytest.param((launch, "cuda"), id=f"{name}, gpu", marks=pytest.mark.gpu) for name, launch in (*TILES.items(), ("auto", None))}
everywhere = pytest.mark.parametrize("place", [*(pytest.param((launch, "cpu"), id=name) for name, launch in TILES.items()), *ON_GPU.values()])
on_gpu = pytest.mark.parametrize("place", ON_GPU.values())
HALF = {torch.float16: 2**-11, torch.bfloat16: 2**-8}


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


@everywhere
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 5), (2, 8, 4), (1, 9, 3), (2, 41, 5)], ids=str)
def test_triton_states_and_gradients_are_those_of_the_walk(decaying, oracle, shape, reverse):
    tensors = decaying(*shape)
    hold(results(*tensors, reverse=reverse, backend="triton"), exact(oracle, *tensors, reverse=reverse), 1e-12)


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.complex128], ids=str)
def test_triton_works_in_every_precision(decaying, oracle, dtype):
    tensors = decaying(2, 19, 3, dtype=dtype)
    tensors[0] = tensors[0] / 2
    hold(results(*tensors, backend="triton"), exact(oracle, *tensors), 1e-12 if dtype == torch.complex128 else 1e-5)


@everywhere
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision_is_off_by_the_rounding_of_its_numbers(decaying, oracle, dtype):
    tensors = decaying(1, 41, 3, dtype=dtype)
    hold(results(*tensors, backend="triton"), exact(oracle, *tensors), 4 * HALF[dtype])


@everywhere
def test_half_precision_is_read_without_a_copy_and_carried_in_single(decaying, oracle, device):
    maps = torch.tensor([512.0, 512.0, 2**-9, 2**-9], device=device).reshape(1, 4, 1).half()
    bias = torch.tensor([1.0, 0.0, 0.0, 0.0], device=device).reshape(1, 4, 1).half()
    states = triton_backend.scan(Diagonal(maps), bias, torch.ones(1, 1, 1, device=device).half())
    assert states.dtype == torch.float16
    assert states.flatten().tolist() == [513.0, float("inf"), 513.0, 513.0 / 512]


@everywhere
def test_eight_thousand_odd_steps_are_those_of_the_walk(decaying, oracle, monkeypatch, device):
    if device == "cpu":
        # One lane, and tiles as long as on a GPU, because the interpreter takes its time over every number.
        longer = {"walk": walking(1, itemsize=8), "lookback": looking_back(8193, 1, itemsize=8), "chunks": in_chunks(8193, 1, itemsize=8)}
        launch = longer[triton_backend.launch_for().variant]
        monkeypatch.setattr(triton_backend, "launch_for", lambda *_, **__: launch)
    tensors = decaying(1, 8193, 1 if device == "cpu" else 37)
    states = scan(Diagonal(tensors[0]), tensors[1], tensors[2][:, 0], backend="triton")
    hold([states], [oracle(Diagonal(tensors[0]), tensors[1], tensors[2][:, 0])], 1e-12)


@everywhere
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_packed_segments_each_have_their_own_tiles(decaying, oracle, device, reverse):
    offsets = torch.tensor([0, 0, 1, 30, 30, 38, 41], device=device)
    tensors = decaying(1, 41, 5, segments=6)
    found = results(*tensors, reverse=reverse, cu_seqlens=offsets, backend="triton")
    hold(found, exact(oracle, *tensors, reverse=reverse, cu_seqlens=offsets), 1e-12)


STRIDES = {
    "time last": lambda tensor: tensor.mT.contiguous().mT,
    "time first": lambda tensor: tensor.transpose(0, 1).contiguous().transpose(0, 1),
    "every third channel": lambda tensor: tensor.repeat_interleave(3, dim=2)[..., ::3],
    "one step for all": lambda tensor: tensor[:, :1].expand_as(tensor),
    "one number for all": lambda tensor: tensor[:1, :1, :1].expand_as(tensor),
}


@everywhere
@pytest.mark.parametrize("strides", STRIDES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_tensors_are_read_as_they_lie(decaying, strides, dtype):
    tensors = decaying(2, 19, 3, dtype=dtype)
    moved = [STRIDES[strides](tensor) for tensor in tensors]
    plain = [tensor.contiguous() for tensor in moved]
    for one, other in zip(results(*moved, backend="triton"), results(*plain, backend="triton"), strict=True):
        assert torch.equal(one, other)


@everywhere
def test_conjugated_views_of_maps_and_terms_are_read_as_what_they_are(decaying):
    tensors = decaying(2, 19, 3, dtype=torch.complex128)
    lazy = [tensor.conj() for tensor in tensors[:3]]
    found = scan(Diagonal(lazy[0]), lazy[1], lazy[2][:, 0], backend="triton")
    plain = [tensor.resolve_conj() for tensor in lazy]
    assert torch.equal(found, scan(Diagonal(plain[0]), plain[1], plain[2][:, 0], backend="triton"))


@everywhere
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_equal_inputs_give_equal_bits_also_in_the_gradients(decaying, reverse):
    tensors = decaying(2, 41, 5, dtype=torch.float32)
    first = results(*tensors, reverse=reverse, backend="triton")
    for _ in range(2):
        assert all(torch.equal(one, other) for one, other in zip(results(*tensors, reverse=reverse, backend="triton"), first, strict=True))


@everywhere
def test_memory_that_was_used_before_does_not_shine_through(decaying, monkeypatch):
    tensors = decaying(2, 41, 5)
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
    tensors = decaying(2, 41, 5)
    clean = scan(Diagonal(tensors[0]), tensors[1], backend="triton")
    tensors[1][1, 20, 2] = bad
    spoilt = scan(Diagonal(tensors[0]), tensors[1], backend="triton")
    assert not spoilt[1, 20:, 2].isfinite().any()
    clean[1, 20:, 2] = spoilt[1, 20:, 2] = 0
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


@everywhere
def test_second_derivatives_go_through_the_operator(decaying):
    maps, bias, start, _ = (tensor.requires_grad_() for tensor in decaying(1, 5, 1))
    assert torch.autograd.gradgradcheck(lambda a, b, s: scan(Diagonal(a), b, s[:, 0], backend="triton"), (maps, bias, start))


@everywhere
@pytest.mark.parametrize("wanted", [0, 1, 2], ids=["maps", "terms", "start"])
def test_a_gradient_that_is_asked_for_alone_is_the_same(decaying, wanted):
    tensors = decaying(2, 19, 3)
    expected = results(*tensors, backend="triton")[1 + wanted]
    leaves = [tensor.detach().requires_grad_(place == wanted) for place, tensor in enumerate(tensors[:3])]
    scan(Diagonal(leaves[0]), leaves[1], leaves[2][:, 0], backend="triton").backward(tensors[3])
    torch.testing.assert_close(leaves[wanted].grad, expected, rtol=1e-14, atol=1e-14)


@on_gpu
@pytest.mark.parametrize("shape", [(3, 8193, 100), (1, 70001, 33), (300, 65, 7), (2, 4096, 256)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex64], ids=str)
def test_large_shapes_agree_with_double_precision(decaying, shape, dtype):
    tensors = decaying(*shape, dtype=dtype)
    if dtype.is_complex:
        tensors[0] = tensors[0] / 2
    wide = torch.complex128 if dtype.is_complex else torch.float64
    expected = results(*(tensor.to(wide) for tensor in tensors), backend="torch")
    hold(results(*tensors, backend="triton"), expected, 4 * HALF.get(dtype, 1e-5))


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
def test_places_past_the_reach_of_32_bits_are_found(device):
    # The second row begins 3 * 2**30 numbers in; half precision keeps it at 12 GiB.
    size, length = 64, 3 << 24
    maps = torch.full((1, 1, 1), 0.5, device=device, dtype=torch.float16).expand(2, length, size)
    bias = torch.ones(2, length, size, device=device, dtype=torch.float16)
    bias[1] = 2
    states = triton_backend.scan(Diagonal(maps), bias, None)
    assert states[0, -1].eq(2).all()
    assert states[1, 0].eq(2).all()
    assert states[1, -1].eq(4).all()


@on_gpu
def test_a_cuda_graph_captures_forward_and_backward_without_a_synchronisation(decaying):
    tensors = decaying(2, 3000, 64, dtype=torch.float32)
    expected = results(2 * tensors[0], *tensors[1:], backend="triton")
    results(*tensors, backend="triton")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = results(*tensors, backend="triton")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    tensors[0].mul_(2)
    graph.replay()
    assert all(torch.equal(one, other) for one, other in zip(captured, expected, strict=True))


@on_gpu
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


def test_a_backend_on_the_cpu_keeps_triton_out_of_auto():
    assert select(Request.of("scan/diagonal")).backend.name != "triton" or "numba" not in _usable("cpu")


def _usable(device):
    request = Request.of("scan/diagonal", device=device)
    return {entry.name for entry in installed().backends("scan/diagonal").values() if not entry.resolve(entry.spec.reasons)(request)}


def test_many_lanes_walk_and_few_share_the_time():
    facts = {"itemsize": 4, "processors": 132}
    assert launch_for(8, 4096, 8 * 4096, 1536, **facts).variant == "walk"
    assert launch_for(1, 131072, 131072, 64, **facts).variant == "lookback"
    assert launch_for(1, 64, 64, 64, **facts).variant == "walk"
    # One long segment among many short ones is what everybody would wait for.
    assert launch_for(1000, 100000, 101000, 64, **facts).variant == "lookback"
    for launch in (walking(3, itemsize=16), looking_back(10**6, 3, itemsize=16), in_chunks(10**6, 3, itemsize=16)):
        assert launch.block_state == 4
    assert group_of(131072, 128) == 32
    assert group_of(2048, 128) == 16
