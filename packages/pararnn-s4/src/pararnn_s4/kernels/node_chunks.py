"""The Cauchy product in plain PyTorch by pieces of copies and nodes, small enough to stay in the processor's cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pararnn_s4.kernels.reciprocals import Pair, over_nodes, over_state, reciprocals, squares, table

# Values of one real table. On a CPU some of them stay in the cache (measured, between 2**15 and 2**18); a GPU wants few launches instead.
CACHED = 1 << 17
LAUNCHED = 1 << 24
NODES = 1024


def whole(v: Tensor, z: Tensor, w: Tensor, *, conj: bool) -> Tensor:
    """The product in one piece, by operations that torch differentiates, transforms and compiles."""
    return over_state(v, table(_reciprocals(z, w, conj)))


def product(v: Tensor, z: Tensor, w: Tensor, *, conj: bool) -> Tensor:
    """The product, piece by piece."""
    result = v.new_empty(*v.shape[:2], z.shape[-1])
    for copies, nodes in _pieces(z, w):
        result[:, copies, nodes] = whole(v[:, copies], z[_rows(z, copies), nodes], w[copies], conj=conj)
    return result


def gradients(v: Tensor, z: Tensor, w: Tensor, grad: Tensor, *, conj: bool) -> Pair:
    """Gradients of `v` and `w`, piece by piece."""
    of_v, of_w = torch.zeros_like(v), torch.zeros_like(w)
    drive = grad.conj().resolve_conj()
    for copies, nodes in _pieces(z, w):
        pairs = _reciprocals(z[_rows(z, copies), nodes], w[copies], conj)
        of_v[:, copies] += over_nodes(drive[:, copies, nodes], table(pairs))
        of_w[copies] += (v[:, copies].conj() * over_nodes(drive[:, copies, nodes], table(squares(pairs)))).sum(0)
    return of_v, of_w


def gradient_of_nodes(v: Tensor, z: Tensor, w: Tensor, grad: Tensor, *, conj: bool) -> Tensor:
    """Gradient of `z`, which few models need, piece by piece."""
    of_z = torch.zeros_like(z)
    for copies, nodes in _pieces(z, w):
        rows = _rows(z, copies)
        slopes = table(squares(_reciprocals(z[rows, nodes], w[copies], conj)))
        each = (grad[:, copies, nodes] * over_state(v[:, copies], slopes).conj()).sum(0)
        of_z[rows, nodes] -= each if len(z) > 1 else each.sum(0, keepdim=True)
    return of_z


def _reciprocals(z: Tensor, w: Tensor, conj: bool) -> tuple[Pair, Pair | None]:
    return reciprocals((z.real, z.imag), (w.real, w.imag), conj)


def _rows(z: Tensor, copies: slice) -> slice:
    """The rows of `z` that belong to `copies`; all of them share a single one."""
    return copies if len(z) > 1 else slice(None)


def _pieces(z: Tensor, w: Tensor) -> Iterator[tuple[slice, slice]]:
    """Slices of copies and of nodes, each piece of about as many values as the device likes."""
    copies, state = w.shape
    budget = CACHED if w.device.type == "cpu" else LAUNCHED
    width = max(1, min(z.shape[-1], max(NODES, budget // (copies * state)), budget // state))
    height = max(1, budget // (state * width))
    for first in range(0, copies, height):
        for start in range(0, z.shape[-1], width):
            yield slice(first, first + height), slice(start, start + width)
