"""`S4`: the layer with a state space that is diagonal plus low rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pararnn_s4.layers.checks import check_owned, check_parameter_dtype, checked_count, optional_count
from pararnn_s4.layers.layer import SSMLayer
from pararnn_s4.layers.options import Directions, LayerOptions, Method
from pararnn_s4.state_space.dplr import DPLRSSM, Algorithm
from pararnn_s4.state_space.names import require_options

if TYPE_CHECKING:
    from pararnn_s4.cells.dplr import ParaS4


class S4(SSMLayer):
    """Sequences through one state space a feature, diagonal plus low rank as HiPPO is, then mixed over features.

    Args:
        d_model: features of input and output.
        d_state: real size of each state space; even.
        channels: outputs of the state space for each feature; the output linear mixes them.
        bidirectional: a second kernel runs backwards in time; `"exclusive"` lets it start at the next sample, as state-spaces does.
        activation: after the state space; `"glu"` halves twice as many channels.
        final_act: after the output linear; `"glu"` is a gated linear unit; None leaves the linear out. `postact` is its old name.
        gate: multiply by a branch of `gate * d_model` features that does not pass through time, activated by `gate_act`; `mult_act` follows.
        bottleneck: the state space runs on `d_model // bottleneck` features.
        dropout: probability, once a layer, before the output linear; `tie_dropout` draws one mask for all samples of a sequence.
        drop_kernel: probability of dropping an entry of the kernel, while training.
        transposed: sequences are `(batch, d_model, length)`, else `(batch, length, d_model)`.
        swap_channels: how outputs `(channels, features)` are laid out for what follows: features first.
        l_max: cut the kernel after so many samples (at rate 1); None: the kernel is as long as the sequence. A cut kernel forgets, a state does
            not: steps and states follow `forward` where sequences are at most `l_max` long.
        method: `"convolution"`, `"scan"` over states, or `"auto"`, the cheaper one.
        init: `"legs"`, `"legt"`, `"fout"` and the initialisations of `pararnn_s4.initialisation`.
        rank: of the correction; `"legt"` needs 2.
        dt_min, dt_max: range of the initial time steps, in units of the sample distance; a memory of `length` samples wants `dt_min` about
            `1 / length`.
        dt_tie, dt_transform, dt_fast, deterministic, real_transform, imag_transform, is_real: see `DPLRSSM`.
        n_ssm: distinct copies of A and B, which the features share in turn; it divides the features.
        lr, wd: learning rate and weight decay that the state-space parameters ask of `param_groups`.
        algorithm: how the kernel is computed: `"powers"` of the transition, which use no backend, `"cauchy"` products, or `"auto"`: powers, unless a
            `backend` is named.
        backend: which backend of `s4/cauchy` computes the Cauchy products; naming one means `algorithm="cauchy"`.
        init_args: further options of the initialisation, such as `real_scale`, `B_init`.

    Raises:
        ConfigError: an option that cannot work, or that nothing has a use for.
        BackendError: nobody offers a backend of that name.

    Source: Gu, Goel, Re (2022), Efficiently modeling long sequences with structured state spaces. Gate and bottleneck: Mehta, Gupta, Cutkosky,
    Neyshabur (2022), Long range language modeling via gated state spaces.
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
        init: str = "legs",
        rank: int = 1,
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
        algorithm: Algorithm = "auto",
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **init_args: Any,
    ) -> None:
        require_options(init_args, init, S4)
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
        ssm = DPLRSSM(
            options.features,
            d_state=checked_count("d_state", d_state),
            channels=options.ssm_channels,
            rank=rank,
            n_ssm=optional_count("n_ssm", n_ssm),
            init=init,
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
            method=algorithm,
            backend=backend,
            device=device,
            dtype=dtype,
            **init_args,
        )
        super().__init__(ssm, options, device=device, dtype=dtype)

    def cell(self, *, rate: float = 1.0) -> ParaS4:
        """The state space and the skip of this layer as a cell of pararnn, with shared parameters; what stands round them is left out.

        The cell remembers without limit: it follows `forward` also beyond `l_max` only where that is None.

        Raises:
            ConfigError: the layer is bidirectional, or a hook sets its `D` (as that of pruning does).
        """
        from pararnn_s4.cells.dplr import ParaS4

        self.need_states("cell")
        check_owned(self, "D", "cell")
        return ParaS4(self.options.features, ssm=self.ssm, D=self.D, rate=rate)
