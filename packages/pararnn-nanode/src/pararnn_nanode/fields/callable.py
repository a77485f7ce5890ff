"""Any function or module `fn(t, x)` as a field."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from pararnn.errors import ConfigError
from pararnn_nanode.fields.base import Field, Weights


class CallableField(Field):
    """`f(t, x) = fn(t, x)`, and `fn(t, x, u)` where inputs are given; the weights of this field are the times themselves.

    Args:
        fn: a function or a module. It gets the time in the (real) dtype of `x`: of no dimension, or, where samples or steps have times of their own,
            `(*lead, 1, ..., 1)` with as many dimensions as `x`, so that arithmetic with `x` broadcasts.
        parameters: tensors with gradients that `fn` reads though it is not a module that holds them.
        edges: times at which `fn` jumps, so that no step of an adaptive method crosses one.
    """

    def __init__(self, fn: Callable[..., Tensor] | nn.Module, *, parameters: Sequence[Tensor] = (), edges: Sequence[float] = ()) -> None:
        super().__init__()
        if not callable(fn):
            raise ConfigError(f"a CallableField takes a function or module fn(t, x), got {type(fn).__name__}")
        self.fn = fn
        self.outside = tuple(parameters)
        self.jumps = tuple(float(edge) for edge in edges)

    def weights(self, times: Tensor, anchors: Tensor | None = None, u: Tensor | None = None) -> Weights:
        return (times,) if u is None else (times, u)

    def evaluate(self, x: Tensor, weights: Weights) -> Tensor:
        t, *inputs = weights
        t = t.to(x.real.dtype if x.is_complex() else x.dtype)
        if t.ndim:
            t = t.reshape(*t.shape, *(1,) * (x.ndim - t.ndim))
        return self.fn(t, x, *inputs)

    def edges(self) -> tuple[float, ...]:
        return tuple(sorted({*self.jumps, *super().edges()}))

    def extra_repr(self) -> str:
        """The function, where it is no module."""
        return "" if isinstance(self.fn, nn.Module) else getattr(self.fn, "__qualname__", repr(self.fn))
