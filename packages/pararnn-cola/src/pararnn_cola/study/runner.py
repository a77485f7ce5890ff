"""Training of one entry: all its configurations on all its seeds, side by side."""

from __future__ import annotations

import inspect
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import pararnn_cola
from pararnn.errors import ConfigError, UnknownNameError
from pararnn_cola.ensemble import select_runs, stack_networks
from pararnn_cola.learners.base import Learner
from pararnn_cola.network import Network
from pararnn_cola.study.captured import CapturedSequence
from pararnn_cola.study.data import SeedData
from pararnn_cola.study.optimizers import EnsembleOptimizer
from pararnn_cola.study.results import Record
from pararnn_cola.study.settings import Configuration, Entry
from pararnn_cola.study.starts import Starts
from pararnn_cola.tasks import make

LAST = 50
"""Sequences at the end over which the loss of training is averaged."""
POINTS = 40
"""Points of a curve that is kept, each the mean of its share of the sequences."""
ONE_A_RUN = {"hidden_gain": 2, "rho_alpha": 1, "rho_mu": 1, "margin": 1, "alpha_bound": 1}
"""Options that may differ from run to run, with the number of axes behind `runs`."""
ALIASES = {"rho": ("rho_alpha", "rho_mu")}


def run_entry(
    entry: Entry,
    *,
    starts: Starts | None = None,
    device: torch.device | str = "cpu",
    graph: bool = True,
    on_sequence: Callable[[int], None] | None = None,
) -> list[Record]:
    """Train all networks of `entry`; the result has a record a configuration.

    On a CUDA device the whole sequence is captured in a CUDA graph, unless `graph` is false. `on_sequence` is called with the number of sequences
    seen.
    """
    device = torch.device(device)
    began = time.perf_counter()
    task = make(entry.task, **entry.task_options)
    configurations, starts = entry.configurations(), starts or Starts()
    runs = torch.arange(len(entry.seeds)).repeat_interleave(len(configurations))
    begun = [starts.start(entry, task, seed) for seed in entry.seeds]
    network = select_runs(stack_networks([start.network for start in begun]), runs).to(device)
    learner = _learner(entry, configurations, network, task.loss)
    data = SeedData(task, entry.seeds, entry.batch, device, every_step_counts=entry.update == "step")
    runs = runs.to(device)

    def sequence() -> Tensor:
        total = torch.zeros(len(runs), device=device)
        learner.init(len(runs), entry.batch)
        for step in data.steps(runs):
            loss = learner.step(step.u, step.y, step.weight, step.mask).loss
            if loss is not None:
                total = total + loss
        # Where weights move as steps come, this is for what a window still owes.
        learner.apply()
        return total

    captured = graph and device.type == "cuda"
    train = CapturedSequence(learner, sequence, device) if captured else sequence
    history = torch.empty(entry.iterations, len(runs), device=device)
    trained = time.perf_counter()
    for iteration in range(entry.iterations):
        data.load()
        history[iteration] = train()
        if on_sequence is not None:
            on_sequence(iteration + 1)
    losses = history.cpu().double()
    seconds = time.perf_counter() - trained
    metrics = task.evaluate(network)
    facts = {
        "seconds": round(time.perf_counter() - began, 2),
        "seconds_training": round(seconds, 2),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "cuda_graph": captured,
        "torch": torch.__version__,
        "runs": len(runs),
        "gains": [round(start.gain, 5) for start in begun],
        "exponents": [None if math.isnan(start.exponent) else round(start.exponent, 5) for start in begun],
    }
    return _records(entry, configurations, losses, metrics, _coefficients(learner), facts)


def _learner(entry: Entry, configurations: Sequence[Configuration], network: Network, loss: str) -> Learner:
    each = [*configurations] * len(entry.seeds)
    optimizer = EnsembleOptimizer(
        network.parameters(),
        algorithm=[configuration.algorithm for configuration in each],
        lr=[configuration.lr for configuration in each],
        clip=[configuration.clip for configuration in each],
    )
    options = {**entry.rule_options, **_one_a_run([configuration.values for configuration in each], network)}
    update = "step" if entry.update == "step" else "accumulate"
    try:
        learner: Learner = rule_of(entry.rule)(network, loss=loss, optimizer=optimizer, update=update, **options)
    except TypeError as error:
        raise ConfigError(f"{entry.rule} cannot be built with the options {', '.join(options) or 'of a study'}: {error}", rule=entry.rule) from error
    return learner


def rule_of(name: str) -> Any:
    """The learner called `name`.

    Raises:
        UnknownNameError: pararnn_cola has no learner of that name.
    """
    rule = getattr(pararnn_cola, name, None)
    if not _is_rule(rule):
        known = [
            other for other in pararnn_cola.__all__ if pararnn_cola.HOMES[other].startswith("learners.") and _is_rule(getattr(pararnn_cola, other))
        ]
        raise UnknownNameError(f"there is no rule {name!r} in pararnn_cola; there are {', '.join(known)}", name=name)
    return rule


def _is_rule(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Learner) and not inspect.isabstract(value)


def _one_a_run(each: Sequence[Mapping[str, float]], network: Network) -> dict[str, Tensor]:
    options = {}
    for name in each[0]:
        for option in ALIASES.get(name, (name,)):
            if option not in ONE_A_RUN:
                known = ", ".join([*ALIASES, *ONE_A_RUN])
                raise ConfigError(f"{name!r} cannot differ from run to run, only {known} can; put it in rule_options, one entry a value", name=name)
            bias = network.readout.bias
            numbers = torch.tensor([values[name] for values in each], dtype=bias.dtype, device=bias.device)
            options[option] = numbers.reshape(-1, *(1,) * ONE_A_RUN[option])
    return options


def _coefficients(learner: Learner) -> dict[str, Tensor]:
    """Medians over the units of the lowest layer of what COLA estimates, `(runs,)`; nothing for rules that estimate nothing."""
    named = {name.rpartition(".")[2]: value for name, value in learner.tensors().items() if name in ("memory.0.alpha", "memory.0.mu")}
    return {name: value.median(-1).values.cpu() for name, value in named.items()}


def _records(
    entry: Entry,
    configurations: Sequence[Configuration],
    losses: Tensor,
    metrics: Mapping[str, Tensor],
    coefficients: Mapping[str, Tensor],
    facts: Mapping[str, Any],
) -> list[Record]:
    count = len(configurations)
    bounds = torch.linspace(0, len(losses), min(POINTS, len(losses)) + 1).round().long().tolist()
    curves = torch.stack([losses[low:high].mean(0) for low, high in itertools.pairwise(bounds)])
    final = losses[-LAST:].mean(0)
    return [
        Record(
            entry=entry,
            configuration=configuration,
            train=_finite(final[index::count], float("inf")),
            metrics={name: _finite(values[index::count], float("nan")) for name, values in metrics.items()},
            curve=tuple(zip(bounds[1:], curves[:, index::count].mean(1).nan_to_num(torch.inf, torch.inf).tolist(), strict=True)),
            diagnostics={name: _finite(values[index::count], float("nan")) for name, values in coefficients.items()},
            facts=facts,
        )
        for index, configuration in enumerate(configurations)
    ]


def _finite(values: Tensor, otherwise: float) -> tuple[float, ...]:
    return tuple(torch.where(values.isfinite(), values, torch.full_like(values, otherwise)).tolist())
