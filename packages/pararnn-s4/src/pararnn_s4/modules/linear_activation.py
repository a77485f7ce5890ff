"""A linear map over features with its activation, for either order of axes."""

from __future__ import annotations

from typing import Any

from torch import nn

from pararnn_s4.modules.activation import GATED
from pararnn_s4.modules.activation import activation as make_activation


def LinearActivation(  # noqa: N802 -- called like a module, under the name that lrnnx and state-spaces give it
    d_input: int,
    d_output: int,
    bias: bool = True,
    transposed: bool = False,
    activate: bool = False,
    *,
    activation: str | None = "gelu",
    **kwargs: Any,
) -> nn.Module:
    """A module from `(..., d_input)` to `(..., d_output)`, or with `transposed` from `(batch, d_input, length)` to `(batch, d_output, length)`.

    Applies `activation` if `activate`; without it, a plain `nn.Linear` (or `nn.Conv1d` of width 1). `activation="glu"` doubles the outputs
    of the linear map, whether it is applied here or by the caller. `kwargs` go to the linear module.

    Raises:
        ConfigError: an unknown activation.
    """
    applied = make_activation(activation, dim=-2 if transposed else -1)
    outputs = 2 * d_output if activation == GATED else d_output
    linear: nn.Module = nn.Conv1d(d_input, outputs, 1, bias=bias, **kwargs) if transposed else nn.Linear(d_input, outputs, bias=bias, **kwargs)
    return nn.Sequential(linear, applied) if activate and activation is not None else linear
