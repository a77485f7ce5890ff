"""Bounding the norm of a gradient before the weights move by it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pararnn_cola.learners.buffers import GradientBuffers


@torch.no_grad()
def clip_gradients(buffers: GradientBuffers, optimizer: torch.optim.Optimizer, bound: float | Tensor, lead: tuple[int, ...]) -> None:
    """Shrink the gradients that `optimizer` will use so that their common norm is at most `bound`.

    Networks of an ensemble (`lead` is `(runs,)`) are bounded one by one, so that one that diverges leaves the others alone. In half precision the
    float32 sums are bounded, before a large one becomes infinite.
    """
    moved = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    found = [(slot.parameter, buffers.current(slot.parameter)) for slot in buffers.flat if slot.parameter in moved]
    gradients = list({parameter: gradient for parameter, gradient in found if gradient is not None}.values())
    if not gradients:
        return
    if lead:
        norm = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
    else:
        norm = nn.utils.get_total_norm(gradients)
    factor = (bound / (norm + 1e-6)).clamp_max(1.0)
    for gradient in gradients:
        gradient.mul_(factor.view(*factor.shape, *(1,) * (gradient.dim() - factor.dim())).to(gradient.dtype))
    if buffers.shadows:
        buffers.close()
