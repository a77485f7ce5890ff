"""What the core itself offers, through the same hooks as any plugin."""

from __future__ import annotations

import os

from pararnn.hookspecs import hookimpl
from pararnn.specs import BackendSpec, OpSpec, StructureSpec

SCANS = {
    "scan/diagonal": "scan of diagonal maps",
    "scan/block_diagonal": "scan of block-diagonal maps",
    "scan/dense": "scan of dense maps",
    "scan/generic": "scan of any structure without an operation of its own",
}

# Where Triton's interpreter stands in for a GPU its kernels are right but slow, and have to be named.
TRITON_PRIORITY = 5 if os.environ.get("TRITON_INTERPRET", "0") in ("", "0") else -5


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
    """PyTorch for everything; compiled loops on the CPU and Triton on a GPU for scans of diagonal maps and for channelwise cells."""
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
            target="pararnn.scans.triton_diagonal:scan",
            reasons="pararnn.scans.triton_backend:reasons",
            probe="pararnn.scans.triton_backend:probe",
            priority=TRITON_PRIORITY,
            summary="one pass over memory on a GPU",
        ),
        BackendSpec(
            name="triton",
            op="scan/block_diagonal",
            target="pararnn.scans.triton_blocks:scan",
            reasons="pararnn.scans.triton_backend:block_reasons",
            probe="pararnn.scans.triton_backend:block_probe",
            priority=TRITON_PRIORITY,
            summary="blocks of up to four slots on a GPU",
        ),
        BackendSpec(
            name="triton",
            op="solve",
            target="pararnn.compiler.gpu.backend:solve",
            reasons="pararnn.compiler.gpu.backend:reasons",
            probe="pararnn.compiler.gpu.backend:probe",
            priority=20,
            summary="channelwise steps compiled for a GPU",
        ),
        BackendSpec(
            name="native",
            op="solve",
            target="pararnn.compiler.native.backend:solve",
            reasons="pararnn.compiler.native.backend:reasons",
            probe="pararnn.compiler.native.backend:probe",
            priority=10,
            summary="channelwise steps compiled to C for the CPU",
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
