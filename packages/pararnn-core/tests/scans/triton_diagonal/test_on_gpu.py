"""On a GPU: large shapes, equal bits on a busy device, places past 32 bits, graphs, and memory."""

import pytest
import torch
from triton_launches import BOUNDS, REAL, STRIDES, auto_on_gpu, gpu_places, hold, on_gpu, quiet_about_maxima, results
from waiting import nothing_waits

from pararnn.scans import scan, triton_diagonal
from pararnn.structures.diagonal import Diagonal

pytestmark = quiet_about_maxima

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
