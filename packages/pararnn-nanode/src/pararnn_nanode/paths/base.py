"""What a weight path is: a module that gives weights of one shape at any time."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError, InputError
from pararnn.structures.base import push_forward
from pararnn_nanode.paths.precision import NO_FLOAT64, precise

Span = tuple[float, float]
Moment: TypeAlias = float | Sequence[Any] | Tensor
"""One time, or times in any shape."""


class WeightPath(nn.Module, abc.ABC):
    """Weights `W(t)` of one shape, a function of time and of the parameters of this module.

    A subclass gives `values`; everything else follows. It computes what depends on time alone in float64 and casts last, and keeps nothing on the
    module, so that copies, pickles, replicas and `torch.func.functional_call` see parameters only.

    Args:
        shape: shape of the weights, of any rank: `(out, in)` dense, `(out, in, *kernel)` convolutional, `(n,)` a bias or a diagonal.
        span: the times between which the path is meant to be read.
    """

    def __init__(self, shape: tuple[int, ...] | int, *, span: Span = (0.0, 1.0)) -> None:
        super().__init__()
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if not self.shape or any(not isinstance(size, int) or size < 1 for size in self.shape):
            raise ConfigError(f"the shape of a weight path has sizes of at least 1, got {shape!r}")
        start, end = map(float, span)
        if not (math.isfinite(start) and math.isfinite(end)) or start == end:
            raise ConfigError(f"span is (start, end) with two different finite times, got {span!r}")
        self.span: Span = (start, end)

    @property
    @abc.abstractmethod
    def n_matrices(self) -> int:
        """How many weights of the full shape it has to learn; what a fair comparison of paths holds equal."""

    @abc.abstractmethod
    def values(self, times: Tensor, anchors: Tensor) -> Tensor:
        """The weights `(*times.shape, *shape)` at float64 `times`; `anchors`, of the same shape, are the times to look pieces up by."""

    def grid(self, times: Tensor, anchors: Tensor | None = None) -> Tensor:
        """The weights `(*times.shape, *shape)` at `times`, in the dtype of the parameters; differentiable in `times` too.

        A method that reads weights several times in one step passes as `anchors` the lower end of that step each time: piecewise paths then hold one
        weight for the whole step, smooth paths ignore it. Times may live on another device than the parameters.
        """
        times = precise(times)
        anchors = times if anchors is None else precise(anchors)
        device = (self._device() or times.device).type
        # Asked of a device without autocast, such as meta, torch raises; the first question cannot be traced by torch 2.11, where none such arises.
        if not ((torch.compiler.is_compiling() or torch.amp.is_autocast_available(device)) and torch.is_autocast_enabled(device)):
            return self.values(times, anchors)
        with torch.autocast(device, enabled=False):
            return self.values(times, anchors)

    def at(self, t: Moment) -> Tensor:
        """The weights `(*shape)` at one time, or `(*t.shape, *shape)` at several: numbers, a list, an array or a tensor of them."""
        return self.grid(self._times(t))

    def step(self, k: int, steps: int) -> Tensor:
        """The weights `(*shape)` at the start of step `k` of `steps` equal steps over the span."""
        if not 0 <= k < steps:
            raise ConfigError(f"step {k} of {steps}: k lies in 0 ... {steps - 1}")
        start, end = self.span
        ends = [start + (end - start) * j / steps for j in (k, k + 1)]
        return self.grid(self._times(ends[0]), self._times(min(ends)))

    def derivative(self, t: Moment) -> Tensor:
        """`dW/dt` with the shape of `at(t)`; zero inside the pieces of a piecewise path."""
        times = self._times(t)
        along = torch.ones_like(times)
        if torch.compiler.is_compiling():
            # What `push_forward` locks cannot be traced, and a graph needs no lock.
            slopes: Tensor = torch.func.jvp(self.grid, (times,), (along,))[1]
            return slopes
        return push_forward(self.grid, times, along)[1]

    def edges(self) -> tuple[float, ...]:
        """Times inside the span at which the weights jump, so that no step of an adaptive method crosses one."""
        return ()

    def extra_repr(self) -> str:
        """Shape, span and number of matrices."""
        return f"shape={self.shape}, span={self.span}, n_matrices={self.n_matrices}"

    def _device(self) -> torch.device | None:
        return next((parameter.device for parameter in self.parameters()), None)

    def _times(self, t: Moment) -> Tensor:
        if isinstance(t, Tensor):
            return precise(t)
        device = self._device()
        try:
            times = torch.tensor(t.tolist() if hasattr(t, "tolist") else t, dtype=torch.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"times are a number, or a list, array or tensor of numbers, got {t!r}") from error
        return times if device is None or device.type in NO_FLOAT64 else times.to(device)
