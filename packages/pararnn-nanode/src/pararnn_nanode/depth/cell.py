"""The discretised equation as a cell of pararnn: a recurrence over depth, in which time stands for layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError, DTypeError, ShapeError
from pararnn.structures import Dense, Diagonal, Structure
from pararnn_nanode.depth.jacobian import linearize, structure_of
from pararnn_nanode.fields.base import Field, Weights
from pararnn_nanode.fields.layer import LayerField
from pararnn_nanode.integrate.catalogue import find
from pararnn_nanode.integrate.methods import Method
from pararnn_nanode.integrate.runge_kutta import RungeKutta, combine
from pararnn_nanode.paths.base import Span

DepthDrive: TypeAlias = tuple[Tensor, ...]
COUNTS = {torch.bfloat16: 256, torch.float16: 2048}
"""How far a dtype counts without a gap, for those that do not count far."""


class NANODECell(nn.Module):
    """Steps of an equation `dx/dt = f(t, x, u)` as a cell for `ParaRNN`.

    Inputs are `(batch, time, 1 + inputs)`: the number of the step, from 0 (`steps_of` makes it), then the inputs `u` held during the step. With
    weights in half precision they are float32 all the same, since half precision does not count far. The number comes with the inputs because a drive
    knows of a sample nothing but the sample: so a step has its weights in a whole sequence, in a pack and when decoding alike. For states after some
    steps of one equation, `pararnn_nanode.NANODE` is the direct way; this is for what `ParaRNN` offers on top.

    Args:
        field: a field of vectors; `dim` channels, taken from the field where it has them.
        steps: how many steps the span has; or `h`, the length of a step.
        method: a Runge-Kutta method, a name or itself.
        parallel: "newton" declares the Jacobian that the field says; "picard" declares it to be the identity, which makes pararnn's Newton iteration
            Picard's.

    Raises:
        ConfigError: both or neither of `steps` and `h`, a method of another kind, a field without `dim` or, for "newton", without a structure.
    """

    structure: type[Structure]
    solve_ops = ("nanode/solve",)

    def __init__(
        self,
        field: Field,
        *,
        steps: int | None = None,
        h: float | None = None,
        span: Span = (0.0, 1.0),
        method: str | Method = "euler",
        parallel: Literal["newton", "picard"] = "newton",
        dim: int | None = None,
    ) -> None:
        super().__init__()
        if (steps is None) == (h is None):
            raise ConfigError(f"give either steps of the span or h, the length of a step; got steps={steps!r} and h={h!r}")
        if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 1):
            raise ConfigError(f"steps must be a whole number of at least 1, got {steps!r}")
        if h is not None and not 0 < abs(h) < float("inf"):
            raise ConfigError(f"h must be a finite number other than 0, got {h!r}")
        chosen = find(method)
        if not isinstance(chosen, RungeKutta):
            raise ConfigError(f"{chosen.name} carries more than the state from step to step; a NANODECell takes Runge-Kutta methods such as 'heun'")
        if parallel not in ("newton", "picard"):
            raise ConfigError(f"parallel must be 'newton' or 'picard', got {parallel!r}")
        size = dim if dim is not None else getattr(field, "dim", None)
        if not isinstance(size, int):
            raise ConfigError(f"{type(field).__name__} does not say how many channels its state has; pass dim=")
        self.field = field
        self.method = chosen
        self.start = float(span[0])
        self.h = float(h) if h is not None else (float(span[1]) - float(span[0])) / (steps or 1)
        self.parallel = parallel
        self.state_size = size
        self.structure = structure_of(field) if parallel == "newton" else Diagonal
        self.exact_jacobian = parallel == "newton"

    def steps_of(self, batch: int, length: int, u: Tensor | None = None) -> Tensor:
        """Inputs `(batch, length, 1 + inputs)` of a walk from the start: step numbers, then `u` `(batch, length, inputs)`; at least in float32."""
        like = self.initial_state(1) if u is None else u
        exact = torch.promote_types(like.dtype.to_real(), torch.float32)
        number = torch.arange(length, dtype=exact, device=like.device).view(1, length, 1).expand(batch, -1, -1)
        return number if u is None else torch.cat((number, u), dim=-1)

    def initial_state(self, batch: int) -> Tensor:
        """Zeros; an equation is more often started elsewhere, by `h0`."""
        like = next(self.parameters(), torch.empty(0))
        return torch.zeros(batch, self.state_size, dtype=like.dtype, device=like.device)

    def drive(self, x: Tensor) -> DepthDrive:
        """Weights of every step, each leaf `(batch, time, nodes, ...)`.

        Raises:
            ShapeError: `x` has not one channel for the number of the step and those of the inputs.
            DTypeError: `x` is in half precision.
        """
        self._check(x)
        number = x[..., 0].to(torch.float64)
        # A step ends at the very number at which the next one starts.
        ends = [self.start + (number + node) * self.h for node in (0.0, 1.0)]
        times = torch.stack([self.start + (number + node) * self.h for node in self.method.nodes], dim=-1)
        anchors = torch.minimum(*ends).unsqueeze(-1).expand(times.shape)
        u = x[..., 1:].unsqueeze(2).expand(*times.shape, -1) if x.shape[-1] > 1 else None
        held = next((parameter.dtype for parameter in self.parameters()), x.dtype)
        if u is not None and held in COUNTS:
            u = u.to(held)
        # Times alone are float64, whatever the states are; the function that sees them gets them in the precision of these.
        return tuple(leaf.to(held) if leaf.dtype == torch.float64 else leaf for leaf in self.field.weights(times, anchors, u))

    def step(self, state: Tensor, drive: DepthDrive) -> Tensor:
        """The state one step of the method later."""
        return state + self.increment(state, drive)

    def increment(self, state: Tensor, drive: DepthDrive) -> Tensor:
        """What a step adds to `state`."""
        weights = self.nodes(drive, state.ndim - 1)
        slopes = [self.field.evaluate(state, weights[0])]
        for row, read in zip(self.method.stages, self.method.reads[1:], strict=True):
            slopes.append(self.field.evaluate(combine(state, slopes, row, self.h), weights[read]))
        return combine(torch.zeros_like(state), slopes, self.method.combination, self.h)

    def linearize(self, state: Tensor, drive: DepthDrive) -> tuple[Tensor, Structure]:
        """The next state and the Jacobian: by a formula for Euler's method and known fields, for other methods by forward mode."""
        if self.parallel == "picard":
            return self.step(state, drive), Diagonal(torch.ones_like(state))
        if len(self.method.combination) > 1 or self.structure not in (Dense, Diagonal):
            return self.structure.linearize(lambda inner: self.step(inner, drive), state)
        slope, jacobian = linearize(self.field, state, self.nodes(drive, state.ndim - 1)[0])
        (leaf,) = jacobian.leaves()
        unit = torch.eye(self.state_size, dtype=leaf.dtype, device=leaf.device) if self.structure is Dense else 1.0
        return state + self.h * slope, self.structure.from_leaves(unit + self.h * leaf)

    def readout(self, states: Tensor) -> Tensor:
        """The states themselves."""
        return states

    def nodes(self, drive: Sequence[Tensor], lead: int) -> list[Weights]:
        """The weights at each node of the method, from a drive whose leaves have `lead` dimensions before that of the nodes."""
        return [tuple(leaf.select(lead, node) for leaf in drive) for node in range(len(self.method.nodes))]

    def _check(self, x: Tensor) -> None:
        wanted = None
        if isinstance(self.field, LayerField):
            wanted = 1 if self.field.input is None else 1 + self.field.input.shape[1]
        if x.shape[-1] < 1 or (wanted is not None and x.shape[-1] != wanted):
            more = "" if wanted == 1 else ", then the inputs u" if wanted is None else f", then the {wanted - 1} inputs u"
            raise ShapeError(
                f"inputs of this NANODECell are (batch, time, {wanted or '1 + inputs'}): first the number of the step{more}; got {tuple(x.shape)}. "
                "cell.steps_of(batch, length, u) makes them; the state to start from is h0"
            )
        if x.dtype in COUNTS:
            raise DTypeError(
                f"{x.dtype} holds the numbers of steps exactly only up to {COUNTS[x.dtype]}, and the weights of a step are looked up by its number; "
                "give the inputs in float32, as cell.steps_of does, whatever the weights are in"
            )

    def extra_repr(self) -> str:
        """Method, step and structure."""
        return f"method={self.method.name}, h={self.h:g}, parallel={self.parallel!r}"
