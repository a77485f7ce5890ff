"""`S4D`: the layer with a diagonal state space."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch

from pararnn_s4.layers.checks import check_owned, check_parameter_dtype, checked_count, optional_count
from pararnn_s4.layers.layer import SSMLayer
from pararnn_s4.layers.options import Directions, LayerOptions, Method
from pararnn_s4.state_space.diagonal import DiagonalSSM
from pararnn_s4.state_space.names import require_options

if TYPE_CHECKING:
    from pararnn_s4.cells.diagonal import ParaS4D


class S4D(SSMLayer):
    """Sequences through one diagonal state space a feature, then mixed over features.

    Args:
        d_model: features of input and output.
        d_state: real size of each state space (`d_state / 2` complex pairs); even.
        init: eigenvalues to start from, as `"diag-lin"`, `"diag-inv"`, `"diag-legs"`; see `combination`.
        disc: `"zoh"` (exact for inputs held between samples) or `"bilinear"`.
        backend: which backend of `s4/vandermonde` computes the kernel, `"auto"` for the best that can.
        init_args: further options of the initialisation, such as `real_scale`, `B_init`.

    The other options are those of `S4`.

    Raises:
        ConfigError: an option that cannot work, or that nothing has a use for.
        BackendError: nobody offers a backend of that name.

    Source: Gu, Gupta, Goel, Re (2022), On the parameterization and initialization of diagonal state space models.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        *,
        channels: int = 1,
        bidirectional: Directions = False,
        activation: str | None = "gelu",
        final_act: str | None = "glu",
        postact: str | None = None,
        gate: int | None = None,
        gate_act: str | None = None,
        mult_act: str | None = None,
        bottleneck: int | None = None,
        dropout: float = 0.0,
        tie_dropout: bool = False,
        drop_kernel: float = 0.0,
        transposed: bool = False,
        swap_channels: bool = False,
        l_max: int | None = None,
        method: Method = "auto",
        init: str = "diag-lin",
        disc: Literal["zoh", "bilinear"] = "zoh",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_tie: bool = True,
        dt_transform: str = "exp",
        dt_fast: bool = False,
        n_ssm: int | None = None,
        deterministic: bool = False,
        real_transform: str = "exp",
        imag_transform: str = "none",
        is_real: bool = False,
        lr: Any = None,
        wd: Any = 0.0,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **init_args: Any,
    ) -> None:
        require_options(init_args, init, S4D)
        check_parameter_dtype(dtype)
        options = LayerOptions(
            d_model=d_model,
            channels=channels,
            l_max=l_max,
            bidirectional=bidirectional,
            bottleneck=bottleneck,
            gate=gate,
            gate_act=gate_act,
            mult_act=mult_act,
            activation=activation,
            final_act=final_act,
            postact=postact,
            dropout=dropout,
            tie_dropout=tie_dropout,
            drop_kernel=drop_kernel,
            transposed=transposed,
            swap_channels=swap_channels,
            method=method,
        )
        ssm = DiagonalSSM(
            options.features,
            d_state=checked_count("d_state", d_state),
            channels=options.ssm_channels,
            n_ssm=optional_count("n_ssm", n_ssm),
            init=init,
            disc=disc,
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
            **init_args,
        )
        super().__init__(ssm, options, device=device, dtype=dtype)

    def cell(self, *, rate: float = 1.0) -> ParaS4D:
        """The state space and the skip of this layer as a cell of pararnn, with shared parameters; what stands round them is left out.

        The cell remembers without limit: it follows `forward` also beyond `l_max` only where that is None.

        Raises:
            ConfigError: the layer is bidirectional, or a hook sets its `D` (as that of pruning does).
        """
        from pararnn_s4.cells.diagonal import ParaS4D

        self.need_states("cell")
        check_owned(self, "D", "cell")
        return ParaS4D(self.options.features, ssm=self.ssm, D=self.D, rate=rate)
