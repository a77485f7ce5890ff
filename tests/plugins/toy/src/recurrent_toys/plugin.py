"""What this plugin offers: records only, nothing heavy is imported."""

from __future__ import annotations

from pararnn.hookspecs import hookimpl
from pararnn.specs import CellSpec, StructureSpec


@hookimpl
def pararnn_register_cells() -> list[CellSpec]:
    """A minimal gated cell."""
    return [
        CellSpec(
            name="ToyCell",
            target="recurrent_toys.cell:ToyCell",
            summary="minimal gated recurrent unit, channelwise",
            example="recurrent_toys.examples:toy_cell",
        )
    ]


@hookimpl
def pararnn_register_structures() -> list[StructureSpec]:
    """Upper triangular blocks."""
    return [
        StructureSpec(
            name="upper_pairs",
            target="recurrent_toys.structure:UpperPairs",
            summary="pairs of channels, of which the first sees the second",
            example="recurrent_toys.examples:upper_pairs",
        )
    ]
