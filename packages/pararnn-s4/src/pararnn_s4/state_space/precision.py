"""Which dtype is computed in: states and kernels in that of the parameters, constants of the model in double precision."""

from __future__ import annotations

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def complex_of(dtype: torch.dtype) -> torch.dtype:
    """The complex dtype of the precision of `dtype`, single or double."""
    # The method to_complex of dtypes cannot be traced by torch.compile.
    return torch.complex64 if dtype in (torch.float32, torch.complex64) else torch.complex128


def double(tensor: Tensor) -> Tensor:
    """`tensor` in double precision, where its device has it: Apple's GPUs do not."""
    return tensor.float() if tensor.device.type == "mps" else tensor.double()
