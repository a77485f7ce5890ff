"""The two passes of a fused solve, on numbers: projections by one matrix product, everything else in the kernels of an engine.

Nothing of the size of the states outlives the forward pass but the states: the backward pass projects again, and the gradients of the projections
are written over them. On a CPU both go block by block, so that the projections stay in a cache. Where features are few, kernels project by
themselves.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pararnn.compiler.native.memory import room
from pararnn.solver.planner import Plan
from pararnn_cfc import fused_inside as inside
from pararnn_cfc.fused_setting import Block, Setting
from pararnn_cfc.fused_sources import Needs, Sources, constants_of, features_of, projections_of


def solve(setting: Setting, sources: Sources, offsets: Tensor | None) -> tuple[Tensor, Tensor]:
    """States `(batch, time, state)`, and the record of the engine."""
    x, weight, initial = sources.x, sources.weight, sources.initial
    constants = constants_of(sources)
    engine, program, tolerance = setting.engine, setting.program, setting.tolerance
    if setting.inside is not None:
        return engine.solve(setting.inside, inside.operands(x, weight, constants), initial, offsets=offsets, plan=setting.plan, tolerance=tolerance)
    if len(setting.blocks) == 1:
        operands = (*projections_of(x, torch.mm(features_of(x), weight.t())), *constants)
        return engine.solve(program, operands, initial, offsets=offsets, plan=setting.plan, tolerance=tolerance)
    states = room((*x.shape[:2], initial.shape[1]), initial.dtype)
    across, memory, records = weight.t().contiguous(), _memory(setting.blocks, x, weight), []
    for rows, start, stop, plan in setting.blocks:
        samples = x[rows, start:stop]
        before = states[rows, start - 1] if start else initial[rows]
        operands = (*projections_of(samples, _product(features_of(samples), across, memory)), *constants)
        part, record = engine.solve(program, operands, before, offsets=None, plan=plan, tolerance=tolerance)
        states[rows, start:stop] = part
        records.append(record)
    return states, _joined(records, setting.blocks)


def _joined(records: list[Tensor], blocks: tuple[Block, ...]) -> Tensor:
    """One record `(sequences, 1, 3)` of all blocks, which say of their parts what is largest."""
    starts = [index for index, block in enumerate(blocks) if block.start == 0]
    of_rows = (records[start:stop] for start, stop in itertools.pairwise((*starts, len(blocks))))
    return torch.cat([torch.cat(parts, 1).amax(1, keepdim=True) for parts in of_rows])


def gradients(setting: Setting, grad: Tensor, states: Tensor, sources: Sources, offsets: Tensor | None, needs: Needs) -> tuple[Tensor | None, ...]:
    """The gradients of the sources, None where they are not needed, from the gradient `grad` of the states."""
    x, initial, blocks = sources.x, sources.initial, setting.blocks
    if setting.inside_backward is not None and not needs.x:
        return _gradients_inside(setting, grad, states, sources, offsets, needs)
    part = _Backward(setting, sources, needs)
    if len(blocks) == 1:
        of_initial = part.block(x, grad, states, initial, setting.plan, offsets, needs.initial, part.of_x)
        return *part.gradients(), of_initial
    of_initial, carried = torch.empty_like(initial) if needs.initial else None, None
    copied = grad.new_empty(blocks[0].size(grad.shape[0]), blocks[0].stop, grad.shape[2])
    for rows, start, stop, plan in reversed(blocks):
        here, above = states[rows, start:stop], grad[rows, start:stop]
        if carried is not None:
            # A block hands its gradient on through the last states of the one before.
            above = copied[: len(above), : stop - start].copy_(above)
            above[:, -1] += carried
        before = states[rows, start - 1] if start else initial[rows]
        of_x = None if part.of_x is None else part.of_x[rows, start:stop]
        carried = part.block(x[rows, start:stop], above, here, before, plan, None, start > 0 or needs.initial, of_x)
        if not start:
            if of_initial is not None and carried is not None:
                of_initial[rows] = carried
            carried = None
    return *part.gradients(), of_initial


def _gradients_inside(
    setting: Setting, grad: Tensor, states: Tensor, sources: Sources, offsets: Tensor | None, needs: Needs
) -> tuple[Tensor | None, ...]:
    """The gradients by all but the samples, which would have to be summed over the channels step by step."""
    x, weight, u, initial = sources.x, sources.weight, sources.u, sources.initial
    constants, features = constants_of(sources), weight.shape[1]
    of_bias = [needs.bias for _ in constants[1:]]
    found = setting.engine.backward(
        setting.inside_backward or setting.program,
        grad,
        states,
        inside.operands(x, weight, constants),
        initial,
        offsets=offsets,
        plan=setting.plan,
        needs=(*(False for _ in range(features + 1)), needs.u, *of_bias, *(needs.weight for _ in range(2 * features)), needs.initial),
    )
    of_u, *biases = found[features + 1 : features + 1 + len(constants)]
    rows = found[features + 1 + len(constants) : -1]
    return (
        None,
        inside.weight_gradient([row for row in rows if row is not None], weight) if needs.weight else None,
        torch.cat([one for one in biases if one is not None]).to(weight.dtype) if needs.bias else None,
        None if of_u is None else _led_back(of_u.to(u.dtype), u, setting.bound),
        found[-1],
    )


class _Backward:
    """The gradients of one backward pass, added up over its blocks, the last one first."""

    def __init__(self, setting: Setting, sources: Sources, needs: Needs) -> None:
        self.setting, self.sources, self.needs = setting, sources, needs
        self.constants = constants_of(sources)
        if len(setting.blocks) > 1:
            # Engines give gradients in the dtype of the operand; sums over blocks are made in that of the states.
            self.constants = tuple(constant.to(sources.initial.dtype) for constant in self.constants)
        projected = needs.x or needs.weight
        self.wanted = (projected, projected, needs.x, needs.u, *(needs.bias for _ in self.constants[1:]))
        self.memory = _memory(setting.blocks, sources.x, sources.weight)
        self.of_x = torch.empty_like(sources.x, memory_format=torch.contiguous_format) if needs.x else None
        self.of_weight: Tensor | None = None
        self.of_constants: list[Any] = []

    def block(
        self,
        x: Tensor,
        grad: Tensor,
        states: Tensor,
        initial: Tensor,
        plan: Plan,
        offsets: Tensor | None,
        needs_initial: bool,
        of_x: Tensor | None,
    ) -> Tensor | None:
        """Go through a block, write the gradient of its samples to `of_x`, and give that of the states before it."""
        needs, weight = self.needs, self.sources.weight
        rows = features_of(x)
        wx = _product(rows, weight.t(), self.memory)
        rate, candidate, elapsed = projections_of(x, wx)
        _, _, of_gap, *of_constants, of_initial = self.setting.engine.backward(
            self.setting.program,
            grad,
            states,
            (rate, candidate, elapsed, *self.constants),
            initial,
            offsets=offsets,
            plan=plan,
            needs=(*self.wanted, needs_initial),
            into=(rate, candidate, None, *(None for _ in self.constants)) if self.wanted[0] else None,
        )
        if needs.weight:
            self._add_product(rows, wx)
        if of_x is not None and of_gap is not None:
            if _is_flat(of_x):
                torch.mm(wx, weight, out=features_of(of_x))
            else:
                of_x[..., :-1] = torch.mm(wx, weight).view(*x.shape[:2], -1)
            of_x[..., -1:].copy_(of_gap)
        if self.of_constants:
            of_constants = [new if new is None else old + new for old, new in zip(self.of_constants, of_constants, strict=True)]
        self.of_constants = of_constants
        return of_initial

    def gradients(self) -> tuple[Tensor | None, ...]:
        """Those of samples, weight, bias and recurrent weights."""
        _, weight, _, u, _ = self.sources
        of_u, *of_bias = self.of_constants
        return (
            self.of_x,
            None if self.of_weight is None else self.of_weight.to(weight.dtype).contiguous(),
            torch.cat(of_bias).to(weight.dtype) if self.needs.bias else None,
            None if of_u is None else _led_back(of_u.to(u.dtype), u, self.setting.bound),
        )

    def _add_product(self, features: Tensor, wx: Tensor) -> None:
        """Add the gradient of the weight, from features and gradients of their projections."""
        # The product with a tall transposed matrix in front takes several times as long on a CPU as its transpose.
        product = torch.mm(features.t(), wx).t() if wx.device.type == "cpu" else torch.mm(wx.t(), features)
        if self.of_weight is None:
            self.of_weight = product.float() if len(self.setting.blocks) > 1 and wx.dtype.itemsize < 4 else product
        else:
            self.of_weight += product


def _led_back(grad: Tensor, weight: Tensor, bound: float | None) -> Tensor:
    """The gradient by the weight from that by the limited weight, as `pararnn_cfc.clipping.clip` has it, in fewer launches."""
    if bound is None:
        return grad
    # Positive where descent leads back, negative where it leads away; inside the limit zero, which is above any negative number.
    towards = functional.hardshrink(weight, bound) * grad
    kept: Tensor = torch.ops.aten.threshold_backward.default(grad, towards, -torch.finfo(grad.dtype).tiny)
    return kept


def _is_flat(samples: Tensor) -> bool:
    """Whether memory allows."""
    return samples.shape[0] == 1 or samples.stride(0) == samples.shape[1] * samples.stride(1)


def _product(rows: Tensor, across: Tensor, memory: Tensor | None) -> Tensor:
    return torch.mm(rows, across) if memory is None else torch.mm(rows, across, out=memory[: len(rows)])


def _memory(blocks: tuple[Block, ...], x: Tensor, weight: Tensor) -> Tensor | None:
    """Where the projections of each of several blocks are put, `(batch * time of the longest, 2 state)`."""
    return None if len(blocks) == 1 else x.new_empty(blocks[0].size(x.shape[0]) * blocks[0].stop, weight.shape[0])
