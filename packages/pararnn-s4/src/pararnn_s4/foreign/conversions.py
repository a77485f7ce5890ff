"""What other libraries store differently, brought to our form in a layer that holds their numbers."""

from __future__ import annotations

import math

import torch

from pararnn.errors import InputError
from pararnn_s4.matrix_power import power
from pararnn_s4.state_space.diagonal import DiagonalSSM
from pararnn_s4.state_space.dplr import DPLRSSM
from pararnn_s4.state_space.real_form import from_rows, rows

# Above this, so many digits of the stored outputs are gone that those of float32 do not hold 1e-5 any more, whoever computes with them.
WORST_CONDITION = 1e12


@torch.no_grad()
def restore_output(ssm: DPLRSSM, length: int) -> None:
    """Replace `C (1 - A^length)` in `ssm.C` by `C`; `length=0` leaves it.

    At their first call lrnnx and state-spaces overwrite C by this product, of which their algorithm needs the transform. What the layer computes
    is defined by the A that it has now, not by the one of that first call.

    Raises:
        InputError: `length` is negative, or `1 - A^length` is so close to singular that C cannot be known.
    """
    if length < 0:
        raise InputError(f"l_kernel={length} is no length; it must be 0 (the layer was never called) or positive")
    if length == 0:
        return
    remaining = torch.eye(2 * ssm.state_size, dtype=torch.float64, device=ssm.C.device) - power(length, ssm.sampled().powers.square(0))
    condition = torch.linalg.cond(remaining).max().item()
    if not condition < WORST_CONDITION:
        raise InputError(
            f"C cannot be restored from what was stored for a length of {length}: 1 - A^{length} has condition {condition:.2g}, since some state "
            "keeps all it has over that length; load the parameters from before the first call (l_kernel=0)",
            condition=condition,
        )
    stored = rows(torch.view_as_complex(ssm.C.double())).transpose(0, 1)
    output = torch.linalg.solve(remaining, stored, left=False).transpose(0, 1)
    ssm.C.copy_(torch.view_as_real(from_rows(output).resolve_conj()))


@torch.no_grad()
def limit_band(ssm: DiagonalSSM, limit: float) -> None:
    """Clear the outputs of states that oscillate at `limit / 2` periods a sample or faster, as `bandlimit` of state-spaces does at every call."""
    model = ssm.continuous()
    periods = model.dt * model.rate.imag.abs() / math.tau
    within = (periods < limit / 2).to(ssm.C.dtype)
    ssm.C.mul_(within.unsqueeze(-1))


@torch.no_grad()
def count_twice(ssm: DiagonalSSM) -> None:
    """Double the outputs: lrnnx and state-spaces add a conjugate partner to the states of real models as well, which have none."""
    ssm.C.mul_(2)
