"""States in half precision, integrated in float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pararnn.errors import DTypeError
from pararnn_nanode.fields.base import Field, Weights
from pararnn_nanode.solution import Solution

HALVES = (torch.float16, torch.bfloat16)


class _Wide(Field):
    """A field that sees float32 states and weights; what it cannot compute with them becomes an error that says so."""

    def __init__(self, field: Field) -> None:
        super().__init__()
        self.field = field

    def weights(self, times: Tensor, anchors: Tensor | None = None, u: Tensor | None = None) -> Weights:
        found = self.field.weights(times, anchors, u)
        return tuple(leaf.float() if leaf.dtype in HALVES else leaf for leaf in found)

    def evaluate(self, x: Tensor, weights: Weights) -> Tensor:
        try:
            return self.field.evaluate(x, weights).to(x.dtype)
        except RuntimeError as error:
            if "dtype" not in str(error) and "Half" not in str(error) and "BFloat16" not in str(error):
                raise
            raise DTypeError(
                "a state in half precision is integrated in float32, since an error estimate in half precision says nothing, but the field "
                f"fails on it ({error}). Keep what the field reads in float32, or use a fixed-step method"
            ) from error


class _Call(nn.Module):
    def __init__(self, field: Field) -> None:
        super().__init__()
        self.field = field

    def forward(self, run: Callable[[Field], Solution]) -> Solution:
        return run(self.field)


def widen(solve: Callable[..., Solution], field: Field, x: Tensor, *args: Any, **options: Any) -> Solution:
    """`solve(field, x, ...)` in float32 with the parameters of `field` in float32 too; its states in the dtype of `x`."""
    call = _Call(_Wide(field))
    wide = {name: parameter.float() for name, parameter in call.named_parameters() if parameter.dtype in HALVES}
    wide.update({name: buffer.float() for name, buffer in call.named_buffers() if buffer.dtype in HALVES})
    found: Solution = torch.func.functional_call(call, wide, (lambda field: solve(field, x.float(), *args, **options),))
    return dataclasses.replace(found, x=found.x.to(x.dtype))
