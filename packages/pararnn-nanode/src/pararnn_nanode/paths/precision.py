"""The precision that weights are computed in: float64 wherever a device has it, rounded once at the end."""

from __future__ import annotations

import torch
from torch import Tensor

NO_FLOAT64 = ("mps",)
"""Devices that have no float64: functions of time are computed on the CPU there, functions of parameters in float32."""


def precise(times: Tensor) -> Tensor:
    """`times` in float64, on the CPU where their device has none."""
    return (times.cpu() if times.device.type in NO_FLOAT64 else times).to(torch.float64)


def widened(x: Tensor) -> Tensor:
    """`x` in float64 or complex128; in float32 or complex64 on a device without float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32 if x.device.type in NO_FLOAT64 else torch.float64))
