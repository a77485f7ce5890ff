"""What the cells have in common: a state-space model, the skip, and a state whose last slot is the input.

An output needs the input of its own step, `y[t] = C x[t] + D u[t]`, but the readout of a cell sees states alone. So the state carries the input
in a slot of its own, which the next step forgets: its transition is zero.

The state is slot-major, `(*lead, slots * d_model)`: the first number of every feature, then the second, and the input last. That is the order of
`pararnn.BlockDiagonal`, and the features lie contiguously.
"""
# ruff: noqa: N803, N806 -- D is the name of the literature.

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from pararnn.errors import CellError, ConfigError, ShapeError
from pararnn.scans.dispatch import full_precision
from pararnn.structures.base import Structure
from pararnn_s4.layers.checks import check_owned


class StateSpaceCell(nn.Module):
    """A cell of `d_model` inputs and `channels * d_model` outputs, channel by channel.

    Attributes:
        ssm: the state-space models; shared with a layer where one was given.
        D: the skip weights `(channels, d_model)`.
        rate: the time between samples over that of training.
        slots: numbers of the state for each feature, the input counted.
    """

    structure: type[Structure]
    is_linear: ClassVar[bool] = True

    def __init__(self, ssm: Any, D: nn.Parameter | None, rate: float, slots: int, options: dict[str, Any] | None) -> None:
        super().__init__()
        if D is None:
            D = nn.Parameter(torch.randn(ssm.channels, ssm.d_model, dtype=ssm.C.dtype, device=ssm.C.device))
        if tuple(D.shape) != (ssm.channels, ssm.d_model):
            raise ShapeError(f"D has shape {tuple(D.shape)}; it must be (channels, d_model) = ({ssm.channels}, {ssm.d_model})")
        self.ssm, self.D, self.rate = ssm, D, rate
        self.slots = slots + 1
        self.state_size: int = self.slots * ssm.d_model
        self._options = options

    @property
    def d_model(self) -> int:
        """Features of the input."""
        d_model: int = self.ssm.d_model
        return d_model

    @property
    def output_size(self) -> int:
        """Features of the output."""
        return int(self.ssm.channels) * self.d_model

    def layer_above(self) -> Self:
        """A fresh cell of the same kind that reads the outputs of this one.

        Raises:
            CellError: this cell was made around a given state-space model, so that nothing says how to make another.
        """
        if self._options is None:
            raise CellError(
                f"this {type(self).__name__} was made around a given ssm, which does not say how to make another; pass the cells as a list"
            )
        return type(self)(self.output_size, rate=self.rate, **self._options).to(self.D)

    def readout(self, states: Tensor) -> Tensor:
        """Outputs `(*lead, channels * d_model)`, all features of the first channel before those of the second.

        Raises:
            ConfigError: a hook sets `D` before each call of this cell (as that of pruning does), which solvers do not make.
        """
        check_owned(self, "D", "readout")
        with full_precision(states):
            weights = torch.cat((self.as_slots(self.constants().output), self.D.to(states.dtype).unsqueeze(-2)), dim=-2)
            slotted = self.slotted(states)
            channels = [(slotted * weight).sum(-2) for weight in weights.unbind(0)]
            return torch.cat([channel.real if channel.is_complex() else channel for channel in channels], dim=-1)

    def constants(self) -> Any:
        """One step of the model in the dtype of its states, on the graph: `transition`, `drive`, `output`, and what its form adds."""
        return self.ssm(rate=self.rate).decoder("linear")

    def as_slots(self, weights: Tensor) -> Tensor:
        """Weights of the outputs `(channels, d_model, state)` in the layout of a slotted state, `(channels, slots - 1, d_model)`."""
        return weights.mT

    def slotted(self, state: Tensor) -> Tensor:
        """`(*lead, slots, d_model)` of a state `(*lead, state_size)`."""
        slotted: Tensor = state.unflatten(-1, (self.slots, self.d_model))
        return slotted

    def extra_repr(self) -> str:
        """The options that the state-space model does not show."""
        return f"rate={self.rate}"


def made_or_given(d_model: int, ssm: Any, kind: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any] | None]:
    """The state-space model of a cell, and the options it was made with; None for a given one.

    Raises:
        ConfigError: a given model is of another kind or size, or options come with it.
    """
    if ssm is None:
        return kind(d_model, **options), options
    if not isinstance(ssm, kind):
        raise ConfigError(f"ssm must be a {kind.__name__}, got {type(ssm).__name__}")
    if options:
        raise ConfigError(f"{', '.join(options)} say how to make a state-space model, but one is given as ssm; leave them out")
    if ssm.d_model != d_model:
        raise ConfigError(f"d_model is {d_model}, but the given ssm has {ssm.d_model} features")
    return ssm, None
