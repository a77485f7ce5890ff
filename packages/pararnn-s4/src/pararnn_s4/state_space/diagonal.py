"""`DiagonalSSM`: state-space models with a diagonal state matrix (S4D)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_s4.parameters.registration import Setting
from pararnn_s4.state_space.base import StateSpace
from pararnn_s4.state_space.diagonal_system import SampledDiagonal
from pararnn_s4.state_space.discretisation import Discretisation


class DiagonalSSM(StateSpace):
    """`d_model` models `x' = A x + B u`, `y = 2 Re C x` with a diagonal `A`, sampled exactly (`zoh`) or by the trapezoidal rule (`bilinear`).

    Args:
        d_model: features, each with a model of its own.
        d_state: size of the state as real numbers; even, since they come in conjugate pairs, unless `is_real`.
        channels: outputs of each feature.
        n_ssm: how many `A` and `B` there are; feature `h` uses number `h % n_ssm`. None: one a feature.
        init: how `A` and `B` start; a name or a list, see `combination`, which takes `init_args`.
        disc: the discretisation.
        dt_min, dt_max, dt_tie, dt_transform, deterministic: how the time steps start, see `init_dt`. With `dt_transform="none"` nothing keeps
            a trained time step positive; a model with a negative one runs backwards in time and grows without bound.
        dt_fast: store the hyperbolic arcsine of the time steps' parameters.
        real_transform, imag_transform: how the parts of `A` are stored, see `param_transform`.
        is_real: keep real eigenvalues only; the state has `d_state` real numbers.
        lr, wd: what is left on the parameters for `param_groups`, see `register_ssm_params`.
        backend: which backend computes the Vandermonde products.

    Raises:
        ConfigError: values that cannot work.
        BackendError: nobody offers a backend of that name.

    Source: Gu, Gupta, Goel, Ré, "On the parameterization and initialization of diagonal state space models", 2022.
    """

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 64,
        channels: int = 1,
        n_ssm: int | None = None,
        init: str | Sequence[str] = "diag-lin",
        disc: Discretisation = "zoh",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_tie: bool = True,
        dt_transform: str = "exp",
        dt_fast: bool = False,
        deterministic: bool = False,
        real_transform: str = "exp",
        imag_transform: str = "none",
        is_real: bool = False,
        lr: Setting = None,
        wd: Setting = 0.0,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **init_args: Any,
    ) -> None:
        if disc not in ("zoh", "bilinear"):
            raise ConfigError(f"disc={disc!r} is no discretisation; choose 'zoh' (exact for inputs held between samples) or 'bilinear'", disc=disc)
        super().__init__(
            d_model,
            d_state=d_state,
            channels=channels,
            n_ssm=n_ssm,
            init=init,
            rank=0,
            dt_min=dt_min,
            dt_max=dt_max,
            dt_tie=dt_tie,
            dt_transform=dt_transform,
            dt_fast=dt_fast,
            deterministic=deterministic,
            real_transform=real_transform,
            imag_transform=imag_transform,
            is_real=is_real,
            lr=lr,
            wd=wd,
            backend=backend,
            device=device,
            dtype=dtype,
            init_args=init_args,
        )
        self.disc: Discretisation = disc

    def sampled(self, rate: float = 1.0) -> SampledDiagonal:
        """The model sampled every `rate * dt` seconds; use it where several questions are asked at once."""
        return SampledDiagonal(self.continuous(rate), self.disc, dtype=self.dtype, backend=self.backend)

    def discrete(self, rate: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
        """Transition `(d_model, state)`, drive `(d_model, state)` and `C` `(channels, d_model, state)` in the dtype of states.

        `x[t+1] = transition * x[t] + drive * u[t]`; outputs are `2 Re sum C x[t+1]`, without the factor 2 for a real model.
        """
        system: SampledDiagonal = self(rate=rate)
        return system.transition.to(self.state_dtype), system.drive.to(self.state_dtype), system.output.to(self.state_dtype)

    def extra_repr(self) -> str:
        """The sizes that made this module."""
        return f"{super().extra_repr()}, disc={self.disc!r}"
