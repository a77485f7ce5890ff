"""What diagonal and DPLR models have in common: their parameters, their checks, and the questions that they answer.

Nothing that decides an output is a buffer or is kept from one call to the next: `C` is stored as it is, and everything derived from it (the
`C (I - A^L)` of the paper's algorithm among it) is computed when it is needed. So loading, training or moving a module can make nothing stale.
Parameters of any precision are taken to double precision first: that costs one number a state and saves the digits of `l dt A`.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError, ShapeError
from pararnn.scans.dispatch import full_precision
from pararnn_s4.initialisation.layer import init_ssm_dplr
from pararnn_s4.initialisation.timescales import init_dt
from pararnn_s4.layers.checks import checked_rate
from pararnn_s4.layers.lengths import Lengths, row_lengths
from pararnn_s4.parameters.processing import process_dplr_params, process_ssm_params
from pararnn_s4.parameters.registration import Setting, register_ssm_params
from pararnn_s4.state_space.checks import checked_input, checked_length, checked_state, require_real
from pararnn_s4.state_space.continuous import Continuous
from pararnn_s4.state_space.decoder import Decoder
from pararnn_s4.state_space.names import require_backend, require_options
from pararnn_s4.state_space.precision import HALF, complex_of, double
from pararnn_s4.state_space.system import Mode, SampledSystem


class StateSpace(nn.Module, ABC):
    """`d_model` independent state-space models of one input each and `channels` outputs, all of one form."""

    inv_dt: Tensor
    A_real: Tensor
    A_imag: Tensor
    B: Tensor
    C: Tensor
    P: Tensor

    optimizer_options: dict[str, dict[str, Any]]
    """What each parameter asks of an optimiser, by name; `param_groups` looks here, because copies and loaded parameters have no attributes."""

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int,
        channels: int,
        n_ssm: int | None,
        init: str | Sequence[str],
        rank: int,
        dt_min: float,
        dt_max: float,
        dt_tie: bool,
        dt_transform: str,
        dt_fast: bool,
        deterministic: bool,
        real_transform: str,
        imag_transform: str,
        is_real: bool,
        lr: Setting,
        wd: Setting,
        backend: str,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        init_args: dict[str, Any],
    ) -> None:
        super().__init__()
        require_options(init_args, init, type(self))
        require_backend(backend, "s4/cauchy" if rank else "s4/vandermonde")
        if min(d_model, d_state, channels) < 1:
            raise ConfigError(f"d_model, d_state and channels must be at least 1, got {d_model}, {d_state} and {channels}")
        dtype = dtype or torch.get_default_dtype()
        built = torch.float32 if dtype in HALF else dtype
        self.d_model, self.d_state, self.channels, self.rank = d_model, d_state, channels, rank
        self.is_real, self.backend = is_real, backend
        self._transforms = {"real_transform": real_transform, "imag_transform": imag_transform, "dt_transform": dt_transform}
        self._dt_fast = dt_fast
        self.n_ssm = d_model if n_ssm is None else n_ssm
        # The builders count conjugate pairs; a real model keeps one number of each.
        size = 2 * d_state if is_real else d_state
        inv_dt = init_dt(d_model, size, dt_min, dt_max, dt_tie, dt_transform, deterministic, built, device=device)
        A, P, B, C = init_ssm_dplr(  # noqa: N806
            size, d_model, self.n_ssm, channels, max(rank, 1), init, deterministic, complex_of(built), device=device, **init_args
        )
        if is_real:
            require_real(A, init)
        self.repeat = register_ssm_params(
            self, A, B, C, inv_dt, P if rank else None, d_model, self.n_ssm, size // 2, channels, max(rank, 1),
            dt_fast, real_transform, imag_transform, is_real, False, None, rank == 0, lr=lr, wd=wd,
        )  # fmt: skip
        self.optimizer_options = _marks(self)
        if dtype != built:
            self.to(dtype)

    def __getstate__(self) -> dict[str, Any]:
        # What a user wrote on a parameter since then goes with a copy of the module, which has it by name alone.
        return {**vars(self), "optimizer_options": {**self.optimizer_options, **_marks(self)}}

    @property
    def state_size(self) -> int:
        """Numbers in the state of a feature: complex ones, of half the count, unless the model is real."""
        return self.A_real.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        """The real dtype of kernels and outputs: that of the parameters, or float32 where they have half precision."""
        return torch.float32 if self.C.dtype in HALF else self.C.dtype

    @property
    def state_dtype(self) -> torch.dtype:
        """The dtype of states, complex unless the model is real."""
        return self.dtype if self.is_real else complex_of(self.dtype)

    def continuous(self, rate: float = 1.0) -> Continuous:
        """The model in continuous time, in double precision; inputs are sampled every `rate * dt` seconds."""
        rate = checked_rate(rate)
        wide: dict[str, Any] = {name: double(getattr(self, name)) for name in ("A_real", "B", "C", "inv_dt")}
        wide["A_imag"] = None if self.is_real else double(self.A_imag)
        options: dict[str, Any] = {"dt_fast": self._dt_fast, "is_real": self.is_real, "repeat_factor": self.repeat, "rate": rate, **self._transforms}
        if self.rank == 0:
            dt, rates, drive, output, _ = process_ssm_params(**wide, **options)
            return Continuous(rates, drive[0], output, dt)
        dt, rates, drive, output, low_rank, _ = process_dplr_params(**wide, P=double(self.P), **options)
        return Continuous(rates, drive[0], output, dt, low_rank)

    @abstractmethod
    def sampled(self, rate: float = 1.0) -> SampledSystem:
        """The model sampled every `rate * dt` seconds, from the parameters as they stand; `ssm(rate=rate)` runs the hooks of the module before."""

    def forward(self, length: int | None = None, *, rate: float = 1.0) -> Any:
        """The convolution kernel `C A^l B`, real `(channels, d_model, length)`; without a `length` the sampled model, to be asked several questions.

        Everything that this module, layers and cells compute comes through here, so that hooks which set parameters (`torch.nn.utils.prune`) act.

        Raises:
            ShapeError: `length` is below 1.
            ConfigError: `rate` is not positive.
        """
        if length is None:
            return self.sampled(rate)
        length = checked_length(length)
        with full_precision(self.C):
            return self.sampled(rate).kernel(length)

    def response(self, state: Tensor, length: int, *, rate: float = 1.0) -> Tensor:
        """`C A^(t+1) state`: the outputs `(batch, channels, d_model, length)` that `state`, from before the first sample, causes alone.

        Raises:
            ShapeError: `state` has another shape than `initial_state`, or `length` is below 1.
            DTypeError: `state` is complex for a real model, or real for a complex one.
            ConfigError: `rate` is not positive.
        """
        length = checked_length(length)
        state = checked_state(self, state, None)
        with full_precision(self.C):
            return self._hooked(rate).response(state, length)

    def advance(self, u: Tensor, state: Tensor | None = None, *, rate: float = 1.0, lengths: Lengths | None = None) -> Tensor:
        """The state after the last sample of `u` `(batch, d_model, length)`: with `lengths`, after the first `lengths[i]` of row `i`.

        Raises:
            ShapeError: `u`, `state` or `lengths` does not fit.
            DTypeError: `u` is complex, `state` complex for a real model or real for a complex one, or lengths are no ints.
            InputError: a length is outside `0 .. length`.
            ConfigError: `rate` is not positive.
        """
        if u.ndim != 3 or u.shape[1] != self.d_model:
            raise ShapeError(f"inputs must be (batch, {self.d_model}, length), got {tuple(u.shape)}", shape=tuple(u.shape))
        state = None if state is None else checked_state(self, state, u.shape[0])
        rows = row_lengths(lengths, u.shape[0], operator.index(u.shape[-1]), u.device)
        with full_precision(self.C):
            return self._hooked(rate).advance(checked_input(u, self.dtype), state, rows)

    def initial_state(self, batch: int) -> Tensor:
        """Zeros `(batch, d_model, state)`: `d_state / 2` complex numbers, one of each conjugate pair, or `d_state` real ones with `is_real`."""
        return torch.zeros(batch, self.d_model, self.state_size, dtype=self.state_dtype, device=self.C.device)

    def step(self, u: Tensor, state: Tensor, *, rate: float = 1.0, mode: Mode = "linear") -> tuple[Tensor, Tensor]:
        """Outputs `(batch, channels, d_model)` and the next state for one sample `u` `(batch, d_model)`.

        The constants come from the parameters at every call, with their gradients. To decode many samples, take `decoder` instead.

        Raises:
            ShapeError, DTypeError: `u` or `state` does not fit.
            ConfigError: `rate` is not positive, or `mode` is unknown or not to be trusted for this model.
        """
        if u.ndim != 2 or u.shape[1] != self.d_model:
            raise ShapeError(f"one sample must be (batch, {self.d_model}), got {tuple(u.shape)}", shape=tuple(u.shape))
        state = checked_state(self, state, u.shape[0])
        with full_precision(self.C):
            decoder = self._decoder(mode, rate)
            y, following = decoder.step(checked_input(u, self.dtype), decoder.enter(state))
            return y, decoder.leave(following)

    def decoder(self, mode: Mode = "linear", *, rate: float = 1.0) -> Decoder:
        """The constants of one step as they are now, for fast decoding; see `pararnn_s4.state_space.decoder`.

        Raises:
            ConfigError: `rate` is not positive, or `mode` is unknown or not to be trusted for this model.
        """
        with torch.no_grad(), full_precision(self.C):
            return self._decoder(mode, rate).snapshot()

    def extra_repr(self) -> str:
        """The sizes that made this module."""
        return f"d_model={self.d_model}, d_state={self.d_state}, channels={self.channels}, n_ssm={self.n_ssm}, is_real={self.is_real}"

    def _hooked(self, rate: float) -> SampledSystem:
        system: SampledSystem = self(rate=rate)
        return system

    def _decoder(self, mode: Mode, rate: float) -> Decoder:
        if mode not in ("linear", "dense", "diagonal"):
            raise ConfigError(f"mode={mode!r} is no form of a step; choose 'linear', 'dense' or 'diagonal'", mode=mode)
        return self._hooked(rate).decoder(mode)


def _marks(module: nn.Module) -> dict[str, dict[str, Any]]:
    return {name: dict(parameter._optim) for name, parameter in module.named_parameters() if hasattr(parameter, "_optim")}
