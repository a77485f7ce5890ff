"""A clip whose gradient can lead back inside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pararnn.transforms import inside_transform, refuse_nested_jvp


def clip(weight: Tensor, bound: float) -> Tensor:
    """`weight` limited to `[-bound, bound]`, so that a weight outside can still be trained.

    The derivative of a plain clamp is zero outside, so a weight that an optimiser once pushed over the bound would never move again.
    Here a gradient passes outside too where a descent step along it leads towards the bound: the projected gradient.
    """
    if not torch.is_grad_enabled() and not inside_transform():
        return weight.clamp(-bound, bound)
    # The compiler refuses functions with a forward-mode rule, and needs none.
    kind = _Clip if torch.compiler.is_compiling() else _ClipWithForwardMode
    clipped: Tensor = kind.apply(weight, bound)
    return clipped


class _Clip(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, bound: float) -> Tensor:
        return weight.clamp(-bound, bound)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        weight, ctx.bound = inputs
        ctx.save_for_backward(weight)
        ctx.save_for_forward(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        return torch.where((weight.abs() <= ctx.bound) | (grad * weight > 0), grad, 0), None


class _ClipWithForwardMode(_Clip):
    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        refuse_nested_jvp()
        (weight,) = ctx.saved_tensors
        return torch.where(weight.abs() <= ctx.bound, tangent, 0)
