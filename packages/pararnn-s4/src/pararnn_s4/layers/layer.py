"""`SSMLayer`: a state space over sequences, with what stands round it: skip, gate, activations, dropout, output linear.

What it must satisfy: a convolution of the whole sequence, chunks that hand on a state, and single steps give the same outputs; parameters are the
only thing that decides them (no buffer, no cache); every parameter has one owner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError
from pararnn.scans.api import HALF
from pararnn.scans.dispatch import full_precision
from pararnn_s4.layers.checks import check_owned, check_sample, check_sequences, check_state, checked_count, checked_rate
from pararnn_s4.layers.lengths import Lengths, mask, row_lengths
from pararnn_s4.layers.options import LayerOptions
from pararnn_s4.layers.over_time import over_time
from pararnn_s4.modules.activation import activation
from pararnn_s4.modules.dropout import DropoutNd
from pararnn_s4.modules.linear_activation import LinearActivation

if TYPE_CHECKING:
    from pararnn_s4.layers.decoder import LayerDecoder

# Outputs and the next state, from inputs and the state before: of a state space, and of a layer, which starts at its first state where there is none.
Stepper = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
LayerStep = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]


class SSMLayer(nn.Module):
    """A layer round `ssm`; `S4` and `S4D` make one with their state space.

    `y = output_linear(dropout(mult_act(gate(x) * activation(ssm(x) + D x))))`, where the gate and its activation are there if asked for.
    """

    def __init__(self, ssm: nn.Module, options: LayerOptions, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.options = options
        self.d_model = options.d_model
        self.ssm: Any = ssm
        self.D = nn.Parameter(torch.randn(options.heads, options.features, device=device, dtype=dtype))
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        inner = options.channels * options.features
        wide = inner if options.gate is None else options.gate * options.d_model
        identity = nn.Identity
        self.input_linear = identity() if options.bottleneck is None else LinearActivation(options.d_model, options.features, **place)
        self.input_gate = (
            identity() if options.gate is None else LinearActivation(options.d_model, wide, activation=options.gate_act, activate=True, **place)
        )
        self.output_gate = identity() if wide == inner else LinearActivation(inner, wide, **place)
        self.activation = activation(options.activation)
        self.mult_activation = activation(options.mult_act)
        self.drop: nn.Module = nn.Identity()
        if options.dropout > 0:
            self.drop = DropoutNd(options.dropout, tie=True, transposed=False) if options.tie_dropout else nn.Dropout(options.dropout)
        self.output_linear = (
            identity() if options.last_act is None else LinearActivation(wide, options.d_model, activation=options.last_act, activate=True, **place)
        )

    @property
    def d_output(self) -> int:
        """Features of the output: `d_model`, except without a final linear, where it is what the gate or the channels make of it."""
        options = self.options
        if options.last_act is not None:
            return options.d_model
        return options.channels * options.features if options.gate is None else options.gate * options.d_model

    def extra_repr(self) -> str:
        """The options that the submodules do not show."""
        options = self.options
        return f"d_model={options.d_model}, channels={options.channels}, bidirectional={options.bidirectional}, transposed={options.transposed}"

    @overload
    def forward(
        self, x: Tensor, state: Tensor | None = ..., *, lengths: Lengths | None = ..., rate: float = ..., return_state: Literal[False] = ...
    ) -> Tensor: ...

    @overload
    def forward(
        self, x: Tensor, state: Tensor | None = ..., *, lengths: Lengths | None = ..., rate: float = ..., return_state: Literal[True]
    ) -> tuple[Tensor, Tensor]: ...

    def forward(
        self, x: Tensor, state: Tensor | None = None, *, lengths: Lengths | None = None, rate: float = 1.0, return_state: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Outputs of the shape of `x` (with `d_output` features), and with `return_state` the state after the last sample.

        Args:
            x: `(batch, length, d_model)`, or `(batch, d_model, length)` if the layer is `transposed`.
            state: the state before the first sample, from `init_state` or an earlier call; zero if left out.
            lengths: samples of each row that count: an int for all rows, or a list, tuple or tensor of one int a row; the rest is padding, whose
                values do not matter. Outputs at padding carry no meaning. The state is that after each row's own last sample.
            rate: the time between samples over that of training: 2 for data sampled half as often. Exact: the state space is sampled anew.
            return_state: whether to return the state too.

        Raises:
            ShapeError, DTypeError, InputError: inputs that do not fit; the message says how.
            ConfigError: a state was asked of a layer that has none (bidirectional, or a kernel cut at `l_max`).
        """
        first = self.options.transposed
        check_sequences(x, size=self.d_model, name="d_model", owner=type(self).__name__, dtype=self.D.dtype, features_first=first)
        rate = checked_rate(rate)
        x = x.transpose(1, 2) if first else x
        counts = row_lengths(lengths, x.shape[0], x.shape[1], x.device)
        padding = None if counts is None else ~mask(counts, x.shape[1]).unsqueeze(-1)
        x = x if padding is None else x.masked_fill(padding, 0)
        inner = self.input_linear(x)
        if padding is not None and self.options.bottleneck is not None:
            # The bias of the linear would make padding a signal, which a backward kernel hears.
            inner = inner.masked_fill(padding, 0)
        y, after = self._over_time(inner.transpose(1, 2), state, counts, rate, return_state)
        y = y.permute(0, 3, 2, 1) if self.options.swap_channels else y.permute(0, 3, 1, 2)
        # Contiguous features: activations and linears are several times faster, forward and backward, than over strided ones.
        y = self._pointwise(y.flatten(2).contiguous(), x)
        y = y.transpose(1, 2) if first else y
        return (y, after) if after is not None else y

    def step(self, x: Tensor, state: Tensor | None = None, *, rate: float = 1.0, mode: str = "linear") -> tuple[Tensor, Tensor]:
        """One sample: output `(batch, d_output)` and the next state, from `x` `(batch, d_model)` and the state before it (None: `init_state`).

        A pure function, differentiable in all of its inputs, and computed from the parameters as they are now. For many steps with fixed
        parameters `decoder()` is faster. Steps remember without limit: they follow `forward` also beyond `l_max` only where that is None.

        In training mode dropout draws a mask a step; a mask tied over the sequence, or one of the kernel, cannot be drawn in a step and is refused.

        Raises:
            ShapeError, DTypeError: inputs that do not fit.
            ConfigError: the layer is bidirectional, or is in training mode with such a mask, or `mode` cannot serve, or a hook sets `D` before each
                call of the layer (as that of pruning does), which a step is not.
        """
        self.check_sample(x)
        rate = checked_rate(rate)
        self.need_states("step")
        state = self.ssm.initial_state(x.shape[0]) if state is None else state
        check_state(state, x.shape[0], self.ssm)
        return self.step_with(lambda inner, before: self.ssm.step(inner, before, rate=rate, mode=mode), x, state)

    def step_with(self, stepper: Stepper, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """`step` with the state space advanced by `stepper(inner, state) -> (outputs (batch, channels, features), state)`."""
        options = self.options
        check_owned(self, "D", "step")
        if self.training and ((options.dropout > 0 and options.tie_dropout) or options.drop_kernel > 0):
            name = "drop_kernel" if options.drop_kernel > 0 else "tie_dropout"
            raise ConfigError(f"step in training mode cannot draw the mask of {name}, which is one for a whole sequence; call eval() before decoding")
        inner = self.input_linear(x)
        with full_precision(x):
            signal = _wide(inner)
            y, after = stepper(signal, state)
            y = y + signal.unsqueeze(1) * _wide(self.D)
        y = y.transpose(1, 2) if options.swap_channels else y
        return self._pointwise(y.flatten(1), x), after

    def init_state(self, batch: int) -> Tensor:
        """The state before the first sample, zeros `(batch, features, d_state / 2)`, complex (real `(batch, features, d_state)` for `is_real`).

        Raises:
            ConfigError: the layer is bidirectional, or `batch` is no count.
        """
        self.need_states("init_state")
        state: Tensor = self.ssm.initial_state(checked_count("batch", batch, least=0))
        return state

    def decoder(self, mode: str = "linear", *, rate: float = 1.0) -> LayerDecoder:
        """The steps of this layer as it is now, with the constants of the state space computed once.

        Args:
            mode: `"linear"` (work linear in the size of the state), `"dense"` (one matrix product) or `"diagonal"` (in the eigenvectors, where they
                are well-conditioned). For `S4D` all are the same.
            rate: as in `forward`.

        Raises:
            ConfigError: the layer is bidirectional, or `mode` cannot serve, or a hook sets `D` (as that of pruning does).
        """
        from pararnn_s4.layers.decoder import LayerDecoder

        self.need_states("decoder")
        check_owned(self, "D", "decoder")
        return LayerDecoder(self, mode=mode, rate=checked_rate(rate))

    def check_sample(self, x: Tensor) -> None:
        """Raise `ShapeError` or `DTypeError` unless `x` is one sample a row, `(batch, d_model)`."""
        check_sample(x, size=self.d_model, name="d_model", owner=type(self).__name__, dtype=self.D.dtype)

    def need_states(self, asked: str) -> None:
        """Raise `ConfigError` where this layer has no states, naming what was `asked`."""
        if self.options.bidirectional:
            raise ConfigError(
                f"{asked} was asked of a bidirectional layer: its outputs depend on samples to come, which no state holds; use bidirectional=False",
                asked=asked,
            )

    def _over_time(self, inner: Tensor, state: Tensor | None, counts: Tensor | None, rate: float, return_state: bool) -> tuple[Tensor, Tensor | None]:
        """Outputs `(batch, heads, features, length)` of state space and skip for `inner` `(batch, features, length)`, and the state after."""
        if state is not None or return_state:
            self.need_states("state" if state is not None else "return_state")
        if state is not None:
            check_state(state, inner.shape[0], self.ssm)
        # Kernels lose what matters in half precision: powers and transforms run in the dtype of the state space, at least float32.
        with full_precision(inner):
            asked: dict[str, Any] = {"options": self.options, "rate": rate, "return_state": return_state, "training": self.training}
            return over_time(self.ssm, _wide(self.D), _wide(inner), state, counts, **asked)

    def _pointwise(self, y: Tensor, x: Tensor) -> Tensor:
        """Outputs `(*lead, d_output)` from those of the state space `(*lead, heads * features)` and the input of the layer."""
        y = self.activation(y.to(x.dtype) if x.dtype in HALF else y)
        if self.options.gate is not None:
            y = self.output_gate(y) * self.input_gate(x)
        out: Tensor = self.output_linear(self.drop(self.mult_activation(y)))
        return out


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in HALF else tensor
