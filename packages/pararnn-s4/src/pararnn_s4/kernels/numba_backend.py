"""The Cauchy product as a loop that numba compiles: on the CPU, with no array of state by length.

Nodes are taken by blocks whose reciprocals stay in the innermost cache and serve every group; see `reciprocals` for the formula. Backward
computes them again. Numba keeps the compiled loops on disk for the next process. Copies are shared out over our own thread pool, because
numba's own threads may not be entered from two Python threads at once. Oracle: `naive`.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from pararnn.selection import Request
from pararnn_s4.kernels.cauchy_op import Engine, cauchy_by

DTYPES = ("complex64", "complex128")
# Below this many pairs of pole and node one thread is faster than handing tasks to several.
WORTH_THREADS = 1 << 17
# Re-association lets sums be vectorised; infinities and NaN keep their meaning.
FAST = {"contract", "reassoc", "nsz", "arcp"}
BLOCK = 256


def reasons(request: Request) -> tuple[str, ...]:
    """Obstacles: another device or dtype, a transform of torch around the call, or numba is not installed."""
    found = []
    if request.device != "cpu":
        found.append(f"it runs on the CPU, the tensors are on {request.device}")
    if request.dtype not in DTYPES:
        found.append(f"it works in {', '.join(DTYPES)}, the tensors are {request.dtype}")
    if request.option("transformed"):
        found.append("a transform of torch.func, forward-mode differentiation or a tracer is active, and torch cannot look into compiled loops")
    if importlib.util.find_spec("numba") is None:
        found.append("numba is not installed; pip install 'pararnn-core[cpu]'")
    return tuple(found)


def probe() -> tuple[str, ...] | None:
    """Compile both loops and differentiate a small product."""
    if obstacles := reasons(Request.of("s4/cauchy", dtype="complex64")):
        return obstacles
    one = torch.ones(1, 1, 1, dtype=torch.complex64, requires_grad=True)
    cauchy(one, torch.zeros(1, 2, dtype=torch.complex64), one[0], conj=True).real.sum().backward()
    return None


def cauchy(v: Tensor, z: Tensor, w: Tensor, *, conj: bool) -> Tensor:
    """`sum_n v[g, h, n] / (z[h, l] - w[h, n])`, with the conjugate pairs when `conj`; see `naive.cauchy`."""
    return cauchy_by(ENGINE, v, z, w, conj=conj)


def product(v: Tensor, z: Tensor, w: Tensor, *, conj: bool) -> Tensor:
    """The product by the compiled loop."""
    result = v.new_empty(*v.shape[:2], z.shape[-1])
    _over_copies(_loops()[0], (v, z, w, result), conj)
    return result


def gradients(v: Tensor, z: Tensor, w: Tensor, grad: Tensor, *, conj: bool) -> tuple[Tensor, Tensor]:
    """Gradients of `v` and `w` by the compiled loop."""
    of_v, of_w = (torch.zeros_like(tensor, memory_format=torch.contiguous_format) for tensor in (v, w))
    _over_copies(_loops()[1], (v, z, w, grad, of_v, of_w), conj)
    return of_v, of_w


ENGINE = Engine(product, gradients)


def _over_copies(loop: Callable[..., None], tensors: tuple[Tensor, ...], conj: bool) -> None:
    """Run `loop` on all copies, divided among as many threads as torch may use."""
    _, z, w, *_ = tensors
    copies, state = w.shape
    # Contiguous, because numba compiles anew for every pattern of strides; results are so already.
    arrays = [torch.view_as_real(tensor.detach().contiguous()).numpy() for tensor in tensors]
    one = arrays[0].dtype.type(1)
    workers = min(torch.get_num_threads(), copies) if copies * state * z.shape[-1] >= WORTH_THREADS else 1
    bounds = [copies * index // workers for index in range(workers + 1)]
    others = [_pool(workers - 1).submit(loop, *arrays, one, conj, bounds[index], bounds[index + 1]) for index in range(1, workers)]
    loop(*arrays, one, conj, 0, bounds[1])
    for share in others:
        share.result()


@functools.cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="pararnn-cauchy")


if hasattr(os, "register_at_fork"):
    # A forked process inherits pools without their threads, which would wait for ever.
    os.register_at_fork(after_in_child=_pool.cache_clear)


@functools.cache
def _loops() -> tuple[Callable[..., None], Callable[..., None]]:
    """The compiled product and its gradients of `v` and `w`; complex values are pairs of numbers in the last dimension."""
    import numba
    import numpy

    compiled = numba.njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")

    @compiled
    def tables(re, im, w_re, w_im, one, conj, count, r, s):
        """Real and imaginary part of both reciprocals of a block of nodes, in `r` and `s`."""
        for node in range(count):
            real = re[node] - w_re
            imag = im[node] - w_im
            scale = one / (real * real + imag * imag)
            r[0, node] = real * scale
            r[1, node] = -imag * scale
        if conj:
            for node in range(count):
                real = re[node] - w_re
                imag = im[node] + w_im
                scale = one / (real * real + imag * imag)
                s[0, node] = real * scale
                s[1, node] = -imag * scale

    @compiled
    def product(v, z, w, y, one, conj, first, last):
        groups, _, state, _ = v.shape
        length = z.shape[1]
        r = numpy.zeros((2, BLOCK), v.dtype)
        s = numpy.zeros((2, BLOCK), v.dtype)
        re = numpy.zeros(BLOCK, v.dtype)
        im = numpy.zeros(BLOCK, v.dtype)
        sums = numpy.zeros((groups, 2, BLOCK), v.dtype)
        for copy in range(first, last):
            row = copy if z.shape[0] > 1 else 0
            for start in range(0, length, BLOCK):
                count = min(BLOCK, length - start)
                for node in range(count):
                    re[node] = z[row, start + node, 0]
                    im[node] = z[row, start + node, 1]
                sums[:] = 0
                for n in range(state):
                    tables(re, im, w[copy, n, 0], w[copy, n, 1], one, conj, count, r, s)
                    for group in range(groups):
                        c = v[group, copy, n, 0]
                        e = v[group, copy, n, 1]
                        total = sums[group]
                        for node in range(count):
                            total[0, node] += c * (r[0, node] + s[0, node]) - e * (r[1, node] - s[1, node])
                            total[1, node] += c * (r[1, node] + s[1, node]) + e * (r[0, node] - s[0, node])
                for group in range(groups):
                    for node in range(count):
                        y[group, copy, start + node, 0] = sums[group, 0, node]
                        y[group, copy, start + node, 1] = sums[group, 1, node]

    @compiled
    def gradients(v, z, w, grad, of_v, of_w, one, conj, first, last):
        groups, _, state, _ = v.shape
        length = z.shape[1]
        r = numpy.zeros((2, BLOCK), v.dtype)
        s = numpy.zeros((2, BLOCK), v.dtype)
        re = numpy.zeros(BLOCK, v.dtype)
        im = numpy.zeros(BLOCK, v.dtype)
        drive = numpy.zeros((groups, 2, BLOCK), v.dtype)
        zero, two = one - one, one + one
        for copy in range(first, last):
            row = copy if z.shape[0] > 1 else 0
            for start in range(0, length, BLOCK):
                count = min(BLOCK, length - start)
                for node in range(count):
                    re[node] = z[row, start + node, 0]
                    im[node] = z[row, start + node, 1]
                for group in range(groups):
                    for node in range(count):
                        drive[group, 0, node] = grad[group, copy, start + node, 0]
                        drive[group, 1, node] = -grad[group, copy, start + node, 1]
                for n in range(state):
                    tables(re, im, w[copy, n, 0], w[copy, n, 1], one, conj, count, r, s)
                    for group in range(groups):
                        own = drive[group]
                        v_re, v_im, w_re, w_im = zero, zero, zero, zero
                        for node in range(count):
                            k, m = own[0, node], own[1, node]
                            a, b, c, d = r[0, node], r[1, node], s[0, node], s[1, node]
                            v_re += k * (a + c) - m * (b + d)
                            v_im -= k * (b - d) + m * (a - c)
                            # The same with squares: those of a + ib and of c + id.
                            e, f, g, h = a * a - b * b, a * b, c * c - d * d, c * d
                            w_re += k * (e + g) - two * m * (f + h)
                            w_im -= two * k * (f - h) + m * (e - g)
                        of_v[group, copy, n, 0] += v_re
                        of_v[group, copy, n, 1] += v_im
                        real = v[group, copy, n, 0]
                        imag = v[group, copy, n, 1]
                        of_w[copy, n, 0] += real * w_re + imag * w_im
                        of_w[copy, n, 1] += real * w_im - imag * w_re

    return product, gradients
