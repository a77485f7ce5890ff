"""The network: layers of `ParaCfC`, and a linear map from the last one's state and the inputs to corrections of the reference forecast."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from pararnn.layers import ParaRNN
from pararnn_cfc.parallel import ParaCfC

# Weeks after which an untrained channel of the first layer has forgotten all but 1/e: from the noise of single weeks to the drift over years.
MEMORIES = (2.0, 104.0)


class Forecaster(nn.Module):
    """Corrections of the reference forecast `(batch, time, horizons)`, in ppm, from inputs `(batch, time, d_in)` with the gap in weeks last.

    The cell's time gap may be in any unit, as rates are learnt. In weeks a usual gap is 1, and the rates `softplus(f)` that suit this series lie
    between 1/104 and 1/2 a week, where `f` between -5 and 0 is easy to learn; in seconds they would be near 1e-7, and `f` near -16.

    Args:
        d_in: input channels, the gap included.
        state_size: channels of the state.
        horizons: forecasts a step.
        num_layers: layers of cells.
        solver: `"newton"` for parallel over time, `"sequential"` for the loop.
    """

    def __init__(self, *, d_in: int, state_size: int, horizons: int, num_layers: int = 1, solver: Literal["newton", "sequential"] = "newton") -> None:
        super().__init__()
        cell = ParaCfC(d_in, state_size)
        with torch.no_grad():
            memories = torch.logspace(math.log10(MEMORIES[0]), math.log10(MEMORIES[1]), state_size)
            # The inverse of softplus, so that the rate of a channel starts at 1 / memory.
            cell.W_x.bias[:state_size] = torch.log(torch.expm1(1 / memories))
        self.rnn = ParaRNN(cell, num_layers=num_layers, solver=solver)
        self.head = nn.Linear(state_size + d_in - 1, horizons)
        # Training starts at the reference forecast itself.
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        corrections: Tensor = self.head(torch.cat((self.rnn(x), x[..., :-1]), dim=-1))
        return corrections
