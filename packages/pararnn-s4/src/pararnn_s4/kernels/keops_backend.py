"""The products as lazy reductions of KeOps: compiled for each formula, no matrix in memory, CPU and NVIDIA GPUs.

KeOps compiles one module for each formula and dtype at its first use (about 15 s of CPU time each), and keeps it in
`~/.cache/keops*`, or below `KEOPS_CACHE_FOLDER`. Processes that start together would write the same files, so that the first use of a formula
waits for those of other processes. Its compiler is `CXX`; one that links the C++ library statically makes the process crash at the first call,
and `CXX=/usr/bin/g++` with an empty cache is the remedy. Oracle: `naive`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pararnn.selection import Request
from pararnn_s4.kernels import cauchy_op, vandermonde_op
from pararnn_s4.kernels.reciprocals import Pair

DTYPES = ("complex64", "complex128")
DEVICES = ("cpu", "cuda")
# KeOps writes its chatter to standard output, which is redirected for the whole process while it does.
_quiet = threading.RLock()
# Formulas, dtypes and devices that this process has used, whose modules are compiled and loaded.
_used: set[tuple[str, torch.dtype, str]] = set()


def reasons(request: Request) -> tuple[str, ...]:
    """Obstacles: another device or dtype, a transform of torch around the call, pykeops or a compiler is not installed."""
    found = []
    if request.device not in DEVICES:
        found.append(f"it runs on {' and '.join(DEVICES)}, the tensors are on {request.device}")
    if request.dtype not in DTYPES:
        found.append(f"it works in {', '.join(DTYPES)}, the tensors are {request.dtype}")
    if request.option("transformed"):
        found.append("a transform of torch.func, forward-mode differentiation or a tracer is active, and torch cannot look into KeOps")
    if importlib.util.find_spec("pykeops") is None:
        found.append("pykeops is not installed; pip install 'pararnn-s4[keops]'")
    if shutil.which(compiler := os.environ.get("CXX", "g++")) is None:
        found.append(f"KeOps needs a C++ compiler, and {compiler} is not on the path; install it or set CXX")
    return tuple(found)


def probe() -> tuple[str, ...] | None:
    """Compile and run a Cauchy product, on the GPU where there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if obstacles := reasons(Request.of("s4/cauchy", device=device, dtype="complex64")):
        return obstacles
    one = torch.ones(1, 1, 1, dtype=torch.complex64, device=device)
    cauchy(one, torch.zeros(1, 2, dtype=torch.complex64, device=device), one[0], conj=True)
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
    terms = "ComplexDivide(v, z - w)" + (" + ComplexDivide(Conj(v), z - Conj(w))" if conj else "")
    return torch.view_as_complex(_sum(terms, ("v = Vj(2)", _pairs(v)), ("w = Vj(2)", _pairs(w)[None]), ("z = Vi(2)", _pairs(z)[None])))


def _cauchy_gradients(v: Tensor, z: Tensor, w: Tensor, grad: Tensor, *, conj: bool) -> tuple[Tensor, Tensor]:
    # Both sums in one module; see `reciprocals.over_nodes`.
    first, second = "ComplexDivide(g, z - w)", "ComplexDivide(g, z - Conj(w))"
    terms = f"Conj({first})" + (f" + {second}" if conj else "")
    slopes = f"Conj(ComplexDivide({first}, z - w))" + (f" + ComplexDivide({second}, z - Conj(w))" if conj else "")
    variables = ("w = Vi(2)", _pairs(w)[None]), ("z = Vj(2)", _pairs(z)[None]), ("g = Vj(2)", _pairs(grad.conj()))
    of_v, slope = torch.view_as_complex(_sum(f"Concat({terms}, {slopes})", *variables).unflatten(-1, (2, 2))).unbind(-1)
    return of_v, (v.conj() * slope).sum(0)


def _vandermonde_product(v: Pair, x: Pair, length: int, conj: bool) -> Pair:
    variables = ("v = Vj(2)", torch.stack(v, -1)), ("x = Vj(2)", torch.stack(x, -1)[None]), ("l = Vi(1)", _steps(length, x))
    real, imag = _sum("ComplexMult(v, ComplexExp(l * x))", *variables).unbind(-1)
    return 2 * real if conj else real, imag


def _vandermonde_moments(u: Tensor, x: Pair, wanted: tuple[bool, bool]) -> tuple[Pair, ...]:
    # Always both: another module would take seconds to compile.
    formula = "Concat(u * ComplexExp(l * x), (l * u) * ComplexExp(l * x))"
    variables = ("u = Vj(1)", u.unsqueeze(-1)), ("x = Vi(2)", torch.stack(x, -1)[None]), ("l = Vj(1)", _steps(u.shape[-1], x))
    both = _sum(formula, *variables).unflatten(-1, (2, 2)).unbind(-2)
    return tuple(sums.unbind(-1) for sums, want in zip(both, wanted, strict=True) if want)


CAUCHY = cauchy_op.Engine(_cauchy_product, _cauchy_gradients)
VANDERMONDE = vandermonde_op.Engine(_vandermonde_product, _vandermonde_moments)


def _sum(formula: str, *variables: tuple[str, Tensor]) -> Tensor:
    """The sum of `formula` over the variables `Vj`; each comes with a tensor `(groups or 1, copies or 1, entries, numbers)`."""
    names, tensors = zip(*variables, strict=True)
    module = (formula, tensors[0].dtype, tensors[0].device.type)
    with contextlib.nullcontext() if module in _used else _alone(), _silence():
        reduction = _reduction(formula, names)
        result: Tensor = reduction(*(tensor.contiguous() for tensor in tensors), backend="GPU" if tensors[0].is_cuda else "CPU")
    _used.add(module)
    return result


@functools.cache
def _reduction(formula: str, variables: tuple[str, ...]) -> Any:
    # It searches for CUDA when imported, and says what it found.
    from pykeops.torch import Genred

    return Genred(formula, list(variables), reduction_op="Sum", axis=1)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Hold the lock that keeps this user's other processes from importing KeOps or compiling at the same time."""
    import fcntl

    with (Path(tempfile.gettempdir()) / f"pararnn-keops-{os.getuid()}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with _quiet, contextlib.redirect_stdout(io.StringIO()):
        yield


def _pairs(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj())


def _steps(length: int, x: Pair) -> Tensor:
    return torch.arange(length, device=x[0].device, dtype=x[0].dtype).reshape(1, 1, length, 1)
