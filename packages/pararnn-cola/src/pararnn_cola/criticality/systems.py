"""What an exponent needs of a recurrent module: its states along a trajectory, and how small changes of a state go through each step.

A `System` is that view of a module. `RNNSystem` has it in closed form, `StepSystem` takes it from forward-mode derivatives of any step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from pararnn.errors import DTypeError, ParaRNNError, ShapeError
from pararnn.structures import Dense
from pararnn.structures.base import FORWARD_MODE, push_forward
from pararnn_cola.layers.base import Layer
from pararnn_cola.layers.rnn import RNNLayer

Push: TypeAlias = Callable[[Tensor], Tensor]
"""Small changes of the state, `(state, batch, count)` in float64, to what the step makes of them; NaN where the trajectory left the numbers."""

FlatStep: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""`(state (batch, state), input (batch, *input)) -> next state`, each sample apart, in operations that can be differentiated."""

WIDEST_JACOBIAN = 512
"""The largest state of which Jacobians are formed where a few directions would do."""
JACOBIAN_ENTRIES = 2**21


class System(ABC):
    """A recurrent module as a map of flat states that inputs drive.

    `name` is for reports; `input_shape` is the shape of one step's input, None where the module does not tell.
    """

    name: str
    state_size: int
    input_shape: tuple[int, ...] | None
    device: torch.device
    dtype: torch.dtype

    @property
    def rounding(self) -> float:
        """How far entries of a Jacobian are off by rounding, as a share of their column."""
        return torch.finfo(self.dtype).eps

    @abstractmethod
    def walk(self, inputs: Tensor) -> Iterator[Push]:
        """One push a step along the trajectories from the zero state that `inputs` `(batch, time, *input)` drive."""


class StepSystem(System):
    """A step function, differentiated along as many directions as are asked for.

    Steps with functions of their own that have no forward-mode derivative are differentiated backwards, row by row of the Jacobian, which is slower.
    """

    def __init__(
        self,
        step: FlatStep,
        initial: Callable[[int], Tensor],
        *,
        name: str = "step function",
        input_shape: tuple[int, ...] | None = None,
    ) -> None:
        one = initial(1)
        self.step, self.initial, self.name, self.input_shape = step, initial, name, input_shape
        self.state_size, self.device, self.dtype = one.shape[-1], one.device, one.dtype

    def walk(self, inputs: Tensor) -> Iterator[Push]:
        batch = inputs.shape[0]
        state, span = self.initial(batch), steps_at_once(batch, self.state_size)
        if self.input_shape is None:
            self._try(state, inputs)
        for part in inputs.split(span, 1):
            before, after = [], []
            for u in part.unbind(1):
                before.append(state)
                with torch.no_grad():
                    state = self.step(state, u).detach()
                after.append(state)
            if self.state_size > WIDEST_JACOBIAN:
                yield from map(self._along, before, part.unbind(1), after)
                continue
            matrices = jacobians(_driven_by(self.step, part.transpose(0, 1).flatten(0, 1)), torch.cat(before)).double()
            matrices = matrices + blame(torch.cat(after)).view(-1, 1, 1)
            yield from map(batched_product, matrices.unflatten(0, (-1, batch)).unbind(0))

    def _try(self, state: Tensor, inputs: Tensor) -> None:
        """One step, whose errors name the inputs, as nothing else can tell whether they fit."""
        try:
            with torch.no_grad():
                self.step(state, inputs[:, 0])
        except ParaRNNError:
            raise
        except RuntimeError as error:
            raise ShapeError(f"{self.name} cannot take inputs of shape {tuple(inputs.shape)}: {error}", shape=tuple(inputs.shape)) from error

    def _along(self, state: Tensor, u: Tensor, following: Tensor) -> Push:
        """The derivative of one step along as many directions as there are columns: a Jacobian would be too large."""
        step = _driven_by(self.step, u)

        def push(columns: Tensor) -> Tensor:
            directions = columns.permute(2, 1, 0).to(state.dtype)
            try:
                with FORWARD_MODE:
                    pushed = torch.func.vmap(lambda direction: push_forward(step, state, direction)[1], randomness="error")(directions)
            except (RuntimeError, NotImplementedError):
                pushed = (jacobians(step, state) @ directions.unsqueeze(-1)).squeeze(-1)
            return pushed.permute(2, 1, 0).to(columns.dtype) + blame(following).unsqueeze(-1)

        return push


