"""What pararnn-nanode offers to pararnn: records only, nothing heavy is imported."""

from __future__ import annotations

from pararnn.hookspecs import hookimpl
from pararnn.specs import BackendSpec, CellSpec, OpSpec


@hookimpl
def pararnn_register_cells() -> list[CellSpec]:
    """The discretised equation as a cell over depth."""
    return [
        CellSpec(
            name="NANODECell",
            target="pararnn_nanode.depth.cell:NANODECell",
            summary="a neural ODE with moving weights, discretised: a recurrence over depth",
            example="pararnn_nanode.depth.examples:nanode",
        ),
    ]


@hookimpl
def pararnn_register_ops() -> list[OpSpec]:
    """The states of an equation over depth."""
    summary = "states of a NANODECell, each step of which moves the state a little"
    return [OpSpec(name="nanode/solve", target="pararnn.solver.sequential:walk", summary=summary)]


@hookimpl
def pararnn_register_backends() -> list[BackendSpec]:
    """The solver of that operation."""
    return [
        BackendSpec(
            name="blocks",
            op="nanode/solve",
            target="pararnn_nanode.depth.backend:solve",
            reasons="pararnn_nanode.depth.backend:reasons",
            probe="pararnn_nanode.depth.backend:probe",
            summary="a Newton iteration with one Jacobian for each block of steps, any device",
        ),
    ]
