"""Walks that no graph can hold. Importing this loads the compiler, a second of work, so it is left to those who compile something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


@torch.compiler.disable(  # type: ignore[untyped-decorator]
    reason="gradient='reversible' and 'adjoint' evaluate the field again in the backward pass, which cannot be traced; use gradient='checkpoint', or "
    "compile with fullgraph=False, which walks outside the graph"
)
def outside_the_graph(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """`function(*arguments)`, not traced."""
    return function(*arguments)
