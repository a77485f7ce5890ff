"""The public scan: checks its inputs, brings them to the operator's form, and back."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.errors import DTypeError, InputError, ShapeError
from pararnn.scans.dispatch import reads_half
from pararnn.scans.op import differentiable_scan
from pararnn.scans.segments import check_offsets
from pararnn.structures.base import Structure

HALF = (torch.float16, torch.bfloat16)
DTYPES = (*HALF, torch.float32, torch.float64, torch.complex64, torch.complex128)


def scan(
    transition: Structure,
    bias: Tensor,
    initial: Tensor | None = None,
    *,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """All states of `h[t] = A[t] h[t-1] + b[t]`, shaped as `bias`.

    Inputs are read as they lie in memory. On a GPU diagonal maps and terms that have their steps next to each other (tensors `(*batch, state, time)`,
    handed over as `.mT`) have kernels of their own, and states and gradients lie likewise.

    Args:
        transition: the maps `A`; each leaf starts with the dimensions `(*batch, time)` of `bias`, or ones that broadcast to them.
        bias: the terms `b`, `(*batch, time, state)`.
        initial: the state before the first step, `(*batch, state)`; zero if left out. For packed sequences `(segments, state)`.
        reverse: walk from the last step to the first, `h[t] = A[t] h[t+1] + b[t]`.
        cu_seqlens: `(segments + 1,)` integers, for `bias` `(1, time, state)` or `(time, state)` holding several sequences one after the other.
        backend: a backend's name, or `"auto"`; `pararnn doctor` lists them.

    Raises:
        ShapeError: shapes that do not fit each other.
        DTypeError: something else than a structure and tensors of floating point, real or complex.
        InputError: offsets out of order; inputs on different devices.
        BackendError: the named backend cannot serve the request.
    """
    _check(transition, bias, initial)
    lead = bias.ndim - 1
    dtype = bias.dtype
    for tensor in (*transition.leaves(), *(() if initial is None else (initial,))):
        dtype = torch.promote_types(dtype, tensor.dtype)
    batch, length, size = bias.shape[:-2], bias.shape[-2], bias.shape[-1]
    rows = batch.numel()
    terms = bias.reshape(rows, length, size)
    carry = torch.float32 if dtype in HALF and not reads_half(type(transition), terms, dtype, backend=backend) else dtype
    leaves = [leaf.expand(bias.shape[:-1] + leaf.shape[lead:]).reshape(rows, length, *leaf.shape[lead:]).to(carry) for leaf in transition.leaves()]
    offsets = None
    segments = 1
    if cu_seqlens is not None:
        if rows != 1:
            raise ShapeError(f"packed sequences lie along one row, but bias has batch shape {tuple(batch)}; concatenate them along time")
        # Their values are checked where they are read, inside the operator: a compiled graph cannot look at them here.
        check_offsets(cu_seqlens)
        if cu_seqlens.device.type not in ("cpu", bias.device.type):
            raise InputError(f"cu_seqlens is on {cu_seqlens.device}, but bias on {bias.device}; move cu_seqlens there or to the CPU")
        segments = cu_seqlens.numel() - 1
        offsets = cu_seqlens.to(torch.int64)
    start = None if initial is None else _start(initial, batch, segments, size, packed=cu_seqlens is not None).to(carry)
    maps = type(transition).from_leaves(*leaves)
    states = differentiable_scan(maps, terms.to(carry), start, offsets, reverse=reverse, backend=backend)
    return states.reshape(bias.shape).to(dtype)


def _check(transition: Structure, bias: Tensor, initial: Tensor | None) -> None:
    if not isinstance(transition, Structure):
        raise DTypeError(f"the maps must be a Structure, got {type(transition).__name__}; wrap the tensor, as in scan(Diagonal(decay), bias)")
    for tensor in (bias, *transition.leaves(), *(() if initial is None else (initial,))):
        if not isinstance(tensor, Tensor):
            raise DTypeError(f"scan works on tensors, got {type(tensor).__name__}; convert with torch.as_tensor")
        if tensor.dtype not in DTYPES:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise DTypeError(f"scan works in {names}, got {tensor.dtype}; convert with .float() or .double()")
        if tensor.device != bias.device:
            raise InputError(
                f"bias is on {bias.device}, but another input on {tensor.device}; move them to one device with .to({str(bias.device)!r})"
            )
    if bias.ndim < 2:
        raise ShapeError(f"bias must be (*batch, time, state), got shape {tuple(bias.shape)}")
    lead = bias.ndim - 1
    for leaf in transition.leaves():
        fits = leaf.ndim >= lead and all(have in (1, want) for have, want in zip(leaf.shape[:lead], bias.shape[:-1], strict=True))
        if not fits:
            raise ShapeError(
                f"a leaf of the {type(transition).__name__} maps has shape {tuple(leaf.shape)}; it must start with "
                f"{tuple(bias.shape[:-1])}, the batch and time dimensions of bias {tuple(bias.shape)}"
            )


def _start(initial: Tensor, batch: torch.Size, segments: int, size: int, *, packed: bool) -> Tensor:
    want = (segments, size) if packed else (*batch, size)
    if tuple(initial.shape) != want:
        raise ShapeError(
            f"the initial state has shape {tuple(initial.shape)}; it must be {want}, {'(segments, state)' if packed else '(*batch, state)'}"
        )
    return initial.reshape(1 if packed else batch.numel(), segments, size)
