"""All steps of a Runge-Kutta method at once, from the states that they start from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from pararnn.errors import DTypeError, ParaRNNError, ShapeError
from pararnn_nanode.fields.base import Field, Weights
from pararnn_nanode.integrate.methods import Evaluate
from pararnn_nanode.integrate.reads import Drive, Reads
from pararnn_nanode.integrate.runge_kutta import RungeKutta, combine
from pararnn_nanode.integrate.schedule import Schedule


@dataclass(frozen=True, kw_only=True, eq=False)
class Stages:
    """A run of steps with everything that does not depend on the state.

    Attributes:
        weights: for each node of the method, leaves `(steps, *samples, ...)`.
        sizes: signed length of each step, `(steps, *samples, 1, ...)`, in the precision of the state and with as many dimensions as states have.
    """

    field: Field
    method: RungeKutta
    weights: tuple[Weights, ...]
    sizes: Tensor

    @classmethod
    def read(
        cls, field: Field, method: RungeKutta, schedule: Schedule, reads: Reads, x: Tensor, u: Drive, *, first: int = 0, last: int | None = None
    ) -> Self:
        """Steps `first` to `last` of `schedule`, from a state shaped as `x`; on the graph where gradients are on."""
        last = schedule.steps if last is None else last
        nodes = len(method.nodes)
        leaves = reads.weights(field, first, last, u)
        cut = [leaf.unflatten(0, (last - first, nodes)) for leaf in leaves]
        weights = tuple(tuple(leaf[:, node] for leaf in cut) for node in range(nodes))
        sizes = schedule.knots[first : last + 1].diff(dim=0).to(device=x.device, dtype=x.dtype.to_real())
        return cls(field=field, method=method, weights=weights, sizes=sizes.reshape(*sizes.shape, *(1,) * (x.ndim + 1 - sizes.ndim)))

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.sizes.shape[0]

    @property
    def requires_grad(self) -> bool:
        """Whether weights or sizes do; a field may read further tensors that do."""
        return self.sizes.requires_grad or any(leaf.requires_grad for leaves in self.weights for leaf in leaves)

    def increment(self, states: Tensor) -> Tensor:
        """What each step adds to the state `(steps, *state)` it starts from.

        Not the state it leads to: the difference of that and the next state would be rounded as the state is, not as the increment.
        """
        return self._increment(self.field.evaluate_steps, states, self.weights, self.sizes)

    def alike(self, states: Tensor, increments: Tensor) -> bool:
        """Whether the first and the last step alone, from `states` `(2, *state)`, add what they were found to add, up to rounding.

        A function that looks at one of the times it is given, to decide for all of them, does not.
        """
        steps = 0, self.steps - 1
        alone = torch.stack([self._alone(step, state) for step, state in zip(steps, states, strict=True)])
        widths = torch.stack([self.sizes[step] for step in steps]).abs()
        allowed = torch.finfo(alone.dtype).eps ** 0.5 * (widths + alone.abs())
        return bool(((increments - alone).abs() <= allowed).all())

    def _alone(self, step: int, state: Tensor) -> Tensor:
        weights = tuple(tuple(leaf[step] for leaf in leaves) for leaves in self.weights)
        return self._increment(self.field.evaluate, state, weights, self.sizes[step])

    def _increment(self, evaluate: Evaluate, states: Tensor, weights: tuple[Weights, ...], sizes: Tensor) -> Tensor:
        method = self.method
        slopes = [evaluate(states, weights[0])]
        for row, read in zip(method.stages, method.reads[1:], strict=True):
            slopes.append(evaluate(combine(states, slopes, row, sizes), weights[read]))
        total = sum(slope * factor if factor != 1 else slope for slope, factor in zip(slopes, method.combination, strict=True) if factor)
        return sizes * total

    def detach(self) -> Self:
        """The same steps, cut from the graph (a field that closes over tensors keeps its own)."""
        weights = tuple(tuple(leaf.detach() for leaf in leaves) for leaves in self.weights)
        return replace(self, weights=weights, sizes=self.sizes.detach())

    def at(self, steps: Tensor | slice) -> Weights:
        """The weights at the starts of some steps, `(chosen, ...)`."""
        return tuple(leaf[steps] for leaf in self.weights[0])

    def leaps(self, bounds: Tensor) -> Tensor:
        """Sums of the sizes between neighbours of the step numbers `bounds` `(blocks + 1,)`, `(blocks, *samples, 1, ...)`."""
        ends = torch.cat((torch.zeros_like(self.sizes[:1]), self.sizes.cumsum(0)))
        return ends[bounds].diff(dim=0)


def leap(stages: Stages, x: Tensor, starts: Weights, middles: Weights, widths: Tensor) -> tuple[Tensor, Tensor]:
    """A walk of midpoint steps over blocks: the states at all their ends, `(blocks + 1, *state)`, and slopes at all their starts.

    Raises:
        ShapeError, DTypeError: the field does not keep shape and dtype of the state.
    """
    plain: Any = getattr(stages.field, "plain", None)
    field, starts = (stages.field, starts) if plain is None else plain(starts)
    middles = middles if plain is None else plain(middles)[1]
    evaluate = field.evaluate
    states, slopes = [x], []
    for first, middle, width, half in zip(_each(starts), _each(middles), widths.unbind(0), (widths / 2).unbind(0), strict=True):
        slope = evaluate(x, first)
        slopes.append(slope)
        if slope.shape != x.shape or slope.dtype != x.dtype:
            raise _misshapen(x, slope)
        x = torch.addcmul(x, evaluate(torch.addcmul(x, slope, half), middle), width)
        states.append(x)
    return torch.stack(states), torch.stack(slopes)


def _misshapen(x: Tensor, slope: Tensor) -> ParaRNNError:
    if slope.shape != x.shape:
        return ShapeError(f"the field turned a state {tuple(x.shape)} into {tuple(slope.shape)}; f(t, x) must have the shape of x")
    return DTypeError(f"the field turned a state of {x.dtype} into {slope.dtype}; give x and the field's parameters the same dtype")


def _each(weights: Weights) -> Iterator[Weights]:
    return zip(*(leaf.unbind(0) for leaf in weights), strict=True)
