"""What pararnn-cfc offers to pararnn: records only, nothing heavy is imported."""

from __future__ import annotations

from pararnn.hookspecs import hookimpl
from pararnn.specs import CellSpec, CommandSpec


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
def pararnn_register_commands() -> list[CommandSpec]:
    """The demonstration on a real series."""
    return [
        CommandSpec(
            name="demo",
            target="pararnn_cfc.demo.command:demo",
            summary="forecast CO2 at Mauna Loa from irregular samples, in parallel over time",
        ),
    ]
