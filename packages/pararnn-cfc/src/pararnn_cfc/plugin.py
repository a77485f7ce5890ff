"""What pararnn-cfc offers to pararnn: records only, nothing heavy is imported."""

from __future__ import annotations

from pararnn.hookspecs import hookimpl
from pararnn.specs import BackendSpec, CellSpec, CommandSpec, OpSpec


@hookimpl
def pararnn_register_cells() -> list[CellSpec]:
    """The closed-form continuous-time cells."""
    return [
        CellSpec(
            name="ParaCfC",
            target="pararnn_cfc.parallel:ParaCfC",
            summary="channelwise closed-form continuous-time cell for irregular samples",
            example="pararnn_cfc.examples:parallel_cfc",
        ),
        CellSpec(
            name="CfC",
            target="pararnn_cfc.cfc:CfC",
            summary="the CfC paper's network, with the interface and the weights of ncps",
            example="pararnn_cfc.examples:cfc_cell",
        ),
        CellSpec(
            name="CfCCell",
            target="pararnn_cfc.ncps_cell:CfCCell",
            summary="the cell of the CfC paper",
            example="pararnn_cfc.examples:cfc_cell",
        ),
        CellSpec(
            name="WiredCfC",
            target="pararnn_cfc.wired:WiredCfC",
            summary="a layered CfC whose synapses follow a wiring",
            example="pararnn_cfc.examples:wired_cfc",
        ),
        CellSpec(
            name="MixedMemoryCell",
            target="pararnn_cfc.mixed_memory:MixedMemoryCell",
            summary="a CfC cell with an LSTM in front",
            example="pararnn_cfc.examples:mixed_memory_cell",
        ),
    ]


@hookimpl
def pararnn_register_ops() -> list[OpSpec]:
    """The solve of `ParaCfC` from its samples on."""
    return [OpSpec(name="cfc/newton", target="pararnn.solver.sequential:walk", summary="states of ParaCfC with gate_mix='input', from its samples")]


@hookimpl
def pararnn_register_backends() -> list[BackendSpec]:
    """The fused solves, by the engines of the core."""
    return [
        BackendSpec(
            name=name,
            op="cfc/newton",
            target=f"pararnn_cfc.fused:solve_{name}",
            reasons=f"pararnn_cfc.fused:{name}_reasons",
            probe=f"pararnn_cfc.fused:{name}_probe",
            priority=priority,
            summary=f"one matrix product and one kernel, {where}",
        )
        for name, priority, where in (("native", 10, "on the CPU"), ("triton", 20, "on a GPU"))
    ]


@hookimpl
def pararnn_register_commands() -> list[CommandSpec]:
    """The demonstration on a real series."""
    return [
        CommandSpec(
            name="demo",
            target="pararnn_cfc.demo.command:demo",
            summary="forecast CO2 at Mauna Loa from irregular samples, in parallel over time",
        ),
    ]
