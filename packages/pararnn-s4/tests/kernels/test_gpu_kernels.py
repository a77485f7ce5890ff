"""The kernels written in Triton and CUDA against the definition; Triton's also on the CPU where TRITON_INTERPRET is set."""

import subprocess
import sys

import pytest
import torch

from pararnn.errors import BackendError
from pararnn.selection import Request, select
from pararnn_s4 import cauchy, vandermonde, vandermonde_transpose
from pararnn_s4.kernels import cuda_backend

CLOSE = {torch.float64: {"rtol": 1e-10, "atol": 1e-10}, torch.float32: {"rtol": 1e-5, "atol": 1e-5}}
INTERPRETED = pytest.param(("triton", "cpu"), id="triton-cpu")
ON_GPU = [pytest.param((name, "cuda"), id=f"{name}-gpu", marks=pytest.mark.gpu) for name in ("triton", "cuda")]
everywhere = pytest.mark.parametrize("place", [INTERPRETED, *ON_GPU])
on_gpu = pytest.mark.parametrize("place", ON_GPU)
dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


@pytest.fixture
def backend(place):
    """The name of the backend, which has to be able to serve."""
    name, device = place
    try:
        select(Request.of("s4/cauchy", device=device, dtype="complex64", copies=1, groups=1, state=1, length=1, options={"named": True}), name)
    except BackendError as error:
        pytest.skip(f"backend {name} cannot serve here: {error}")
    return name


@pytest.fixture
def draw(place):
    """Complex numbers of a shape, rounded to single precision so that both precisions start from the same."""

    def numbers(*shape, seed):
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.complex64)
        return values.to(torch.complex128).to(place[1])

    return numbers


@pytest.fixture
def poles(draw):
    def left_half(*shape, seed, decay=0.02):
        values = draw(*shape, seed=seed)
        return torch.complex(-decay * (1 + values.real.abs()), values.imag)

    return left_half


def narrow(tensor, dtype):
    return tensor.to(torch.promote_types(dtype, torch.complex32) if tensor.is_complex() else dtype)


def compare(product, *inputs, backend, dtype):
    """Values and gradients in `dtype` by `backend` against the definition in double precision, relative to the largest."""
    exact = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    rounded = [narrow(tensor.detach(), dtype).clone().requires_grad_() for tensor in inputs]
    expected, found = product(*exact, backend="naive"), product(*rounded, backend=backend)
    cotangent = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9), dtype=expected.dtype.to_real()).to(expected)
    wanted = torch.autograd.grad(expected, exact, cotangent)
    got = torch.autograd.grad(found, rounded, cotangent.to(found.dtype))
    for one, other in zip((found, *got), (expected, *wanted), strict=True):
        scale = other.abs().max().clamp_min(1e-30)
        torch.testing.assert_close(one.to(other.dtype) / scale, other / scale, **CLOSE[dtype])


@everywhere
@dtypes
@pytest.mark.parametrize("conj", [True, False], ids=["pairs", "one-sided"])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 3, 5, 7), (1, 2, 33, 65), (3, 1, 4, 130)], ids=str)
def test_vandermonde_agrees_with_its_definition(backend, dtype, conj, sizes, draw, poles):
    groups, copies, state, length = sizes
    v, x = draw(groups, copies, state, seed=1), poles(copies, state, seed=2)
    compare(lambda v, x, backend: vandermonde(v, x, length, conj=conj, backend=backend), v, x, backend=backend, dtype=dtype)


@everywhere
@dtypes
@pytest.mark.parametrize("is_complex", [True, False], ids=["complex", "real"])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 3, 5, 7), (1, 2, 33, 130)], ids=str)
def test_the_transposed_product_agrees_with_its_definition(backend, dtype, is_complex, sizes, draw, poles):
    groups, copies, state, length = sizes
    u, v, x = draw(groups, copies, length, seed=1), draw(copies, state, seed=3), poles(copies, state, seed=2)
    compare(vandermonde_transpose, u if is_complex else u.real, v, x, backend=backend, dtype=dtype)


@everywhere
@dtypes
@pytest.mark.parametrize("conj", [True, False], ids=["pairs", "one-sided"])
@pytest.mark.parametrize("own_nodes", [True, False], ids=["own", "shared"])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (5, 3, 5, 7), (1, 2, 33, 65), (2, 1, 4, 130)], ids=str)
def test_cauchy_agrees_with_its_definition(backend, dtype, conj, own_nodes, sizes, draw, poles):
    groups, copies, state, length = sizes
    v, w = draw(groups, copies, state, seed=1), poles(copies, state, seed=2, decay=0.5)
    z = 1j * draw(*((copies, length) if own_nodes else (length,)), seed=3).real
    compare(lambda v, z, w, backend: cauchy(v, z, w, conj=conj, backend=backend), v, z, w, backend=backend, dtype=dtype)


