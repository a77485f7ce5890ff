"""What a learning rule asks of a recurrent layer.

A layer computes, for each unit, a pre-activation `x[t]` and from it an output `h[t]`:

    x[t] = W h[t-1] + U u[t] + b   (+ leak * x[t-1], in leaky layers)
    h[t] = phi(x[t])

Rules that differentiate by autograd (BPTT, TBPTT, RTRL, UORO) need `zero_state` and `forward` only. Rules in closed form (COLA, TBPTT-1, SnAp-1,
e-prop) work with signals `delta[t] = dL/dx[t]`, one number a unit and sample, and need the rest. Adding a kind of layer touches no rule.

Tensors are `(*lead, batch, *units)`: `lead` is empty, but for ensembles of networks that learn side by side, whose parameters have it too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

State: TypeAlias = tuple[Tensor, ...]
"""What a layer carries from step to step; its first tensor is the output `h`."""


class Moment(NamedTuple):
    """What one step of a layer leaves behind for a rule."""

    inputs: Tensor
    """`u[t]`"""
    previous: Tensor
    """`h[t-1]`"""
    output: Tensor
    """`h[t]`"""
    slope: Tensor
    """`p[t] = dh[t]/dx[t]`, of the shape of `x[t]`"""
    leak: Tensor | float = 0.0
    """`dx[t]/dx[t-1]` past the recurrent weights; 0 in layers that do not leak"""
    extra: tuple[Tensor, ...] = ()
    """what this kind of layer needs besides to form gradients"""


class Layer(nn.Module, ABC):
    """A recurrent layer that can be learned online, one step at a time.

    Subclasses set `unit_dims`, the number of dimensions of `h` behind the batch (1 for a vector, 3 for maps), and `gradient_names`,
    the parameters for which `add_gradients` has a formula.
    """

    unit_dims: int = 1
    gradient_names: tuple[str, ...] = ()
    eligible_names: tuple[str, ...] = ()
    """Parameters of which row i acts on `x_i` alone, in the order of `eligible`: those that SnAp-1 and e-prop can train."""
    recurrent_name: str = "weight_hh"
    """The parameter that near-critical initialisation rescales."""

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """The shape of one sample's input, which networks compare with what is below; None where the layer does not tell."""
        return None

    @abstractmethod
    def zero_state(self, *batch: int) -> State:
        """The state before the first step, for samples of shape `batch` (`(batch,)`, or `(*lead, batch)` in an ensemble)."""

    @abstractmethod
    def forward(self, u: Tensor, state: State) -> tuple[State, Tensor]:
        """The next state and the pre-activation, differentiable by autograd; writes nothing in place."""

    def slope(self, preactivation: Tensor, state: State) -> Tensor:
        """`p = dh/dx` of the step that gave `preactivation` and `state`."""
        raise NotImplementedError

    def observe(self, u: Tensor, state: State) -> tuple[State, Moment]:
        """The next state, and what a rule in closed form needs to know of the step."""
        following, preactivation = self(u, state)
        return following, Moment(u, state[0], following[0], self.slope(preactivation, following))

    def signal_to_input(self, signal: Tensor, moment: Moment) -> Tensor:
        """`dL/du` from `signal = dL/dx` within the step: `U^T signal`."""
        raise NotImplementedError

    def signal_to_previous(self, signal: Tensor, moment: Moment) -> Tensor:
        """`dL/dh[t-1]` from `signal = dL/dx[t]`: `W^T signal`."""
        raise NotImplementedError

    def add_gradients(self, into: dict[str, Tensor], signal: Tensor, output_gradient: Tensor, moment: Moment, scale: float) -> None:
        """Add `scale` times the gradients that `signal` means, summed over the batch, to the buffers in `into`.

        `into` lacks the parameters that are frozen. `output_gradient` is `dL/dh` within the step, for layers of which some parameters act past `x`.
        """
        raise NotImplementedError

    def eligible(self, moment: Moment) -> tuple[Tensor, ...]:
        """What rows of `eligible_names` are multiplied by, `(*lead, batch, columns)` each: `dx_i/dtheta_i` within the step, alike in all units."""
        raise NotImplementedError

    def own_path(self, moment: Moment) -> Tensor:
        """`dx_i[t]/dh_i[t-1]`, through which a unit's output reaches itself, shaped to broadcast against `x`."""
        raise NotImplementedError

    def pool(self, values: Tensor, rows: Tensor | None = None) -> Tensor:
        """The mean over batch (and positions) of `values`, one number a unit; over the rows where `rows` `(*lead, batch)` is true, if given."""
        if rows is None:
            return values.mean(-2)
        live = rows.unsqueeze(-1).to(values.dtype)
        return (values * live).sum(-2) / live.sum(-2).clamp_min(1)

    def spread(self, statistic: Tensor) -> Tensor:
        """A statistic of `pool`, shaped to broadcast against `x`."""
        return statistic.unsqueeze(-2) if statistic.dim() > 1 else statistic

    def spread_seen(self, rows: Tensor) -> Tensor:
        """Whether any of `rows` `(*lead, batch)` is true, shaped to broadcast against a statistic of `pool`."""
        return rows.any(-1, keepdim=True)

    def peak(self, values: Tensor) -> Tensor:
        """The largest of `values` over batch (and positions), one number a unit."""
        return values.amax(-2)

    @torch.no_grad()
    def operator_norm(self) -> Tensor:
        """The largest singular value of the recurrent map, `()` or `lead`."""
        weight = self.get_parameter(self.recurrent_name)
        norm: Tensor = torch.linalg.matrix_norm(weight.double(), 2)
        return norm.to(weight.dtype)


def rows_like(rows: Tensor, values: Tensor, unit_dims: int) -> Tensor:
    """`rows` `(*lead, batch)`, shaped to broadcast against `values` `(*lead, batch, *units)`."""
    return rows.reshape(*rows.shape, *(1,) * unit_dims) if values.dim() > unit_dims else rows


def select(rows: Tensor, chosen: State, other: State, unit_dims: int) -> State:
    """`chosen` in the rows where `rows` is true, `other` elsewhere."""
    return tuple(torch.where(rows_like(rows, one, unit_dims), one, two) for one, two in zip(chosen, other, strict=True))
