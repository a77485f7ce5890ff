"""`verify_agreement`: is the parallel answer the one a walk gives, states and gradients alike?"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pararnn.conformance.tolerances import tolerance
from pararnn.errors import AgreementError
from pararnn.layers import ParaRNN
from pararnn.solver.config import NewtonConfig
from pararnn.solver.result import SolveResult


@dataclass(frozen=True, kw_only=True)
class AgreementReport:
    """How far the parallel solve and the walk are apart.

    Attributes:
        ok: whether outputs and all gradients agree within tolerance.
        max_abs, mean_abs, max_rel: difference of the outputs; the relative one is divided by the largest output of the walk.
        atol, rtol: outputs may differ by `atol + rtol * |output|`.
        gradient_tolerance: a gradient may differ by this share of the largest entry of the walk's.
        gradients: for every input, initial state and parameter, the largest difference of the gradient as a share of its largest entry.
        shape, dtype, device: of the outputs.
        newton_iters: parallel sweeps of the layer that needed most.
        status: of each layer's solve.
        plan: of each layer's solve.
        path: the backend of each layer's solve.
        walked: which share of the sequences of each layer, at most, the parallel solve walked too, so that a walk was compared with a walk.
    """

    ok: bool
    max_abs: float
    mean_abs: float
    max_rel: float
    atol: float
    rtol: float
    gradient_tolerance: float
    gradients: dict[str, float]
    shape: tuple[int, ...]
    dtype: str
    device: str
    newton_iters: int
    status: tuple[str, ...]
    plan: tuple[str, ...]
    path: tuple[str, ...]
    walked: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def __str__(self) -> str:
        verdict = "agrees with the walk" if self.ok else "does NOT agree with the walk"
        worst = max(self.gradients, key=lambda name: _rank(self.gradients[name]), default=None)
        by = f" by {', '.join(dict.fromkeys(self.path))}" if self.path else ""
        text = f"the parallel solve{by} {verdict}: outputs differ by at most {self.max_abs:.1e} (allowed {self.atol:.0e} + {self.rtol:.0e} |output|)"
        if worst is not None:
            text += f", gradients by at most {self.gradients[worst]:.1e} of their size (in {worst}; allowed {self.gradient_tolerance:.0e})"
        for depth, share in enumerate(self.walked):
            if share:
                which = f"{'' if self.status[depth] == 'WALKED' else 'up to '}{share:.0%} of the sequences"
                text += f"; in layer {depth} ({self.status[depth]}) {which} were walked in that solve too, so there a walk was compared with a walk"
        return text if self.ok else f"{text}; pararnn.conformance.verify_cell(cell, x) finds the fault of a cell"


def verify_agreement(
    module: nn.Module,
    x: Tensor,
    *,
    config: NewtonConfig | None = None,
    h0: Tensor | Sequence[Tensor] | None = None,
    cu_seqlens: Tensor | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    gradients: bool = True,
    raise_on_fail: bool = False,
) -> AgreementReport:
    """Compare the parallel solve of `module` over `x` `(batch, time, input)` with the walk: outputs, and gradients of everything.

    Gradients are those of one fixed random linear functional of the outputs and final states, by `x`, `h0` and every parameter. The plan
    insists on a parallel solve where `config` leaves the interval open, so that there is something to compare.

    Args:
        module: a `ParaRNN`, a cell, or a module that holds a `ParaRNN` as `.rnn`.
        config, h0, cu_seqlens: as for `ParaRNN`; the module's own config if left out.
        atol, rtol: allowed difference of the outputs; by dtype if left out.
        gradients: whether to compare gradients.
        raise_on_fail: raise `AgreementError` instead of returning a report that is not ok.
    """
    rnn = _as_rnn(module)
    chosen = rnn.config if config is None else config
    parallel = _with(rnn, "newton", chosen)
    walk = _with(rnn, "sequential", chosen)
    inputs = {"x": x.detach().clone().requires_grad_(gradients)}
    starts = None if h0 is None else [start.detach().clone().requires_grad_(gradients) for start in ([h0] if isinstance(h0, Tensor) else h0)]
    inputs |= {f"h0.{depth}": start for depth, start in enumerate(starts or ())}
    inputs |= {name: weight for name, weight in rnn.named_parameters() if weight.requires_grad}
    outputs, found, solves = [], [], []
    for model in (parallel, walk):
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []), torch.set_grad_enabled(gradients):
            torch.manual_seed(0)
            output, results = model.solve(inputs["x"], starts, cu_seqlens)
            outputs.append(output.detach())
            found.append(_gradients(output, [result.final for result in results], list(inputs.values())) if gradients else {})
            solves.append(results)
    report = _report(outputs, dict(zip(inputs, zip(*found, strict=True), strict=True)) if gradients else {}, solves[0], atol, rtol)
    if raise_on_fail and not report.ok:
        raise AgreementError(str(report), report=report)
    return report


def _as_rnn(module: nn.Module) -> ParaRNN:
    inner = getattr(module, "rnn", module)
    return inner if isinstance(inner, ParaRNN) else ParaRNN(inner)


def _with(rnn: ParaRNN, solver: str, config: NewtonConfig) -> ParaRNN:
    """The same layers under another solver."""
    twin = copy.copy(rnn)
    twin.solver, twin.config = solver, config  # type: ignore[assignment]
    return twin


def _gradients(output: Tensor, finals: list[Tensor], inputs: list[Tensor]) -> list[Tensor | None]:
    # Final states may be complex; the real part of a random complex functional sees both of their parts.
    loss = sum((tensor * torch.randn_like(tensor)).sum().real for tensor in (output, *finals))
    return list(torch.autograd.grad(loss, inputs, allow_unused=True)) if isinstance(loss, Tensor) else []


def _report(outputs: list[Tensor], pairs: dict[str, tuple[Any, Any]], results: Any, atol: float | None, rtol: float | None) -> AgreementReport:
    parallel, walk = outputs
    allowed = tolerance(parallel.dtype, "states")
    atol = allowed["atol"] if atol is None else atol
    rtol = allowed["rtol"] if rtol is None else rtol
    difference = (parallel - walk).abs().to(torch.float64)
    size = walk.abs().to(torch.float64)
    bound = tolerance(parallel.dtype, "gradients")["rtol"]
    errors = {name: _error(ours, truth) for name, (ours, truth) in pairs.items()}
    agree = bool((difference <= atol + rtol * size).all())
    return AgreementReport(
        ok=agree and all(error <= bound for error in errors.values()),
        max_abs=_largest(difference),
        mean_abs=float(difference.mean()) if difference.numel() else 0.0,
        max_rel=_largest(difference) / max(_largest(size), torch.finfo(torch.float64).tiny),
        atol=atol,
        rtol=rtol,
        gradient_tolerance=bound,
        gradients=errors,
        shape=tuple(parallel.shape),
        dtype=str(parallel.dtype).removeprefix("torch."),
        device=str(parallel.device),
        newton_iters=max((result.iterations for result in results), default=0),
        status=tuple(result.status.name for result in results),
        plan=tuple(result.plan.explain() for result in results),
        path=tuple(result.backend for result in results),
        walked=tuple(map(_walked, results)),
    )


def _walked(result: SolveResult) -> float:
    """The share of the sequences that were walked, as planned or as a repair; at most that, where longer intervals repaired some."""
    if not result.walked or not result.converged.numel():
        return 0.0
    return float((~result.converged).double().mean()) if result.iterations else 1.0


def _error(ours: Tensor | None, truth: Tensor | None) -> float:
    """The largest difference as a share of the largest entry; infinite where only one side has a gradient that is not zero."""
    if ours is None or truth is None:
        given = ours if truth is None else truth
        return 0.0 if given is None or not _largest(given.abs()) else math.inf
    return _largest((ours - truth).abs()) / max(_largest(truth.abs()), torch.finfo(truth.dtype).tiny)


def _largest(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _rank(error: float) -> float:
    return math.inf if math.isnan(error) else error
