"""Training: every step reads whole training histories of which some weeks were dropped at random, in parallel over time.

The series itself has few gaps. Copies that lack a random share of the weeks have many, so the network has to read the time gap, and cannot learn the
noise of single weeks by heart.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_cfc.demo.model import Forecaster
from pararnn_cfc.demo.series import Series
from pararnn_cfc.demo.task import ForecastTask

VALIDATE_EVERY = 10


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How the network is built and trained.

    Attributes:
        epochs: training steps; each sees every training year `batch` times.
        batch: thinned copies of the training series in one step.
        least_share: each step draws the share of the weeks that its copies keep from here to 1.
        state_size, num_layers: of the network.
        learning_rate: its peak; it rises, then falls to nothing.
        seed: of weights and copies.

    Raises:
        ConfigError: a number that cannot work.
    """

    epochs: int = 200
    batch: int = 4
    least_share: float = 0.4
    state_size: int = 32
    num_layers: int = 2
    learning_rate: float = 0.02
    weight_decay: float = 0.001
    max_gradient_norm: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "state_size", "num_layers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.least_share <= 1:
            raise ConfigError(f"least_share must lie in (0, 1], got {self.least_share}")


class Batch(NamedTuple):
    """Inputs `(batch, time, d_in)`, and corrections `(batch, time, horizons)` in ppm that would be right; NaN where no measurement tells."""

    inputs: Tensor
    corrections: Tensor


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """What happened while training.

    Attributes:
        losses: mean squared error in ppm², one a step.
        validation: root mean squared error in ppm on the validation years, by the number of steps done.
        best_epoch: steps after which it was smallest; the weights are those.
    """

    losses: list[float]
    validation: dict[int, float]
    best_epoch: int


def build(task: ForecastTask, config: TrainingConfig) -> Forecaster:
    """An untrained network; its weights follow from the seed, and torch's own generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return Forecaster(
            d_in=task.inputs(task.training).shape[-1],
            state_size=config.state_size,
            horizons=len(task.horizons),
            num_layers=config.num_layers,
        )


def thinned_copies(task: ForecastTask, config: TrainingConfig, generator: torch.Generator) -> list[Series]:
    """The training series, `config.batch` times, each without other weeks, but all of one length."""
    share = 1 - (1 - config.least_share) * float(torch.rand((), generator=generator))
    return [task.training.thinned(share, generator) for _ in range(config.batch)]


def batch_of(task: ForecastTask, copies: list[Series]) -> Batch:
    """Inputs and right corrections of training series of one length; targets end where the training years do."""
    corrections = [task.targets(copy, before=task.validation_start) - task.reference(copy) for copy in copies]
    return Batch(torch.stack([task.inputs(copy) for copy in copies]), torch.stack(corrections).to(torch.float32))


def loss_of(forecaster: Forecaster, batch: Batch) -> Tensor:
    """Mean squared error in ppm² over what was measured."""
    known = ~batch.corrections.isnan()
    errors: Tensor = (forecaster(batch.inputs) - batch.corrections)[known]
    return errors.square().mean()


def optimiser_of(forecaster: Forecaster, config: TrainingConfig) -> torch.optim.Optimizer:
    """AdamW with the rates of `config`."""
    return torch.optim.AdamW(forecaster.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)


def train_step(forecaster: Forecaster, batch: Batch, optimiser: torch.optim.Optimizer, config: TrainingConfig) -> float:
    """One update of the weights; gives the loss before it."""
    optimiser.zero_grad()
    loss = loss_of(forecaster, batch)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(forecaster.parameters(), config.max_gradient_norm)
    optimiser.step()
    return float(loss.detach())


def train(
    forecaster: Forecaster, task: ForecastTask, config: TrainingConfig, *, on_epoch: Callable[[int, float], None] = lambda epoch, loss: None
) -> TrainingRecord:
    """Train `forecaster` in place and leave it with the weights that did best on the validation years.

    `on_epoch` is called after every step with the number of steps done and the loss.
    """
    generator = torch.Generator().manual_seed(config.seed)
    optimiser = optimiser_of(forecaster, config)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, config.learning_rate, total_steps=config.epochs + 1)
    losses: list[float] = []
    validation: dict[int, float] = {}
    best = copy.deepcopy(forecaster.state_dict())
    for epoch in range(1, config.epochs + 1):
        losses.append(train_step(forecaster, batch_of(task, thinned_copies(task, config, generator)), optimiser, config))
        schedule.step()
        if epoch % VALIDATE_EVERY == 0 or epoch == config.epochs:
            validation[epoch] = validation_error(forecaster, task)
            if validation[epoch] == min(validation.values()):
                best = copy.deepcopy(forecaster.state_dict())
        on_epoch(epoch, losses[-1])
    forecaster.load_state_dict(best)
    return TrainingRecord(losses=losses, validation=validation, best_epoch=min(validation, key=lambda epoch: (validation[epoch], -epoch)))


def forecast(forecaster: Forecaster, task: ForecastTask, series: Series) -> Tensor:
    """Forecasts `(samples, horizons)` in ppm from every sample of `series`, each from what came before it."""
    with torch.no_grad():
        corrections: Tensor = forecaster(task.inputs(series).unsqueeze(0))[0]
    return task.reference(series) + corrections


def validation_error(forecaster: Forecaster, task: ForecastTask) -> float:
    """Root mean squared error in ppm over all horizons, from origins in the validation years."""
    past = task.series.before(task.test_start)
    errors = (forecast(forecaster, task, past) - task.targets(past, before=task.test_start))[task.validation_origins(past)]
    return float(errors.square().nanmean().sqrt())
