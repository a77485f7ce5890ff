"""The two passes of a fused solve on a GPU, by addresses: nothing is made for kernels to read that lies in memory already.

A small solve takes as long as what Python and PyTorch do around its kernels, and that is mostly views of projections and biases, one for each
operand. The first solve of a kind makes them, as any solve by an engine; the next ones count from where the tensors begin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from pararnn.compiler.gpu import backward, forward
from pararnn.compiler.gpu.backward_prepared import Prepared
from pararnn.compiler.program import Kind, Program
from pararnn_cfc import fused_inside as inside
from pararnn_cfc.fused_setting import Setting
from pararnn_cfc.fused_sources import Needs, Sources, constants_of, features_of, projections_of

# Bytes of projections that the forward pass leaves for the backward pass, at most: larger ones are made again, which costs less than to keep them.
KEPT = 1 << 22
REMEMBERED = 1024

Key: TypeAlias = tuple[Any, ...]

# Kernels by the setting, which is told by its address, and the layout of what they read.
_solves: dict[Key, forward.Prepared] = {}
_gradients: dict[Key, Prepared] = {}


def solve(setting: Setting, sources: Sources, offsets: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """States `(batch, time, state)`, the record of the engine, and the projections `(batch * time, 2 state)`."""
    x, weight, _, _, initial = sources
    wx = functional.linear(features_of(x), weight)
    operands = addresses_of(sources, wx)
    key = (setting, x.shape[2], initial.stride(), x.device)
    work = None if operands is None else _solves.get(key)
    if work is not None and operands is not None:
        return *forward.run(work, (initial.data_ptr(), *operands), offsets, x.device), wx
    views = views_of(sources, wx)
    arranged: Any = setting.engine
    work, tensors, addresses = arranged.arrange(
        setting.program, views, initial, packed=offsets is not None, plan=setting.plan, tolerance=setting.tolerance
    )
    states, record = forward.run(work, addresses, offsets, x.device, tensors)
    if operands is not None and work.is_ready and not work.copies:
        remember(_solves, key, work)
    return states, record, wx


def is_kept(setting: Setting, wx: Tensor) -> bool:
    """Whether the backward pass, if it can be this one, is better given the projections than to make them again."""
    return setting.inside_backward is None and wx.nbytes <= KEPT


def gradients(
    setting: Setting, grad: Tensor, states: Tensor, sources: Sources, offsets: Tensor | None, needs: Needs, wx: Tensor | None
) -> tuple[Tensor | None, ...] | None:
    """The gradients of the sources; None where this way does not give those that are needed. Projections `wx` are overwritten."""
    x, weight, bias = sources.x, sources.weight, sources.bias
    if not needs.weight or not needs.u or (bias is not None and not needs.bias):
        return None
    of_x = None
    if setting.inside_backward is None or needs.x:
        rows = features_of(x)
        wx = functional.linear(rows, weight) if wx is None else wx
        operands = addresses_of(sources, wx)
        (totals, *of_gaps), of_initial = _sums(setting, setting.program, grad, states, sources, offsets, needs, operands, views_of, wx)
        of_weight = torch.mm(wx.t(), rows)
        if needs.x:
            of_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
            torch.mm(wx, weight, out=features_of(of_x))
            of_x[..., -1].copy_(of_gaps[0].view(x.shape[:2]))
    else:
        across = inside.rows_of(weight)
        operands = inside.addresses_of(sources, across)
        (totals,), of_initial = _sums(setting, setting.inside_backward, grad, states, sources, offsets, needs, operands, inside.views_of, across)
        of_weight = inside.weight_gradient(totals[-across.shape[0] :], weight)
    # The rows of the biases follow each other as the bias has them.
    of_bias = None if bias is None else totals.as_strided(bias.shape, (1,), totals.shape[1])
    return of_x, of_weight, of_bias, totals[0], of_initial


def _sums(
    setting: Setting,
    program: Program,
    grad: Tensor,
    states: Tensor,
    sources: Sources,
    offsets: Tensor | None,
    needs: Needs,
    operands: tuple[int, ...] | None,
    views_of: Callable[[Sources, Tensor], tuple[Tensor, ...]],
    made: Tensor,
) -> tuple[list[Tensor], Tensor | None]:
    """The gradients of what is the same at all steps, a row each, and if samples need theirs that of the gaps; and that of the initial state.

    Those of `ELEMENT` operands are written over them. `operands` are the addresses of what `views_of` gives.
    """
    initial, device = sources.initial, states.device
    of_initial = torch.empty(initial.shape, dtype=initial.dtype, device=device) if needs.initial else None
    at = states.data_ptr(), initial.data_ptr(), grad.data_ptr()
    key = (setting, sources.x.shape[2], initial.stride(), device, needs.x, needs.initial, grad.stride(), grad.dtype, at[2] & 15)
    work = None if operands is None or at[0] & 15 or not states.is_contiguous() else _gradients.get(key)
    if work is not None and operands is not None:
        start = at[0] if of_initial is None else of_initial.data_ptr()
        written = (operands[index] for index in work.subject.rows)
        return work.run(device, (*at, *operands, *written, start), None if offsets is None else offsets.data_ptr()), of_initial
    views, kinds = views_of(sources, made), program.kinds
    arranged = backward.arrange(
        program,
        grad,
        states,
        views,
        initial,
        packed=offsets is not None,
        plan=setting.plan,
        needs=(*(needs.x or kind is not Kind.STEP for kind in kinds), needs.initial),
        into=[view if kind is Kind.ELEMENT else None for kind, view in zip(kinds, views, strict=True)],
        # The recurrent weights are the first operand that does not run along the sequence.
        limit=None if setting.bound is None else (sum(kind.is_timed for kind in kinds), setting.bound),
    )
    totals = backward.run(arranged, offsets)
    # What was copied first, so that channels lie next to each other, does not lie where the next one will.
    is_like = arranged.grad is grad and arranged.states is states and states.is_contiguous() and not at[0] & 15
    is_like = is_like and (initial.stride(1) == 1 or initial.shape[1] == 1)
    if is_like and operands is not None and arranged.work.is_ready:
        remember(_gradients, key, arranged.work)
    return totals, arranged.results[-1]


def views_of(sources: Sources, wx: Tensor) -> tuple[Tensor, ...]:
    """The operands of the program, as engines take them."""
    return (*projections_of(sources.x, wx), *constants_of(sources))


def addresses_of(sources: Sources, wx: Tensor) -> tuple[int, ...] | None:
    """Where `views_of` gives views of; None where that does not lie as it did at the first solve."""
    x, _, bias, u, initial = sources
    at, projections, recurrent = x.data_ptr(), wx.data_ptr(), u.data_ptr()
    half = wx.shape[1] // 2 * wx.itemsize
    gap = at + (x.shape[2] - 1) * x.itemsize
    operands: tuple[int, ...] = (projections, projections + half, gap, recurrent)
    together = at | projections | recurrent | initial.data_ptr()
    is_plain = x.is_contiguous() and u.is_contiguous()
    if bias is not None:
        biases = bias.data_ptr()
        operands, together, is_plain = (*operands, biases, biases + half), together | biases, is_plain and bias.is_contiguous()
    # Kernels are compiled for pointers aligned like these.
    return operands if is_plain and not together & 15 else None


def remember(memory: dict[Key, Any], key: Key, work: object) -> None:
    """Keep `work`, and nothing else where much is kept already."""
    if len(memory) >= REMEMBERED:
        memory.clear()
    memory[key] = work
