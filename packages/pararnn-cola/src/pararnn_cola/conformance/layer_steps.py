"""Checks of a layer's step, which every rule asks of it."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.conformance.comparison import difference
from pararnn.errors import ConformanceError
from pararnn_cola.layers.base import Layer, Moment, State


def visited(layer: Layer, u: Tensor) -> State:
    """A state that the layer comes to on its way, detached."""
    state = layer.zero_state(u.shape[0])
    with torch.no_grad():
        for shift in range(3):
            state, _ = layer(u.roll(shift, 0), state)
    return tuple(part.detach() for part in state)


def observed(layer: Layer, u: Tensor) -> tuple[Moment | None, State]:
    """What `observe` tells of one step and the state before it; None where the layer has no formulas, for rules that use autograd only."""
    state = visited(layer, u)
    try:
        with torch.no_grad():
            return layer.observe(u, state)[1], state
    except NotImplementedError:
        return None, state


def check_states(layer: Layer, u: Tensor) -> None:
    """A step takes a state and gives one of the same form, whose first tensor is the output."""
    state = layer.zero_state(u.shape[0])
    following, _ = layer(u, state)
    if not isinstance(state, tuple) or not isinstance(following, tuple) or len(state) != len(following):
        raise ConformanceError("zero_state and forward give states of different forms; a state is a tuple of tensors, the output first")
    for index, (one, two) in enumerate(zip(state, following, strict=True)):
        if one.shape != two.shape or one.dtype != two.dtype:
            raise ConformanceError(
                f"part {index} of the state goes from {tuple(one.shape)} in {one.dtype} to {tuple(two.shape)} in {two.dtype}; zero_state gives what "
                "forward gives"
            )
    if state[0].dim() != 1 + layer.unit_dims or state[0].shape[0] != u.shape[0]:
        raise ConformanceError(
            f"the output has shape {tuple(state[0].shape)}; with unit_dims={layer.unit_dims} it is (batch, units), one row a sample"
        )


def check_step_writes_nothing(layer: Layer, u: Tensor) -> None:
    """A step leaves inputs, state and weights as they are, and gives the same for the same."""
    state = visited(layer, u)
    watched = {"the input": u, **{f"state {index}": part for index, part in enumerate(state)}, **dict(layer.named_parameters())}
    before = {name: (tensor.detach().clone(), tensor._version) for name, tensor in watched.items()}
    with torch.no_grad():
        one, two = layer(u, state)[0], layer(u, state)[0]
    for name, tensor in watched.items():
        if tensor._version != before[name][1] or not torch.equal(tensor.detach(), before[name][0]):
            raise ConformanceError(f"forward writes into {name}; compute a new tensor")
    if any(not torch.equal(first, second) for first, second in zip(one, two, strict=True)):
        raise ConformanceError("two calls of forward with equal arguments differ; keep nothing between calls, for rules run steps again")


def check_rows_stay_apart(layer: Layer, u: Tensor) -> None:
    """The next state of a row depends on its own input and state only."""
    state = visited(layer, u)
    with torch.no_grad():
        whole = layer(u, state)[0]
        for row in range(u.shape[0]):
            alone = layer(u[row : row + 1], tuple(part[row : row + 1] for part in state))[0]
            for one, two in zip(whole, alone, strict=True):
                if (how := difference(one[row : row + 1], two)) is not None:
                    raise ConformanceError(f"alone in the batch a row's next state differs {how}; combine entries of one sample only")


def check_gradients_reach_every_weight(layer: Layer, u: Tensor) -> None:
    """Autograd finds a path from every trainable parameter, the input and the state to the output, through two steps."""
    state = tuple(part.requires_grad_() for part in visited(layer, u))
    given = u.clone().requires_grad_()
    middle, _ = layer(given, state)
    following, _ = layer(given, middle)
    named = {**{name: p for name, p in layer.named_parameters() if p.requires_grad}, "the input": given, "the state": state[0]}
    found = torch.autograd.grad(following[0].sum(), list(named.values()), allow_unused=True)
    missing = [name for name, gradient in zip(named, found, strict=True) if gradient is None]
    if missing:
        raise ConformanceError(
            f"no gradient reaches {', '.join(missing)}; look for detach(), .data and no_grad in forward: learners detach, layers do not"
        )
