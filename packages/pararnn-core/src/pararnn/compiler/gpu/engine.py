"""The engine that prints Triton: solves, gradients and single steps on a GPU, or in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from pararnn.compiler.engine import Tolerance, Workload
from pararnn.compiler.gpu import backward, backward_source, forward, forward_source, planning
from pararnn.compiler.gpu.backward_planning import cut_for
from pararnn.compiler.gpu.launches import Launch
from pararnn.compiler.program import Program
from pararnn.scans import triton_backend
from pararnn.selection import Request
from pararnn.solver.planner import Plan

DTYPES = ("float16", "bfloat16", "float32", "float64")
REMEMBERED = 512


class TritonEngine:
    """Kernels in Triton; see `pararnn.compiler.engine.Engine`."""

    name, device, language = "triton", "cuda", "python"

    def __init__(self) -> None:
        # What is told by its address is kept along with what was prepared.
        self._prepared: dict[tuple[object, ...], tuple[forward.Prepared, Program, Plan, Tolerance]] = {}

    def reasons(self, request: Request) -> tuple[str, ...]:
        """Obstacles: no CUDA device, another dtype, more steps than are counted, or Triton is not installed."""
        found = triton_backend.reasons(request)
        if request.dtype.startswith("complex"):
            found += (f"it works in {', '.join(DTYPES)}, the states are {request.dtype}",)
        return found

    def plan(self, program: Program, work: Workload, interval: int | Literal["auto", "parallel"]) -> Plan:
        """Walk, or intervals, by `planning`."""
        return planning.plan(program, work, interval, packed=_is_packed(work))

    def solve(
        self, program: Program, operands: Sequence[Tensor], initial: Tensor, *, offsets: Tensor | None, plan: Plan, tolerance: Tolerance
    ) -> tuple[Tensor, Tensor]:
        """States and record, by the kernels of `forward`."""
        work, tensors, addresses = self.arrange(program, operands, initial, packed=offsets is not None, plan=plan, tolerance=tolerance)
        return forward.run(work, addresses, offsets, initial.device, tensors)

    def arrange(
        self, program: Program, operands: Sequence[Tensor], initial: Tensor, *, packed: bool, plan: Plan, tolerance: Tolerance
    ) -> tuple[forward.Prepared, list[Tensor], list[int]]:
        """What `forward.run` takes."""
        tensors = [one.resolve_neg() if one.is_neg() else one for one in (initial, *operands)]
        addresses = [one.data_ptr() for one in tensors]
        layout = [(one.shape, one.dtype, one.stride(), address & 15) for one, address in zip(tensors, addresses, strict=True)]
        key = (id(program), id(plan), id(tolerance), packed, initial.get_device(), *layout)
        found = self._prepared.get(key)
        if found is not None:
            work = found[0]
            if work.copies:
                forward.densify(tensors, addresses, work.copies)
            return work, tensors, addresses
        initial, *operands = tensors
        length = next(operand.shape[1] for kind, operand in zip(program.kinds, operands, strict=True) if kind.is_timed)
        launch = self._launch(program, initial, length, packed, plan)
        work, tensors, addresses = forward.arrange(program, operands, initial, length=length, packed=packed, launch=launch, tolerance=tolerance)
        if len(self._prepared) >= REMEMBERED:
            self._prepared.clear()
        self._prepared[key] = work, program, plan, tolerance
        return work, tensors, addresses

    def backward(
        self,
        program: Program,
        grad: Tensor,
        states: Tensor,
        operands: Sequence[Tensor],
        initial: Tensor,
        *,
        offsets: Tensor | None,
        plan: Plan,
        needs: Sequence[bool],
        into: Sequence[Tensor | None] | None = None,
    ) -> list[Tensor | None]:
        """Gradients, by the kernels of `backward`."""
        grad, initial = grad.resolve_neg(), initial.resolve_neg()
        operands = [one.resolve_neg() if one.is_neg() else one for one in operands]
        return backward.launch(program, grad, states, operands, initial, offsets=offsets, plan=plan, needs=needs, into=into)

    def step(self, program: Program, state: Tensor, operands: Sequence[Tensor], out: Tensor) -> None:
        """One step in place, by one kernel."""
        forward.step(program, state, _read_as_they_are(operands), out)

    def source(self, program: Program) -> str:
        """The kernels of a walk, of shooting, of a step, and of the walk that gives gradients."""
        cut = cut_for(1 << 20, 1 << 10, 1 << 10, itemsize=4, processors=planning.PROCESSORS)
        texts = [forward_source.source(program, variant, 2, keeps=True) for variant in ("walk", "shoot", "step")]
        texts.append(backward_source.source(program, (True,) * (len(program.kinds) + 1), cut))
        return "\n\n".join(texts)

    @staticmethod
    def _launch(program: Program, initial: Tensor, length: int, packed: bool, plan: Plan) -> Launch:
        sequences, state = initial.shape
        work = Workload(
            rows=1 if packed else sequences, length=length, state=state, sequences=sequences, longest=plan.length, itemsize=initial.element_size()
        )
        return planning.launch_for(program, work, plan.interval, packed=packed)


def _read_as_they_are(operands: Sequence[Tensor]) -> list[Tensor]:
    """Numbers that are to be read with another sign, as those of some views, are copied: kernels see memory alone."""
    return [operand.resolve_neg() for operand in operands]


def _is_packed(work: Workload) -> bool:
    return work.rows != work.sequences or work.length != work.longest
