"""When a walk takes its steps: knots in time, and which of them are asked for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from pararnn.errors import ConfigError, InputError
from pararnn_nanode.paths.base import Span

Times: TypeAlias = float | Sequence[float] | Tensor
Output: TypeAlias = Literal["last", "path"] | Sequence[float] | Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """The steps of a walk. Built by `schedule` or `through`.

    Attributes:
        knots: ends of the steps in float64, `(knots,)`, or `(knots, samples)` where every sample has its own times; differentiable where those are.
        widths: signed length of each step; numbers where all samples share them and no gradient is asked, else a tensor shaped as `knots[1:]`.
        outputs: the index in `knots` of every asked time, ascending.
        times: the asked times as they were given, in float64: `(times,)` or `(samples, times)`.
        points: the start and the times stepped through as numbers, with `counts` steps from each to the next; None where samples have their own.
    """

    knots: Tensor
    widths: tuple[float, ...] | Tensor
    outputs: tuple[int, ...]
    times: Tensor
    points: tuple[float, ...] | None
    counts: tuple[int, ...]

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.knots.shape[0] - 1

    @property
    def shared(self) -> bool:
        """Whether all samples have the same times."""
        return self.knots.ndim == 1

    def to(self, device: torch.device | str | None) -> Schedule:
        """The schedule with its tensors on another device."""
        if device is None:
            return self
        widths = self.widths.to(device) if isinstance(self.widths, Tensor) else self.widths
        return replace(self, knots=self.knots.to(device), times=self.times.to(device), widths=widths)

    def host(self) -> tuple[float, ...] | None:
        """The knots as numbers; None where samples have their own."""
        return None if self.points is None else tuple(_knots(self.points, self.counts))


def schedule(t: Times | None = None, *, steps: int, span: Span, output: Output = "last", device: torch.device | str | None = None) -> Schedule:
    """Steps that start at `span[0]` and pass through every asked time.

    Between two asked times `dt` apart lie `max(1, round(steps * |dt| / |span|))` equal steps, and none between two equal ones, so that all asked
    times are knots. Times may decrease and repeat.

    Args:
        t: a number (or tensor without dimensions) is the end; a list, array or tensor `(times,)` the asked times; `(samples, times)` those of each
            sample. Left out, `output` decides. Gradients reach a tensor `t`.
        steps: steps over the whole span.
        output: for the end alone "last", or "path" for every knot; or the asked times.

    Raises:
        InputError: a time is not finite, or `t` has more than two dimensions.
    """
    start, end = span
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ConfigError(f"steps must be a whole number of at least 1, got {steps!r}")
    whole = isinstance(output, str)
    if whole and output not in ("last", "path"):
        raise ConfigError(f"output must be 'last', 'path' or times, got {output!r}")
    if t is None:
        t = end if whole else output  # type: ignore[assignment]
    points: Tensor | None = None
    if isinstance(t, (int, float)):
        if not math.isfinite(t):
            raise InputError(f"times must be finite, got {t}")
        numbers = [[start, float(t)]]
    elif isinstance(t, (list, tuple)) and t and all(isinstance(value, (int, float)) for value in t):
        # Numbers stay numbers: a graph of torch.compile cannot decide by the values of a tensor how many steps there are.
        if not all(map(math.isfinite, t)):
            raise InputError(f"times must be finite, got {t}")
        whole = False
        numbers = [[start, *map(float, t)]]
    else:
        given = _tensor(t, device)
        whole = whole and given.ndim == 0
        if given.ndim > 2 or given.shape[-1:] == (0,):
            raise InputError(f"t is an end time, times (times,), or times (samples, times) with at least one, got shape {tuple(given.shape)}")
        asked = given.reshape(1) if given.ndim == 0 else given
        points = torch.cat((torch.full_like(asked[..., :1], start), asked), dim=-1)
        numbers = _numbers(points)
        points = points if given.ndim == 2 or _moves(points) else None
    rate = steps / abs(end - start)
    moves = points is not None and _moves(points)
    counts = []
    for k in range(len(numbers[0]) - 1):
        longest = max(abs(row[k + 1] - row[k]) for row in numbers)
        # A step of no length lets a gradient tell two equal times apart.
        counts.append(max(1, round(rate * longest)) if longest > 0 or moves else 0)
    found = through(numbers[0] if points is None else points, counts, device=device)
    return replace(found, outputs=tuple(range(found.steps + 1)), times=found.knots) if whole and output == "path" else found


def through(points: Sequence[float] | Tensor, counts: Sequence[int], *, device: torch.device | str | None = None) -> Schedule:
    """Steps through `points`, the first of which is the start, with `counts[k]` equal steps from point `k` to the next; all others are asked for.

    Args:
        points: numbers, or a float64 tensor `(points,)` or `(samples, points)`.
    """
    if len(counts) != (points.shape[-1] if isinstance(points, Tensor) else len(points)) - 1:
        raise ConfigError(f"{len(counts)} counts do not fit between points; give one for every two neighbours")
    counts, outputs = tuple(counts), tuple(itertools.accumulate(counts))
    if isinstance(points, Tensor) and (points.ndim > 1 or _moves(points)):
        knots, widths = _tensors(points, counts)
        numbers = None if points.ndim > 1 else tuple(_numbers(points)[0])
        return Schedule(knots=knots, widths=widths, outputs=outputs, times=points[..., 1:], points=numbers, counts=counts).to(device)
    numbers = tuple(_numbers(points)[0] if isinstance(points, Tensor) else points)
    pieces = [[(end - start) / count] * count for start, end, count in zip(numbers, numbers[1:], counts, strict=False) if count]
    return Schedule(
        knots=_placed(numbers, counts).to(device),
        widths=tuple(itertools.chain.from_iterable(pieces)),
        outputs=outputs,
        times=points[1:].to(device) if isinstance(points, Tensor) else torch.tensor(numbers[1:], dtype=torch.float64, device=device),
        points=numbers,
        counts=counts,
    )


def _knots(points: Sequence[float], counts: Sequence[int]) -> list[float]:
    # A knot belongs to the interval that it starts, so that points are met exactly; the last one starts an interval of its own.
    found = [start + (end - start) * (i / count) for start, end, count in zip(points, points[1:], counts, strict=False) for i in range(count)]
    found.append(points[-1])
    return found


def _placed(points: Sequence[float], counts: Sequence[int]) -> Tensor:
    """The same numbers as a tensor, for one interval without a detour by a list."""
    if len(counts) > 1 or not counts[0]:
        return torch.tensor(_knots(points, counts), dtype=torch.float64)
    (start, end), (count,) = points, counts
    knots = torch.arange(count + 1, dtype=torch.float64).div_(count).mul_(end - start).add_(start)
    knots[-1] = end
    return knots


def _tensors(points: Tensor, counts: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Knots and widths, both differentiable by `points`."""
    left = torch.tensor([k for k, count in enumerate(counts) for _ in range(count)], dtype=torch.long, device=points.device)
    part = torch.tensor([i / count for count in counts for i in range(count)], dtype=torch.float64, device=points.device)
    number = torch.tensor([count for count in counts for _ in range(count)], dtype=torch.float64, device=points.device)
    ahead = points.movedim(-1, 0)
    shape = (-1, *(1,) * (ahead.ndim - 1))
    gaps = (ahead[1:] - ahead[:-1])[left]
    return torch.cat((ahead[:-1][left] + gaps * part.view(shape), ahead[-1:])), gaps / number.view(shape)


