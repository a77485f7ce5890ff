"""A sampled DPLR model: its kernel by powers of the transition or by Cauchy products, its states by powers."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_s4.state_space.continuous import Continuous
from pararnn_s4.state_space.decoder import Decoder, DenseDecoder, EigenDecoder, LowRankDecoder
from pararnn_s4.state_space.dplr_cauchy import cauchy_kernel
from pararnn_s4.state_space.dplr_powers import Powers, gathered, products
from pararnn_s4.state_space.precision import complex_of
from pararnn_s4.state_space.real_form import columns, dense_transition, halves, rows
from pararnn_s4.state_space.stepping import LowRankStep, low_rank_step
from pararnn_s4.state_space.system import Mode, latest_first

Method: TypeAlias = Literal["powers", "cauchy"]

# A step in eigenvectors has errors of about their condition number in units of rounding (LegS, size 16, double precision: 2e-5 allowed for,
# 3e-6 found; size 16 in single precision: 2e-2 found).
EIGENVECTOR_ERROR = 1e-4


class SampledDPLR:
    """`x[t+1] = transition * x[t] - left Re(right x[t]) + drive u[t]`, see `stepping`; `dtype` (real) is that of results.

    Attributes:
        constants: the step in double precision.
        dtype: the dtype of states.
    """

    def __init__(self, model: Continuous, *, dtype: torch.dtype, method: Method, backend: str) -> None:
        self.constants: LowRankStep = low_rank_step(model)
        self.is_real = not model.rate.is_complex()
        self.dtype = dtype if self.is_real else complex_of(dtype)
        self._model = model
        self._real_dtype = dtype
        self._method = method
        self._backend = backend
        self._powers: Powers | None = None

    @property
    def powers(self) -> Powers:
        """Powers of the whole transition in real form, in double precision."""
        # Not a cached_property: torch.compile cannot trace its lock.
        if self._powers is None:
            self._powers = Powers(dense_transition(self.constants.transition, self.constants.left, self.constants.right))
        return self._powers

    @property
    def output(self) -> Tensor:
        """`C` as rows `(d_model, channels, size)` for states in real form, in double precision."""
        output = rows(self.constants.output).transpose(0, 1)
        return output if self.is_real else 2 * output

    def kernel(self, length: int) -> Tensor:
        """`C A^l B`, real `(channels, d_model, length)`."""
        if self._method == "cauchy":
            start = columns(self.constants.drive)
            return cauchy_kernel(self._model, self.powers, self.output, start, length, dtype=self._real_dtype, backend=self._backend)
        return products(self.powers, self.output, columns(self.constants.drive).unsqueeze(-1), length, self._real_dtype)[0]

    def response(self, state: Tensor, length: int) -> Tensor:
        """`C A^(t+1) state`, real `(batch, channels, d_model, length)`."""
        first = self.powers.apply(columns(state).permute(1, 2, 0), 1)
        return products(self.powers, self.output, first, length, self._real_dtype)

    def advance(self, u: Tensor, state: Tensor | None, lengths: Tensor | None) -> Tensor:
        """The state after `u` `(batch, d_model, length)`, of row `i` after its first `lengths[i]` samples."""
        length = u.shape[-1]
        if length == 0:
            return state if state is not None else u.new_zeros(u.shape[0], *self.constants.drive.shape, dtype=self.dtype)
        arrived = gathered(self.powers, columns(self.constants.drive), latest_first(u, lengths))
        if state is not None:
            start = columns(state).permute(1, 2, 0)
            arrived = arrived + (self.powers.apply(start, length) if lengths is None else self.powers.apply_each(start, lengths, length))
        following = arrived.permute(2, 0, 1)
        return following if self.is_real else halves(following)

    def decoder(self, mode: Mode) -> Decoder:
        """The constants of one step.

        Raises:
            ConfigError: `mode="diagonal"` where the eigenvectors are too ill-conditioned for the dtype.
        """
        if mode == "linear":
            output = self.constants.output if self.is_real else 2 * self.constants.output
            transition, left, right, drive = (part.to(self.dtype) for part in self.constants[:4])
            return LowRankDecoder(transition=transition, left=left, right=right, drive=drive, output=output.to(self.dtype))
        matrix, drive, output = self.powers.square(0), columns(self.constants.drive), self.output.transpose(0, 1)
        if mode == "dense":
            matrix, drive, output = (part.to(self._real_dtype) for part in (matrix, drive, output))
            return DenseDecoder(transition=matrix, drive=drive, output=output, complex_pairs=not self.is_real)
        values, vectors = torch.linalg.eig(matrix)
        self._check_condition(vectors)
        inverse = torch.linalg.inv(vectors)
        dtype = complex_of(self._real_dtype)
        return EigenDecoder(
            transition=values.to(dtype),
            drive=torch.einsum("hmn,hn->hm", inverse, drive.to(inverse.dtype)).to(dtype),
            output=torch.einsum("chm,hmn->chn", output.to(vectors.dtype), vectors).to(dtype),
            basis=vectors.to(dtype),
            inverse=inverse.to(dtype),
            complex_pairs=not self.is_real,
        )

    def _check_condition(self, vectors: Tensor) -> None:
        condition = torch.linalg.cond(vectors.detach()).nan_to_num(nan=torch.inf).max().item()
        error = torch.finfo(self._real_dtype).eps * condition
        if not error <= EIGENVECTOR_ERROR:
            raise ConfigError(
                f"the eigenvectors V of the transition have cond(V) = {condition:.2g}, which in {self._real_dtype} leaves errors of "
                f"up to {error:.2g} (allowed: {EIGENVECTOR_ERROR:g}); decode with mode='linear' or 'dense', which need no eigenvectors",
                condition=condition,
            )
