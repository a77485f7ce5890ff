"""Checks of the formulas that rules in closed form use, each against autograd of the layer's own step."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.conformance.comparison import difference
from pararnn.errors import ConformanceError
from pararnn_cola.conformance.layer_steps import observed
from pararnn_cola.layers.base import Layer

NO_FORMULAS = "the layer has no formulas; rules that use autograd can train it"


def check_observe(layer: Layer, u: Tensor) -> str | None:
    """`observe` goes where `forward` goes, and tells what went in and came out."""
    moment, state = observed(layer, u)
    if moment is None:
        return NO_FORMULAS
    with torch.no_grad():
        following = layer.observe(u, state)[0]
        expected = layer(u, state)[0]
    for one, two in zip(following, expected, strict=True):
        if (how := difference(one, two)) is not None:
            raise ConformanceError(f"observe and forward lead to states that differ {how}; let observe call forward")
    for name, told, truth in (("inputs", moment.inputs, u), ("previous", moment.previous, state[0]), ("output", moment.output, expected[0])):
        if (how := difference(told, truth)) is not None:
            raise ConformanceError(f"the moment's {name} differ {how} from what the step saw")
    return None


def check_slope(layer: Layer, u: Tensor) -> str | None:
    """`slope` is the derivative of the output by the pre-activation, unit by unit."""
    moment, state = observed(layer, u)
    if moment is None:
        return NO_FORMULAS
    following, x = layer(u, state)
    (slope,) = torch.autograd.grad(following[0].sum(), x, allow_unused=True)
    if slope is None:
        raise ConformanceError("the output does not depend on the pre-activation that forward gives; return the very tensor that phi was applied to")
    if (how := difference(moment.slope, slope, "gradients")) is not None:
        raise ConformanceError(f"slope and autograd's dh/dx differ {how}; it is the derivative of the activation, of the shape of x")
    return None


def check_signal_to_input(layer: Layer, u: Tensor) -> str | None:
    """`signal_to_input` is autograd's gradient by the input."""
    return _compare_signal(layer, u, "signal_to_input", "the input, U^T signal")


def check_signal_to_previous(layer: Layer, u: Tensor) -> str | None:
    """`signal_to_previous` is autograd's gradient by the previous output."""
    return _compare_signal(layer, u, "signal_to_previous", "the previous output, W^T signal")


def check_add_gradients(layer: Layer, u: Tensor) -> str | None:
    """`add_gradients` adds the gradients that autograd finds within the step, times `scale`, for what is in the buffers."""
    moment, state = observed(layer, u)
    if moment is None:
        return NO_FORMULAS
    by_output = torch.randn_like(moment.output)
    signal = moment.slope * by_output
    trained = {name: p for name, p in layer.named_parameters() if p.requires_grad}
    missing = [name for name in trained if name not in layer.gradient_names]
    if missing:
        raise ConformanceError(f"gradient_names lacks {', '.join(missing)}; name every trainable parameter, or rules in closed form refuse the layer")
    following, _ = layer(u, state)
    exact = torch.autograd.grad((following[0] * by_output).sum(), list(trained.values()))
    start = {name: torch.randn_like(p) for name, p in trained.items()}
    buffers = {name: tensor.clone() for name, tensor in start.items()}
    with torch.no_grad():
        layer.add_gradients(buffers, signal, by_output, moment, 0.25)
    for (name, found), truth in zip(buffers.items(), exact, strict=True):
        if (how := difference(found, start[name] + 0.25 * truth, "gradients")) is not None:
            raise ConformanceError(
                f"the buffer of {name} and what was in it plus scale * gradient differ {how}; add in place, sum over the batch, and use the signal"
            )
    for name in trained:
        rest = {other: tensor.clone() for other, tensor in start.items() if other != name}
        with torch.no_grad():
            layer.add_gradients(rest, signal, by_output, moment, 0.25)
        if rest.keys() | {name} != start.keys() or any(not torch.equal(rest[other], buffers[other]) for other in rest):
            raise ConformanceError(f"with {name} frozen, so missing from the buffers, the others get other gradients; look up each name on its own")
    return None


def check_pool_and_spread(layer: Layer, u: Tensor) -> str | None:
    """`pool` is a mean over the rows that count, and `spread` brings it back to the shape of the pre-activation."""
    moment, _ = observed(layer, u)
    if moment is None:
        return NO_FORMULAS
    values, batch = moment.slope + torch.randn_like(moment.slope), u.shape[0]
    with torch.no_grad():
        pooled = layer.pool(values)
        if (how := difference(layer.pool(torch.ones_like(values)), torch.ones_like(pooled))) is not None:
            raise ConformanceError(f"the pool of ones differs {how} from ones; it is a mean")
        if torch.broadcast_shapes(layer.spread(pooled).shape, values.shape) != values.shape:
            raise ConformanceError(f"spread gives {tuple(layer.spread(pooled).shape)}, which does not broadcast against x of {tuple(values.shape)}")
        constant = layer.spread(pooled) + torch.zeros_like(values)
        if (how := difference(layer.pool(constant), pooled)) is not None:
            raise ConformanceError(f"the pool of a spread statistic differs {how} from it; both speak of the same units")
        if (how := difference(layer.pool(torch.cat((values, values))), pooled)) is not None:
            raise ConformanceError(f"with every row twice the pool differs {how}; it is a mean over rows, not a sum")
        rows = torch.arange(batch) % 2 == 0
        if (how := difference(layer.pool(values, rows), layer.pool(values[rows]))) is not None:
            raise ConformanceError(f"the pool over some rows and the pool of those rows differ {how}; divide by the number of rows that count")
        if (how := difference(layer.pool(values, torch.zeros_like(rows)), torch.zeros_like(pooled))) is not None:
            raise ConformanceError(f"the pool over no row differs {how} from zero; divide by one at least")
        seen = [bool(layer.spread_seen(chosen).all()) for chosen in (rows, torch.zeros_like(rows))]
        if seen != [True, False] or torch.broadcast_shapes(layer.spread_seen(rows).shape, pooled.shape) != pooled.shape:
            raise ConformanceError("spread_seen does not say whether any row counts, in a shape that broadcasts against a statistic")
        if bool((layer.spread(layer.peak(values)) < values).any()):
            raise ConformanceError("peak is below one of the values that it was taken of")
        if bool((layer.pool((layer.spread(layer.peak(values)) == values).to(values.dtype)) == 0).any()):
            raise ConformanceError("peak is none of the values that it was taken of; it is the largest of them")
    return None


def _compare_signal(layer: Layer, u: Tensor, name: str, what: str) -> str | None:
    moment, state = observed(layer, u)
    if moment is None:
        return NO_FORMULAS
    given, before = u.clone().requires_grad_(), state[0].clone().requires_grad_()
    _, x = layer(given, (before, *state[1:]))
    signal = torch.randn_like(x)
    by_input, by_previous = torch.autograd.grad(x, (given, before), signal, allow_unused=True)
    truth = by_input if name == "signal_to_input" else by_previous
    with torch.no_grad():
        found = getattr(layer, name)(signal, moment)
    if (how := difference(found, torch.zeros_like(found) if truth is None else truth, "gradients")) is not None:
        raise ConformanceError(f"{name} and autograd's gradient by {what}, differ {how}")
    return None
