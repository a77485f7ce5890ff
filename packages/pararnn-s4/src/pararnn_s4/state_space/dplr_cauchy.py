"""The kernel of a DPLR model by its values on the unit circle: the algorithm of the S4 paper.

The transform of a kernel cut off at `length` is `C (1 - A^L) (1 - w A)^-1 B` at the roots of unity `w`. The trapezoidal rule turns the inverse
into one of the continuous model at `z = 2 (1 - w) / (1 + w)`, times `2 / (1 + w) = 1 + z / 2`; the low-rank part is eliminated, and what
remains are Cauchy products. The nodes `z = 2 i tan(pi k / L)` are made from their angle in double precision: powers of a rounded root are off by
1e-4 at a length of 16384. At `w = -1`, where `z` is infinite, the value is `C (1 - A^L) dt B / 2`. At `w = 1` it is the sum of the kernel, which
squaring gives too: the slow rates of FouT are poles next to that node, and the low-rank part, eliminated in single precision, would take away
all but three digits (and all of them for a rate of zero).

`A^L` comes from the same squaring as in `dplr_powers`, in double precision, so that nothing but `C` itself needs to be stored, and the
kernel is right at every rate and length. Other nodes may meet poles where time steps are whole fractions of a period: with FouT, whose rates
are next to imaginary, kernels of single precision have errors of up to 1e-3 at `dt = 1 / L`. `dplr_powers` knows no poles.

Source: Gu, Goel, Ré, "Efficiently modeling long sequences with structured state spaces", 2022, appendix C.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pararnn_s4.kernels.api import cauchy
from pararnn_s4.state_space.continuous import Continuous
from pararnn_s4.state_space.dplr_powers import Powers
from pararnn_s4.state_space.precision import complex_of
from pararnn_s4.state_space.real_form import from_rows


def cauchy_kernel(model: Continuous, powers: Powers, output_rows: Tensor, start: Tensor, length: int, *, dtype: torch.dtype, backend: str) -> Tensor:
    """The kernel, real `(channels, d_model, length)`.

    `output_rows` `(d_model, channels, size)` are `C` as rows of real form, `start` `(d_model, size)` what a first input of 1 makes of the state, as
    a column of it. `dtype`, real, is that of the Cauchy products and of the result.
    """
    pairs = model.rate.is_complex()
    remaining = output_rows - _times_power(output_rows, powers, length)
    output = (from_rows(remaining) / 2 if pairs else remaining).transpose(0, 1)
    drive = model.dt * model.input
    total = torch.bmm(output_rows, powers.sum(start.unsqueeze(-1), length)).transpose(0, 1)
    values = total.to(complex_of(dtype))
    if length > 2:
        values = torch.cat((values, _values(model, output, drive, length, dtype=dtype, backend=backend)), dim=-1)
    if length % 2 == 0:
        last = (output * drive).sum(-1, keepdim=True)
        last = last.real if pairs else last / 2
        values = torch.cat((values, last.to(values.dtype)), dim=-1)
    kernel: Tensor = torch.fft.irfft(values, n=length)
    return kernel


def _times_power(rows: Tensor, powers: Powers, count: int) -> Tensor:
    for exponent in range(count.bit_length()):
        if count >> exponent & 1:
            rows = torch.bmm(rows, powers.square(exponent))
    return rows


def _values(model: Continuous, output: Tensor, drive: Tensor, length: int, *, dtype: torch.dtype, backend: str) -> Tensor:
    """The transform at all roots of unity of the upper half circle but 1 and -1: complex `(channels, d_model, nodes)`."""
    low_rank = model.low_rank if model.low_rank is not None else drive.new_zeros(0, *drive.shape)
    rank = low_rank.shape[0]
    left = torch.cat((low_rank.conj(), output))
    right = torch.cat((model.dt * low_rank, drive.unsqueeze(0)))
    tangent = torch.tan(math.pi / length * torch.arange(1, (length + 1) // 2, dtype=torch.float64, device=drive.device)).to(dtype)
    zero = torch.zeros_like(tangent)
    resolvent = cauchy(
        (left.unsqueeze(1) * right.unsqueeze(0)).to(complex_of(dtype)),
        torch.complex(zero, 2 * tangent),
        (model.dt * model.rate).to(complex_of(dtype)),
        conj=model.rate.is_complex(),
        backend=backend,
    )
    # Gaussian elimination of (1 + P* R P, P* R B; C R P, C R B). The Hermitian part of the first block is at least 1 on the imaginary axis,
    # so that no pivot is small.
    for _ in range(rank):
        resolvent = resolvent[1:, 1:] - resolvent[1:, :1] * resolvent[:1, 1:] / (1 + resolvent[:1, :1])
    return resolvent[:, 0] * torch.complex(torch.ones_like(tangent), tangent)
