"""Checks of the maps between a layer's steps that rules read off, each against autograd: a unit's own path, what its weights see, the norm."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.conformance.comparison import difference
from pararnn.errors import ConformanceError
from pararnn_cola.conformance.layer_steps import observed, visited
from pararnn_cola.layers.base import Layer, State

NOT_ELIGIBLE = "the layer names no eligible_names; SnAp-1 and e-prop refuse it"


def check_eligible(layer: Layer, u: Tensor) -> str | None:
    """What `eligible` gives, times a signal and summed over the batch, is autograd's gradient within the step."""
    moment, state = observed(layer, u)
    names = [name for name in layer.eligible_names if layer.get_parameter(name).requires_grad]
    if moment is None or not names:
        return NOT_ELIGIBLE
    _, x = layer(u, state)
    signal = torch.randn_like(x)
    exact = dict(zip(names, torch.autograd.grad(x, [layer.get_parameter(name) for name in names], signal), strict=True))
    with torch.no_grad():
        seen = dict(zip(layer.eligible_names, layer.eligible(moment), strict=True))
    for name, truth in exact.items():
        found = (signal.mT @ seen[name]).reshape(truth.shape)
        if (how := difference(found, truth, "gradients")) is not None:
            raise ConformanceError(f"the gradient of {name} that eligible means and autograd's differ {how}; give what the rows of {name} multiply")
    return None


def check_own_path(layer: Layer, u: Tensor) -> str | None:
    """`own_path` is the derivative of each unit's pre-activation by its own previous output."""
    moment, state = observed(layer, u)
    if moment is None or not layer.eligible_names:
        return NOT_ELIGIBLE
    with torch.no_grad():
        found = layer.own_path(moment)
    for row in range(u.shape[0]):
        truth = _map(layer, u[row : row + 1], tuple(part[row : row + 1] for part in state)).diagonal()
        mine = found.expand(u.shape[0], len(truth))[row]
        if (how := difference(mine, truth, "gradients")) is not None:
            raise ConformanceError(f"own_path and autograd's dx_i[t]/dh_i[t-1] differ {how}; it is the diagonal of the recurrent map")
    return None


def check_operator_norm(layer: Layer, u: Tensor) -> str | None:
    """`operator_norm` is finite, and grows in proportion to the recurrent weight, and is the norm of `dx[t]/dh[t-1]` where that is one map."""
    if layer.recurrent_name not in dict(layer.named_parameters()):
        return f"the layer has no parameter {layer.recurrent_name}"
    weight = layer.get_parameter(layer.recurrent_name)
    before = layer.operator_norm()
    with torch.no_grad():
        kept = weight.clone()
        weight.mul_(3.0)
        after = layer.operator_norm()
        weight.copy_(kept)
    if not bool(before.isfinite().all()) or bool((before <= 0).any()) or not torch.allclose(after, 3 * before, rtol=1e-4):
        raise ConformanceError(
            f"operator_norm goes from {before.tolist()} to {after.tolist()} where the weight is tripled; it is the largest singular value"
        )
    maps = [_map(layer, u[:1], tuple(part[:1] for part in state)) for state in (visited(layer, u), layer.zero_state(u.shape[0]))]
    # Where dx/dh depends on the state, as in an LSTM, the norm is one of weights, and there is nothing to compare it with.
    if difference(maps[0], maps[1], "gradients") is None:
        exact = torch.linalg.matrix_norm(maps[0], 2)
        if not torch.allclose(before, exact, rtol=1e-4):
            raise ConformanceError(f"operator_norm is {before.item():.6g}, the largest singular value of dx[t]/dh[t-1] {exact.item():.6g}")
    return None


def _map(layer: Layer, u: Tensor, state: State) -> Tensor:
    """`dx[t]/dh[t-1]` of one sample, `(units, units)`."""
    previous, rest = state[0], state[1:]
    found = torch.autograd.functional.jacobian(lambda h: layer(u, (h, *rest))[1], previous)
    matrix: Tensor = found.reshape(-1, previous.numel())
    return matrix
