"""A cell with inputs and an initial state that all want gradients, and its solve by a compiled step."""

from typing import NamedTuple

import torch
from toy_cells import Gate

from pararnn import NewtonConfig
from pararnn.solver.api import cell_problem, run

COMPILED = NewtonConfig(backend="native")


class Sources(NamedTuple):
    cell: Gate
    x: torch.Tensor
    h0: torch.Tensor

    def all(self):
        return [self.x, self.h0, *self.cell.parameters()]


def sources(length=11, batch=2, sequences=None):
    cell = Gate(4, 3)
    x = torch.randn(batch, length, 4, dtype=torch.float64, requires_grad=True)
    return Sources(cell, x, torch.randn(sequences or batch, 3, dtype=torch.float64, requires_grad=True))


def result_of(cell, x, config=COMPILED, **options):
    return run(cell_problem(cell, x, config, **options), config)
