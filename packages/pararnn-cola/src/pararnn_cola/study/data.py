"""The batches of all seeds in fixed buffers on the device, each repeated for the runs that share its seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pararnn.errors import ConfigError, ShapeError
from pararnn_cola.streaming.items import Step
from pararnn_cola.tasks.base import Batch, Task

DATA_SEED = 50
"""Added to the seed for the generator of the data, so that weights and data of a seed are drawn apart."""


class SeedData:
    """One sequence batch a seed, at fixed addresses, so that a captured graph reads what `load` puts there."""

    def __init__(self, task: Task, seeds: Sequence[int], batch: int, device: torch.device, *, every_step_counts: bool = False) -> None:
        self.task, self.batch, self.device = task, batch, device
        self.generators = [torch.Generator().manual_seed(DATA_SEED + seed) for seed in seeds]
        self.every_step_counts = every_step_counts
        self.buffers: dict[str, Tensor] = {}
        self.weights: list[float] = []

    def load(self) -> None:
        """Draw the next batch of each seed into the buffers."""
        batches = [self.task.batch(self.batch, generator) for generator in self.generators]
        if not self.buffers:
            self.weights = self._weights_of(batches[0])
        for name in ("inputs", "targets", "mask"):
            parts = [getattr(batch, name) for batch in batches]
            if parts[0] is None:
                continue
            fresh = torch.stack(parts).movedim(2, 0).contiguous()
            held = self.buffers.setdefault(name, torch.empty_like(fresh, device=self.device))
            if held.shape != fresh.shape:
                raise ShapeError(f"{self.task.name} gave {name} of shape {tuple(fresh.shape)} after {tuple(held.shape)}; a study needs one length")
            held.copy_(fresh)

    def steps(self, runs: Tensor) -> Iterator[Step]:
        """The loaded sequences step by step, for runs whose seeds have the places `runs` among the seeds."""
        inputs, targets = (self.buffers[name].index_select(1, runs).unbind(0) for name in ("inputs", "targets"))
        masks = self.buffers["mask"].index_select(1, runs).unbind(0) if "mask" in self.buffers else [None] * len(inputs)
        return map(Step, inputs, targets, self.weights, masks)

    def _weights_of(self, batch: Batch) -> list[float]:
        if batch.weights.dim() != 1:
            raise ConfigError(f"{self.task.name} weighs the loss of each sequence on its own; a study needs weights (time,)", task=self.task.name)
        weights: list[float] = batch.weights.tolist()
        return [float(weight > 0) for weight in weights] if self.every_step_counts else weights
