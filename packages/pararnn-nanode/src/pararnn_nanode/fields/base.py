"""What a field is: the right-hand side `f(t, x)`, split into weights that depend on time and an evaluation that does not."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from pararnn.structures import Structure
from pararnn_nanode.paths.base import WeightPath

Weights: TypeAlias = tuple[Tensor, ...]
Derive: TypeAlias = Callable[[Tensor, Sequence[int]], tuple[Tensor, list[Tensor]]]
Formula: TypeAlias = tuple[Tensor, Derive]


class Field(nn.Module, abc.ABC):
    """The right-hand side `dx/dt = f(t, x)` of an equation.

    All that depends on time alone is computed in `weights`, for many times at once; `evaluate` sees a state and the weights of its time, and neither
    the time nor the parameters in any other way. Every method, gradient and parallel solve is written in terms of these two.
    """

    structure: ClassVar[type[Structure] | None] = None
    """What the Jacobian of `f` by a state `(..., channels)` looks like; None for states of other shapes and for unknown functions."""

    outside: tuple[Tensor, ...] = ()
    """Tensors with gradients that `evaluate` reads although no module of the field holds them."""

    @abc.abstractmethod
    def weights(self, times: Tensor, anchors: Tensor | None = None, u: Tensor | None = None) -> Weights:
        """What `evaluate` needs at each of `times` (float64, any shape), as tensors `(*times.shape, ...)`.

        Args:
            anchors: the lower end of the step that each time belongs to (see `WeightPath.grid`); the times themselves where left out.
            u: inputs `(*times.shape, *batch, input)`, for fields that have inputs.
        """

    @abc.abstractmethod
    def evaluate(self, x: Tensor, weights: Weights) -> Tensor:
        """`f` at states `x` `(*lead, *batch, ...)` with weights whose leaves start with `lead`; the shape of `x`.

        `lead` is empty for one time, `(samples,)` where every sample has its own time, `(steps,)` where all steps are evaluated at once.
        """

    def evaluate_steps(self, x: Tensor, weights: Weights) -> Tensor:
        """`evaluate` at many steps `(steps, ...)`, the first dimension of `lead`; override where `evaluate` cannot keep them apart by itself."""
        return self.evaluate(x, weights)

    def differentiate(self, x: Tensor, weights: Weights) -> Formula | None:
        """`f` at `x` and its derivative by a formula, off the graph; None where autograd has to find it, as it does for every field that has none.

        The derivative is a function of a cotangent of `f` and of the places of some of the `weights`; it gives the cotangents of `x` and of these
        weights. In a walk backwards, starting autograd at every step costs more than a small field itself; a formula saves that.
        """
        return None

    def forward(self, t: float | Tensor, x: Tensor, u: Tensor | None = None) -> Tensor:
        """`f(t, x)` for one time, or for one time a sample `(samples,)`."""
        times = torch.as_tensor(t, dtype=torch.float64, device=x.device)
        return self.evaluate(x, self.weights(times, u=u))

    def check_state(self, x: Tensor) -> None:
        """Raise `ShapeError` where `x` cannot be a state of this field."""

    def edges(self) -> tuple[float, ...]:
        """Times at which some weight jumps."""
        found = {edge for module in self.modules() if isinstance(module, WeightPath) for edge in module.edges()}
        return tuple(sorted(found))


def paths_of(module: nn.Module, name: str = "") -> Iterator[tuple[str, WeightPath]]:
    """Every path in `module` with its name there, those inside of another path left out."""
    if isinstance(module, WeightPath):
        yield name, module
        return
    for child, inner in module.named_children():
        yield from paths_of(inner, f"{name}.{child}" if name else child)
