"""Fixed-step methods on a grid of their own, read at times between its knots."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import ConfigError, InputError
from pararnn_nanode.fields.base import Field
from pararnn_nanode.integrate.adaptive import as_times, ordered
from pararnn_nanode.integrate.fixed import integrate
from pararnn_nanode.integrate.schedule import through
from pararnn_nanode.integrate.stretched import readable
from pararnn_nanode.solution import Solution

INTERPOLATIONS = ("linear", "cubic")
Grid = Callable[[Tensor], Any]


def by_step_size(start: Tensor | float, end: Tensor | float, step_size: float) -> Tensor | list[float]:
    """Knots in steps of `step_size` from `start` to `end`, the last step being shorter where it must; a tensor from tensors, with their gradient."""
    gap = end - start
    length = float(gap.detach() if isinstance(gap, Tensor) else gap)
    # A last step below 1e-9 of the others would be rounding.
    count = max(1, math.ceil(abs(length) / step_size - 1e-9))
    width = math.copysign(step_size, length)
    if not isinstance(start, Tensor) or not isinstance(end, Tensor):
        return [*(float(start) + k * width for k in range(count)), float(end)]
    offsets = torch.arange(count, dtype=torch.float64, device=start.device) * width
    return torch.cat((start + offsets, end.reshape(1)))


def on_grid(
    field: Field,
    x: Tensor,
    t: Sequence[float] | Tensor,
    *,
    method: Any,
    gradient: str = "backprop",
    grid: Grid | None = None,
    step_size: float | None = None,
    interpolation: str = "linear",
    parameters: Sequence[Tensor] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Solution:
    """States at `t`, whose first is the time of `x`: one step from each time to the next, or as many as the grid has.

    Args:
        t: `(times,)` or `(samples, times)`.
        grid: gives knots from the times, in their order, from the first to the last.
        interpolation: "linear" or "cubic", for times between two knots.
    """
    if interpolation not in INTERPOLATIONS:
        raise ConfigError(f"interp must be one of {', '.join(INTERPOLATIONS)}, got {interpolation!r}")
    if grid is not None and step_size is not None:
        raise ConfigError("step_size and grid_constructor both say where steps end; pass one of them")
    if step_size is not None and not 0 < step_size < math.inf:
        raise ConfigError(f"step_size must be above 0 and finite, got {step_size}")
    times = as_times(t, x)
    rows = readable(times)
    if rows is None:
        raise InputError("the steps depend on t, so vmap cannot go over it; give times of shape (samples, times) instead")
    options: dict[str, Any] = {"method": method, "gradient": gradient, "parameters": parameters, "progress": progress}
    if times.ndim == 2 or (grid is None and step_size is None) or len({*rows[0]}) == 1:
        if grid is not None and times.ndim == 2:
            raise ConfigError("a grid_constructor serves times (times,), not those of samples; pass step_size")
        gaps = [max(abs(row[k + 1] - row[k]) for row in rows) for k in range(times.shape[-1] - 1)]
        moves = _moves(times)
        counts = [_count(gap, step_size, moves) for gap in gaps]
        if times.ndim == 1:
            ordered(rows[0])
        plan = through(times if times.ndim == 2 or moves else rows[0], counts, device=x.device)
        plan = dataclasses.replace(plan, outputs=(0, *plan.outputs), times=times)
        return integrate(field, x, plan, **options)
    asked = ordered(rows[0])
    knots: Tensor | list[float] = []
    if grid is not None:
        knots = as_times(grid(times), x)
    elif step_size is not None:
        first, last = (times[0], times[-1]) if _moves(times) else (asked[0], asked[-1])
        knots = by_step_size(first, last, step_size)
    return _between(field, x, times, asked, knots, interpolation, options)


def _moves(times: Tensor) -> bool:
    """Whether gradients may be asked for times."""
    return times.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(times)


def _count(gap: float, step_size: float | None, moves: bool) -> int:
    if gap == 0.0:
        return int(moves)
    return 1 if step_size is None else max(1, math.ceil(gap / step_size - 1e-9))


def _between(
    field: Field, x: Tensor, times: Tensor, asked: Sequence[float], knots: Tensor | list[float], interpolation: str, options: dict[str, Any]
) -> Solution:
    """States at `asked` from those at the knots around them."""
    found = readable(knots) if isinstance(knots, Tensor) else [knots]
    points = ordered(found[0]) if found else ()
    if len(points) < 1 or points[0] != asked[0] or points[-1] != asked[-1]:
        raise ConfigError(
            f"the grid must start at {asked[0]:g} and end at {asked[-1]:g}, as the times do; it runs from {points[0]:g} to {points[-1]:g}"
        )
    sign = 1.0 if asked[-1] >= asked[0] else -1.0
    ascending = [point * sign for point in points]
    right = [bisect_left(ascending, time * sign) for time in asked]
    moves = _moves(times)
    # A time whose gradient is asked for is read between two knots even where it is one.
    pairs = [(max(k, 1), points[k] != time or moves) for k, time in zip(right, asked, strict=True)]
    needed = sorted({0, *right, *(k - 1 for k, apart in pairs if apart), *(k for k, apart in pairs if apart)})
    plan = through(knots if moves else points, [1] * (len(points) - 1), device=x.device)
    plan = dataclasses.replace(plan, outputs=tuple(needed), times=plan.knots[list(needed)])
    solution = integrate(field, x, plan, **options)
    at = dict(zip(needed, solution.x.unbind(0), strict=True))
    nfe = solution.nfe
    states = []
    for j, (k, apart) in enumerate(pairs):
        if not apart:
            states.append(at[right[j]])
            continue
        start, end = plan.knots[k - 1], plan.knots[k]
        part = ((times[j] - start) / (end - start)).to(x.dtype.to_real())
        early, late = at[k - 1], at[k]
        if interpolation == "linear":
            states.append(early + part * (late - early))
            continue
        width = (end - start).to(x.dtype.to_real())
        low = torch.minimum(start, end)
        enter, leave = (field.evaluate(state, field.weights(when, low)) for state, when in ((early, start), (late, end)))
        nfe += 2
        change = late - early
        states.append(early + part * (change + (1 - part) * ((width * enter - change) * (1 - part) - (width * leave - change) * part)))
    return dataclasses.replace(solution, x=torch.stack(states), t=times, nfe=nfe)
