"""`DPLRSSM`: state-space models whose state matrix is diagonal plus low rank (S4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch

from pararnn.errors import ConfigError
from pararnn_s4.parameters.registration import Setting
from pararnn_s4.state_space.base import StateSpace
from pararnn_s4.state_space.dplr_system import Method, SampledDPLR
from pararnn_s4.state_space.stepping import LowRankStep

Algorithm: TypeAlias = Method | Literal["auto"]


class DPLRSSM(StateSpace):
    """`d_model` models `x' = A x + B u`, `y = 2 Re C x` with `A = diag(rate) - P P*`, sampled by the trapezoidal rule.

    States are in the basis in which `A` has this form, not in that of the HiPPO matrix.

    Args:
        d_model: features, each with a model of its own.
        d_state: size of the state as real numbers; even, since they come in conjugate pairs, unless `is_real`.
        channels: outputs of each feature.
        n_ssm: how many `A` and `B` there are; feature `h` uses number `h % n_ssm`. None: one a feature.
        init: how `A` and `B` start; a name or a list, see `combination`, which takes `init_args`.
        rank: columns of `P`; `legt` needs 2.
        method: how kernels are computed: `powers` of the transition, or values on the unit circle by `cauchy` products. `auto` is `powers`,
            which use no backend, unless one is named: as fast up to a length of 4096, faster beyond, more accurate in single precision, and
            without poles to stay away from. `cauchy` loses digits where poles come next to nodes: kernels of FouT in single precision have
            errors of 2e-6, but of 1e-3 where `dt * length` is whole; with purely imaginary rates (`real_transform="none"`) a node may be hit.
        dt_min, dt_max, dt_tie, dt_transform, deterministic: how the time steps start, see `init_dt`. With `dt_transform="none"` nothing keeps
            a trained time step positive; a model with a negative one runs backwards in time and grows without bound.
        dt_fast: store the hyperbolic arcsine of the time steps' parameters.
        real_transform, imag_transform: how the parts of the diagonal are stored, see `param_transform`.
        is_real: keep real eigenvalues and a real `P` only; the state has `d_state` real numbers.
        lr, wd: what is left on the parameters for `param_groups`, see `register_ssm_params`.
        backend: which backend computes the Cauchy products; naming one means `method="cauchy"`. States and responses are always made of powers.

    Raises:
        ConfigError: values that cannot work, among them a named `backend` for `method="powers"`.
        BackendError: nobody offers a backend of that name.

    Source: Gu, Goel, Ré, "Efficiently modeling long sequences with structured state spaces", 2022.
    """

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 64,
        channels: int = 1,
        n_ssm: int | None = None,
        init: str | Sequence[str] = "legs",
        rank: int = 1,
        method: Algorithm = "auto",
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
        if method not in ("auto", "powers", "cauchy"):
            raise ConfigError(f"kernels are computed by 'powers', 'cauchy' or 'auto', not by {method!r}; choose one of these", method=method)
        if method == "powers" and backend != "auto":
            raise ConfigError(
                f"powers of the transition are plain matrix products, so that backend={backend!r} would do nothing; "
                "choose 'cauchy' or 'auto' instead of 'powers', or leave the backend at 'auto'",
                backend=backend,
            )
        if rank < 1:
            raise ConfigError(f"rank={rank} must be at least 1; without a low-rank part the model is a DiagonalSSM", rank=rank)
        super().__init__(
            d_model,
            d_state=d_state,
            channels=channels,
            n_ssm=n_ssm,
            init=init,
            rank=rank,
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
        self.method: Method = ("powers" if backend == "auto" else "cauchy") if method == "auto" else method

    def sampled(self, rate: float = 1.0) -> SampledDPLR:
        """The model sampled every `rate * dt` seconds; use it where several questions are asked at once."""
        return SampledDPLR(self.continuous(rate), dtype=self.dtype, method=self.method, backend=self.backend)

    def discrete(self, rate: float = 1.0) -> LowRankStep:
        """The constants of `x[t+1] = transition * x[t] - left Re(right x[t]) + drive u[t]` in the dtype of states."""
        return LowRankStep(*(part.to(self.state_dtype) for part in self(rate=rate).constants))

    def extra_repr(self) -> str:
        """The sizes that made this module."""
        return f"{super().extra_repr()}, rank={self.rank}, method={self.method!r}"
