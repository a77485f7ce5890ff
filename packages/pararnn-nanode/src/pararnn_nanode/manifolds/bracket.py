"""The double-bracket flow: weights that move on the orthogonal group by an equation of their own."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pararnn.errors import DTypeError
from pararnn_nanode.manifolds.checks import require_zero
from pararnn_nanode.paths.base import Span, WeightPath
from pararnn_nanode.paths.knots import locate
from pararnn_nanode.paths.linear import at_least
from pararnn_nanode.paths.precision import widened

DRIFT = 1e-6
"""How far the weights may leave the orthogonal group."""


class BracketFlow(WeightPath):
    """`dW/dt = W [H, N]` with `H = W^T Q W`, from `W = I` at the start of the span; `Q` (`q`) and `N` (`target`) are symmetric and learned.

    `W` stays orthogonal, the eigenvalues of `H` stay what they are, and `trace(N H)` never falls: `H` tends to a diagonal matrix sorted as `N` is.
    The flow is walked by Taylor polynomials of degree `order`, `steps` over the span, which also give the weights between the ends of steps. Large
    `Q`, `N` or a long span need more steps; where they are too few, the weights leave the orthogonal group, and reading them raises `InputError`
    (except under `torch.compile` and transforms). Outside the span the weights stay as they are.

    Not part of the paper that this package follows, but of its successor.

    Args:
        n: size of the weights `(n, n)`.
        steps: Taylor steps over the span.
        order: degree of the Taylor polynomials.
        gain: standard deviation of the entries of the first `Q` and `N`, times the square root of `n`.

    Source: Brockett (1991), "Dynamical systems that sort lists, diagonalize matrices, and solve linear programming problems"; for weights,
    Choromanski et al. (2020), "Ode to an ODE".
    """

    def __init__(
        self,
        n: int,
        *,
        steps: int = 16,
        order: int = 8,
        gain: float = 1.0,
        span: Span = (0.0, 1.0),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__((n, n), span=span)
        if dtype is not None and not dtype.is_floating_point:
            raise DTypeError(f"the matrices of a BracketFlow are real, got dtype={dtype}")
        self.steps = at_least(1, "steps", steps)
        self.order = at_least(1, "order", order)
        self.gain = gain
        self.q = nn.Parameter(torch.empty(n, n, device=device, dtype=dtype))
        self.target = nn.Parameter(torch.empty(n, n, device=device, dtype=dtype))
        self.reset_parameters()

    @property
    def n_matrices(self) -> int:
        return 2

    def reset_parameters(self) -> None:
        """Draw new matrices; only their symmetric parts matter."""
        with torch.no_grad():
            for parameter in (self.q, self.target):
                parameter.normal_(std=self.gain / math.sqrt(self.shape[0]))

    def values(self, times: Tensor, anchors: Tensor) -> Tensor:
        index, inside = locate(times, self.span, self.steps)
        series = self._walk()
        index = index.to(series.device).reshape(-1)
        s = inside.to(series.dtype).to(series.device).reshape(-1, 1, 1)
        weights = series[-1].index_select(0, index)
        for coefficients in series[:-1].flip(0).unbind(0):
            weights = torch.addcmul(coefficients.index_select(0, index), weights, s)
        return weights.to(self.q.dtype).reshape(*times.shape, *self.shape)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, steps={self.steps}, order={self.order}"

    def _walk(self) -> Tensor:
        """The Taylor coefficients `(order + 1, steps, n, n)` of each step, in units of the step."""
        h = (self.span[1] - self.span[0]) / self.steps
        symmetric = [widened(parameter + parameter.mT) / 2 for parameter in (self.q, self.target)]
        q, n = symmetric[0], symmetric[1] * h
        w = torch.eye(self.shape[0], dtype=q.dtype, device=q.device)
        every = []
        for _ in range(self.steps):
            series = _taylor(w, w.mT @ q @ w, n, self.order)
            every.append(series)
            w = series.sum(0)
        drift = w.mT @ w - torch.eye(self.shape[0], dtype=w.dtype, device=w.device)
        require_zero(drift, f"a BracketFlow of {self.steps} steps of order {self.order} left the orthogonal group; give it more steps", allowed=DRIFT)
        return torch.stack(every, 1)


def _taylor(w: Tensor, h: Tensor, n: Tensor, order: int) -> Tensor:
    """Taylor coefficients `(order + 1, n, n)` of `W` at a point where it is `w` and `W^T Q W` is `h`; the step is inside `n`."""
    ws, hs, bs = [w], [h], []
    for k in range(order):
        product = hs[-1] @ n
        bs.append(product - product.mT)
        # Each new coefficient is a sum of products of the earlier ones: one product of a wide and a tall matrix.
        tall = torch.cat(bs[::-1], -2)
        ws.append(torch.cat(ws, -1) @ tall / (k + 1))
        half = torch.cat(hs, -1) @ tall
        hs.append((half + half.mT) / (k + 1))
    return torch.stack(ws)
