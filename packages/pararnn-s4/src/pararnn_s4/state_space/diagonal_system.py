"""A sampled diagonal model: its kernel and its responses are Vandermonde products, its states after a sequence transposed ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pararnn_s4.kernels.api import vandermonde, vandermonde_transpose
from pararnn_s4.state_space.continuous import Continuous
from pararnn_s4.state_space.decoder import DiagonalDecoder
from pararnn_s4.state_space.discretisation import Discretisation, sample
from pararnn_s4.state_space.precision import complex_of
from pararnn_s4.state_space.system import Mode, latest_first


class SampledDiagonal:
    """`x[t+1] = transition * x[t] + drive * u[t]`; the constants are in double precision, the products in that of `dtype` (real).

    Attributes:
        transition: `(d_model, state)`.
        drive: `(d_model, state)`.
        output: `(channels, d_model, state)`, without the factor 2 of conjugate pairs.
    """

    def __init__(self, model: Continuous, disc: Discretisation, *, dtype: torch.dtype, backend: str) -> None:
        self.transition, self._log, gain = sample(model.rate, model.dt, disc)
        self.drive = gain * model.input
        self.output = model.output
        self.is_real = not model.rate.is_complex()
        self.dtype = dtype if self.is_real else complex_of(dtype)
        self._backend = backend

    def kernel(self, length: int) -> Tensor:
        """`C A^l B`, real `(channels, d_model, length)`."""
        return self._outputs((self.output * self.drive).to(self.dtype), length)

    def response(self, state: Tensor, length: int) -> Tensor:
        """`C A^(t+1) state`, real `(batch, channels, d_model, length)`."""
        return self._outputs((self.output * self.transition).to(self.dtype) * state.unsqueeze(1), length)

    def advance(self, u: Tensor, state: Tensor | None, lengths: Tensor | None) -> Tensor:
        """The state after `u` `(batch, d_model, length)`, of row `i` after its first `lengths[i]` samples."""
        if u.shape[-1] == 0:
            return state if state is not None else u.new_zeros(u.shape[0], *self.transition.shape, dtype=self.dtype)
        arrived = self._arrived(latest_first(u, lengths))
        if state is None:
            return arrived
        elapsed = torch.full((1,), u.shape[-1], device=u.device) if lengths is None else lengths
        kept = torch.exp(elapsed.reshape(-1, 1, 1) * self._log)
        return arrived + (kept.real if self.is_real and kept.is_complex() else kept).to(self.dtype) * state

    def decoder(self, mode: Mode) -> DiagonalDecoder:
        """The constants of one step: the same in every mode, since the transition is diagonal already."""
        output = self.output if self.is_real else 2 * self.output
        return DiagonalDecoder(transition=self.transition.to(self.dtype), drive=self.drive.to(self.dtype), output=output.to(self.dtype))

    def _outputs(self, weights: Tensor, length: int) -> Tensor:
        """`sum_n weights_n A_n^l`, with the conjugate partners where the model is complex."""
        # The product counts each real entry twice, as its own partner.
        weights = weights / 2 if self.is_real else weights
        exponents, lost = self._exponents()
        if lost is None:
            return vandermonde(weights, exponents, length, backend=self._backend)
        values, slopes = vandermonde(torch.stack((weights * torch.ones_like(lost), weights * lost)), exponents, length, backend=self._backend)
        return torch.addcmul(values, slopes, torch.arange(length, dtype=values.dtype, device=values.device))

    def _arrived(self, recent: Tensor) -> Tensor:
        """`sum_l A_n^l drive_n u_l` of inputs with the latest first."""
        exponents, lost = self._exponents()
        drive = self.drive.to(self.dtype)
        if lost is None:
            arrived = vandermonde_transpose(recent, drive, exponents, backend=self._backend)
        else:
            lags = torch.arange(recent.shape[-1], dtype=recent.dtype, device=recent.device)
            values, slopes = vandermonde_transpose(torch.stack((recent, recent * lags)), drive, exponents, backend=self._backend)
            arrived = values + lost * slopes
        return arrived.real if self.is_real else arrived

    def _exponents(self) -> tuple[Tensor, Tensor | None]:
        """The logarithm of the transition in the dtype of the products, and what that dtype lacks of it (None: nothing).

        Angles are taken within half a turn first: one sample of LegS can have 400 radians. Rounded to float32 they would still be off by 1e-7 a
        sample, or 1e-4 over the memory of a slow state; the products are therefore corrected to first order in what was lost.
        """
        log = self._log
        if log.is_complex():
            turns = (log.imag.detach() / math.tau).round()
            log = torch.complex(log.real, log.imag - math.tau * turns)
        rounded = log.to(complex_of(self.dtype) if log.is_complex() else self.dtype)
        if rounded.dtype == log.dtype:
            return rounded, None
        # No gradient through what was lost: the rounded exponent has all of it.
        return rounded, (log - rounded.to(log.dtype)).detach().to(rounded.dtype)
