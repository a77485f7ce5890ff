"""The Cauchy product and its derivatives in real arithmetic, for backends that fuse it or cut it into pieces.

`1 / (z - w)` and `1 / (z - conj w)` are kept apart (or added up) as two reciprocals. Over a common denominator they would be cheaper, and
wrong by up to three digits where a node is near a pole, because `|w|^2 - z^2` cancels.

A table is four real tensors `(copies, state, nodes)`: with `r` the first reciprocal and `s` the second (or 0 without conjugate pairs), the
sums `Re(r + s), Im(r + s)` and the differences `Re(r - s), Im(r - s)`. For numerators `c + i e`,
`c r + conj(c) s` has the real part `c Re(r + s) - e Im(r - s)` and the imaginary part `c Im(r + s) + e Re(r - s)`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn_s4.kernels.products import exact_bmm

Pair = tuple[Tensor, Tensor]
Table = tuple[Tensor, Tensor, Tensor, Tensor]


def reciprocals(z: Pair, w: Pair, conj: bool) -> tuple[Pair, Pair | None]:
    """Real and imaginary part of `1 / (z - w)`, and of `1 / (z - conj w)`; from `z` `(1 or copies, nodes)` and `w` `(copies, state)`."""
    real = z[0].unsqueeze(-2) - w[0].unsqueeze(-1)
    square, below, pole = real * real, -z[1].unsqueeze(-2), w[1].unsqueeze(-1)
    # The inverse of a complex number is its conjugate over its squared size: imaginary parts are already those of the conjugates.
    return _over_size(real, below + pole, square), _over_size(real, below - pole, square) if conj else None


def squares(pairs: tuple[Pair, Pair | None]) -> tuple[Pair, Pair | None]:
    """The squares of the reciprocals, which are the derivatives."""
    first, second = pairs
    return _square(first), None if second is None else _square(second)


def table(pairs: tuple[Pair, Pair | None]) -> Table:
    """Sums and differences of the two reciprocals."""
    (real, imag), second = pairs
    if second is None:
        return real, imag, real, imag
    return real + second[0], imag + second[1], real - second[0], imag - second[1]


def over_state(v: Tensor, values: Table) -> Tensor:
    """Sum over the state of numerators `(groups, copies, state)`; complex `(groups, copies, nodes)`."""
    sum_real, sum_imag, difference_real, difference_imag = values
    real, imag = v.real.transpose(0, 1), v.imag.transpose(0, 1)
    result_real = exact_bmm(real, sum_real) - exact_bmm(imag, difference_imag)
    return torch.complex(result_real, exact_bmm(real, sum_imag) + exact_bmm(imag, difference_real)).transpose(0, 1)


def over_nodes(u: Tensor, values: Table) -> Tensor:
    """Sum over the nodes of `conj(u r) + u s` for `u` `(groups, copies, nodes)`; complex `(groups, copies, state)`."""
    # Transposed views, which a matrix product reads as they are; put together they would have to be copied.
    sum_real, sum_imag, difference_real, difference_imag = (part.transpose(1, 2) for part in values)
    real, imag = u.real.transpose(0, 1), u.imag.transpose(0, 1)
    result_imag = exact_bmm(real, difference_imag) + exact_bmm(imag, difference_real)
    return torch.complex(exact_bmm(real, sum_real) - exact_bmm(imag, sum_imag), -result_imag).transpose(0, 1)


def _over_size(real: Tensor, imag: Tensor, real_squared: Tensor) -> Pair:
    scale = torch.addcmul(real_squared, imag, imag).reciprocal()
    return real * scale, imag * scale


def _square(pair: Pair) -> Pair:
    real, imag = pair
    return torch.addcmul(real * real, imag, imag, value=-1), real * (imag + imag)
