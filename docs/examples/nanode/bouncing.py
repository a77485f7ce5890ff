"""Videos of digits that bounce between the walls of a small canvas, made from any small images."""

from __future__ import annotations

import torch
from torch import Tensor


def handwritten() -> tuple[Tensor, Tensor]:
    """scikit-learn's digits, `(images, 8, 8)` in 0 ... 1: those for training, and 360 others for the test."""
    from sklearn.datasets import load_digits

    sprites = torch.tensor(load_digits().images / 16, dtype=torch.float32)
    order = torch.randperm(len(sprites), generator=torch.Generator().manual_seed(0))
    return sprites[order[360:]], sprites[order[:360]]


def bounce(start: Tensor, velocity: Tensor, frames: int, room: int) -> Tensor:
    """Positions `(..., frames)` in 0 ... `room`, of points that move `velocity` a frame and are thrown back by both walls."""
    unfolded = start.unsqueeze(-1) + velocity.unsqueeze(-1) * torch.arange(frames)
    # A point between two mirrors: fold the line at every wall.
    folded = unfolded.remainder(2 * room)
    return torch.minimum(folded, 2 * room - folded)


def videos(sprites: Tensor, count: int, *, frames: int = 12, canvas: int = 24, digits: int = 2, fastest: int = 2, seed: int = 0) -> Tensor:
    """`(count, frames, canvas, canvas)` in 0 ... 1: `digits` of the `sprites` in every video, 1 to `fastest` pixels a frame along both axes.

    Where digits overlap, the brighter pixel is seen.
    """
    generator = torch.Generator().manual_seed(seed)
    size = sprites.shape[-1]
    room = canvas - size

    def whole(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high + 1, shape, generator=generator)

    chosen = sprites[whole(0, len(sprites) - 1, count, digits)]
    start = whole(0, room, count, digits, 2)
    velocity = whole(1, fastest, count, digits, 2) * (2 * whole(0, 1, count, digits, 2) - 1)
    rows, columns = bounce(start, velocity, frames, room).unbind(dim=2)
    pixels = torch.arange(size)
    row = (rows.unsqueeze(-1) + pixels).unsqueeze(-1)
    column = (columns.unsqueeze(-1) + pixels).unsqueeze(-2)
    layers = sprites.new_zeros(count, digits, frames, canvas, canvas)
    video, digit, frame = torch.meshgrid(torch.arange(count), torch.arange(digits), torch.arange(frames), indexing="ij")
    layers[*(index[..., None, None] for index in (video, digit, frame)), row, column] = chosen.unsqueeze(2)
    return layers.amax(dim=1)
