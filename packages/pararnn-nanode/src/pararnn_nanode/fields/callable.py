"""Any function or module `fn(t, x)` as a field."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError, ShapeError
from pararnn_nanode.fields.base import Field, Weights, paths_of


class UnmappableError(ConfigError):
    """A function that works for one state and not for many at once."""


class CallableField(Field):
    """`f(t, x) = fn(t, x)`, and `fn(t, x, u)` where inputs are given; the weights of this field are the times themselves.

    Args:
        fn: a function or a module. It gets the time in the (real) dtype of `x`: of no dimension, or, where samples or steps have times of their own,
            `(*lead, 1, ..., 1)` with as many dimensions as `x`, so that arithmetic with `x` broadcasts. A module that holds weight paths is mapped
            over samples or steps instead (`torch.vmap`): it sees one time and the state of that time.
        parameters: tensors with gradients that `fn` reads though it is not a module that holds them.
        edges: times at which `fn` jumps, so that no step of an adaptive method crosses one.

    Raises:
        ConfigError: `fn` cannot be called, or holds a path whose weights jump: a time alone does not say which step, and so which piece, is meant.
    """

    def __init__(self, fn: Callable[..., Tensor] | nn.Module, *, parameters: Sequence[Tensor] = (), edges: Sequence[float] = ()) -> None:
        super().__init__()
        if not callable(fn):
            raise ConfigError(f"a CallableField takes a function or module fn(t, x), got {type(fn).__name__}")
        self.fn = fn
        paths = dict(paths_of(fn)) if isinstance(fn, nn.Module) else {}
        jumping = [f"{name or 'itself'} ({type(path).__name__})" for name, path in paths.items() if path.edges()]
        if jumping:
            advice = "derive it from Field and read its paths in weights(times, anchors), as the tutorial shows ('A field of your own')"
            raise ConfigError(
                f"{type(fn).__name__} reads weights that jump, {', '.join(jumping)}, from a time alone, which does not tell on which side of a jump "
                f"a step lies; {'it is a field already: give it to NANODE as it is' if isinstance(fn, Field) else advice}"
            )
        self.maps = bool(paths)
        self.outside = tuple(parameters)
        self.jumps = tuple(float(edge) for edge in edges)

    def weights(self, times: Tensor, anchors: Tensor | None = None, u: Tensor | None = None) -> Weights:
        return (times,) if u is None else (times, u)

    def evaluate(self, x: Tensor, weights: Weights) -> Tensor:
        t, *inputs = weights
        t = t.to(x.real.dtype if x.is_complex() else x.dtype)
        mapped = t.ndim and self.maps
        if t.ndim and not mapped:
            t = t.reshape(*t.shape, *(1,) * (x.ndim - t.ndim))
        found = self.each(t, x, *inputs) if mapped else self.fn(t, x, *inputs)
        # One that broadcasts would be added to the state without a word.
        if isinstance(found, Tensor) and found.shape == x.shape:
            return found
        got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ShapeError(f"fn(t, x) must return a tensor of the shape of x, {tuple(x.shape)}, got {got}; torch.full_like makes one of a number")

    def evaluate_steps(self, x: Tensor, weights: Weights) -> Tensor:
        # What a function does to the first dimension, such as a mean over samples, it must not do to the steps of a walk.
        try:
            found: Tensor = torch.vmap(self.evaluate, randomness="different")(x, weights)
        except RuntimeError:
            # vmap refuses, among others, a function that takes a derivative inside itself. Those mostly broadcast over steps as they are; the solver
            # compares some steps with what `evaluate` gives for them alone.
            try:
                found = self.evaluate(x, weights)
            except RuntimeError as error:
                raise UnmappableError(f"fn fails where it gets all steps at once ({str(error).splitlines()[0]}); use parallel=None") from error
        return found

    def each(self, t: Tensor, x: Tensor, *inputs: Tensor) -> Tensor:
        """`fn` at each of the times `t` `(*lead)` by itself, since a path read at many times gives weights that no state is shaped for."""
        fn = self.fn
        for _ in range(t.ndim):
            fn = torch.vmap(fn, randomness="different")
        found: Tensor = fn(t, x, *inputs)
        return found

    def edges(self) -> tuple[float, ...]:
        return tuple(sorted(self.jumps))

    def extra_repr(self) -> str:
        """The function, where it is no module."""
        return "" if isinstance(self.fn, nn.Module) else getattr(self.fn, "__qualname__", repr(self.fn))
