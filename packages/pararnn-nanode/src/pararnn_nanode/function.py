"""A function `func(t, y)` of a tensor or a tuple of tensors, as a field over one tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pararnn.errors import ConfigError, DTypeError, ShapeError
from pararnn_nanode.fields.base import Weights
from pararnn_nanode.fields.callable import CallableField

State: TypeAlias = Tensor | tuple[Tensor, ...]


class Layout:
    """How a state lies in one tensor: a tensor as it is, a tuple joined end to end."""

    def __init__(self, y0: State | Sequence[Tensor]) -> None:
        self.single = isinstance(y0, Tensor)
        parts: tuple[Any, ...] = (y0,) if isinstance(y0, Tensor) else tuple(y0)
        if not parts or not all(isinstance(part, Tensor) for part in parts):
            raise ConfigError(f"y0 is a tensor or a tuple of tensors, got {', '.join(type(part).__name__ for part in parts) or '()'}")
        if len({part.dtype for part in parts}) > 1 or len({part.device for part in parts}) > 1:
            found = ", ".join(sorted({f"{part.dtype} on {part.device}" for part in parts}))
            raise DTypeError(f"the tensors of y0 share one dtype and one device, got {found}; convert them first")
        self.shapes = [part.shape for part in parts]
        self.sizes = [part.numel() for part in parts]

    def join(self, y: State | Sequence[Tensor]) -> Tensor:
        """One tensor; `y` has the shapes of the layout.

        Raises:
            ShapeError: it has others.
        """
        parts = (y,) if self.single else y
        if isinstance(parts, Tensor) or len(parts) != len(self.shapes) or not all(isinstance(part, Tensor) for part in parts):
            raise ShapeError(f"func must return a tuple of {len(self.shapes)} tensors, as y0 is one, got {type(y).__name__}")
        for part, shape in zip(parts, self.shapes, strict=True):
            if part.shape != shape:  # type: ignore[union-attr]
                raise ShapeError(f"func must return the shape of the state, {tuple(shape)}, got {tuple(part.shape)}")  # type: ignore[union-attr]
        if self.single:
            return y  # type: ignore[return-value]
        return torch.cat([part.reshape(-1) for part in parts])  # type: ignore[union-attr]

    def split(self, x: Tensor, lead: int = 0) -> State:
        """The state in `x`, whose first `lead` dimensions are kept."""
        if self.single:
            return x
        pieces = x.split(self.sizes, dim=-1)
        return tuple(piece.reshape((*x.shape[:lead], *shape)) for piece, shape in zip(pieces, self.shapes, strict=True))


class FunctionField(CallableField):
    """`dy/dt = func(t, y)`.

    Args:
        func: gets the time without dimensions in the (real) dtype of the state, and the state as a tensor or a tuple, as `layout` says.
        parameters: tensors requiring grad that `func` reads and that no module owns.
        edges: times at which `func` jumps; see `nudge`.
        nudge: read the lower end of a step just above it and everything else just below, so that a jump at either end is seen from inside the step.
    """

    def __init__(
        self,
        func: Callable[[Tensor, Any], Any],
        layout: Layout,
        dtype: torch.dtype,
        *,
        parameters: Sequence[Tensor] = (),
        edges: Sequence[float] = (),
        nudge: bool = False,
    ) -> None:
        super().__init__(func, parameters=parameters, edges=edges)
        self.layout = layout
        self.time_dtype = dtype.to_real()
        self.nudge = nudge

    def weights(self, times: Tensor, anchors: Tensor | None = None, u: Tensor | None = None) -> Weights:
        # All times at once: a conversion in every evaluation would cost as much as a small field.
        cast = times.to(self.time_dtype)
        if self.nudge and anchors is not None:
            up = torch.full_like(cast, float("inf"))
            nudged = torch.nextafter(cast.detach(), torch.where(times <= anchors, up, -up))
            cast = cast + (nudged - cast).detach() if cast.requires_grad else nudged
        return (cast,)

    def evaluate(self, x: Tensor, weights: Weights) -> Tensor:
        (t,) = weights
        mapped = t.ndim and self.maps
        if t.ndim and not mapped:
            t = t.reshape((*t.shape, *(1,) * (x.ndim - t.ndim)))
        layout = self.layout
        found = self.each(t, x) if mapped else self.fn(t, x) if layout.single else layout.join(self.fn(t, layout.split(x)))
        if isinstance(found, Tensor) and found.dtype is x.dtype and found.shape == x.shape:
            return found
        if not isinstance(found, Tensor):
            raise ConfigError(f"func must return a tensor, got {type(found).__name__}; torch.as_tensor makes one of a number")
        if found.shape != x.shape:
            raise ShapeError(f"func must return the shape of the state, {tuple(x.shape)}, got {tuple(found.shape)}")
        if not torch.can_cast(found.dtype, x.dtype):
            raise DTypeError(f"func returned {found.dtype} for a state of {x.dtype}; make y0 {found.dtype}, or return {x.dtype}")
        return found.to(x.dtype)
