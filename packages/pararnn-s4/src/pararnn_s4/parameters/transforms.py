"""Maps between a positive number and what is stored for it, so that no optimiser step can make it negative."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pararnn.errors import ConfigError, InputError
from pararnn_s4.placement import has_numbers

Transform: TypeAlias = Literal["none", "exp", "relu", "sigmoid", "softplus"]

TRANSFORMS = ("none", "exp", "relu", "sigmoid", "softplus")
# What relu adds, so that the number never reaches 0.
RELU_OFFSET = 1e-4
# From here on softplus(x) and x agree in float64; torch's own threshold of 20 is good for float32 only.
SOFTPLUS_THRESHOLD = 40.0


def inv_transform(param: Float[Tensor, "*shape"], transform: str = "none", *, floor: float = 1e-4) -> Float[Tensor, "*shape"]:
    """What to store so that `param_transform` gives `param` back.

    The round trip is exact to rounding for every number in the range of the transform. Numbers that no stored value can give, such as the
    zero real part of FouT under `exp`, are raised: with `exp`, `sigmoid` and `softplus` to `floor`, with `relu` to `floor + 1e-4` (where
    its gradient is alive). `none` changes nothing. `floor=0` raises nothing.

    Raises:
        ConfigError: an unknown transform.
        InputError: `sigmoid` for a number of 1 or more.
    """
    if transform == "none":
        return param
    if transform == "relu":
        return torch.clamp(param - RELU_OFFSET, min=floor)
    positive = torch.clamp(param, min=floor)
    if transform == "exp":
        return torch.log(positive)
    if transform == "softplus":
        # log(exp(x) - 1) without its overflow.
        return positive + torch.log(-torch.expm1(-positive))
    if transform == "sigmoid":
        if has_numbers(positive) and bool((positive >= 1).any()):
            raise InputError(f"a sigmoid gives numbers below 1, but {positive.max().item():g} is to be stored; choose another transform, such as exp")
        return torch.logit(positive)
    raise _unknown(transform)


def param_transform(param: Float[Tensor, "*shape"], transform: str = "none") -> Float[Tensor, "*shape"]:
    """The positive number that `param` stands for.

    Raises:
        ConfigError: an unknown transform.
    """
    if transform == "none":
        return param
    if transform == "exp":
        return torch.exp(param)
    if transform == "relu":
        return F.relu(param) + RELU_OFFSET
    if transform == "sigmoid":
        return torch.sigmoid(param)
    if transform == "softplus":
        return F.softplus(param, threshold=SOFTPLUS_THRESHOLD)
    raise _unknown(transform)


def _unknown(transform: str) -> ConfigError:
    return ConfigError(f"transform {transform!r} is unknown; choose one of {', '.join(TRANSFORMS)}")