def _tensor(t: Any, device: torch.device | str | None) -> Tensor:
    if isinstance(t, str):
        raise InputError(f"t is the time or the times to stop at, got {t!r}; 'last' and 'path' are values of output= when the block is made")
    try:
        given = t if isinstance(t, Tensor) else torch.tensor(t.tolist() if hasattr(t, "tolist") else list(t), dtype=torch.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"times are a number, or a list, array or tensor of numbers, got {t!r}") from error
    if given.is_complex() or given.dtype == torch.bool:
        raise InputError(f"times are real numbers, got {given.dtype}")
    return given.to(device=device, dtype=torch.float64)


def _numbers(points: Tensor) -> list[list[float]]:
    """Rows of numbers; where a transform hides the values, those beneath it."""
    points = points.detach()
    while torch._C._functorch.is_gradtrackingtensor(points):
        points = torch._C._functorch.get_unwrapped(points)
    if torch._C._functorch.is_batchedtensor(points):
        raise InputError("the number of steps depends on t, so vmap cannot go over it; give times of shape (samples, times) instead")
    rows: list[list[float]] = points.reshape(-1, points.shape[-1]).tolist() if points.ndim else [[points.item()]]
    if not all(math.isfinite(value) for row in rows for value in row):
        raise InputError(f"times must be finite, got {points.tolist()}")
    return rows


def _moves(points: Tensor) -> bool:
    """Whether gradients may be asked for times."""
    return points.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(points)
