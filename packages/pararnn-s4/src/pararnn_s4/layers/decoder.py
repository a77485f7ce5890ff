"""Decoding with the parameters of a moment: constants of the state spaces are computed once, each step is then as cheap as its arithmetic."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pararnn_s4.layers.checks import check_entry, checked_count
from pararnn_s4.layers.layer import SSMLayer
from pararnn_s4.layers.model import ModelState, S4Model


class Constants(Protocol):
    """What `ssm.decoder` gives: a recurrence in some basis."""

    def initial_state(self, batch: int) -> Tensor: ...

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]: ...

    @property
    def drive(self) -> Tensor: ...

    def enter(self, state: Tensor) -> Tensor: ...

    def leave(self, state: Tensor) -> Tensor: ...


class LayerDecoder:
    """The steps of one layer in evaluation mode, from a copy of it; training the layer later does not change them."""

    def __init__(self, layer: SSMLayer, *, mode: str = "linear", rate: float = 1.0) -> None:
        make: Any = layer.ssm.decoder
        self.constants: Constants = make(mode, rate=rate)
        # The constants replace the state space.
        self._layer: SSMLayer = _snapshot(layer, without=[layer.ssm])

    def init_state(self, batch: int) -> Tensor:
        """The state before the first sample, in the basis of this decoder."""
        return self.constants.initial_state(checked_count("batch", batch, least=0))

    def enter(self, state: Tensor) -> Tensor:
        """The state that `forward(..., return_state=True)` gave for a prompt, in the basis of this decoder."""
        return self.constants.enter(state)

    def leave(self, state: Tensor) -> Tensor:
        """A state of this decoder as one of the layer."""
        return self.constants.leave(state)

    @torch.no_grad()
    def step(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Output `(batch, d_output)` and the next state, from one sample `x` `(batch, d_model)` and the state before it (None: `init_state`)."""
        self._layer.check_sample(x)
        drive = self.constants.drive
        state = self.constants.initial_state(x.shape[0]) if state is None else state
        check_entry(state, (x.shape[0], *drive.shape), drive.dtype, "the state in the basis of this decoder, as enter(state) gives it,")
        return self._layer.step_with(self.constants.step, x, state)


class ModelDecoder:
    """The steps of a whole model in evaluation mode, from a copy of it; training the model later does not change them."""

    def __init__(self, model: S4Model, *, mode: str = "linear", rate: float = 1.0) -> None:
        layers = [block.layer for block in model.residual_blocks()]
        self._decoders = [layer.decoder(mode, rate=rate) for layer in layers]
        self._model: S4Model = _snapshot(model, without=layers)

    def init_state(self, batch: int) -> ModelState:
        """The state before the first sample, in the bases of the layers' decoders."""
        states = tuple(decoder.init_state(batch) for decoder in self._decoders)
        return ModelState(states, *self._model.nothing_seen(batch))

    def enter(self, state: ModelState) -> ModelState:
        """The state that `forward(..., return_state=True)` gave for a prompt, as one of this decoder."""
        return state._replace(layers=tuple(decoder.enter(part) for decoder, part in zip(self._decoders, state.layers, strict=True)))

    def leave(self, state: ModelState) -> ModelState:
        """A state of this decoder as one of the model."""
        return state._replace(layers=tuple(decoder.leave(part) for decoder, part in zip(self._decoders, state.layers, strict=True)))

    @torch.no_grad()
    def step(self, x: Tensor, state: ModelState | None = None) -> tuple[Tensor, ModelState]:
        """Outputs `(batch, d_output)` and the next state, from one sample `x` `(batch, d_input)` and the state before it (None: `init_state`)."""
        return self._model.step_with([decoder.step for decoder in self._decoders], x, state)


def _snapshot(module: nn.Module, *, without: Sequence[nn.Module]) -> Any:
    """A copy of `module` in evaluation mode, with None in the places of some modules inside."""
    memo: dict[int, Any] = {id(part): None for part in without}
    for part in module.modules():
        # Hooks, as of pruning, leave tensors on a graph, which torch does not copy; where it is called, the copy makes its own.
        memo |= {id(value): value.detach().clone() for value in vars(part).values() if isinstance(value, Tensor) and not value.is_leaf}
    return copy.deepcopy(module, memo).eval().requires_grad_(False)
