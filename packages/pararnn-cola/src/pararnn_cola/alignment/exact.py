"""The exact signals of backpropagation through time, which rules that learn as data streams by can only approximate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pararnn.errors import InputError, ShapeError
from pararnn_cola.errors import CoverageError
from pararnn_cola.layers.base import Layer, Moment, rows_like, select
from pararnn_cola.losses import Loss, SampleLoss, loss_of
from pararnn_cola.network import Network


@dataclass(frozen=True, eq=False)
class ExactSignals:
    """Signals of sequences `(batch, time)` at the weights that the network has; one tensor `(batch, time, *units)` a layer, lowest first.

    Signals are those of each sample's own loss, so nothing is divided by the batch; gradients are means over it.
    """

    delta: tuple[Tensor, ...]
    """`dL/dx[t]`, through all later steps"""
    instantaneous: tuple[Tensor, ...]
    """`d[t] = dL[t]/dx[t]`, within the step"""
    slopes: tuple[Tensor | None, ...]
    """`p[t] = dh[t]/dx[t]`; None for layers that do not tell"""
    leaks: tuple[Tensor | float, ...]
    """`dx[t]/dx[t-1]` past the recurrent weights: 0, or a tensor as the signals"""
    gradients: dict[str, Tensor]
    """of the loss, by parameter name, those that need one"""
    loss: float
    """the weighted losses, added over time, mean over the batch"""


@torch.enable_grad()
def exact_signals(
    network: Network,
    inputs: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    loss: str | Loss | SampleLoss = "mse",
) -> ExactSignals:
    """The signals of `sum over time of weights * loss`, by autograd through all of the sequences, which start from zero states.

    Args:
        network: left as it is, its `.grad` included; memory grows with time, as always in backpropagation through time.
        inputs: `(batch, time, *input)`.
        targets: `(batch, time, ...)`; ignored where there is no loss.
        weights: `(time,)` or `(batch, time)`, 1 if left out.
        mask: `(batch, time)`, false where a sequence has no step.
        loss: as learners take it.

    Raises:
        ShapeError: the tensors do not fit together.
        CoverageError: `network` is an ensemble.
        InputError: the loss is not finite.
    """
    chosen = loss_of(loss)
    weight, present = _weights_and_mask(network, inputs, targets, weights, mask)
    layers = network.recurrent
    # With states that need a gradient every pre-activation is in the graph, also where all weights are frozen.
    states = tuple(tuple(part.detach().clone().requires_grad_() for part in state) for state in network.zero_state(inputs.shape[0]))
    preactivations: list[list[Tensor]] = [[] for _ in layers]
    instantaneous: list[list[Tensor]] = [[] for _ in layers]
    moments: list[list[Moment | None]] = [[] for _ in layers]
    total = inputs.new_zeros(())
    for time in range(inputs.shape[1]):
        here = present[:, time]
        u, following, now = _blank(inputs[:, time].detach(), here), [], []
        for index, (layer, state) in enumerate(zip(layers, states, strict=True)):
            moments[index].append(_moment(layer, u, state))
            new, x = layer(u, state)
            now.append(x)
            following.append(select(here, new, state, layer.unit_dims))
            u = new[0]
        states = tuple(following)
        live = here & (weight[:, time] != 0)
        if bool(live.any()):
            output, target = network.readout(u), _blank(targets[:, time].detach(), live)
            chosen.check(output, target)
            value = (torch.where(live, chosen.values(output, target), 0.0) * weight[:, time]).sum()
            total = total + value
            signals = torch.autograd.grad(value, now, retain_graph=True, allow_unused=True, materialize_grads=True)
        else:
            signals = tuple(map(torch.zeros_like, now))
        for index, (x, signal) in enumerate(zip(now, signals, strict=True)):
            preactivations[index].append(x)
            instantaneous[index].append(signal)
    if not bool(total.isfinite()):
        raise InputError(f"the loss of these sequences is {float(total.detach())}, so they have no signals; look at inputs, targets and weights")
    delta, gradients = _through_time(network, total, preactivations, inputs.shape[0])
    slopes, leaks = zip(*(_slopes_of(parts) for parts in moments), strict=True)
    return ExactSignals(
        delta=delta,
        instantaneous=tuple(torch.stack(parts, 1) for parts in instantaneous),
        slopes=slopes,
        leaks=leaks,
        gradients=gradients,
        loss=float(total.detach()) / inputs.shape[0],
    )


def _through_time(network: Network, total: Tensor, preactivations: list[list[Tensor]], batch: int) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    named = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
    flat = [x for parts in preactivations for x in parts]
    if not total.requires_grad:
        found: tuple[Tensor, ...] = tuple(map(torch.zeros_like, [*flat, *named.values()]))
    else:
        found = torch.autograd.grad(total, [*flat, *named.values()], allow_unused=True, materialize_grads=True)
    length = len(preactivations[0])
    delta = tuple(torch.stack(found[index * length : (index + 1) * length], 1) for index in range(len(preactivations)))
    return delta, {name: gradient / batch for name, gradient in zip(named, found[len(flat) :], strict=True)}


def _weights_and_mask(network: Network, inputs: Tensor, targets: Tensor, weights: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    if not isinstance(network, Network):
        raise CoverageError(f"signals are those of a Network, got {type(network).__name__}", type=type(network).__name__)
    if network.lead:
        raise CoverageError(f"an ensemble of {network.lead[0]} networks has signals for each; ask for those of one network", runs=network.lead[0])
    size = tuple(inputs.shape[:2])
    if inputs.dim() < 3 or 0 in size:
        raise ShapeError(f"inputs (batch, time, *input) with at least one sequence and step were expected, got {tuple(inputs.shape)}", shape=size)
    weight = torch.ones(size, dtype=inputs.dtype, device=inputs.device) if weights is None else weights.detach().to(inputs.device, inputs.dtype)
    weight = weight.expand(size) if weight.dim() == 1 and len(weight) == size[1] else weight
    present = torch.ones(size, dtype=torch.bool, device=inputs.device) if mask is None else mask
    for name, values in (("targets", targets), ("weights", weight), ("mask", present)):
        if tuple(values.shape[:2]) != size or (name != "targets" and values.dim() != 2):
            raise ShapeError(f"{name} of shape {tuple(values.shape)} do not fit {size[0]} sequences of {size[1]} steps", shape=tuple(values.shape))
    return weight, present


@torch.no_grad()
def _moment(layer: Layer, u: Tensor, state: tuple[Tensor, ...]) -> Moment | None:
    try:
        return layer.observe(u, state)[1]
    except NotImplementedError:
        return None


def _slopes_of(moments: list[Moment | None]) -> tuple[Tensor | None, Tensor | float]:
    known = [moment for moment in moments if moment is not None]
    if not known:
        return None, 0.0
    slopes = torch.stack([moment.slope for moment in known], 1)
    leaks = [moment.leak for moment in known]
    if all(isinstance(leak, Tensor) for leak in leaks):
        return slopes, torch.stack([leak for leak in leaks if isinstance(leak, Tensor)], 1)
    return slopes, leaks[0]


def _blank(values: Tensor, rows: Tensor) -> Tensor:
    """`values`, zero where `rows` `(batch,)` is false: what stands there may be anything."""
    return torch.where(rows_like(rows, values, values.dim() - 1), values, torch.zeros_like(values))
