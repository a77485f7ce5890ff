"""Convolution of real signals along time by FFT: exact linear convolution, padded to a length that transforms fast.

A two-sided kernel is laid out on the circle of the transform: `forward[l]` weighs the sample `l` steps ago, `backward[l]` the sample `l` steps
ahead. With `lead=0` both kernels see the present sample, each once; with `lead=1` the backward kernel starts at the next sample, so that the
present one is seen by the forward kernel alone, which is how state-spaces pairs them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pararnn.errors import ShapeError
from pararnn.scans.api import HALF
from pararnn.scans.dispatch import only_numbers


def convolve(x: Tensor, forward: Tensor, backward: Tensor | None = None, *, lead: int = 0) -> Tensor:
    """`y[t] = sum_l forward[l] x[t - l] + sum_l backward[l] x[t + lead + l]`, `(batch, channels, copies, length)`.

    Args:
        x: `(batch, copies, length)`, any strides; samples outside the sequence are zero.
        forward: `(channels, copies, lags)`, with any number of lags.
        backward: `(channels, copies, lags)`, as many lags as `forward`.
        lead: the first sample that `backward` sees, 0 (the present one) or 1 (the next).

    Half precision is computed and returned in float32: there is no FFT of it, and sums over a long sequence would lose its 3 digits.

    Raises:
        ShapeError: the shapes do not fit each other.
    """
    _check(x, forward, backward)
    x, forward = _wide(x), _wide(forward)
    length = x.shape[-1]
    if x.numel() == 0:
        # An empty product, so that the kernels have gradients, zeros, here too: training on several devices waits for every parameter.
        present = forward[..., :1] if backward is None else forward[..., :1] + _wide(backward)[..., :1]
        return x.unsqueeze(1) * present
    forward = forward[..., :length]
    size = fast_length(length + forward.shape[-1] - 1 + (lead if backward is not None else 0))
    circle = forward if backward is None else _circle(forward, _wide(backward)[..., :length], size, lead)
    # Transforms and compilers see the plain formula; what they would make of the function below is not theirs to choose.
    y: Tensor = _Circular.apply(x, circle, size)[0] if only_numbers() else _circular(x, circle, size)[0]
    return y


def fast_length(minimum: int) -> int:
    """A length of at least `minimum`, at most a quarter longer, that is a power of two times 1, 3/4, 5/8, 9/16 or 15/16."""
    # A plain int: under torch.compile a symbolic length is specialised here, because an FFT is planned for one size anyway.
    minimum = int(minimum)
    power = 1 << max(minimum - 1, 0).bit_length()
    # Below 16 the fractions are not whole; nothing is saved there either.
    sizes = [power * part // 16 for part in (9, 10, 12, 15, 16)] if power >= 16 else [power]
    return next(size for size in sizes if size >= minimum)


def _circular(x: Tensor, kernel: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The convolution on a circle of `size` places, as long as `x`, and the spectra of `x` and `kernel`."""
    # The kernel is transformed once for the whole batch; channels share the transform of x.
    signal, weights = torch.fft.rfft(x, n=size), torch.fft.rfft(kernel, n=size)
    return torch.fft.irfft(signal.unsqueeze(1) * weights, n=size)[..., : x.shape[-1]], signal, weights


class _Circular(torch.autograd.Function):
    """`_circular` with a backward pass of real transforms; that of autograd goes through complex ones, which cost twice as much."""

    @staticmethod
    def forward(x: Tensor, kernel: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
        return _circular(x, kernel, size)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.size = inputs[2]
        ctx.save_for_backward(*inputs[:2], *output[1:])
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        x, kernel, signal, weights = ctx.saved_tensors
        grad = grads[0]
        if grad is None:
            return None, None, None
        if torch.is_grad_enabled():
            # Second derivatives need spectra that know where they come from.
            signal, weights = torch.fft.rfft(x, n=ctx.size), torch.fft.rfft(kernel, n=ctx.size)
        spectrum = torch.fft.rfft(grad, n=ctx.size)
        by_x = torch.fft.irfft(_sum(spectrum * weights.conj(), 1), n=ctx.size)[..., : x.shape[-1]] if ctx.needs_input_grad[0] else None
        by_kernel = None
        if ctx.needs_input_grad[1]:
            by_kernel = torch.fft.irfft(_sum(spectrum * signal.conj().unsqueeze(1), 0), n=ctx.size)[..., : kernel.shape[-1]]
        return by_x, by_kernel, None


def _sum(spectra: Tensor, dim: int) -> Tensor:
    return spectra.squeeze(dim) if spectra.shape[dim] == 1 else spectra.sum(dim)


def _circle(forward: Tensor, backward: Tensor, size: int, lead: int) -> Tensor:
    """Both kernels on a circle of `size`: lag `l` at `l`, lead `l` at `size - l`."""
    # Reversed, backward[l] lands at size - lead - l; a roll by one brings the one of lead 0 from the end to place 0.
    ahead = F.pad(backward.flip(-1), (size - backward.shape[-1], 0))
    ahead = ahead.roll(1, -1) if lead == 0 else ahead
    return F.pad(forward, (0, size - forward.shape[-1])) + ahead


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in HALF else tensor


def _check(x: Tensor, forward: Tensor, backward: Tensor | None) -> None:
    if x.ndim != 3 or forward.ndim != 3 or forward.shape[1] != x.shape[1] or (forward.shape[2] == 0 and x.shape[2] > 0):
        raise ShapeError(
            f"convolve takes x (batch, copies, length) and kernels (channels, copies, lags), got {tuple(x.shape)} and {tuple(forward.shape)}",
            x=tuple(x.shape),
            kernel=tuple(forward.shape),
        )
    if backward is not None and backward.shape != forward.shape:
        raise ShapeError(
            f"the kernels of both directions must have one shape, got {tuple(forward.shape)} and {tuple(backward.shape)}",
            forward=tuple(forward.shape),
            backward=tuple(backward.shape),
        )
