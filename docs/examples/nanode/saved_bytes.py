"""How much a forward pass keeps for its backward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def saved_bytes(model: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Bytes of the distinct storages that autograd keeps after `forward`, the parameters and buffers of `model` left out."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    # The tensors are held until all are counted, so that no address stands for two of them.
    kept: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = forward()
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    del output
    return sum(size for address, size in storages.items() if address not in own)
