"""What the core itself offers, through the same hooks as any plugin."""

from __future__ import annotations

from pararnn.hookspecs import hookimpl
from pararnn.specs import BackendSpec, OpSpec, StructureSpec

SCANS = {
    "scan/diagonal": "scan of diagonal maps",
    "scan/block_diagonal": "scan of block-diagonal maps",
    "scan/dense": "scan of dense maps",
    "scan/generic": "scan of any structure without an operation of its own",
}


@hookimpl
def pararnn_register_structures() -> list[StructureSpec]:
    """The three families of linear maps of the core."""
    return [
        StructureSpec(
            name="diagonal",
            target="pararnn.structures.diagonal:Diagonal",
            summary="each channel sees itself only",
            example="pararnn.structures.examples:diagonal",
        ),
        StructureSpec(
            name="block_diagonal",
            target="pararnn.structures.block_diagonal:BlockDiagonal",
            summary="small blocks of channels see each other",
            example="pararnn.structures.examples:block_diagonal",
        ),
        StructureSpec(
            name="dense",
            target="pararnn.structures.dense:Dense",
            summary="every channel sees every other",
            example="pararnn.structures.examples:dense",
        ),
    ]


@hookimpl
def pararnn_register_ops() -> list[OpSpec]:
    """The scans and the parallel solve."""
    scans = [OpSpec(name=name, target="pararnn.scans.reference:walk", summary=summary) for name, summary in SCANS.items()]
    return [*scans, OpSpec(name="solve", target="pararnn.solver.sequential:walk", summary="states of a nonlinear recurrence")]


@hookimpl
def pararnn_register_backends() -> list[BackendSpec]:
    """PyTorch for everything, numba for the diagonal scan on the CPU, Triton for it on a GPU."""
    torch_scans = [
        BackendSpec(
            name="torch",
            op=op,
            target="pararnn.scans.chunked:scan",
            reasons="pararnn.scans.chunked:reasons",
            probe="pararnn.scans.chunked:probe",
            summary="chunked scan in plain PyTorch, any device",
        )
        for op in SCANS
    ]
    return [
        *torch_scans,
        BackendSpec(
            name="numba",
            op="scan/diagonal",
            target="pararnn.scans.numba_backend:scan",
            reasons="pararnn.scans.numba_backend:reasons",
            probe="pararnn.scans.numba_backend:probe",
            priority=10,
            summary="compiled loop over time on the CPU",
        ),
        BackendSpec(
            name="triton",
            op="scan/diagonal",
            target="pararnn.scans.triton_backend:scan",
            reasons="pararnn.scans.triton_backend:reasons",
            probe="pararnn.scans.triton_backend:probe",
            # Below numba, which does not serve a GPU: where Triton is interpreted on the CPU, it has to be named.
            priority=5,
            summary="one pass over memory on a GPU",
        ),
        BackendSpec(
            name="torch",
            op="solve",
            target="pararnn.solver.torch_backend:solve",
            reasons="pararnn.solver.torch_backend:reasons",
            probe="pararnn.solver.torch_backend:probe",
            summary="multiple shooting in plain PyTorch, any device",
        ),
    ]
