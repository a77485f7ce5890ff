"""ParaCfC: a closed-form continuous-time cell that is channelwise, so that its trajectory is solved by diagonal scans.

    a[t] = exp(-softplus(f(x[t])) dt[t])                 share of the state that is kept over the gap dt[t]
    n[t] = tanh(c(x[t]) + u * h[t-1])                    where the state is heading
    h[t] = a[t] * h[t-1] + (1 - a[t]) * n[t]

`f` and `c` are linear maps of the features, `u` a vector limited to `[-max_recurrent_norm, max_recurrent_norm]`. With `gate_mix="diag_h"` the
rate sees the state too, through a second limited vector `v`: `f(x[t]) + v * h[t-1]`. As `dt -> 0` the state is kept, as a solution of an ODE
must; gates of the form `sigmoid(-rate * dt)` halve it instead.

Source: a channelwise variant of Hasani et al. (2022), arXiv 2106.13898, equation (10); the paper's own cell is `pararnn_cfc.CfC`.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, NamedTuple, Self, TypeAlias

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError, DTypeError, ShapeError
from pararnn.scans.api import HALF
from pararnn.structures.diagonal import Diagonal
from pararnn_cfc.clipping import clip
from pararnn_cfc.fused_obstacles import members_of, obstacles
from pararnn_cfc.gates import keep_share, mix_slope, tanh
from pararnn_cfc.time_gaps import checked

# First iteration budgets by sequence length: the entry of the largest length not above the sequence's counts.
cfc_auto_newton_iters = {1: 3}


class InputDrive(NamedTuple):
    """What does not see the state, for `gate_mix="input"`."""

    decay: Tensor
    candidate: Tensor
    recurrent: Tensor


class StateDrive(NamedTuple):
    """What does not see the state, for `gate_mix="diag_h"`."""

    rate: Tensor
    candidate: Tensor
    elapsed: Tensor
    recurrent: Tensor
    rate_recurrent: Tensor


CfCDrive: TypeAlias = InputDrive | StateDrive


class ParaCfC(nn.Module):
    """A channelwise closed-form continuous-time cell.

    Inputs are `x` `(..., d_in)`: `d_in - 1` features, and in the last channel the seconds since the previous sample. States lie in
    `[-1, 1]` once they are there. Half precision modules keep their states in float32.

    With `gate_mix="input"`, whole sequences are solved by kernels of their own where those can serve; `solve_obstacles` says why not. On a GPU these
    wait for nothing: a time gap that is NaN or negative, an error elsewhere, makes the states NaN from there on.
    In a graph of `torch.compile` on a CPU they raise the same `InputError` as outside of one; a graph without kernels makes NaN of such a gap.

    Args:
        d_in: input channels, the time gap included.
        d_h: channels of the state.
        gate_mix: whether the rate sees the `"input"` only, or each channel's state too (`"diag_h"`).
        max_recurrent_norm: limit of the recurrent weights; None for no limit, at the risk of many iterations.

    Raises:
        ConfigError: sizes that cannot work, or an unknown `gate_mix`.
    """

    structure = Diagonal
    state_bounds = (-1.0, 1.0)
    state_slots = 1
    jac_structure = "diag"
    solve_ops: ClassVar[tuple[str, ...]] = ("cfc/newton",)

    def __init__(
        self,
        d_in: int,
        d_h: int,
        *,
        gate_mix: Literal["input", "diag_h"] = "input",
        max_recurrent_norm: float | None = 0.5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check_sizes(d_in, d_h, gate_mix, max_recurrent_norm)
        self.d_in, self.d_h = d_in, d_h
        self.gate_mix = gate_mix
        self.max_recurrent_norm = max_recurrent_norm
        self.W_x = nn.Linear(d_in - 1, 2 * d_h, device=device, dtype=dtype)
        self.u = nn.Parameter(torch.empty(d_h, device=device, dtype=dtype))
        if gate_mix == "diag_h":
            self.v = nn.Parameter(torch.empty(d_h, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw fresh weights: the projection as `nn.Linear` does, recurrent weights small and inside their limit."""
        self.W_x.reset_parameters()
        bound = math.inf if self.max_recurrent_norm is None else self.max_recurrent_norm
        with torch.no_grad():
            for weight in (self.u, *((self.v,) if self.gate_mix == "diag_h" else ())):
                weight.normal_(std=self.d_h**-0.5).clamp_(-bound, bound)

    @property
    def state_size(self) -> int:
        """Channels of the state."""
        return self.d_h

    @property
    def state_dtype(self) -> torch.dtype:
        """What states are kept in: the dtype of the weights, float32 for those of half precision."""
        return self._state_dtype

    def extra_repr(self) -> str:
        """The arguments that made this cell."""
        return f"d_in={self.d_in}, d_h={self.d_h}, gate_mix={self.gate_mix!r}, max_recurrent_norm={self.max_recurrent_norm}"

    def initial_state(self, batch: int) -> Tensor:
        """Zeros `(batch, d_h)`."""
        return torch.zeros(batch, self.d_h, device=self.u.device, dtype=self._state_dtype)

    def drive(self, x: Tensor) -> CfCDrive:
        """Decay (or rate) and candidate of every sample of `x` `(..., d_in)`, and the limited recurrent weights.

        Raises:
            ShapeError: `x` does not end in `d_in` channels.
            InputError: a time gap is NaN or negative.
        """
        features, elapsed = self._split(x)
        # Each half contiguous: every later operation runs over them, and is several times slower over short rows with gaps.
        rate, candidate = (half.contiguous() for half in self.W_x(features).to(self._state_dtype).split(self.d_h, dim=-1))
        return self._drive(rate, candidate, checked(elapsed.to(self._state_dtype)))

    def project_wx(self, x: Tensor) -> Tensor:
        """`f(x)`, `c(x)` and the time gap of each channel, packed as `(..., 3 * d_h)`; `step` takes it as `wx`."""
        features, elapsed = self._split(x)
        return torch.cat((self.W_x(features), checked(elapsed).expand(*elapsed.shape[:-1], self.d_h)), dim=-1)

    def step(self, state: Tensor, drive: CfCDrive | Tensor | None = None, *, wx: Tensor | None = None) -> Tensor:
        """The next state `(..., d_h)` from `state` and the drive of that step, or a raw sample `x` `(..., d_in)`, or `wx` of `project_wx`."""
        drive = self._as_drive(drive, wx)
        candidate = tanh(torch.addcmul(drive.candidate, drive.recurrent, state))
        return torch.lerp(candidate, state, self._decay(state, drive))

    def linearize(self, state: Tensor, drive: CfCDrive) -> tuple[Tensor, Diagonal]:
        """The next state and its derivative by `state`.

        With `n` the candidate and `a` the decay, `J = a + (1 - a) (1 - n^2) u`, and for `gate_mix="diag_h"` besides `(da/dh) (h - n)` with
        `da/dh = -a dt sigmoid(f + v h) v`.
        """
        candidate = tanh(torch.addcmul(drive.candidate, drive.recurrent, state))
        decay = self._decay(state, drive)
        with torch.no_grad():
            jacobian = mix_slope(candidate, drive.recurrent, decay)
            if isinstance(drive, StateDrive):
                sensitivity = torch.sigmoid(torch.addcmul(drive.rate, drive.rate_recurrent, state)) * drive.rate_recurrent
                jacobian = torch.addcmul(jacobian, decay * drive.elapsed * sensitivity, state - candidate, value=-1)
        return torch.lerp(candidate, state, decay), Diagonal(jacobian)

    def readout(self, states: Tensor) -> Tensor:
        """The states themselves."""
        return states

    def newton_iters(self, length: int) -> int:
        """A first iteration budget for a sequence of `length` steps, from `cfc_auto_newton_iters`."""
        return cfc_auto_newton_iters[max(entry for entry in cfc_auto_newton_iters if entry <= max(1, length))]

    def solve_obstacles(self) -> tuple[str, ...]:
        """Why the fused kernels of `cfc/newton` cannot stand in for this cell."""
        return obstacles(self, _OWN)

    def layer_above(self) -> Self:
        """A fresh cell of the same kind that reads this one's states and the same time gap."""
        weight = self.W_x.weight
        return type(self)(
            self.d_h + 1, self.d_h, gate_mix=self.gate_mix, max_recurrent_norm=self.max_recurrent_norm, device=weight.device, dtype=weight.dtype
        )

    def layer_above_input(self, output: Tensor, x: Tensor) -> Tensor:
        """What the layer above reads: this layer's `output` and the time gap of `x`."""
        return torch.cat((output, x[..., -1:].to(output.dtype)), dim=-1)

    @property
    def _state_dtype(self) -> torch.dtype:
        # It is asked at each solve, and attributes of modules are slow to look up; a compiler does so once.
        u = None if torch.compiler.is_compiling() else self._parameters.get("u")
        dtype = (self.u if u is None else u).dtype
        return torch.float32 if dtype in HALF else dtype

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not x.is_floating_point():
            raise DTypeError(f"x must be floating point, got {x.dtype}; convert it with x.to({self.u.dtype})")
        if x.shape[-1] != self.d_in:
            raise ShapeError(f"x ends in {x.shape[-1]} channels, but d_in={self.d_in}: {self.d_in - 1} features and the time gap last")
        if x.dtype != self.u.dtype and not torch.is_autocast_enabled(x.device.type):
            raise DTypeError(f"x is {x.dtype} and the cell {self.u.dtype}; convert one of them, x.to({self.u.dtype}) or cell.to({x.dtype})")
        return x[..., :-1], x[..., -1:]

    def _drive(self, rate: Tensor, candidate: Tensor, elapsed: Tensor) -> CfCDrive:
        recurrent = self._limited(self.u)
        if self.gate_mix == "diag_h":
            return StateDrive(rate, candidate, elapsed, recurrent, self._limited(self.v))
        return InputDrive(keep_share(rate, elapsed), candidate, recurrent)

    def _as_drive(self, drive: CfCDrive | Tensor | None, wx: Tensor | None) -> CfCDrive:
        if wx is not None:
            return self._drive(*wx.to(self._state_dtype).split(self.d_h, dim=-1))
        if drive is None:
            raise ShapeError("step needs the drive of the step, a raw sample x, or wx=project_wx(x)")
        return self.drive(drive) if isinstance(drive, Tensor) else drive

    def _decay(self, state: Tensor, drive: CfCDrive) -> Tensor:
        if isinstance(drive, InputDrive):
            return drive.decay
        return keep_share(torch.addcmul(drive.rate, drive.rate_recurrent, state), drive.elapsed)

    def _limited(self, weight: Tensor) -> Tensor:
        limited = weight if self.max_recurrent_norm is None else clip(weight, self.max_recurrent_norm)
        return limited.to(self._state_dtype)


_OWN = members_of(ParaCfC)


def _check_sizes(d_in: int, d_h: int, gate_mix: str, max_recurrent_norm: float | None) -> None:
    for name, value, least in (("d_in", d_in, 2), ("d_h", d_h, 1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            hint = "; the last input channel is the time gap, so there is at least one feature before it" if name == "d_in" else ""
            raise ConfigError(f"{name} must be an int of at least {least}, got {value!r}{hint}")
    if gate_mix not in ("input", "diag_h"):
        raise ConfigError(f"gate_mix must be 'input' or 'diag_h', got {gate_mix!r}")
    if max_recurrent_norm is not None and not 0 <= max_recurrent_norm < math.inf:
        raise ConfigError(f"max_recurrent_norm must be None or a number of at least 0, got {max_recurrent_norm!r}")
