"""Prediction of the Lorenz system, one step ahead and, in closed loop, many."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_cola.network import Network
from pararnn_cola.tasks.base import Batch, Task, checked_seed
from pararnn_cola.tasks.evaluation import answers, for_network, rollout
from pararnn_cola.tasks.placement import Placement

SUBSTEPS = 4
TRANSIENT = 200
"""Steps that are left out, in which a trajectory falls onto the attractor."""
CENTRE, SPREAD = (0.0, 0.0, 23.55), (7.92, 9.0, 8.6)
"""Means and standard deviations of x, y and z on the attractor, by which they are normalised."""
TRAINING, TESTING = (8, 2000), (32, 400)
"""How many trajectories of how many steps."""
SETTLE, WARM_UP, HORIZON, NEAR = 20, 100, 60, 20
"""Steps before one-step errors count; steps seen before the closed loop; steps in it; those of `rmse_20`."""
TOLERANCE, CEILING = 0.4, 10.0
"""The error, in standard deviations, up to which a prediction is valid; the bound on errors in `rmse_60`, which a diverging run would rule alone."""


class Lorenz(Task):
    """The first `observed` of the normalised coordinates x, y, z, sampled every `dt`; wanted is the next sample.

    Training sequences are cut from 8 trajectories of 2000 steps that `seed` decides; tests are 32 of 400 steps, of `seed + 1`. `evaluate` shows the
    network 100 steps of each test and then lets it run on its own. It gives `mse_one_step`, over steps 20 to 99; `rmse_20` and `rmse_60`, the root
    mean square error in standard deviations, averaged over that many steps alone (in `rmse_60` each counts as at most 10); and `valid_steps`, how
    many of the 60 come before the first with an error above 0.4.

    Raises:
        ConfigError: `length` is not within 1 and 1999, `dt` not above 0 and at most 0.1, `observed` not 1, 2 or 3, or `placement` is none.

    Source: Lorenz (1963), equations 25 to 27, with sigma = 10, r = 28, b = 8/3.
    """

    name = "lorenz"
    loss = "mse"

    def __init__(self, length: int = 50, dt: float = 0.05, observed: int = 3, placement: Placement = "every", *, seed: int = 1) -> None:
        super().__init__(length, placement)
        if length >= TRAINING[1]:
            raise ConfigError(
                f"length={length}; the training trajectories have {TRAINING[1]} samples, so at most {TRAINING[1] - 1} steps", length=length
            )
        if not 0 < dt <= 0.1:
            raise ConfigError(f"dt={dt}; {SUBSTEPS} Runge-Kutta steps follow the system accurately for dt above 0 and at most 0.1", dt=dt)
        if observed not in (1, 2, 3):
            raise ConfigError(f"observed={observed!r}; the system has 3 coordinates, of which the first 1, 2 or 3 can be seen", observed=observed)
        self.dt, self.observed, self.seed = dt, observed, checked_seed(seed)
        self.input_size = self.output_size = observed

    def _draw(self, size: int, generator: torch.Generator) -> Batch:
        samples = attractor(*TRAINING, self.dt, self.seed)[..., : self.observed]
        which = torch.randint(0, samples.shape[0], (size, 1), generator=generator)
        start = torch.randint(0, samples.shape[1] - self.length, (size, 1), generator=generator)
        seen = samples[which, start + torch.arange(self.length + 1)]
        return Batch(seen[:, :-1], seen[:, 1:], self.weights)

    def _measure(self, network: Network) -> dict[str, Tensor]:
        samples = attractor(*TESTING, self.dt, self.seed + 1)[..., : self.observed]
        one_step = torch.zeros(network.lead, dtype=torch.float64, device=network.readout.bias.device)
        for rows, time, output in answers(network, samples[:, :WARM_UP]):
            if time >= SETTLE:
                one_step += (output - for_network(samples[rows, time + 1], network)).double().square().mean(-1).sum(-1)
        one_step /= samples.shape[0] * (WARM_UP - SETTLE)
        expected = rollout(network, samples[:, :WARM_UP], HORIZON)
        truth = for_network(samples[:, WARM_UP : WARM_UP + HORIZON], network)
        errors = (expected - truth).double().square().mean(-1).sqrt()
        valid = (errors <= TOLERANCE).cumprod(-1).sum(-1)  # "not above" would call NaN valid
        return {
            "mse_one_step": one_step,
            "rmse_20": errors[..., :NEAR].mean((-2, -1)),
            "rmse_60": errors.nan_to_num(CEILING, CEILING).clamp(max=CEILING).mean((-2, -1)),
            "valid_steps": valid.double().mean(-1),
        }

    def _options(self) -> dict[str, Any]:
        return {"length": self.length, "dt": self.dt, "observed": self.observed, "placement": self.placement, "seed": self.seed}


@functools.lru_cache(maxsize=16)
def attractor(trajectories: int, steps: int, dt: float, seed: int) -> Tensor:
    """Normalised samples `(trajectories, steps, 3)` in float32, from random starts of a torch generator at `seed`, past the transient."""
    start = torch.randn(trajectories, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    start = start * start.new_tensor([8.0, 9.0, 8.0]) + start.new_tensor([0.0, 0.0, 25.0])
    samples = trajectory(start, TRANSIENT + steps, dt)[:, TRANSIENT:]
    return ((samples - samples.new_tensor(CENTRE)) / samples.new_tensor(SPREAD)).float()


@torch.no_grad()
def trajectory(start: Tensor, steps: int, dt: float, substeps: int = SUBSTEPS) -> Tensor:
    """The `steps` states `(batch, steps, 3)` that follow `start` `(batch, 3)`, `dt` apart, by `substeps` classical Runge-Kutta steps each.

    Sums and products only, one operation at a time: these round alike on all machines, where a matrix product or a fused one would not, and the
    system amplifies any difference until trajectories have nothing in common.
    """
    state = start.mT.contiguous()
    h = dt / substeps
    states = []
    for _ in range(steps):
        for _ in range(substeps):
            a = velocity(state)
            b = velocity(state + h / 2 * a)
            c = velocity(state + h / 2 * b)
            d = velocity(state + h * c)
            state = state + h / 6 * (a + 2 * (b + c) + d)
        states.append(state)
    return torch.stack(states).permute(2, 0, 1)


def velocity(state: Tensor) -> Tensor:
    """The right-hand side of the Lorenz equations at `state` `(3, batch)`."""
    x, y, z = state.unbind(0)
    return torch.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])
