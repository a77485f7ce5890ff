"""The backends of `cfc/newton`: a `ParaCfC` with `gate_mix="input"` from its samples to its states, by one matrix product and one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pararnn.compiler.gpu.backend import reasons as gpu_reasons
from pararnn.compiler.native.backend import reasons as cpu_reasons
from pararnn.compiler.record import Record
from pararnn.scans.segments import as_offsets, on_device
from pararnn.selection import Request
from pararnn.solver.api import SHORT_CUTS, cell_problem, run
from pararnn.solver.config import NewtonConfig
from pararnn.solver.graphs import REASON
from pararnn.solver.planner import Plan
from pararnn.solver.result import SolveResult
from pararnn.solver.truth import is_finite
from pararnn_cfc import fused_again as again
from pararnn_cfc.fused_gradients import attached
from pararnn_cfc.fused_inputs import check_gaps, end_finite
from pararnn_cfc.fused_op import AUTO, PARALLEL, newton_cfc_fused, question
from pararnn_cfc.fused_setting import setting
from pararnn_cfc.fused_sources import Sources, fit, weights_of
from pararnn_cfc.fused_start import zeros
from pararnn_cfc.fused_step import step
from pararnn_cfc.parallel import ParaCfC


def triton_reasons(request: Request) -> tuple[str, ...]:
    """Obstacles to the fused solve on a GPU."""
    return gpu_reasons(request) + _own_reasons(request)


def native_reasons(request: Request) -> tuple[str, ...]:
    """Obstacles to the fused solve on a CPU."""
    return cpu_reasons(request) + _own_reasons(request)


def _own_reasons(request: Request) -> tuple[str, ...]:
    found: tuple[str, ...] = request.option("obstacles", ())
    if request.option("autocast"):
        found += ("autocast is on, and the fused solve projects in the dtype of the weights",)
    return found


def triton_probe() -> tuple[str, ...] | None:
    """A small solve and its gradients."""
    return _probe("triton", triton_reasons, "cuda" if torch.cuda.is_available() else "cpu")


def native_probe() -> tuple[str, ...] | None:
    """A small solve and its gradients."""
    return _probe("native", native_reasons, "cpu")


def solve_triton(
    cell: ParaCfC, x: Tensor, config: NewtonConfig, *, h0: Tensor | None = None, cu_seqlens: Tensor | None = None, guess: Tensor | None = None
) -> SolveResult:
    """The solve of `cell` over `x` on a GPU, see `solve`."""
    return solve("triton", cell, x, config, h0=h0, cu_seqlens=cu_seqlens, guess=guess)


def solve_native(
    cell: ParaCfC, x: Tensor, config: NewtonConfig, *, h0: Tensor | None = None, cu_seqlens: Tensor | None = None, guess: Tensor | None = None
) -> SolveResult:
    """The solve of `cell` over `x` on a CPU, see `solve`."""
    return solve("native", cell, x, config, h0=h0, cu_seqlens=cu_seqlens, guess=guess)


solve_triton.takes_inputs = solve_native.takes_inputs = True  # type: ignore[attr-defined]
solve_triton.step = step  # type: ignore[attr-defined]
SHORT_CUTS[ParaCfC] = again.solve


def solve(
    engine: str, cell: ParaCfC, x: Tensor, config: NewtonConfig, *, h0: Tensor | None, cu_seqlens: Tensor | None, guess: Tensor | None
) -> SolveResult:
    """The solve of `cell` over `x` `(batch, time, d_in)` by an engine; a guess is checked and not needed.

    On a GPU nothing waits for the device, so a time gap that is NaN or negative makes the states NaN from there on instead of an error.

    Raises:
        InputError: on a CPU, a time gap is NaN or negative, or the states are not finite because the inputs are not.
        ShapeError, DTypeError: inputs that do not fit.
    """
    start, compiling = h0, torch.compiler.is_compiling()
    dtype, weight, bias, u = cell._state_dtype, *weights_of(cell)
    # A compiled graph holds no lengths; its operator looks at them.
    ends = None if cu_seqlens is None or compiling else as_offsets(cu_seqlens, x.shape[1])
    sequences = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    if start is None:
        starts_at_zero = not compiling and type(cell).initial_state is again.INITIAL_STATE and "initial_state" not in cell.__dict__
        start = zeros(sequences, cell.d_h, dtype, u.device) if starts_at_zero else cell.initial_state(sequences)
    elif isinstance(start, Tensor) and start.is_floating_point():
        start = start.to(dtype)
    sources = Sources(x, weight, bias, u, start)
    if not fit(cell, sources, sequences, dtype, packed=cu_seqlens is not None) or (guess is not None and guess.shape != (*x.shape[:2], cell.d_h)):
        # It says what does not fit, and serves the rest.
        result: SolveResult = run(cell_problem(cell, x, config, h0=h0, cu_seqlens=cu_seqlens, guess=guess), config)
        return result
    if compiling:
        return _in_graph(engine, cell, sources, config, cu_seqlens)
    if x.device.type == "cpu":
        check_gaps(x)
    chosen = setting(question(sources, ends, engine, cell.max_recurrent_norm, config.interval, config.tolerances(dtype), config.max_iters or 0))
    offsets = None if ends is None else on_device(ends, x.device)
    states, record = attached(chosen, sources, offsets)
    if engine == "triton" and x.device.type in again.DEVICES and cu_seqlens is None and guess is None:
        again.remember(cell, sources, config, h0, chosen)
    result = SolveResult.deferred(Record(chosen.plan, states, start, record, ends), states=states, plan=chosen.plan, backend=engine)
    if x.device.type == "cpu" and not end_finite(states, ends):
        is_finite(cell_problem(cell, x, config, h0=h0, cu_seqlens=cu_seqlens), states)
    return result


def _in_graph(engine: str, cell: ParaCfC, sources: Sources, config: NewtonConfig, cu_seqlens: Tensor | None) -> SolveResult:
    """The solve as one node of a graph, which plans when it runs, for the sizes that it meets."""
    x, initial = sources.x, sources.initial
    asked = AUTO if config.interval == "auto" else PARALLEL if config.interval == "parallel" else config.interval
    tolerances = (-1.0 if given == "auto" else given for given in (config.atol, config.rtol))
    states, record = newton_cfc_fused(*sources, cu_seqlens, cell.max_recurrent_norm, engine, asked, *tolerances, config.max_iters or 0)
    if x.shape[1] == 0:
        final = initial
    elif cu_seqlens is None:
        final = states[:, -1]
    else:
        last = states[0, (cu_seqlens[1:] - 1).clamp(min=0)]
        final = torch.where((cu_seqlens.diff() > 0).unsqueeze(1), last, initial)
    facts: dict[str, Any] = {"walk": 0.0, "sweep": 0.0, "parallel": 0.0, "patience": 0, "by_autograd": False}
    plan = Plan(interval=x.shape[1], length=x.shape[1], lanes=x.shape[0] * cell.d_h, reason=REASON, **facts)
    source = Record(plan, states, initial, record.unsqueeze(1), None)
    return SolveResult.deferred(source, states=states, final=final, plan=plan, backend=engine)


def _probe(engine: str, reasons: Callable[[Request], tuple[str, ...]], device: str) -> tuple[str, ...] | None:
    if found := reasons(Request.of("cfc/newton", device=device, options={"named": True})):
        return found
    for interval in (8, 70):
        x = torch.ones(2, 70, 4, device=device, requires_grad=True)
        given = {"h0": None, "cu_seqlens": None, "guess": None}
        solve(engine, ParaCfC(4, 3, device=device), x, NewtonConfig(interval=interval), **given).states.sum().backward()
    return None
