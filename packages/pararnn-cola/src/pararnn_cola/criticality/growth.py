"""How much small changes grow along trajectories: the products of Jacobians behind every exponent, in float64.

Of `T` Jacobians, latest factor on the left, `product_exponents` gives `log sigma_max(J_T ... J_1) / T`, and `column_exponents` the rates at which
orthonormal vectors grow that are made orthonormal again after each step (Benettin, Galgani, Giorgilli, Strelcyn 1980).

Numbers of a state that are functions of the others (`h` beside `x`) have directions that die at once, with an exponent of -inf. Rounding leaves a
little of them, which counts as nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn_cola.criticality.systems import System

ORTHONORMAL_NOISE = 16 * torch.finfo(torch.float64).eps
"""What making vectors orthonormal in float64 leaves of one that depends on those before it, as a share of its length; 6 eps were seen."""


@torch.no_grad()
def product_exponents(system: System, inputs: Tensor, burn_in: int) -> Tensor:
    """The exponent of each trajectory, `(batch,)`: -inf where the product is exactly zero, NaN where the trajectory left the numbers."""
    size, batch = system.state_size, inputs.shape[0]
    identity = torch.eye(size, dtype=torch.float64, device=inputs.device)
    columns = identity.unsqueeze(1).expand(size, batch, size)
    total = torch.zeros(batch, dtype=torch.float64, device=inputs.device)
    for time, push in enumerate(system.walk(inputs)):
        if time < burn_in:
            continue
        columns = push(columns)
        norm = torch.linalg.vector_norm(columns, dim=(0, 2))
        total += norm.log()
        columns = columns / torch.where(norm > 0, norm, 1.0).unsqueeze(-1)
    # LAPACK refuses NaN; `total` remembers it.
    last = torch.linalg.matrix_norm(columns.transpose(0, 1).nan_to_num(0.0, 0.0, 0.0), 2)
    return _only_numbers((total + last.log()) / (inputs.shape[1] - burn_in), total)


@torch.no_grad()
def column_exponents(system: System, inputs: Tensor, burn_in: int, count: int, seed: int) -> Tensor:
    """The growth rates of `count` orthonormal vectors, `(batch, count)`; they turn to the fastest directions during the burn-in."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(system.state_size, count, generator=generator, dtype=torch.float64).to(inputs.device)
    frame = torch.linalg.qr(start)[0].unsqueeze(1).expand(-1, inputs.shape[0], -1)
    total = torch.zeros(inputs.shape[0], count, dtype=torch.float64, device=inputs.device)
    noise = ORTHONORMAL_NOISE + system.rounding
    for time, push in enumerate(system.walk(inputs)):
        pushed = push(frame).transpose(0, 1)
        total += 0.0 * pushed.sum(1)
        orthonormal, triangular = torch.linalg.qr(pushed.nan_to_num(0.0, 0.0, 0.0))
        frame = orthonormal.transpose(0, 1)
        if time >= burn_in:
            grown = triangular.diagonal(dim1=-2, dim2=-1).abs()
            total += torch.where(grown <= noise * torch.linalg.vector_norm(pushed, dim=1), 0.0, grown).log()
    return _only_numbers(total / (inputs.shape[1] - burn_in), total)


def _only_numbers(exponents: Tensor, total: Tensor) -> Tensor:
    # A product that overflowed has no exponent either.
    return torch.where(total.isnan() | total.isposinf(), torch.nan, exponents)
