"""Recurrent modules of other homes as systems: cells of the core, and torch's RNN, GRU and LSTM with their cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from pararnn.cell import Cell, Drive
from pararnn.errors import ConfigError, ParaRNNError, ShapeError
from pararnn.solver import drive as drives
from pararnn.solver.problem import analytic_form
from pararnn.structures import Dense, Structure
from pararnn_cola.criticality.systems import Push, StepSystem, System, batched_product, blame, steps_at_once

Weights = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
CellStep = Callable[[Tensor, tuple[Tensor, ...], Weights], tuple[Tensor, ...]]


class CellSystem(System):
    """A cell of the core's protocol, with its own formula for the Jacobian where it has an exact one."""

    input_shape = None

    def __init__(self, cell: Cell) -> None:
        self.cell, self.name, self.state_size = cell, type(cell).__name__, cell.state_size
        one = cell.initial_state(1)
        self.device, self.dtype = one.device, one.dtype
        exact = getattr(cell, "exact_jacobian", True)
        # A structure that is coarser than the derivative says nothing of growth, so the derivative is taken of the step itself.
        self.structure: type[Structure] = cell.structure if exact else Dense
        self.analytic = analytic_form(cell, "auto") if exact else None

    @torch.no_grad()
    def walk(self, inputs: Tensor) -> Iterator[Push]:
        cell, state = self.cell, self.cell.initial_state(inputs.shape[0])
        span = steps_at_once(inputs.shape[0], cell.state_size)
        for part in inputs.split(span, 1):
            try:
                drive, states = cell.drive(part), [state]
            except ParaRNNError:
                raise
            except RuntimeError as error:
                raise ShapeError(f"{self.name} cannot take inputs of shape {tuple(inputs.shape)}: {error}", shape=tuple(inputs.shape)) from error
            for at_step in drives.unbind(drive, 1):
                states.append(cell.step(states[-1], at_step))
            state = states[-1]
            before = torch.stack(states[:-1], 1)
            jacobian = self._linearize(before, drive).map(Tensor.double)
            for time, following in enumerate(states[1:]):
                yield _push_of(jacobian.map(_step_of(time)), blame(following))

    def _linearize(self, states: Tensor, drive: Drive) -> Structure:
        if self.analytic is not None:
            return self.analytic(states, drive)[1]
        return self.structure.linearize(lambda at: self.cell.step(at, drive), states)[1]


def torch_system(module: nn.RNNBase | nn.RNNCellBase) -> StepSystem:
    """The system of one of torch's recurrent modules; the layers of a stack are taken jointly, without the dropout between them.

    Raises:
        ConfigError: it is bidirectional, or projects its states.
    """
    name, size = type(module).__name__, module.hidden_size
    if isinstance(module, nn.RNNBase) and (module.bidirectional or module.proj_size):
        what = "bidirectional, so its state depends on the future" if module.bidirectional else f"projecting its state to {module.proj_size} numbers"
        raise ConfigError(f"the {name} is {what}; exponents are those of a map from state to state: give one without")
    advance, per_layer = _advance_of(module)
    weights = _weights_of(module)
    width = per_layer * size

    def initial(batch: int) -> Tensor:
        return weights[0][1].new_zeros(batch, len(weights) * width)

    def step(state: Tensor, u: Tensor) -> Tensor:
        following: list[Tensor] = []
        for own, of_layer in zip(state.split(width, -1), weights, strict=True):
            new = advance(u, own.split(size, -1), of_layer)
            following.extend(new)
            u = new[0]
        return torch.cat(following, -1)

    return StepSystem(step, initial, name=name, input_shape=(module.input_size,))


def _advance_of(module: nn.RNNBase | nn.RNNCellBase) -> tuple[CellStep, int]:
    """The step of one layer of `module`, and how many vectors its state is made of."""
    if isinstance(module, nn.GRU | nn.GRUCell):
        return _gru, 1
    if isinstance(module, nn.LSTM | nn.LSTMCell):
        return _lstm, 2
    if isinstance(module, nn.RNN | nn.RNNCell):
        activation = torch.tanh if module.nonlinearity == "tanh" else torch.relu
        return (lambda u, state, weights: (activation(torch.add(*_currents(u, state[0], weights))),)), 1
    raise ConfigError(f"{type(module).__name__} is none of torch's RNN, GRU and LSTM; wrap its step in a StepSystem")


def _weights_of(module: nn.RNNBase | nn.RNNCellBase) -> list[Weights]:
    """Weights and biases of each layer; they stay the module's own, so that a later change is seen."""
    suffixes = [f"_l{layer}" for layer in range(module.num_layers)] if isinstance(module, nn.RNNBase) else [""]
    return [
        (
            getattr(module, f"weight_ih{suffix}"),
            getattr(module, f"weight_hh{suffix}"),
            getattr(module, f"bias_ih{suffix}", None),
            getattr(module, f"bias_hh{suffix}", None),
        )
        for suffix in suffixes
    ]


def _currents(u: Tensor, h: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    feeding, recurrent, feeding_bias, recurrent_bias = weights
    return nn.functional.linear(u, feeding, feeding_bias), nn.functional.linear(h, recurrent, recurrent_bias)


def _gru(u: Tensor, state: tuple[Tensor, ...], weights: Weights) -> tuple[Tensor, ...]:
    (h,) = state
    (reset, update, new), (reset_h, update_h, new_h) = (current.chunk(3, -1) for current in _currents(u, h, weights))
    candidate = torch.tanh(new + torch.sigmoid(reset + reset_h) * new_h)
    return (torch.lerp(candidate, h, torch.sigmoid(update + update_h)),)


def _lstm(u: Tensor, state: tuple[Tensor, ...], weights: Weights) -> tuple[Tensor, ...]:
    h, c = state
    enter, keep, candidate, show = torch.add(*_currents(u, h, weights)).chunk(4, -1)
    c = torch.sigmoid(keep) * c + torch.sigmoid(enter) * torch.tanh(candidate)
    return torch.sigmoid(show) * torch.tanh(c), c


def _step_of(time: int) -> Callable[[Tensor], Tensor]:
    return lambda leaf: leaf[:, time]


def _push_of(jacobian: Structure, blamed: Tensor) -> Push:
    if isinstance(jacobian, Dense):
        return batched_product(jacobian.matrix + blamed.view(-1, 1, 1))
    return lambda columns: jacobian.apply(columns.permute(2, 1, 0)).permute(2, 1, 0) + blamed.unsqueeze(-1)
