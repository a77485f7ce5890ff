"""The products of `reciprocals` and `two_level` fused by torch.compile: wherever its compiler works, in real arithmetic throughout.

Each graph is made for one dtype and form, at its first use, with sizes left open: a new length or batch costs nothing, but a size of 1 is
a form of its own. A first compilation takes from seconds to a minute, so `auto` leaves this backend to those who name it. Backward is
compiled too and computes again what it needs. Oracle: `naive`.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import shutil
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import BackendError, sentence
from pararnn.selection import Request
from pararnn_s4.kernels import cauchy_op, two_level, vandermonde_op
from pararnn_s4.kernels.reciprocals import Pair, reciprocals, squares, table

DTYPES = ("complex64", "complex128")
_numbers = itertools.count()
_failures: dict[str, str] = {}
_proven: set[object] = set()


def reasons(request: Request) -> tuple[str, ...]:
    """Obstacles: a transform of torch around the call, another dtype, or no compiler for the device."""
    found = []
    if request.dtype not in DTYPES:
        found.append(f"it works in {', '.join(DTYPES)}, the tensors are {request.dtype}")
    if request.option("transformed"):
        found.append("a transform of torch.func, forward-mode differentiation or a tracer is active, and torch cannot look into a compiled graph")
    if (obstacle := _compiler_obstacle(request.device)) is not None:
        found.append(obstacle)
    return tuple(found)


def probe() -> tuple[str, ...] | None:
    """Compile a Cauchy product, forward and backward, and a Vandermonde product."""
    if obstacles := reasons(Request.of("s4/cauchy", dtype="complex64")):
        return obstacles
    one = torch.ones(1, 2, 3, dtype=torch.complex64, requires_grad=True)
    cauchy(one, torch.zeros(1, 4, dtype=torch.complex64), one[0], conj=True).real.sum().backward()
    vandermonde(one.detach(), one.detach()[0], 4, conj=True)
    return None


def cauchy(v: Tensor, z: Tensor, w: Tensor, *, conj: bool) -> Tensor:
    """`sum_n v[g, h, n] / (z[h, l] - w[h, n])`, with the conjugate pairs when `conj`; see `naive.cauchy`."""
    return cauchy_op.cauchy_by(CAUCHY, v, z, w, conj=conj)


def vandermonde(v: Tensor, x: Tensor, length: int, *, conj: bool) -> Tensor:
    """`sum_n v[g, h, n] exp(x[h, n] l)`, twice its real part when `conj`; see `naive.vandermonde`."""
    return vandermonde_op.vandermonde_by(VANDERMONDE, v, x, length, conj=conj)


def vandermonde_transpose(u: Tensor, x: Tensor) -> Tensor:
    """`sum_l u[g, h, l] exp(x[h, n] l)`; see `naive.vandermonde_transpose`."""
    return vandermonde_op.transpose_by(VANDERMONDE, u, x)


def _cauchy_product(v: Tensor, z: Tensor, w: Tensor, *, conj: bool) -> Tensor:
    real, imag = _run(_sum_over_state, *_parts(v), *_parts(z), *_parts(w), form=(conj,))
    return torch.complex(real, imag)


def _cauchy_gradients(v: Tensor, z: Tensor, w: Tensor, grad: Tensor, *, conj: bool) -> tuple[Tensor, Tensor]:
    v_real, v_imag, w_real, w_imag = _run(_sums_over_nodes, *_parts(v), *_parts(z), *_parts(w), *_parts(grad), form=(conj,))
    return torch.complex(v_real, v_imag), torch.complex(w_real, w_imag)


def _sum_over_state(
    v_real: Tensor, v_imag: Tensor, z_real: Tensor, z_imag: Tensor, w_real: Tensor, w_imag: Tensor, conj: bool
) -> tuple[Tensor, Tensor]:
    """See `reciprocals.over_state`; a sum instead of a matrix product, so that the table is never stored."""
    sum_real, sum_imag, difference_real, difference_imag = table(reciprocals((z_real, z_imag), (w_real, w_imag), conj))
    real, imag = v_real.unsqueeze(-1), v_imag.unsqueeze(-1)
    return (real * sum_real - imag * difference_imag).sum(-2), (real * sum_imag + imag * difference_real).sum(-2)


def _sums_over_nodes(
    v_real: Tensor,
    v_imag: Tensor,
    z_real: Tensor,
    z_imag: Tensor,
    w_real: Tensor,
    w_imag: Tensor,
    grad_real: Tensor,
    grad_imag: Tensor,
    conj: bool,
) -> tuple[Tensor, ...]:
    """Real and imaginary part of the gradients of `v` and `w`; see `reciprocals.over_nodes`."""
    pairs = reciprocals((z_real, z_imag), (w_real, w_imag), conj)
    real, imag = grad_real.unsqueeze(-2), -grad_imag.unsqueeze(-2)
    sums = []
    for sum_real, sum_imag, difference_real, difference_imag in (table(pairs), table(squares(pairs))):
        sums.append((real * sum_real - imag * sum_imag).sum(-1))
        sums.append(-(real * difference_imag + imag * difference_real).sum(-1))
    of_v_real, of_v_imag, slope_real, slope_imag = sums
    of_w_real, of_w_imag = v_real * slope_real + v_imag * slope_imag, v_real * slope_imag - v_imag * slope_real
    return of_v_real, of_v_imag, of_w_real.sum(0), of_w_imag.sum(0)


def _vandermonde_product(v: Pair, x: Pair, length: int, conj: bool) -> Pair:
    steps = two_level.steps_for(x, length, len(v[0]) * (1 if conj else 2))
    real, imag = _run(_table_product, *v, *x, *steps, form=(conj,))
    return real[..., :length], imag[..., :length]


def _vandermonde_moments(u: Tensor, x: Pair, wanted: tuple[bool, bool]) -> tuple[Pair, ...]:
    steps = two_level.steps_for(x, u.shape[-1], len(u))
    # Always both: another graph would take seconds to compile, the sums that are not wanted take microseconds.
    plain, weighted = _run(_table_moments, two_level.in_blocks(u, *steps), *x, *steps)
    return tuple(sums for sums, want in zip((plain, weighted), wanted, strict=True) if want)


def _table_product(v_real: Tensor, v_imag: Tensor, x_real: Tensor, x_imag: Tensor, starts: Tensor, steps: Tensor, conj: bool) -> Pair:
    return two_level.table_product((v_real, v_imag), (x_real, x_imag), starts, steps, conj)


def _table_moments(u: Tensor, x_real: Tensor, x_imag: Tensor, starts: Tensor, steps: Tensor) -> tuple[Pair, ...]:
    return two_level.table_moments(u, (x_real, x_imag), starts, steps, (True, True))


CAUCHY = cauchy_op.Engine(_cauchy_product, _cauchy_gradients)
VANDERMONDE = vandermonde_op.Engine(_vandermonde_product, _vandermonde_moments)


def _parts(tensor: Tensor) -> Pair:
    """Real and imaginary part, of a conjugated view too; the compiler understands no complex numbers."""
    return tensor.real, tensor.imag


def _run(function: Callable[..., Any], *tensors: Tensor, form: tuple[bool, ...] = ()) -> Any:
    """`function` of `tensors` and `form`, compiled."""
    tensors = tuple(tensor.contiguous() for tensor in tensors)
    sizes = [size for tensor in tensors for size in tensor.shape]
    # The compiler takes sizes that are equal, or 1, to be so by nature, and would start anew for others up to a limit of versions.
    pattern = tuple(1 if size == 1 else -sizes.index(size) for size in sizes)
    device = tensors[0].device.type
    key = (function, form, pattern, tensors[0].dtype, device, torch.get_num_threads())
    graph = _graph(*key)
    if key in _proven:
        return graph(*tensors, *form)
    try:
        result = graph(*tensors, *form)
    except Exception as error:
        _failures[device] = f"torch.compile failed ({sentence(error).splitlines()[0]})"
        raise BackendError(f"torch.compile could not compile {function.__name__} for {device}; use backend='auto'. {sentence(error)}") from error
    _proven.add(key)
    return result


@functools.cache
def _graph(function: Callable[..., Any], *form: object) -> Callable[..., Any]:
    """A compiled copy of `function` for one form, with code of its own: torch counts versions by code, and gives up after a few."""
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_numbers)}")
    return torch.compile(types.FunctionType(code, function.__globals__), dynamic=True, fullgraph=True)


def _compiler_obstacle(device: str) -> str | None:
    if device in _failures:
        return _failures[device]
    if device == "cuda":
        return None if importlib.util.find_spec("triton") else "torch.compile needs triton on a GPU, and it is not installed; pip install triton"
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "cl" if sys.platform == "win32" else "g++")
    return None if shutil.which(compiler) else f"torch.compile needs a C++ compiler, and {compiler} is not on the path; install it or set CXX"
