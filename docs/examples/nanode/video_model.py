"""An encoder-decoder for the next frame of a video, whose groups of three convolutions can be one convolution and a NANODE block.

The form is that of a VGG: 3 x 3 convolutions that keep the size, then a pooling of 2 x 2. Widths, normalisation and activations are our choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pararnn.errors import ConfigError
from pararnn_nanode import NANODE, ConstantPath, ConvField, TrigPath, WeightPath

Rest = Literal["convolutions", "constant", "trig"]


@dataclass(frozen=True, kw_only=True)
class VideoConfig:
    """What a model of a video is made of.

    Attributes:
        context: frames that it sees.
        channels: of the largest images; every pooling doubles them.
        poolings: how often the images are halved.
        rest: what follows the first convolution of a group: two more of them, or a block with constant or with trigonometric weights.
        order, steps, method, gradient: of the blocks; three steps cover the span 0 ... 1, `dt = 0.33`.
    """

    context: int = 3
    channels: int = 16
    poolings: int = 2
    rest: Rest = "trig"
    order: int = 3
    steps: int = 3
    method: str = "euler"
    gradient: str = "backprop"

    def __post_init__(self) -> None:
        if self.rest not in get_args(Rest):
            raise ConfigError(f"rest must be one of {', '.join(get_args(Rest))}, got {self.rest!r}")


def convolution(inputs: int, outputs: int) -> nn.Sequential:
    """A convolution that keeps the size, normalised over the batch, and a leaky rectifier."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2))


def path(shape: tuple[int, ...], config: VideoConfig) -> WeightPath:
    """Weights of a block: moving, or not."""
    return TrigPath(shape, config.order) if config.rest == "trig" else ConstantPath(shape)


def group(inputs: int, outputs: int, config: VideoConfig) -> nn.Sequential:
    """Three convolutions, or one and a block in place of the others."""
    first = convolution(inputs, outputs)
    if config.rest == "convolutions":
        return nn.Sequential(first, convolution(outputs, outputs), convolution(outputs, outputs))
    field = ConvField(outputs, 3, path((outputs, outputs, 3, 3), config), bias=path((outputs,), config))
    return nn.Sequential(first, NANODE(field, steps=config.steps, method=config.method, gradient=config.gradient))


class Encoder(nn.Module):
    """Images of every size, largest first, from frames `(batch, frames, height, width)`; sizes are multiples of `2**poolings`."""

    def __init__(self, frames: int, config: VideoConfig) -> None:
        super().__init__()
        self.widths = [config.channels * 2**level for level in range(config.poolings + 1)]
        self.groups = nn.ModuleList(group(inputs, outputs, config) for inputs, outputs in zip([frames, *self.widths], self.widths, strict=False))

    def forward(self, frames: Tensor) -> list[Tensor]:
        images: list[Tensor] = []
        for layer in self.groups:
            images.append(layer(F.max_pool2d(images[-1], 2) if images else frames))
        return images


class Decoder(nn.Module):
    """A frame `(batch, 1, height, width)` in 0 ... 1 from an image `x` of `inputs` channels and larger ones of `widths` channels.

    The larger images `skips` come from an encoder, largest first; the smallest of them is twice as large as `x`.
    """

    def __init__(self, inputs: int, widths: list[int], config: VideoConfig) -> None:
        super().__init__()
        upward = widths[::-1]
        self.groups = nn.ModuleList(group(below + width, width, config) for below, width in zip([inputs, *upward], upward, strict=False))
        self.out = nn.Conv2d(widths[0], 1, 3, padding=1)

    def forward(self, x: Tensor, skips: list[Tensor]) -> Tensor:
        for layer, skip in zip(self.groups, reversed(skips), strict=True):
            x = layer(torch.cat((F.interpolate(x, scale_factor=2), skip), dim=1))
        return torch.sigmoid(self.out(x))


class NextFrame(nn.Module):
    """The next frame `(batch, 1, height, width)` in 0 ... 1, from `context` frames `(batch, context, height, width)`."""

    def __init__(self, config: VideoConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config.context, config)
        *larger, smallest = self.encoder.widths
        self.decoder = Decoder(smallest, larger, config)

    def forward(self, frames: Tensor) -> Tensor:
        *skips, x = self.encoder(frames)
        return self.decoder(x, skips)
