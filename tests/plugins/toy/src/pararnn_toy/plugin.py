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
            target="pararnn_toy.cell:ToyCell",
            summary="minimal gated recurrent unit, channelwise",
            example="pararnn_toy.examples:toy_cell",
        )
    ]


@hookimpl
def pararnn_register_structures() -> list[StructureSpec]:
    """Upper triangular blocks."""
    return [
        StructureSpec(
            name="upper_pairs",
            target="pararnn_toy.structure:UpperPairs",
            summary="pairs of channels, of which the first sees the second",
            example="pararnn_toy.examples:upper_pairs",
        )
    ]
