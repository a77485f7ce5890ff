"""The operator `pararnn::newton_cfc_fused`, for graphs: what `torch.compile` and `torch.export` see of a fused solve."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from pararnn.compiler.native.layout import alone
from pararnn.compiler.solving import ADVICE
from pararnn.errors import DifferentiationError
from pararnn.scans.segments import Offsets, as_offsets, on_device
from pararnn.solver.config import DEFAULT_TOLERANCES
from pararnn_cfc.fused_inputs import check_gaps, check_sources, end_finite
from pararnn_cfc.fused_inside import MOST_FEATURES
from pararnn_cfc.fused_passes import gradients, solve
from pararnn_cfc.fused_program import rounded
from pararnn_cfc.fused_setting import Question, Setting, setting
from pararnn_cfc.fused_sources import Needs, Sources

Interval: TypeAlias = int | Literal["auto", "parallel"]
# An operator takes numbers.
AUTO, PARALLEL = 0, -1
WORDS: dict[int, Interval] = {AUTO: "auto", PARALLEL: "parallel"}


@torch.library.custom_op("pararnn::newton_cfc_fused", mutates_args=())
def newton_cfc_fused(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    u: Tensor,
    initial: Tensor,
    cu_seqlens: Tensor | None,
    bound: float | None,
    engine: str,
    interval: int,
    absolute: float,
    relative: float,
    sweeps: int,
) -> tuple[Tensor, Tensor]:
    """States `(batch, time, state)` of a `ParaCfC` over samples `x` `(batch, time, d_in)`, and the record of each sequence `(sequences, 3)`.

    `u` `(state,)` is limited to `bound`. `interval` is a length, `AUTO` or `PARALLEL`; `sweeps` as in `Question`, `absolute` and `relative` too, or
    negative for those of the dtype.

    Raises:
        InputError: on a CPU, a time gap is NaN or negative, or the states are not finite because the inputs are not.
    """
    sources, is_near = Sources(x, weight, bias, u, initial), x.device.type == "cpu"
    if x.numel() == 0 or initial.numel() == 0:
        if cu_seqlens is not None:
            as_offsets(cu_seqlens, x.shape[1])
        return _nothing(x, initial)
    if is_near:
        check_gaps(x)
    chosen, ends = _setting(sources, cu_seqlens, bound, engine, interval, absolute, relative, sweeps)
    states, record = solve(chosen, sources, None if ends is None else on_device(ends, x.device))
    if is_near and not end_finite(states, ends):
        check_sources(sources, states, cu_seqlens, bound)
    return states, record.amax(1)


@newton_cfc_fused.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, u: Tensor, initial: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    return _nothing(x, initial)


def _nothing(x: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    sequences, state = initial.shape
    return initial.new_empty(x.shape[0], x.shape[1], state), initial.new_zeros(sequences, 3, dtype=torch.float32)


@torch.library.custom_op("pararnn::newton_cfc_fused_backward", mutates_args=())
def newton_cfc_fused_backward(
    grad: Tensor,
    states: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    u: Tensor,
    initial: Tensor,
    cu_seqlens: Tensor | None,
    bound: float | None,
    engine: str,
    interval: int,
    absolute: float,
    relative: float,
    sweeps: int,
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients by `x`, `weight`, `bias`, `u` and `initial`; empty tensors where not needed."""
    sources = Sources(x, weight, bias, u, initial)
    if x.numel() == 0 or initial.numel() == 0:
        return tuple(map(_zeros, sources, needs))  # type: ignore[return-value]
    chosen, ends = _setting(sources, cu_seqlens, bound, engine, interval, absolute, relative, sweeps)
    found = gradients(chosen, grad, states, sources, None if ends is None else on_device(ends, x.device), Needs(*needs))
    return tuple(grad.new_empty(0) if derivative is None else derivative for derivative in found)  # type: ignore[return-value]


@newton_cfc_fused_backward.register_fake
def _(grad: Tensor, states: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, u: Tensor, initial: Tensor, *options: Any) -> tuple[Tensor, ...]:
    return tuple(map(_zeros, (x, weight, bias, u, initial), options[-1]))


def _zeros(source: Tensor | None, needed: bool) -> Tensor:
    if source is None or not needed:
        return torch.empty(0)
    return torch.zeros_like(source, memory_format=torch.contiguous_format)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, bound, engine, interval, absolute, relative, sweeps = inputs
    states, record = output
    ctx.mark_non_differentiable(record)
    ctx.save_for_backward(states, *tensors)
    ctx.options = bound, engine, interval, absolute, relative, sweeps


def _differentiate(ctx: Any, grad: Tensor, _record: Any) -> tuple[Tensor | None, ...]:
    needs = list(ctx.needs_input_grad[:5])
    found = newton_cfc_fused_backward(grad, *ctx.saved_tensors, *ctx.options, needs)
    kept = (derivative if needed else None for derivative, needed in zip(found, needs, strict=True))
    return *kept, None, *(None for _ in ctx.options)


def _refuse(ctx: Any, *grads: Tensor) -> None:
    raise DifferentiationError(f"a fused solve of ParaCfC was differentiated twice, and its kernels give first derivatives; {ADVICE}")


newton_cfc_fused.register_autograd(_differentiate, setup_context=_remember)
newton_cfc_fused_backward.register_autograd(_refuse)


def _setting(
    sources: Sources, cu_seqlens: Tensor | None, bound: float | None, engine: str, interval: int, absolute: float, relative: float, sweeps: int
) -> tuple[Setting, Offsets | None]:
    ends = None if cu_seqlens is None else as_offsets(cu_seqlens, sources.x.shape[1])
    usual = DEFAULT_TOLERANCES[sources.initial.dtype]
    tolerances = tuple(default if given < 0 else given for given, default in zip((absolute, relative), usual, strict=True))
    return setting(question(sources, ends, engine, bound, WORDS.get(interval, interval), tolerances, sweeps)), ends


def question(
    sources: Sources, ends: Offsets | None, engine: str, bound: float | None, interval: Interval, tolerances: tuple[float, ...], sweeps: int
) -> Question:
    """What the setting of a solve follows from; `ends` are the offsets of packed sequences."""
    rows, length, width = sources.x.shape
    sequences, state = sources.initial.shape
    longest = length if ends is None else max((end - start for start, end in itertools.pairwise(ends)), default=0)
    return Question(
        engine=engine,
        device=sources.x.device.type,
        dtype=sources.initial.dtype,
        projected=sources.x.dtype,
        bound=None if bound is None else rounded(bound, sources.u.dtype),
        biased=sources.bias is not None,
        features=width - 1 if width <= MOST_FEATURES + 1 and _project(engine, sources.initial) else 0,
        rows=rows,
        length=length,
        state=state,
        sequences=sequences,
        longest=longest,
        packed=ends is not None,
        threads=torch.get_num_threads(),
        interval=interval,
        absolute=tolerances[0],
        relative=tolerances[1],
        sweeps=sweeps,
    )


def _project(engine: str, initial: Tensor) -> bool:
    """Whether kernels for such states can make few projections by themselves; in double precision there are too few registers."""
    # In C where a feature is read once for all channels.
    return initial.dtype == torch.float32 and (engine == "triton" or (engine == "native" and alone(initial.shape[1], initial.itemsize)))
