"""What pararnn-s4 offers to pararnn: records only, nothing heavy is imported."""

from __future__ import annotations

from pararnn.hookspecs import hookimpl
from pararnn.specs import BackendSpec, CellSpec, OpSpec

KERNELS = "pararnn_s4.kernels"
OPS = {
    "cauchy": "Cauchy product: sum of v / (z - w) over a state, at many nodes z",
    "vandermonde": "Vandermonde product: sum of v exp(x l) over a state, at l = 0, 1, ...",
    "vandermonde_transpose": "its transpose: sum of u_l exp(x l) over time",
}
VANDERMONDE = ("vandermonde", "vandermonde_transpose")
# Name, module, priority where `auto` chooses, operations, one line for a table.
BACKENDS = (
    ("naive", "naive", 0, tuple(OPS), "the definition in plain PyTorch; holds the whole matrix"),
    ("blocked", "blocked", 10, tuple(OPS), "block by block in plain PyTorch, any device, no array of state by length"),
    ("numba", "numba_backend", 20, ("cauchy",), "a loop compiled by numba, on the CPU"),
    # Below `naive`, so only by name: they compile for many seconds at the first use, and gain little over what `auto` takes.
    ("compiled", "compiled", -10, tuple(OPS), "real arithmetic fused by torch.compile"),
    ("keops", "keops_backend", -10, tuple(OPS), "lazy reductions of KeOps"),
    ("triton", "triton_vandermonde", 30, VANDERMONDE, "tables and their product in one launch, on a GPU"),
    ("triton", "triton_cauchy", 30, ("cauchy",), "one launch on a GPU, no array of state by length"),
    ("cuda", "cuda_backend", 40, tuple(OPS), "CUDA C++, compiled here when it is first named"),
)
# Where a backend is asked for its reasons, if its own module cannot be imported without what it needs.
ASKED = {"triton": "triton_support"}


@hookimpl
def pararnn_register_ops() -> list[OpSpec]:
    """The three products, and the states of an S4 cell."""
    products = [
        OpSpec(name=f"s4/{op}", target=f"{KERNELS}.naive:{op}", summary=summary, dtype="complex64", example=f"{KERNELS}.examples:{op}")
        for op, summary in OPS.items()
    ]
    return [*products, OpSpec(name="s4/solve", target="pararnn.solver.sequential:walk", summary="states of ParaS4, whose transition never changes")]


@hookimpl
def pararnn_register_backends() -> list[BackendSpec]:
    """Every kernel, and the solver of ParaS4; each says itself where it can run."""
    solver = BackendSpec(
        name="powers",
        op="s4/solve",
        target="pararnn_s4.cells.powers_backend:solve",
        reasons="pararnn_s4.cells.powers_backend:reasons",
        probe="pararnn_s4.cells.powers_backend:probe",
        summary="all states by products with powers of the transition, any device with float64",
    )
    kernels = [
        BackendSpec(
            name=name,
            op=f"s4/{op}",
            target=f"{KERNELS}.{module}:{op}",
            reasons=f"{KERNELS}.{ASKED.get(name, module)}:reasons",
            probe=f"{KERNELS}.{module}:probe",
            priority=priority,
            summary=summary,
        )
        for name, module, priority, ops, summary in BACKENDS
        for op in ops
    ]
    return [*kernels, solver]


@hookimpl
def pararnn_register_cells() -> list[CellSpec]:
    """The layers' state-space models as cells."""
    return [
        CellSpec(
            name="ParaS4D",
            target="pararnn_s4.cells.diagonal:ParaS4D",
            summary="diagonal state-space models as a linear cell",
            example="pararnn_s4.cells.examples:para_s4d",
        ),
        CellSpec(
            name="ParaS4",
            target="pararnn_s4.cells.dplr:ParaS4",
            summary="state-space models with a diagonal plus low-rank transition as a linear cell",
            example="pararnn_s4.cells.examples:para_s4",
        ),
    ]
