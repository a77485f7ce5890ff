"""Weights that any function of time gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError, ShapeError
from pararnn_nanode.paths.base import Span, WeightPath
from pararnn_nanode.paths.precision import widened


class CallablePath(WeightPath):
    """`W(t) = fn(t, *params)`, your own `phi(t, alpha)`.

    `fn` gets the times shaped `(*times, 1, ..., 1)` with as many ones as the weights have dimensions, so that `a * torch.cos(t) + b` or
    `torch.matrix_exp(t * a)` gives the weights of all times at once; what it returns is broadcast to `(*times, *shape)`. Times and parameters come in
    float64 (complex128), and the weights are cast last, to the dtype of the parameters or, where there are none, to `dtype`. A module is called as
    `fn(t)`, with times in the dtype of its parameters, and keeps its own dtypes. To pickle the path, give a module or a function with a name.

    Args:
        shape: shape of the weights.
        fn: a function of the times and of `params`, or a module of the times alone.
        params: first values of the parameters of the function.
        jumps: times at which the weights jump, so that no step of an adaptive method crosses one.
    """

    def __init__(
        self,
        shape: tuple[int, ...] | int,
        fn: Callable[..., Tensor] | nn.Module,
        params: Sequence[Tensor] = (),
        *,
        jumps: Sequence[float] = (),
        span: Span = (0.0, 1.0),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if callable(shape) or not callable(fn):
            raise ConfigError("a CallablePath takes the shape first, then the function: CallablePath((out, in), fn, params)")
        super().__init__(shape, span=span)
        if isinstance(fn, nn.Module):
            if len(params):
                raise ConfigError(f"a module holds its own parameters, but {len(params)} more were given; register them in the module")
            fn.to(device=device, dtype=dtype)
        self.fn = fn
        self.params = nn.ParameterList(_parameter(value, device, dtype) for value in params)
        self.jumps = tuple(float(jump) for jump in jumps)
        # Without parameters there is nothing else to follow `.to`.
        self.register_buffer("like", torch.empty(0, device=device, dtype=dtype), persistent=False)

    @property
    def n_matrices(self) -> int:
        numbers = sum(parameter.numel() for parameter in self.parameters())
        return -(-numbers // torch.Size(self.shape).numel())

    def values(self, times: Tensor, anchors: Tensor) -> Tensor:
        first = next(self.parameters(), self.get_buffer("like"))
        # Cast before moving: a device may lack float64.
        t = times.to((first if isinstance(self.fn, nn.Module) else widened(first)).real.dtype).to(first.device)
        t = t.reshape(*times.shape, *(1,) * len(self.shape))
        if isinstance(self.fn, nn.Module):
            weights: Tensor = self.fn(t)
        else:
            weights = self.fn(t, *[widened(parameter) for parameter in self.params])
            weights = weights.to(torch.promote_types(first.dtype, torch.complex32) if weights.is_complex() else first.dtype)
        try:
            return weights.expand(*times.shape, *self.shape)
        except RuntimeError as error:
            raise ShapeError(
                f"the function of a CallablePath returned {tuple(weights.shape)} for {tuple(times.shape)} times, which does not broadcast to "
                f"{(*times.shape, *self.shape)}; times come as {tuple(t.shape)}"
            ) from error

    def reset_parameters(self) -> None:
        """Ask the module for new parameters.

        Raises:
            ConfigError: there is no module, or it has no `reset_parameters`: the first values were the caller's.
        """
        reset = getattr(self.fn, "reset_parameters", None)
        if not callable(reset):
            raise ConfigError(
                "a CallablePath of a function has the first values its caller gave; set them again, or pass a module with reset_parameters"
            )
        reset()

    def edges(self) -> tuple[float, ...]:
        return self.jumps

    def extra_repr(self) -> str:
        """The function too, where it is no module."""
        name = "" if isinstance(self.fn, nn.Module) else f", fn={getattr(self.fn, '__qualname__', repr(self.fn))}"
        return f"{super().extra_repr()}{name}"


def _parameter(value: Tensor, device: torch.device | str | None, dtype: torch.dtype | None) -> nn.Parameter:
    if isinstance(value, nn.Parameter) and device is None and dtype is None:
        return value
    return nn.Parameter(value.detach().clone().to(device=device, dtype=dtype))