@everywhere
def test_strided_and_conjugated_views_are_read_as_what_they_are(backend, draw, poles):
    v, w, z = draw(2, 3, 5, seed=1), poles(2, 3, 5, seed=2)[0], 1j * draw(9, seed=3).real
    strided = v.permute(2, 1, 0).contiguous().permute(2, 1, 0).conj()
    spread = torch.stack((w, torch.full_like(w, float("nan"))), -1)[..., 0]
    for product in (
        lambda v, w: cauchy(v, z, w, backend=backend),
        lambda v, w: vandermonde(v, w, 9, backend=backend),
        lambda v, w: vandermonde_transpose(torch.stack((z, z), -1)[:, 0].conj(), v, w, backend=backend),
    ):
        torch.testing.assert_close(product(strided, spread), product(v.conj().resolve_conj().contiguous(), w), rtol=0, atol=1e-14)


@everywhere
def test_second_derivatives_are_those_of_the_definition(backend, draw, poles):
    v, w, u = draw(1, 2, seed=1).requires_grad_(), poles(1, 2, seed=2, decay=0.5).requires_grad_(), draw(1, 3, seed=4).requires_grad_()
    z = (1j * draw(3, seed=3).real).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda v, z, w: cauchy(v, z, w, backend=backend), (v, z, w))
    assert torch.autograd.gradgradcheck(lambda v, w: vandermonde(v, w, 3, backend=backend), (v, w))
    assert torch.autograd.gradgradcheck(lambda u, w: vandermonde_transpose(u, v.detach(), w, backend=backend), (u, w))


@everywhere
def test_only_the_wanted_gradients_are_made(backend, draw, poles):
    v, w, z = draw(2, 3, seed=1), poles(2, 3, seed=2), 1j * draw(5, seed=3).real
    for product in (lambda v, w: cauchy(v, z, w, backend=backend), lambda v, w: vandermonde(v, w, 5, backend=backend)):
        both = [tensor.clone().requires_grad_() for tensor in (v, w)]
        expected = torch.autograd.grad(product(*both).abs().sum(), both)
        for index in range(2):
            alone = [tensor.clone().requires_grad_(place == index) for place, tensor in enumerate((v, w))]
            product(*alone).abs().sum().backward()
            torch.testing.assert_close(alone[index].grad, expected[index], rtol=1e-12, atol=1e-12)
            assert alone[1 - index].grad is None


@everywhere
def test_the_axis_of_groups_may_be_there_or_not(backend, draw, poles):
    v, w, z, u = draw(2, 3, seed=1), poles(2, 3, seed=2), 1j * draw(5, seed=3).real, draw(2, 5, seed=4)
    for product in (
        lambda v, u, w: cauchy(v, z, w, backend=backend),
        lambda v, u, w: vandermonde(v, w, 5, backend=backend),
        lambda v, u, w: vandermonde_transpose(u, v, w, backend=backend),
    ):
        flat, grouped = ([tensor.clone().requires_grad_() for tensor in (v, u, w)] for _ in range(2))
        found, expected = product(*flat), product(flat[0][None], flat[1][None], flat[2])
        assert expected.shape == (1, *found.shape)
        torch.testing.assert_close(found, expected[0])
        found.abs().sum().backward()
        product(grouped[0][None], grouped[1][None], grouped[2]).abs().sum().backward()
        for one, other in zip(flat, grouped, strict=True):
            torch.testing.assert_close(one.grad, other.grad)


@on_gpu
def test_long_sequences_keep_their_digits(backend, draw, poles):
    v, x = draw(1, 3, 20, seed=1), poles(3, 20, seed=2, decay=1e-5)
    run = lambda v, x, backend: vandermonde(v, x, 70001, backend=backend)  # noqa: E731
    compare(run, v, x, backend=backend, dtype=torch.float32)


@on_gpu
def test_equal_inputs_give_equal_bits(backend, draw, poles):
    v, x, z = draw(2, 8, 32, seed=1).cfloat(), poles(8, 32, seed=2).cfloat(), (1j * draw(5000, seed=3).real).cfloat()

    def gradients():
        leaves = [tensor.clone().requires_grad_() for tensor in (v, x)]
        outputs = (vandermonde(*leaves, 5000, backend=backend), cauchy(leaves[0], z, leaves[1], backend=backend))
        return [*outputs, *(grad for out in outputs for grad in torch.autograd.grad(out.abs().sum(), leaves))]

    for one, other in zip(gradients(), gradients(), strict=True):
        assert torch.equal(one, other)


