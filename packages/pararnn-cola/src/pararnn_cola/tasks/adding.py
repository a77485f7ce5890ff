"""The adding problem: remember two marked numbers among many, and add them up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_cola.network import Network
from pararnn_cola.tasks.base import Batch, Task, checked_seed
from pararnn_cola.tasks.evaluation import answers, for_network
from pararnn_cola.tasks.placement import Placement

TEST_SEQUENCES = 1000


class Adding(Task):
    """Numbers in [0, 1) with a marker beside each, 1 at one step of each half and 0 elsewhere; wanted is the sum of the marked numbers so far.

    `evaluate` gives the mean squared error at the last step, `mse_last`, and over all steps, `mse_all`, on 1000 sequences that `seed` decides. A
    network that knows the last target's mean and nothing else has `mse_last` 1/6.

    Raises:
        ConfigError: `length` is below 2, `seed` is no seed, or `placement` is none (see `loss_weights`).

    Source: Hochreiter and Schmidhuber (1997), section 5.4; with markers in either half, and a target at every step.
    """

    name = "adding"
    loss = "mse"
    input_size = 2
    output_size = 1

    def __init__(self, length: int = 50, placement: Placement = "every", *, seed: int = 1234) -> None:
        super().__init__(length, placement)
        if length < 2:
            raise ConfigError(f"length={length}; a sequence with a marker in either half has at least 2 steps", length=length)
        self.seed = checked_seed(seed)

    def _draw(self, size: int, generator: torch.Generator) -> Batch:
        half = self.length // 2
        numbers = torch.rand(size, self.length, generator=generator)
        first = torch.randint(0, half, (size, 1), generator=generator)
        second = torch.randint(half, self.length, (size, 1), generator=generator)
        markers = torch.zeros_like(numbers).scatter_(1, torch.cat([first, second], 1), 1.0)
        return Batch(torch.stack([numbers, markers], -1), (numbers * markers).cumsum(1).unsqueeze(-1), self.weights)

    def _measure(self, network: Network) -> dict[str, Tensor]:
        test = self._draw(TEST_SEQUENCES, torch.Generator().manual_seed(self.seed))
        totals = torch.zeros(*network.lead, self.length, dtype=torch.float64, device=network.readout.bias.device)
        for rows, time, output in answers(network, test.inputs):
            totals[..., time] += (output - for_network(test.targets[rows, time], network)).double().square().mean(-1).sum(-1)
        errors = totals / TEST_SEQUENCES
        return {"mse_last": errors[..., -1], "mse_all": errors.mean(-1)}

    def _options(self) -> dict[str, Any]:
        return {"length": self.length, "placement": self.placement, "seed": self.seed}
