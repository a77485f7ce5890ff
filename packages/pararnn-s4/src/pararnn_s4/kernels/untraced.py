"""What a graph holds without tracing it. Importing this loads the compiler, a second of work, so it is left to those who compile something."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pararnn.transforms import inside_transform
from pararnn_s4.kernels import products
from pararnn_s4.kernels.plans import implementation_for


@torch.compiler.assume_constant_result
def reduced_precision(device: str) -> bool:
    """`products.reduced_precision`, read once when a graph is traced, which torch itself guards."""
    return products.reduced_precision(device)


@torch.compiler.disable(
    reason="the backend that was named for a product of pararnn-s4 cannot be traced; leave backend='auto' (or name 'blocked' or 'naive'), or compile "
    "with fullgraph=False, which computes the product outside the graph"
)
def outside_the_graph(question: tuple[Any, ...], *arguments: Any, **options: Any) -> Tensor:
    """The product by a backend that no graph can hold."""
    op, sizes, device, dtype, conj, backend = question
    implementation = implementation_for(op, dict(sizes), device, dtype, conj, backend, torch.is_grad_enabled(), inside_transform())
    return implementation(*arguments, **options)
