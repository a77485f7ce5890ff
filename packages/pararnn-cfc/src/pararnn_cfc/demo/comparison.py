"""Parallel over time against the loop: the same weights and data, timed, with the losses of both."""

from __future__ import annotations

import copy
import statistics
import time
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pararnn_cfc.demo.model import Forecaster
from pararnn_cfc.demo.task import ForecastTask
from pararnn_cfc.demo.training import Batch, TrainingConfig, batch_of, loss_of, optimiser_of, thinned_copies, train_step

STEPS = 5
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
Way = Literal["newton", "sequential"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Training steps in parallel and by the loop, from the same weights and on the same batches.

    Attributes:
        shape: batch and time of a training step.
        parallel_seconds, loop_seconds: medians of a training step: forward, backward and the update of the weights.
        parallel_losses, loop_losses: of the first steps of training, one after the other.
        parallel_loss, loop_loss: of the trained weights on one batch.
        lengths: steps of time of the shorter and longer sequences that were timed besides.
        parallel_by_length, loop_by_length: seconds of forward and backward for each.
    """

    shape: tuple[int, int]
    parallel_seconds: float
    loop_seconds: float
    parallel_losses: list[float]
    loop_losses: list[float]
    parallel_loss: float
    loop_loss: float
    lengths: list[int]
    parallel_by_length: list[float]
    loop_by_length: list[float]

    @property
    def speedup(self) -> float:
        """How many times as long the loop takes."""
        return self.loop_seconds / self.parallel_seconds

    @property
    def loss_difference(self) -> float:
        """The largest relative difference of the losses."""
        ours, loops = [*self.parallel_losses, self.parallel_loss], [*self.loop_losses, self.loop_loss]
        return max(abs(our - loop) / abs(loop) for our, loop in zip(ours, loops, strict=True))


def compare(untrained: Forecaster, trained: Forecaster, task: ForecastTask, config: TrainingConfig) -> Comparison:
    """Train copies of `untrained` for a few steps, once in parallel and once by the loop, and compare losses of `trained`; both stay as they are."""
    generator = torch.Generator().manual_seed(config.seed)
    batches = [batch_of(task, thinned_copies(task, config, generator)) for _ in range(STEPS)]
    parallel_losses, parallel_seconds = _first_steps(untrained, batches, config, "newton")
    loop_losses, loop_seconds = _first_steps(untrained, batches, config, "sequential")
    inputs = torch.cat([batches[0].inputs] * (1 + max(LENGTHS) // batches[0].inputs.shape[1]), dim=1)
    return Comparison(
        shape=(batches[0].inputs.shape[0], batches[0].inputs.shape[1]),
        parallel_seconds=parallel_seconds,
        loop_seconds=loop_seconds,
        parallel_losses=parallel_losses,
        loop_losses=loop_losses,
        parallel_loss=_loss(trained, batches[0], "newton"),
        loop_loss=_loss(trained, batches[0], "sequential"),
        lengths=list(LENGTHS),
        parallel_by_length=[_passes(trained, inputs[:, :length], "newton", repeats=5) for length in LENGTHS],
        loop_by_length=[_passes(trained, inputs[:, :length], "sequential", repeats=3) for length in LENGTHS],
    )


def _first_steps(forecaster: Forecaster, batches: list[Batch], config: TrainingConfig, way: Way) -> tuple[list[float], float]:
    """The loss of every step, and the median of their seconds."""
    twin = _solved_by(forecaster, way)
    optimiser = optimiser_of(twin, config)
    # What is set up once, such as compiled kernels, is no part of a step.
    loss_of(twin, batches[0]).backward()
    losses, seconds = [], []
    for batch in batches:
        began = time.perf_counter()
        losses.append(train_step(twin, batch, optimiser, config))
        seconds.append(time.perf_counter() - began)
    return losses, statistics.median(seconds)


def _loss(forecaster: Forecaster, batch: Batch, way: Way) -> float:
    with torch.no_grad():
        return float(loss_of(_solved_by(forecaster, way), batch))


def _passes(forecaster: Forecaster, inputs: Tensor, way: Way, *, repeats: int) -> float:
    """The median of the seconds of forward and backward."""
    twin = _solved_by(forecaster, way)
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        twin(inputs).square().mean().backward()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _solved_by(forecaster: Forecaster, way: Way) -> Forecaster:
    """A copy of `forecaster` whose trajectories are found in that way."""
    twin = copy.deepcopy(forecaster)
    twin.rnn.solver = way
    return twin
