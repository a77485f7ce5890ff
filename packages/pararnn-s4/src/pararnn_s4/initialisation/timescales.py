"""Time scales: how long a step is for each feature, in units of its own dynamics."""
# ruff: noqa: N803 -- H, N are the names of the literature and of the reference functions.

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_s4.parameters.transforms import RELU_OFFSET, inv_transform
from pararnn_s4.placement import draw, place, require_pairs


def init_dt(
    H: int,
    N: int,
    dt_min: float = 0.001,
    dt_max: float = 0.1,
    dt_tie: bool = True,
    dt_transform: str = "exp",
    deterministic: bool = False,
    dtype: torch.dtype = torch.float,
    *,
    stored: bool = True,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "H copies"]:
    """Stored time steps `(H, 1)`, or `(H, N / 2)` without `dt_tie`: log-uniform in `[dt_min, dt_max]`.

    `deterministic` spaces them evenly in their logarithm over the features instead. `stored=False` returns the time steps themselves,
    before `dt_transform` is undone; that is what lrnnx and state-spaces return for `deterministic=True`, and then take for logarithms.

    Raises:
        ConfigError: not `0 < dt_min <= dt_max`, an odd `N` without `dt_tie`, or a `dt_min` that `relu` cannot give.
        InputError: `sigmoid` for time steps of 1 and more.

    Source: Gu et al., "How to train your HiPPO", 2022, for what a time step means; the range is the default of state-spaces.
    """
    if H < 1:
        raise ConfigError(f"time steps are wanted for H={H} features; pass H of at least 1")
    if not 0 < dt_min <= dt_max:
        raise ConfigError(f"time steps lie between dt_min and dt_max, both positive, got dt_min={dt_min} and dt_max={dt_max}")
    if dt_transform == "relu" and dt_min <= RELU_OFFSET:
        raise ConfigError(f"relu gives time steps above {RELU_OFFSET:g}, got dt_min={dt_min}; choose dt_transform='exp'")
    if not dt_tie:
        require_pairs(N)
    shape = (H, 1 if dt_tie else N // 2)
    low, high = math.log(dt_min), math.log(dt_max)
    if deterministic:
        logarithm = torch.linspace(low, high, H, dtype=torch.float64, device="cpu").unsqueeze(-1).repeat(1, shape[1])
    else:
        logarithm = low + (high - low) * draw("uniform", shape, dtype, generator)
    if stored and dt_transform == "exp":
        return place(logarithm, dtype, device)
    return place(inv_transform(logarithm.exp(), dt_transform if stored else "none", floor=0.0), dtype, device)
