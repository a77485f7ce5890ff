"""A residual network for images whose bottleneck blocks are the steps of an equation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pararnn.errors import ConfigError
from pararnn_nanode import NANODE, BucketPath, ConstantPath, Field, PolyPath, TrigPath, WeightPath

Kind = Literal["constant", "bucket", "untied", "legendre", "trig"]


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """A residual network of one block a stage; ten steps of `dt = 1/10` cover the span 0 ... 1.

    Attributes:
        widths: channels of each stage; every stage but the first halves the image.
        squeeze: how many times fewer channels the 3 x 3 convolution inside a block has.
        path: what the weights of a block follow, with `order` harmonics, degrees or buckets; "constant" shares one layer, "untied" has one for each
            step, a plain residual network.
        norm_channels: how many channels are normalised together before every convolution of a block.
    """

    classes: int = 100
    widths: tuple[int, ...] = (256, 512, 1024)
    squeeze: int = 4
    steps: int = 10
    path: Kind = "trig"
    order: int = 3
    norm_channels: int = 8
    method: str = "euler"
    gradient: str = "backprop"

    def __post_init__(self) -> None:
        if self.path not in get_args(Kind):
            raise ConfigError(f"path must be one of {', '.join(get_args(Kind))}, got {self.path!r}")


def path(shape: tuple[int, ...], config: ImageConfig) -> WeightPath:
    """Weights of one convolution."""
    match config.path:
        case "constant":
            return ConstantPath(shape)
        case "bucket":
            return BucketPath(shape, config.order)
        case "untied":
            return BucketPath(shape, config.steps)
        case "legendre":
            return PolyPath(shape, config.order, basis="legendre")
        case _:
            return TrigPath(shape, config.order)


class BottleneckField(Field):
    """`f(t, x)` = 1 x 1, 3 x 3 and 1 x 1 convolutions with moving weights, each after a normalisation and a rectifier.

    The normalisation is over groups of channels and has no parameters: statistics of a batch would change when a reversible gradient walks back.
    """

    def __init__(self, channels: int, config: ImageConfig) -> None:
        super().__init__()
        inner = channels // config.squeeze
        self.norm_channels = config.norm_channels
        self.reduce = path((inner, channels, 1, 1), config)
        self.middle = path((inner, inner, 3, 3), config)
        self.expand = path((channels, inner, 1, 1), config)

    def weights(self, times: Tensor, anchors: Tensor | None = None, u: Tensor | None = None) -> tuple[Tensor, ...]:
        return tuple(kernel.grid(times, anchors) for kernel in (self.reduce, self.middle, self.expand))

    def evaluate(self, x: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
        if weights[0].ndim > 4:
            return torch.vmap(self.evaluate)(x, weights)
        for kernel in weights:
            groups = max(1, x.shape[1] // self.norm_channels)
            x = F.conv2d(F.relu(F.group_norm(x, groups)), kernel, padding="same")
        return x


class Classifier(nn.Module):
    """Scores `(batch, classes)` of images `(batch, 3, height, width)`."""

    def __init__(self, config: ImageConfig) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        for index, (inputs, width) in enumerate(zip((3, *config.widths), config.widths, strict=False)):
            stages += [nn.Conv2d(inputs, width, 3, stride=2 if index else 1, padding=1, bias=False), nn.BatchNorm2d(width)]
            stages.append(NANODE(BottleneckField(width, config), steps=config.steps, method=config.method, gradient=config.gradient))
        self.stages = nn.Sequential(*stages)
        self.out = nn.Linear(config.widths[-1], config.classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(F.relu(self.stages(images)).mean((-1, -2)))
