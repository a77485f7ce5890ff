"""Stochastic video generation with a learned prior, whose encoder and decoder can have NANODE blocks.

Every frame is one vector. A recurrent network predicts the next vector from the last one and from a random `z`; `z` is drawn from what the next frame
tells while the network trains, and from what the past tells, the learned prior, where there is no next frame yet.

Source: Denton and Fergus, "Stochastic video generation with a learned prior" (2018), arXiv 1802.07687. The recurrent parts are theirs in outline,
with the default sizes of their public code; the groups of convolutions are those of `video_model`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from video_model import Decoder, Encoder, VideoConfig


@dataclass(frozen=True, kw_only=True)
class SVGConfig:
    """Sizes: of the vector of a frame, of `z`, of the recurrent networks; the side of the frames, and how many of them are given.

    Attributes:
        divergence: weight of the divergence from the prior in the loss.
    """

    images: VideoConfig = field(default_factory=lambda: VideoConfig(context=1, channels=64, poolings=3))
    vector: int = 128
    z: int = 10
    recurrent: int = 256
    side: int = 64
    past: int = 5
    divergence: float = 1e-4


@dataclass(frozen=True)
class Normal:
    """Independent normal variables `(batch, frames, z)`."""

    mean: Tensor
    log_variance: Tensor

    def sample(self) -> Tensor:
        """One draw, differentiable in mean and variance."""
        return self.mean + torch.randn_like(self.mean) * (0.5 * self.log_variance).exp()

    def divergence(self, other: Normal) -> Tensor:
        """Kullback-Leibler divergence from `other`, summed over `z`: `(batch, frames)`."""
        ratio = (self.log_variance - other.log_variance).exp()
        moved = (self.mean - other.mean).square() * (-other.log_variance).exp()
        return 0.5 * (ratio + moved - 1 + other.log_variance - self.log_variance).sum(-1)


class Recurrent(nn.Module):
    """Linear, LSTM, linear: `(batch, frames, inputs)` to `(batch, frames, outputs)`."""

    def __init__(self, inputs: int, outputs: int, size: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Linear(inputs, size)
        self.lstm = nn.LSTM(size, size, layers, batch_first=True)
        self.out = nn.Linear(size, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(self.embed(x))[0])


class SVG(nn.Module):
    """`forward` gives the error of every predicted frame and the divergence of `z` from its prior, as two numbers."""

    def __init__(self, config: SVGConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(1, config.images)
        widths = self.encoder.widths
        small = config.side // 2 ** len(widths)
        self.small = (widths[-1], small, small)
        self.to_vector = nn.Sequential(nn.Conv2d(widths[-1], config.vector, small), nn.BatchNorm2d(config.vector), nn.Tanh())
        self.to_image = nn.Sequential(nn.ConvTranspose2d(config.vector, widths[-1], small), nn.BatchNorm2d(widths[-1]), nn.LeakyReLU(0.2))
        self.decoder = Decoder(widths[-1], widths, config.images)
        self.predictor = Recurrent(config.vector + config.z, config.vector, config.recurrent, layers=2)
        self.posterior = Recurrent(config.vector, 2 * config.z, config.recurrent, layers=1)
        self.prior = Recurrent(config.vector, 2 * config.z, config.recurrent, layers=1)

    def forward(self, film: Tensor) -> tuple[Tensor, Tensor]:
        """Errors of `film` `(batch, frames, side, side)`, in 0 ... 1 or in bytes; every frame but the first is predicted from those before it."""
        film = film if film.is_floating_point() else film / 255
        batch, frames = film.shape[:2]
        images = self.encoder(film.flatten(0, 1).unsqueeze(1))
        vectors = self.to_vector(F.max_pool2d(images[-1], 2)).view(batch, frames, -1)
        posterior = Normal(*self.posterior(vectors[:, 1:]).chunk(2, -1))
        prior = Normal(*self.prior(vectors[:, :-1]).chunk(2, -1))
        predicted = torch.tanh(self.predictor(torch.cat((vectors[:, :-1], posterior.sample()), -1)))
        # Skips show the last frame that is given, so that what moves after it has to go through the vector.
        shown = torch.arange(frames - 1).clamp(max=self.config.past - 1)
        skips = [image.unflatten(0, (batch, frames))[:, shown].flatten(0, 1) for image in images]
        x = self.to_image(predicted.reshape(-1, self.config.vector, 1, 1))
        found = self.decoder(x, skips).view(batch, frames - 1, *film.shape[2:])
        return F.mse_loss(found, film[:, 1:]), posterior.divergence(prior).mean()

    def loss(self, film: Tensor) -> Tensor:
        """What training makes small: the error, and the weighted divergence."""
        error, divergence = self(film)
        return error + self.config.divergence * divergence
