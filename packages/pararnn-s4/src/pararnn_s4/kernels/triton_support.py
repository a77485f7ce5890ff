"""What the Triton kernels share: where they can run, and how complex tensors are handed over.

Triton has no complex numbers, so that every complex tensor `(..., )` travels as the real one `(..., 2)` over the same memory.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable

import torch
from torch import Tensor

from pararnn.selection import Request

DTYPES = ("complex64", "complex128")
OLDEST_CAPABILITY = (7, 0)
WIDEST_GRID = 65535
LONGEST = {"complex64": 1 << 24, "complex128": 1 << 31}
# Below this many programs a grid leaves most of a large GPU idle, and long sums are cut into parts.
WORTH_SPLITTING = 512
# Products and sums in one operation, as the kernels were measured; versions of Triton differ in what they do unasked.
FUSED = {"enable_fp_fusion": True}


def reasons(request: Request) -> tuple[str, ...]:
    """Obstacles: device, dtype, sizes, a missing Triton, or a sequence too long to count in floats. Needs no Triton to be asked."""
    found = []
    longest = LONGEST.get(request.dtype)
    if request.op != "s4/cauchy" and longest is not None and request.size("length", 1) > longest:
        found.append(f"it counts steps in floats, exact up to {longest} in {request.dtype}; the length is {request.size('length')}")
    if importlib.util.find_spec("triton") is None:
        found.append("triton is not installed; pip install 'pararnn-s4[triton]'")
    if request.dtype not in DTYPES:
        found.append(f"it works in {' and '.join(DTYPES)}, the request is {request.dtype}")
    if request.option("transformed"):
        found.append("it cannot run inside a transform of torch.func")
    for axis in ("copies", "groups"):
        if request.size(axis, 1) > WIDEST_GRID:
            found.append(f"a launch has at most {WIDEST_GRID} {axis}, the request has {request.size(axis)}")
    if request.device == "cpu" and not interpreted():
        found.append("it runs on CUDA devices, the tensors are on the CPU (TRITON_INTERPRET=1 interprets it there, slowly)")
    elif request.device not in ("cpu", "cuda"):
        found.append(f"it runs on CUDA devices, the tensors are on {request.device}")
    elif request.device == "cuda" and not torch.cuda.is_available():
        found.append("it runs on CUDA devices, and torch sees none here")
    elif request.device == "cuda" and (capability := torch.cuda.get_device_capability()) < OLDEST_CAPABILITY:
        found.append(f"it needs compute capability {OLDEST_CAPABILITY[0]}.{OLDEST_CAPABILITY[1]}, this GPU has {capability[0]}.{capability[1]}")
    return tuple(found)


def interpreted() -> bool:
    """Whether Triton runs its kernels in its interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def pairs(tensor: Tensor) -> Tensor:
    """A complex tensor as real pairs `(..., 2)`, contiguous."""
    return torch.view_as_real(tensor.detach().resolve_conj().contiguous())


def second_derivative(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], cotangent: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of `function(*inputs)` that can be differentiated again; by plain PyTorch, for whoever asks with `create_graph=True`."""
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    found = iter(torch.autograd.grad(function(*inputs), wanted, cotangent, create_graph=True))
    return tuple(next(found) if tensor.requires_grad else None for tensor in inputs)
