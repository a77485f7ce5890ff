"""A small equation as a cell, with inputs, for the conformance kit."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn_nanode.depth.cell import NANODECell
from pararnn_nanode.fields.dense import DenseField
from pararnn_nanode.paths.constant import ConstantPath
from pararnn_nanode.paths.trigonometric import TrigPath


def nanode(batch: int, length: int, *, seed: int) -> tuple[NANODECell, Tensor]:
    """A dense field of four channels and two inputs whose weights turn once in twenty steps, and inputs from its first step on."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        path = TrigPath((4, 4), 1, dtype=torch.float64)
        field = DenseField(
            4,
            path,
            bias=TrigPath(4, 1, gain=0.5, dtype=torch.float64),
            input=ConstantPath((4, 2), dtype=torch.float64),
        )
        # Weights that pull towards zero, so that long sequences stay where they are.
        with torch.no_grad():
            path.coefficients[0].mul_(0.3).sub_(torch.eye(4, dtype=torch.float64))
        cell = NANODECell(field, steps=20)
        return cell, cell.steps_of(batch, length, torch.randn(batch, length, 2, dtype=torch.float64))
