"""Walks of a network over data that it does not learn from, a few sequences at a time, for single networks and ensembles alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from pararnn.errors import ConfigError, ShapeError
from pararnn_cola.network import Network

AT_ONCE = {"cpu": 4096, "cuda": 131072}
"""How many sequences walk side by side, those of all runs of an ensemble together: enough to fill a processor, few enough to stay small."""


class Answer(NamedTuple):
    """What a network answers at one step to some of the sequences."""

    rows: slice
    time: int
    output: Tensor
    """`(*lead, rows, output)`"""


@contextmanager
def evaluating(network: Network) -> Iterator[None]:
    """No graph is kept and the modules of `network` are in their `eval` mode inside; each is in the mode it was in afterwards."""
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def for_network(values: Tensor, network: Network) -> Tensor:
    """`values` on the device of `network`, as its dtype where they are floating point, repeated for each run of an ensemble."""
    like = network.readout.bias
    values = values.to(like.device, like.dtype if values.is_floating_point() else None)
    return values.expand(*network.lead, *values.shape)


def answers(network: Network, sequences: Tensor, encode: Callable[[Tensor], Tensor] | None = None) -> Iterator[Answer]:
    """What `network` answers to `sequences` `(sequences, time, ...)`, each from a zero state, step after step for as many as fit at once.

    `encode` makes one step's inputs `(rows, input)` of one step's data `(rows, ...)`, where these are kept in a smaller form; else they are inputs.
    """
    allowed = AT_ONCE.get(network.readout.bias.device.type, AT_ONCE["cpu"])
    at_once = max(1, allowed // math.prod(network.lead))
    for first in range(0, sequences.shape[0], at_once):
        rows = slice(first, first + at_once)
        some = sequences[rows].to(network.readout.bias.device)
        states = network.zero_state(*network.lead, some.shape[0])
        for time, data in enumerate(some.unbind(1)):
            output, states = network.advance(for_network(data if encode is None else encode(data), network), states)
            yield Answer(rows, time, output)


@torch.no_grad()
def rollout(network: Network, inputs: Tensor, steps: int) -> Tensor:
    """The `steps` values that `network` expects after `inputs` `(batch, time, input)`, each fed back to it as if it had been seen.

    The result is `(*network.lead, batch, steps, input)`; its first step is the answer to the last of the inputs.

    Raises:
        ConfigError: `steps` is below 1, or the network answers with another number of values than it takes.
        ShapeError: `inputs` is not `(batch, time, input)` with at least one step.
    """
    if steps < 1:
        raise ConfigError(f"steps={steps}; a rollout has at least 1 step", steps=steps)
    if inputs.dim() != 3 or inputs.shape[1] == 0:
        raise ShapeError(f"inputs (batch, time, input) with at least one step were expected, got {tuple(inputs.shape)}", shape=tuple(inputs.shape))
    if network.readout.output_size != inputs.shape[-1]:
        raise ConfigError(
            f"the network gives {network.readout.output_size} values and takes {inputs.shape[-1]}; "
            "only a network that predicts its inputs can run on its own",
            outputs=network.readout.output_size,
            inputs=inputs.shape[-1],
        )
    seen = for_network(inputs, network)
    states = network.zero_state(*seen.shape[:-2])
    output = seen[..., 0, :]
    for u in seen.unbind(-2):
        output, states = network.advance(u, states)
    expected = [output]
    for _ in range(steps - 1):
        output, states = network.advance(output, states)
        expected.append(output)
    return torch.stack(expected, -2)