class RNNSystem(System):
    """A vanilla layer, whose Jacobian is `diag(p) W`."""

    def __init__(self, layer: RNNLayer) -> None:
        self.layer, self.name = layer, type(layer).__name__
        self.state_size, self.input_shape = layer.state_size, (layer.input_size,)
        self.device, self.dtype = layer.weight_hh.device, layer.weight_hh.dtype

    @property
    def rounding(self) -> float:
        # Slopes and weights are multiplied in float64, so that each row of the Jacobian is exact up to a factor.
        return torch.finfo(torch.float64).eps

    @torch.no_grad()
    def walk(self, inputs: Tensor) -> Iterator[Push]:
        layer, state, steps = self.layer, self.layer.zero_state(inputs.shape[0]), []
        for u in inputs.unbind(1):
            state, preactivation = layer(u, state)
            steps.append((preactivation, state[0]))
        preactivations, outputs = (torch.stack(part) for part in zip(*steps, strict=True))
        slopes = layer.slope(preactivations, (outputs,)).double()
        if layer.activation.name != "linear":
            slopes = slopes + blame(outputs.flatten(0, 1)).view(*outputs.shape[:2], 1)
        weight = layer.weight_hh.detach().double()
        for slope in slopes.mT.unsqueeze(-1).unbind(0):
            yield _scaled_product(slope, weight)


def layer_system(layer: Layer) -> System:
    """The system of one layer, in closed form where its step is that of `RNNLayer`."""
    if isinstance(layer, RNNLayer) and type(layer).forward is RNNLayer.forward and type(layer).slope is RNNLayer.slope:
        return RNNSystem(layer)
    return stack_system((layer,), type(layer).__name__)


def stack_system(layers: tuple[Layer, ...], name: str) -> StepSystem:
    """The joint system of layers, each fed by the one below: its state is all of theirs."""

    def tensors(batch: int) -> list[Tensor]:
        return [part for layer in layers for part in layer.zero_state(batch)]

    example = tensors(1)
    shapes, sizes = [part.shape[1:] for part in example], [part[0].numel() for part in example]
    counts = [len(layer.zero_state(1)) for layer in layers]

    def initial(batch: int) -> Tensor:
        return torch.cat([part.detach().flatten(1) for part in tensors(batch)], -1)

    def step(state: Tensor, u: Tensor) -> Tensor:
        parts = [part.unflatten(-1, shape) for part, shape in zip(state.split(sizes, -1), shapes, strict=True)]
        following: list[Tensor] = []
        for layer, count in zip(layers, counts, strict=True):
            own, parts = parts[:count], parts[count:]
            new, _ = layer(u, tuple(own))
            following.extend(part.flatten(1) for part in new)
            u = new[0]
        return torch.cat(following, -1)

    return StepSystem(step, initial, name=name, input_shape=layers[0].input_shape)


def blame(states: Tensor) -> Tensor:
    """NaN for the samples of which `states` `(batch, ...)` are not finite, else 0, `(batch,)`: the slope of ReLU at NaN is a number like any."""
    return torch.where(states.flatten(1).isfinite().all(-1), 0.0, math.nan).double()


def check_inputs(system: System, inputs: Tensor) -> None:
    """Raise if `inputs` cannot drive `system`."""
    if not isinstance(inputs, Tensor):
        raise DTypeError(f"inputs are a tensor (batch, time, *input), got {type(inputs).__name__}; torch.as_tensor makes one of an array")
    if inputs.dim() < 3 or inputs.shape[0] == 0:
        raise ShapeError(f"inputs (batch, time, *input) with at least one trajectory were expected, got {tuple(inputs.shape)}")
    if system.input_shape is not None and tuple(inputs.shape[2:]) != system.input_shape:
        raise ShapeError(
            f"{system.name} takes inputs of shape {system.input_shape} a step, so (batch, time, {', '.join(map(str, system.input_shape))}); "
            f"got {tuple(inputs.shape)}",
            shape=tuple(inputs.shape),
        )


def _scaled_product(slope: Tensor, weight: Tensor) -> Push:
    # One matrix product for the columns of all trajectories.
    return lambda columns: (weight @ columns.flatten(1)).view(columns.shape).mul_(slope)


def batched_product(matrix: Tensor) -> Push:
    """The push of Jacobians `(batch, state, state)`."""
    return lambda columns: torch.bmm(matrix, columns.transpose(0, 1)).transpose(0, 1)


def steps_at_once(batch: int, state_size: int) -> int:
    """Of how many steps the Jacobians are taken together."""
    return max(1, JACOBIAN_ENTRIES // (batch * state_size**2))


def jacobians(step: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
    """The Jacobians `(rows, state, state)` at `states` `(rows, state)` of a step that treats rows apart."""
    try:
        return Dense.linearize(step, states)[1].matrix
    except (RuntimeError, NotImplementedError):
        pass
    # Somewhere in the step is a function without a forward-mode derivative: one backward pass a row of the Jacobian.
    with torch.enable_grad():
        leaf = states.detach().requires_grad_()
        following = step(leaf).sum(0)
        rows = [torch.autograd.grad(entry, leaf, retain_graph=True, allow_unused=True, materialize_grads=True)[0] for entry in following.unbind(0)]
    return torch.stack(rows, 1)


def _driven_by(step: FlatStep, u: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda state: step(state, u)
