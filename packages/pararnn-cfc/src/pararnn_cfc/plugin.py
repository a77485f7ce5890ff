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
