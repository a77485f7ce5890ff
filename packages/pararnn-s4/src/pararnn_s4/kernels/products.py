"""A batched matrix product in the full precision of its dtype, whatever the process allows other products.

Users switch TF32 on for their networks (or bfloat16 on CPUs). In a kernel of a state-space model it costs three digits. The setting is not
touched, because it belongs to the whole process and other threads rely on it: where it is on, each float32 factor is divided into three
parts of 8 bits, which such hardware multiplies without rounding, and their products are added in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

EIGHT_BITS = -65536


def exact_bmm(left: Tensor, right: Tensor) -> Tensor:
    """`torch.bmm(left, right)` in full precision; differentiable to any order."""
    if left.dtype != torch.float32 or not _reduced(left.device.type):
        return torch.bmm(left, right)
    product: Tensor = _ExactProduct.apply(left, right)
    return product


def _reduced(device: str) -> bool:
    if not torch.compiler.is_compiling():
        return reduced_precision(device)
    # Imported here, because it loads the compiler.
    from pararnn_s4.kernels import untraced

    reduced: bool = untraced.reduced_precision(device)
    return reduced


def reduced_precision(device: str) -> bool:
    """Whether float32 products may be computed with fewer bits on `device`."""
    backends: Any = torch.backends
    settings = backends.cuda.matmul if device == "cuda" else backends.mkldnn.matmul
    if hasattr(settings, "fp32_precision"):
        return settings.fp32_precision not in ("ieee", "none")
    return torch.get_float32_matmul_precision() != "highest"


class _ExactProduct(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(left: Tensor, right: Tensor) -> Tensor:
        # Of the nine products of parts, the three left out are below the last bit of the result.
        (a, b, c), (d, e, f) = _parts(left), _parts(right)
        return torch.bmm(torch.cat((c, b, a, b, a, a), 2), torch.cat((d, e, f, d, e, d), 1))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        left, right = ctx.saved_tensors
        return exact_bmm(grad, right.transpose(1, 2)), exact_bmm(left.transpose(1, 2), grad)


def _parts(tensor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Three tensors of 8 significant bits each that add up to `tensor`."""
    first = _leading_bits(tensor)
    second = _leading_bits(tensor - first)
    return first, second, tensor - first - second


def _leading_bits(tensor: Tensor) -> Tensor:
    return torch.bitwise_and(tensor.contiguous().view(torch.int32), EIGHT_BITS).view(torch.float32)
