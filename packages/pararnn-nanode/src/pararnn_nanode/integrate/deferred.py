"""A walk whose gradient is computed later, by evaluating the field again: what to keep, and in what form each pass sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from pararnn_nanode.integrate.capture import Capture
from pararnn_nanode.integrate.leaks import Watched
from pararnn_nanode.integrate.substitutes import substituted
from pararnn_nanode.integrate.walk import Walk

Result = TypeVar("Result")
FIXED = 5
"""Inputs before the parameters: x, u, times, starts, widths."""
TIMES, STARTS, WIDTHS = 2, 3, 4
"""The places of times, starts and widths among them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Deferred:
    """A walk, the parameters that it began with, and whether anyone will ask for gradients.

    The inputs of its autograd function are the state, `u`, times and starts of reads and the widths of steps (each None where it is no tensor that
    moves), the field's parameters, and the tensors that the caller declared.
    """

    walk: Walk
    capture: Capture
    wanted: bool
    precision: tuple[str, bool, torch.dtype] | None

    def walk_with(self, inputs: Sequence[Tensor | None]) -> Walk:
        """The walk on these inputs instead of its own."""
        _, u, times, starts, widths = inputs[:FIXED]
        walk = self.walk
        reads = walk.reads if times is None or starts is None else replace(walk.reads, times=times, starts=starts)
        return replace(
            walk, u=walk.u if u is None else u, reads=reads, widths=walk.widths if widths is None else list(widths.unbind(0)), progress=None
        )

    def parameters(self, inputs: Sequence[Tensor | None]) -> dict[str, Tensor]:
        """Those of `inputs` that are the field's parameters, by name."""
        return {name: tensor for name, tensor in zip(self.capture.parameters, inputs[FIXED:], strict=False) if tensor is not None}

    def forwards(self, function: Callable[[Walk, Tensor], Result], inputs: Sequence[Tensor | None], gradient: str) -> Result:
        """`function(walk, x)` without a graph, on the watch for tensors that would be lost to the gradient.

        Raises:
            DifferentiationError: the field uses a tensor with a gradient that is none of the inputs.
        """
        cut = [None if tensor is None else tensor.detach() for tensor in inputs]
        walk = replace(self.walk_with(cut), progress=self.walk.progress)
        (x,) = (tensor for tensor in cut[:1] if tensor is not None)
        if not self.wanted:
            return self.capture.run(function, walk, x, parameters=self.parameters(cut))
        # Nothing here has a gradient, so enabling them records nothing but what is unknown, and lets a field take derivatives of its own.
        with torch.enable_grad(), substituted(self.walk.parameters, self._declared(cut)):
            watched = replace(walk, field=Watched(walk.field, gradient))
            found = self.capture.run(function, watched, x, parameters=self.parameters(cut))
        self.capture.seal()
        return found

    def variables(self, inputs: Sequence[Tensor | None], needed: Sequence[bool]) -> list[Tensor | None]:
        """Inputs as variables of graphs of their own: one may have been computed from another, and hooks are for their sums."""
        return [None if tensor is None else tensor.detach().requires_grad_(need) for tensor, need in zip(inputs, needed, strict=True)]

    def backwards(self, function: Callable[[], Result], variables: Sequence[Tensor | None]) -> Result:
        """`function()`, which evaluates the field again, at these inputs.

        Raises:
            DifferentiationError: something that the field holds was edited in place since the forward pass.
        """
        self.capture.check_unchanged()
        with self.autocast(), substituted(self.walk.parameters, self._declared(variables)):
            return self.capture.run_again(function, parameters=self.parameters(variables))

    def again(
        self, function: Callable[[Walk, Tensor], Tensor], inputs: Sequence[Tensor | None], needed: Sequence[bool], grad: Tensor
    ) -> list[Tensor | None]:
        """Derivatives that are differentiable themselves, by `function(walk, x)` with every step on the graph."""
        # One input may have been computed from another. Derivatives by aliases keep their effects apart, and go on to the inputs when differentiated.
        aliases = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
        (x,) = (tensor for tensor in aliases[:1] if tensor is not None)
        states = self.backwards(lambda: function(self.walk_with(aliases), x), aliases)
        targets = [tensor for tensor, need in zip(aliases, needed, strict=True) if need and tensor is not None]
        found = iter(torch.autograd.grad(states, targets, grad, create_graph=True, allow_unused=True))
        return [next(found) if need else None for need in needed]

    def _declared(self, inputs: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Those of `inputs` that stand for what the caller declared."""
        return inputs[len(inputs) - len(self.walk.parameters) :]

    def autocast(self) -> AbstractContextManager[Any]:
        """The automatic precision of the forward pass, which torch does not restore in a backward pass."""
        if self.precision is None:
            return nullcontext()
        device, enabled, dtype = self.precision
        return torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=False)

    def rounding(self, dtype: torch.dtype) -> float:
        """The coarsest rounding of the walk."""
        cast = [self.precision[2]] if self.precision is not None and self.precision[1] else []
        return max(torch.finfo(kind).eps for kind in (dtype, *cast))


def deferred(walk: Walk, x: Tensor) -> tuple[Deferred, tuple[Tensor | None, ...]]:
    """A deferred walk, and the inputs of its autograd function."""
    device = x.device.type
    known = torch.amp.is_autocast_available(device)
    precision = (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) if known else None
    capture = Capture.of(walk.field)
    owned = {id(parameter) for parameter in capture.parameters.values()}
    walk = replace(walk, parameters=tuple(tensor for tensor in walk.parameters if id(tensor) not in owned))
    moving = walk.reads.times.requires_grad
    own = [torch.stack([width for width in walk.widths if isinstance(width, Tensor)]) if moving and walk.widths else None]
    times = (walk.reads.times, walk.reads.starts) if moving else (None, None)
    u = walk.u if isinstance(walk.u, Tensor) else None
    plan = Deferred(walk=walk, capture=capture, wanted=torch.is_grad_enabled(), precision=precision)
    return plan, (x, u, *times, *own, *capture.parameters.values(), *walk.parameters)
