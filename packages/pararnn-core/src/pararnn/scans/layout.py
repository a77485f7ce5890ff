"""How tensors of a scan lie in memory: with channels next to each other, as `(rows, time, state)` has them, or steps, as its transposed form."""

from __future__ import annotations

from torch import Tensor

from pararnn.scans.triton_backend import interpreted

# Lines of no more steps are slower than a copy with channels next to each other: a program holds but one.
SHORT = 32


def lies_along(*tensors: Tensor) -> bool:
    """Whether tensors `(rows, time, state)` of many steps have them next to each other, all but those that have one number for all steps."""
    strides = [tensor.stride() for tensor in tensors]
    return (
        tensors[0].shape[1] > SHORT
        and all(time in (0, 1) for _, time, _ in strides)
        and any(time == 1 and (lane != 0 or tensor.shape[2] == 1) for tensor, (_, time, lane) in zip(tensors, strides, strict=True))
    )


def empty_along(like: Tensor) -> Tensor:
    """Memory for a tensor `(rows, time, state)` with its steps next to each other."""
    rows, length, size = like.shape
    return like.new_empty(rows, size, length).mT


def keeps_along(leaves: list[Tensor], bias: Tensor, offsets: Tensor | None) -> bool:
    """Whether the operator gives states with steps next to each other: of whole sequences, channelwise and real, on a GPU, which are given so."""
    on_gpu = bias.device.type == "cuda" or interpreted()
    channelwise = all(leaf.shape == bias.shape for leaf in leaves)
    return on_gpu and offsets is None and not bias.is_complex() and channelwise and lies_along(*leaves, bias)
