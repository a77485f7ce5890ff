"""Walks on the orthogonal group by rotations of two axes each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError, DTypeError, ShapeError
from pararnn_nanode.manifolds.checks import require_square, require_zero
from pararnn_nanode.paths.base import Span, WeightPath
from pararnn_nanode.paths.precision import widened


class GivensWalk(WeightPath):
    """`W(t) = Q G_1 ... G_k`, where `G_m` rotates the axes `(i_m, j_m)` by an angle that grows with time; orthogonal for all parameters and times.

    `G[i, i] = G[j, j] = cos a`, `G[i, j] = sin a = -G[j, i]`. A shared angle `rate * t` (at first `t` itself) makes each entry of `W` a trigonometric
    polynomial of a degree of at most `k`. The converse is false: weights of a `TrigPath` are not orthogonal.

    Args:
        n: size of the weights `(n, n)`.
        pairs: the axes of the rotations, 0 to n - 1, in the order of the product.
        start: `Q`, an orthogonal matrix that is not learned, or a path of orthogonal matrices that is (an `OrthogonalPath`); left out, the identity.
        shared_angle: whether one rate serves all rotations; else each has the angle `phase + rate * t` with its own two numbers.

    Source: Davis et al. (2020), arXiv 2005.01906, section 2.5.
    """

    def __init__(
        self,
        n: int,
        pairs: Sequence[tuple[int, int]],
        *,
        start: Tensor | WeightPath | None = None,
        shared_angle: bool = True,
        span: Span = (0.0, 1.0),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__((n, n), span=span)
        self.pairs = tuple((int(i), int(j)) for i, j in pairs)
        wrong = [pair for pair in self.pairs if pair[0] == pair[1] or not all(0 <= axis < n for axis in pair)]
        if wrong or not self.pairs:
            raise ConfigError(f"pairs are two different axes of 0 ... {n - 1} each, at least one pair; got {wrong or 'none'}")
        dtype = dtype or torch.get_default_dtype()
        if not dtype.is_floating_point:
            raise DTypeError(f"the angles of a GivensWalk are real, got dtype={dtype}")
        if isinstance(start, WeightPath) and start.shape != self.shape:
            raise ShapeError(f"the start of a GivensWalk of size {n} is a path of shape {self.shape}, got {start.shape}")
        self.walk_start = start if isinstance(start, WeightPath) else None
        if isinstance(start, Tensor):
            require_square(start, "the start of a GivensWalk", n)
            require_zero(start.mH @ start - torch.eye(n, dtype=start.dtype, device=start.device), "the start of a GivensWalk must be orthogonal")
            start = start.detach().clone().to(device=device, dtype=dtype)
        self.fixed_start: Tensor | None
        self.register_buffer("fixed_start", start if isinstance(start, Tensor) else None)
        self.rate = nn.Parameter(torch.empty(1 if shared_angle else len(self.pairs), device=device, dtype=dtype))
        self.phase = None if shared_angle else nn.Parameter(torch.empty(len(self.pairs), device=device, dtype=dtype))
        self.reset_parameters()

    @property
    def n_matrices(self) -> int:
        numbers = sum(parameter.numel() for parameter in self.parameters())
        return -(-numbers // (self.shape[0] * self.shape[1]))

    def angles(self, times: Tensor) -> Tensor:
        """The angle of each rotation `(*times.shape, rotations)` in radians, in float64."""
        rate = self.rate.expand(len(self.pairs))
        angles = times.to(widened(rate).dtype).to(rate.device).unsqueeze(-1) * widened(rate)
        return angles if self.phase is None else angles + widened(self.phase)

    def values(self, times: Tensor, anchors: Tensor) -> Tensor:
        angles = self.angles(times)
        columns = list(self._start(times, anchors).unbind(-1))
        for (i, j), c, s in zip(self.pairs, angles.cos().unbind(-1), angles.sin().unbind(-1), strict=True):
            c, s = c.unsqueeze(-1), s.unsqueeze(-1)
            columns[i], columns[j] = c * columns[i] - s * columns[j], s * columns[i] + c * columns[j]
        lead = (*times.shape, self.shape[0])
        return torch.stack([column.expand(lead) for column in columns], -1).to(self.rate.dtype)

    def reset_parameters(self) -> None:
        """Angles equal to the time, phases of zero; new parameters of the start, where it has some."""
        with torch.no_grad():
            self.rate.fill_(1.0)
            if self.phase is not None:
                self.phase.zero_()
        reset = getattr(self.walk_start, "reset_parameters", None)
        if callable(reset):
            reset()

    def edges(self) -> tuple[float, ...]:
        return () if self.walk_start is None else self.walk_start.edges()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, pairs={self.pairs}"

    def _start(self, times: Tensor, anchors: Tensor) -> Tensor:
        if self.walk_start is not None:
            return widened(self.walk_start.values(times, anchors))
        if self.fixed_start is None:
            return widened(torch.eye(self.shape[0], dtype=self.rate.dtype, device=self.rate.device))
        return widened(self.fixed_start)
