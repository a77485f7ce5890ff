"""`CfC`: the recurrent network of the CfC paper with the constructor, the call and the weights of `ncps.torch.CfC`.

A model moves over by changing the import; a `state_dict` of ncps loads as it is and gives the same numbers. The time loop is a solve: in
parallel over time where that pays, walked otherwise, with the same result and exact gradients.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pararnn.errors import ConfigError, DTypeError, ShapeError
from pararnn.solver.api import newton_apply, sequential_apply
from pararnn.solver.config import NewtonConfig
from pararnn_cfc.backbone import Activation
from pararnn_cfc.mixed_memory import LSTMGates, MixedMemoryCell
from pararnn_cfc.ncps_cell import CfCCell, Mode
from pararnn_cfc.timespans import elapsed_channel
from pararnn_cfc.wired import WiredCfC
from pararnn_cfc.wiring import Wiring

Solver: TypeAlias = Literal["auto", "newton", "sequential"]
AnyCell: TypeAlias = CfCCell | WiredCfC | MixedMemoryCell
States: TypeAlias = Tensor | tuple[Tensor, Tensor]


class CfC(nn.Module):
    """Closed-form continuous-time network over sequences of samples with irregular gaps.

    `units` is the number of neurons or a wiring (`ncps.wirings`), which takes no backbone options and ignores `activation`. `proj_size`
    adds a linear output layer; `mixed_memory` puts an LSTM in front of the cell. `solver` says how time is run: `"newton"` in parallel,
    `"sequential"` step by step, `"auto"` whichever the planner expects to be faster; `config` is for the parallel solve.

    Raises:
        ConfigError: options that cannot work, alone or together.

    Source: Hasani et al., 2022, arXiv 2106.13898; the interface is that of ncps 1.0.
    """

    def __init__(
        self,
        input_size: int | None,
        units: int | Wiring,
        proj_size: int | None = None,
        return_sequences: bool = True,
        batch_first: bool = True,
        mixed_memory: bool = False,
        mode: Mode = "default",
        activation: Activation = "lecun_tanh",
        backbone_units: int | None = None,
        backbone_layers: int | None = None,
        backbone_dropout: float | None = None,
        *,
        solver: Solver = "auto",
        config: NewtonConfig | None = None,
    ) -> None:
        super().__init__()
        if solver not in get_args(Solver):
            raise ConfigError(f"solver {solver!r} is unknown; choose one of {', '.join(get_args(Solver))}")
        if solver == "sequential" and config is not None:
            raise ConfigError("config is for the parallel solve but solver='sequential' walks; drop one of the two")
        if proj_size is not None and proj_size < 1:
            raise ConfigError(f"proj_size must be at least 1, got {proj_size}; leave it out for no output layer")
        backbone = {"backbone_units": backbone_units, "backbone_layers": backbone_layers, "backbone_dropout": backbone_dropout}
        self.rnn_cell: CfCCell | WiredCfC
        if isinstance(units, Wiring):
            given = [name for name, value in backbone.items() if value is not None]
            if given:
                raise ConfigError(f"a wired CfC has no backbone, so {', '.join(given)} cannot be set; leave them out or pass units as an int")
            self.rnn_cell = WiredCfC(input_size, units, mode)
            if proj_size is not None and getattr(units, "output_dim", None) != self.rnn_cell.output_size:
                raise ConfigError(
                    f"proj_size needs the wiring's output_dim ({getattr(units, 'output_dim', None)}) to be the size of its last layer "
                    f"({self.rnn_cell.output_size}), which is what a wired CfC puts out; make the wiring with that output_dim"
                )
        else:
            if not isinstance(input_size, int) or not isinstance(units, int):
                raise ConfigError(f"input_size and units must be integers (or units a wiring), got {input_size!r} and {units!r}")
            options = {name: value for name, value in backbone.items() if value is not None}
            self.rnn_cell = CfCCell(input_size, units, mode, activation, **options)  # type: ignore[arg-type]
        self.input_size = self.rnn_cell.input_size
        self.state_size = self.rnn_cell.state_size
        self.output_size = self.rnn_cell.output_size
        self.proj_size = proj_size
        self.return_sequences = return_sequences
        self.batch_first = batch_first
        self.mixed_memory = mixed_memory
        self.solver = solver
        self.config = config
        if mixed_memory:
            self.lstm = LSTMGates(self.input_size, self.state_size)
        # In a list, so that the weights keep the names they have in ncps and no second ones.
        self._mixed: list[MixedMemoryCell] = []
        self.fc: nn.Module = nn.Identity() if proj_size is None else nn.Linear(self.output_size, proj_size)

    @property
    def cell(self) -> AnyCell:
        """The cell that the solver runs; it shares the weights of this module, and is the same object until one of its parts is replaced."""
        if not self.mixed_memory:
            return self.rnn_cell
        if not self._mixed or self._mixed[0].cell is not self.rnn_cell or self._mixed[0].lstm is not self.lstm:
            self._mixed = [MixedMemoryCell(self.rnn_cell, self.lstm)]
        return self._mixed[0]

    def forward(
        self,
        input: Float[Tensor, "*lead input"],
        hx: States | None = None,
        timespans: Tensor | float | None = None,
    ) -> tuple[Tensor, States]:
        """The outputs and the last state.

        `input` is `(time, input)`, `(batch, time, input)` or, without `batch_first`, `(time, batch, input)`. `hx` is `(batch, state)`,
        `(state,)` without a batch, and a pair (state, memory) with mixed memory; `None` starts at zero. `timespans` are seconds since the
        previous sample, see `elapsed_channel`; `None` means one. Outputs are laid out like `input`, or hold the last sample alone
        where `return_sequences` is false.

        Raises:
            DTypeError: `input` or `hx` has another dtype than the weights.
            InputError: a time span is negative or not finite.
            ShapeError: a shape that fits none of the above, or no sample at all.
        """
        features = self._features(input)
        batched = input.dim() == 3
        elapsed = elapsed_channel(timespans, features, state_size=self.state_size, batched=batched, batch_first=self.batch_first)
        initial = None if hx is None else self._initial(hx, features, batched=batched)
        cell = self.cell
        states = self._run(cell, torch.cat([features, elapsed], dim=-1), initial)
        shown = self.fc(cell.readout(states if self.return_sequences else states[:, -1]))
        last = states[:, -1]
        if not batched:
            shown, last = shown[0], last[0]
        elif self.return_sequences and not self.batch_first:
            shown = shown.transpose(0, 1)
        if not self.mixed_memory:
            return shown, last
        state, memory = last.chunk(2, dim=-1)
        return shown, (state, memory)

    def _features(self, input: Tensor) -> Float[Tensor, "batch time input"]:
        if input.dim() not in (2, 3) or input.shape[-1] != self.input_size:
            leading = "batch, time" if self.batch_first else "time, batch"
            raise ShapeError(
                f"CfC takes inputs of shape (time, {self.input_size}) or ({leading}, {self.input_size}), got {tuple(input.shape)}; "
                "input_size is the number of features, elapsed time goes to timespans",
                shape=tuple(input.shape),
            )
        dtype = next(self.rnn_cell.parameters()).dtype
        if input.dtype != dtype:
            raise DTypeError(
                f"the weights are {dtype} but the input is {input.dtype}; convert one of them with .to()",
                expected=dtype,
                got=input.dtype,
            )
        features = input.unsqueeze(0) if input.dim() == 2 else input if self.batch_first else input.transpose(0, 1)
        if features.shape[1] == 0:
            raise ShapeError(f"CfC needs at least one sample, got an input of shape {tuple(input.shape)}", shape=tuple(input.shape))
        return features

    def _initial(self, hx: States, features: Tensor, *, batched: bool) -> Float[Tensor, "batch state"]:
        parts = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        if isinstance(hx, Tensor) == self.mixed_memory or len(parts) != 1 + self.mixed_memory:
            form = "a pair (state, memory) of tensors, because mixed_memory is on" if self.mixed_memory else "one tensor"
            raise ShapeError(f"hx must be {form}, got {'a tensor' if isinstance(hx, Tensor) else f'{len(parts)} of them'}")
        expected = (features.shape[0], self.state_size) if batched else (self.state_size,)
        for part in parts:
            if part.shape != expected:
                raise ShapeError(
                    f"hx must have shape {expected} for this input (state_size={self.state_size}), got {tuple(part.shape)}",
                    expected=expected,
                    got=tuple(part.shape),
                )
            if part.dtype != features.dtype:
                raise DTypeError(
                    f"the input is {features.dtype} but hx is {part.dtype}; convert hx with .to()",
                    expected=features.dtype,
                    got=part.dtype,
                )
        state = torch.cat(parts, dim=-1)
        return state if batched else state.unsqueeze(0)

    def _run(self, cell: AnyCell, x: Float[Tensor, "batch time input"], initial: Tensor | None) -> Float[Tensor, "batch time state"]:
        if self.solver == "sequential":
            return sequential_apply(cell, x, h0=initial)
        config = self.config
        if config is None and self.solver == "newton":
            # Intervals of the square root of the length share the work evenly between walking them and joining them.
            config = NewtonConfig(interval=math.isqrt(x.shape[1]))
        return newton_apply(cell, x, config, h0=initial)

    def extra_repr(self) -> str:
        return f"proj_size={self.proj_size}, return_sequences={self.return_sequences}, batch_first={self.batch_first}, solver={self.solver!r}"
