"""States and gradients of every launch are those of the walk, in every precision and however tensors lie in memory."""

import pytest
import torch
from triton_launches import STRIDES, complex_places, everywhere, exact, gpu_places, hold, quiet_about_maxima, results

from pararnn.scans import scan, triton_diagonal
from pararnn.scans.launches import Launch
from pararnn.structures.diagonal import Diagonal

pytestmark = quiet_about_maxima

LONG = {
    "tiles": Launch(variant="tiles", block_time=256, block_state=1),
    "chain": Launch(variant="chain", block_time=256, block_state=1, groups=2, group=4),
}
HALF = {torch.float16: 2**-11, torch.bfloat16: 2**-8}
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