@on_gpu
def test_memory_that_was_used_before_does_not_shine_through(backend, draw, poles):
    v, x, z = draw(1, 2, 3, seed=1).cfloat(), poles(2, 3, seed=2).cfloat(), (1j * draw(77, seed=3).real).cfloat()
    clean = [vandermonde(v, x, 77, backend=backend), cauchy(v, z, x, backend=backend)]
    poison = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(4)]
    del poison
    for one, other in zip(clean, [vandermonde(v, x, 77, backend=backend), cauchy(v, z, x, backend=backend)], strict=True):
        assert torch.equal(one, other)


@on_gpu
def test_a_cuda_graph_captures_a_product(backend, draw, poles):
    v, x = draw(1, 4, 8, seed=1).cfloat(), poles(4, 8, seed=2).cfloat()
    expected = vandermonde(2 * v, x, 300, backend=backend)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = vandermonde(v, x, 300, backend=backend)
    v.mul_(2)
    graph.replay()
    torch.testing.assert_close(captured, expected, rtol=0, atol=0)


@on_gpu
@pytest.mark.parametrize("op", ["vandermonde", "cauchy"])
def test_memory_stays_within_half_as_much_again_as_what_is_given_and_asked_for(backend, op, draw, poles):
    copies, state, length = 64, 32, 16384
    v, x = draw(copies, state, seed=1).cfloat().requires_grad_(), poles(copies, state, seed=2).cfloat().requires_grad_()
    z = (1j * draw(length, seed=3).real).cfloat()

    def product():
        return vandermonde(v, x, length, backend=backend) if op == "vandermonde" else cauchy(v, z, x, backend=backend)

    cotangent = torch.randn_like(product())
    product().backward(cotangent)
    v.grad = x.grad = None
    held = v.nbytes + x.nbytes + cotangent.nbytes
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    product().backward(cotangent)
    torch.cuda.synchronize()
    needed = 2 * held
    assert torch.cuda.max_memory_allocated() - before + held <= 1.5 * needed


@pytest.mark.gpu
def test_tensor_cores_set_to_tf32_cost_the_plain_backend_no_digits():
    numbers = torch.Generator().manual_seed(0)
    v = torch.randn(4, 32, generator=numbers, dtype=torch.complex64).cuda()
    x = torch.complex(torch.full((4, 32), -0.01), 3 * torch.rand(4, 32, generator=numbers)).cuda()
    exact = vandermonde(v.cdouble(), x.cdouble(), 4097, backend="naive")
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        found = vandermonde(v, x, 4097, backend="blocked")
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert (found - exact).abs().max() / exact.abs().max() < 2e-6


@pytest.mark.gpu
def test_once_built_the_cuda_kernels_are_what_auto_takes():
    cuda_backend.build_cuda_kernels()
    request = Request.of("s4/cauchy", device="cuda", dtype="complex64", groups=1, copies=4, state=8, length=64, options={"named": False})
    assert select(request).backend.name == "cuda"


def test_without_triton_the_reasons_say_what_to_install():
    program = (
        "import importlib.util, sys; sys.modules['triton'] = None\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'triton' else find(name, *rest)\n"
        "from pararnn.selection import Request, consider\nfrom pararnn.registry import installed\n"
        "for op in ('cauchy', 'vandermonde', 'vandermonde_transpose'):\n"
        "    request = Request.of(f's4/{op}', dtype='complex64')\n"
        "    print(*(one.reasons[0] for one in consider(installed().backends(request.op), request) if one.label == 'triton'))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["triton is not installed; pip install 'pararnn-s4[triton]'"] * 3


def test_without_a_gpu_the_cuda_kernels_say_so():
    request = Request.of("s4/cauchy", device="cpu", dtype="complex64", groups=70000, copies=1, state=1, length=1 << 33)
    length, groups, device = cuda_backend.reasons(request)
    assert "exact up to 16777216 in complex64" in length
    assert "at most 65535 groups" in groups
    assert "the tensors are on cpu" in device
    if not torch.cuda.is_available():
        assert cuda_backend.reasons(Request.of("s4/cauchy", device="cuda", dtype="complex64")) == (
            "it runs on CUDA devices, and torch sees none here",
        )
    assert "it works in complex64 and complex128" in cuda_backend.reasons(Request.of("s4/cauchy", dtype="float32"))[0]
