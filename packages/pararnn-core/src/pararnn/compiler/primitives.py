"""The pointwise operations that engines can print, and what each means in PyTorch.

Tracing maps everything that it meets to these, and each engine has a table with all of them; a test holds the tables to this list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Primitive:
    """A pointwise operation: how many arguments it takes, its meaning on tensors, and whether it gives a truth value."""

    arguments: int
    meaning: Callable[..., Any]
    is_truth: bool = False


def _torch(value: Any) -> Any:
    return value if isinstance(value, torch.Tensor) else torch.tensor(float(value), dtype=torch.float64)


def _select(condition: Any, yes: Any, no: Any) -> Any:
    return torch.where(_torch(condition).bool(), yes, no)


PRIMITIVES: dict[str, Primitive] = {
    "neg": Primitive(1, lambda x: -x),
    "abs": Primitive(1, lambda x: _torch(x).abs()),
    "exp": Primitive(1, lambda x: _torch(x).exp()),
    "expm1": Primitive(1, lambda x: _torch(x).expm1()),
    "log": Primitive(1, lambda x: _torch(x).log()),
    "log1p": Primitive(1, lambda x: _torch(x).log1p()),
    "sqrt": Primitive(1, lambda x: _torch(x).sqrt()),
    "rsqrt": Primitive(1, lambda x: _torch(x).rsqrt()),
    "sin": Primitive(1, lambda x: _torch(x).sin()),
    "cos": Primitive(1, lambda x: _torch(x).cos()),
    "tanh": Primitive(1, lambda x: _torch(x).tanh()),
    "sigmoid": Primitive(1, lambda x: _torch(x).sigmoid()),
    "softplus": Primitive(1, lambda x: torch.nn.functional.softplus(_torch(x))),
    "erf": Primitive(1, lambda x: _torch(x).erf()),
    "floor": Primitive(1, lambda x: _torch(x).floor()),
    "sign": Primitive(1, lambda x: _torch(x).sign()),
    "add": Primitive(2, lambda x, y: x + y),
    "sub": Primitive(2, lambda x, y: x - y),
    "mul": Primitive(2, lambda x, y: x * y),
    "div": Primitive(2, lambda x, y: x / y),
    "pow": Primitive(2, lambda x, y: _torch(x) ** y),
    "minimum": Primitive(2, lambda x, y: torch.minimum(_torch(x), _torch(y))),
    "maximum": Primitive(2, lambda x, y: torch.maximum(_torch(x), _torch(y))),
    "eq": Primitive(2, lambda x, y: x == y, is_truth=True),
    "ne": Primitive(2, lambda x, y: x != y, is_truth=True),
    "lt": Primitive(2, lambda x, y: x < y, is_truth=True),
    "le": Primitive(2, lambda x, y: x <= y, is_truth=True),
    "gt": Primitive(2, lambda x, y: x > y, is_truth=True),
    "ge": Primitive(2, lambda x, y: x >= y, is_truth=True),
    "and": Primitive(2, lambda x, y: _torch(x).bool() & _torch(y).bool(), is_truth=True),
    "or": Primitive(2, lambda x, y: _torch(x).bool() | _torch(y).bool(), is_truth=True),
    "not": Primitive(1, lambda x: ~_torch(x).bool(), is_truth=True),
    "where": Primitive(3, _select),
}
