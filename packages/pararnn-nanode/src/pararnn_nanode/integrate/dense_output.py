"""The solution between the ends of a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pararnn_nanode.integrate.dopri5 import Pair, Step


def coefficients(pair: Pair, step: Step) -> Tensor:
    """The five states `(5, *state)` that `combine` mixes: a quartic for dopri5, the cubic through both ends and their slopes for the others.

    Source: Hairer, Norsett and Wanner, Solving Ordinary Differential Equations I, section II.6.
    """
    change = step.end - step.x
    entry = torch.sub(step.slopes[0] * step.length, change)
    leave = torch.sub(change, step.slopes[-1], alpha=step.length) - entry
    quartic = torch.zeros_like(change)
    for slope, value in zip(step.slopes, pair.dense, strict=False):
        if value != 0.0:
            quartic = torch.add(quartic, slope, alpha=step.length * value)
    return torch.stack((step.x, change, entry, leave, quartic))


def combine(parts: Tensor, where: Tensor) -> Tensor:
    """States `(*where.shape, *state)` at the fractions `where` (float64) of a step with `coefficients` `parts`; differentiable in both."""
    rest = 1.0 - where
    product = where * rest
    mix = torch.stack((torch.ones_like(where), where, product, product * where, product * product), dim=-1)
    states: Tensor = torch.tensordot(mix.to(parts.dtype), parts, dims=1)
    return states


def read(pair: Pair, step: Step, times: Sequence[float], moves: Tensor | None = None) -> Tensor:
    """States `(times, *state)` at times within a step; `moves` `(times,)` are zeros that carry the gradient of the times."""
    if moves is None and all(time == step.finish for time in times):
        return step.end.expand(len(times), *step.end.shape)
    where = torch.tensor([(time - step.start) / step.length for time in times], dtype=torch.float64, device=step.x.device)
    return combine(coefficients(pair, step), where if moves is None else where + moves / step.length)


def collect(pair: Pair, steps: Iterable[Step], x: Tensor, times: Sequence[float], moves: Tensor | None = None) -> Tensor:
    """States `(times, *state)` at `times`, the first of which is that of `x`, read from the steps as they come."""
    pieces = [x.unsqueeze(0)]
    done = 1
    while moves is None and done < len(times) and times[done] == times[0]:
        pieces.append(pieces[0])
        done += 1
    for step in steps:
        first = done
        while done < len(times) and (times[done] - step.finish) * step.length <= 0:
            done += 1
        if done > first:
            pieces.append(read(pair, step, times[first:done], None if moves is None else moves[first:done]))
    return torch.cat(pieces)
