"""Windows of steps solved in parallel one after the other, keeping the states at their ends alone.

Memory is that of one window and of one state a window, `O(w + L / w)` for windows of `w` of `L` steps; the backward pass solves each window again,
from the last to the first. Weights too are made for one window at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pararnn.solver.adjoint import limit_derivatives
from pararnn.solver.api import without_autocast
from pararnn_nanode.depth.gradient import WALK
from pararnn_nanode.integrate.capture import Capture
from pararnn_nanode.integrate.declared import own_shares, unheard
from pararnn_nanode.integrate.reads import Drive

Solve: TypeAlias = Callable[[int, int, Tensor, Drive], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Windows:
    """How a run of steps is cut, and what is kept of it.

    Attributes:
        solve: states `(last - first, *state)` after steps `first` to `last` from the state before them, given the inputs; on the graph where
            gradients are on.
        bounds: steps at which windows start, and the number of all steps.
        outputs: numbers of the states that are asked for, ascending; 0 is the initial state.
    """

    solve: Solve
    bounds: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """First and last step of each window."""
        return list(zip(self.bounds, self.bounds[1:], strict=False))

    def asked(self, first: int, last: int) -> tuple[slice, list[int]]:
        """Which rows of the result lie in a window, and which of its states they are."""
        inside = [place for place, number in enumerate(self.outputs) if first < number <= last]
        rows = slice(inside[0], inside[-1] + 1) if inside else slice(0, 0)
        return rows, [self.outputs[place] - first - 1 for place in inside]


def solve_windows(windows: Windows, capture: Capture, x: Tensor, u: Drive, times: Tensor | None, parameters: tuple[Tensor, ...]) -> Tensor:
    """The asked states `(outputs, *state)`, differentiable once by `x`, the parameters of the captured field, inputs and times.

    Args:
        times: the times that gradients are asked for, which `windows.solve` reads from where it has them; None where there are none.
        parameters: tensors that the field reads and its module does not own.
    """
    named = {name: limit_derivatives(tensor, tensor, order=1, advice=WALK) for name, tensor in capture.parameters.items() if tensor.requires_grad}
    outside = [tensor for tensor in parameters if tensor.requires_grad]
    inputs = u if isinstance(u, Tensor) else None
    start = limit_derivatives(x, x, order=1, advice=WALK)
    found: Tensor = _Walk.apply(windows, capture, tuple(named), u, start, inputs, times, *outside, *named.values())
    return limit_derivatives(found, x, *capture.parameters.values(), order=1, advice=WALK)


class _Walk(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        windows: Windows,
        capture: Capture,
        names: tuple[str, ...],
        u: Drive,
        x: Tensor,
        inputs: Tensor | None,
        times: Tensor | None,
        *others: Tensor,
    ) -> Tensor:
        result = x.new_empty(len(windows.outputs), *x.shape)
        result[: sum(number == 0 for number in windows.outputs)] = x
        starts = [x]
        with torch.no_grad():
            for first, last in windows.spans:
                states = windows.solve(first, last, starts[-1], u)
                rows, numbers = windows.asked(first, last)
                result[rows] = states[numbers]
                starts.append(states[-1].clone())
        capture.seal()
        ctx.windows, ctx.capture, ctx.names, ctx.u = windows, capture, names, u
        ctx.count = len(others) - len(names)
        ctx.save_for_backward(inputs, times, *starts[:-1], *others)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        windows, capture, names = ctx.windows, ctx.capture, ctx.names
        capture.check_unchanged()
        inputs, times, *saved = ctx.saved_tensors
        starts, others = saved[: len(windows.spans)], saved[len(windows.spans) :]
        parameters = {**capture.parameters, **dict(zip(names, others[ctx.count :], strict=True))}
        sources = [tensor for tensor in (inputs, times, *others) if tensor is not None and tensor.requires_grad]
        totals: list[Tensor | None] = [None] * len(sources)
        costate = torch.zeros_like(starts[0])
        # Sources may have been computed from one another, outside of all windows: that graph is used by each of them, and belongs to the caller.
        with unheard(sources), without_autocast(grad):
            for (first, last), start in reversed(list(zip(windows.spans, starts, strict=True))):
                rows, numbers = windows.asked(first, last)
                with torch.enable_grad():
                    begin = start.detach().requires_grad_()
                    states = capture.run_again(windows.solve, first, last, begin, ctx.u if inputs is None else inputs, parameters=parameters)
                above = torch.zeros_like(states)
                above[-1] = costate
                above.index_add_(0, torch.tensor(numbers, dtype=torch.long, device=above.device), grad[rows])
                costate, *found = torch.autograd.grad(states, [begin, *sources], above, allow_unused=True, retain_graph=True)
                # What the window keeps for its backward pass must be gone before the next one is solved.
                del states
                totals = [new if old is None else old if new is None else old + new for old, new in zip(totals, found, strict=True)]
            totals = own_shares(sources, totals)
        if windows.outputs and windows.outputs[0] == 0:
            costate = costate + grad[: sum(number == 0 for number in windows.outputs)].sum(0)
        by_source = iter(totals)
        rest = [next(by_source) if tensor is not None and tensor.requires_grad else None for tensor in (inputs, times, *others)]
        return None, None, None, None, costate, *rest
