"""The cell of the CfC paper in the parametrisation of `ncps.torch.CfCCell`, as a cell for the parallel solver.

A backbone sees features and state, heads read the backbone, and a gate driven by elapsed time mixes the heads. What does not see the state
is computed for the whole sequence in `drive`. Parameter names and the order of initialisation are those of ncps: weights load from there,
and equal seeds give equal weights.

Source: Hasani et al., "Closed-form continuous-time neural networks", Nature Machine Intelligence, 2022, arXiv 2106.13898, eq. (10), Fig. 4.
"""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pararnn.errors import ConfigError
from pararnn.structures.dense import Dense
from pararnn_cfc.affine import is_plain, require_plain
from pararnn_cfc.backbone import Activation, Backbone
from pararnn_cfc.timespans import split_elapsed

Mode: TypeAlias = Literal["default", "pure", "no_gate"]

# A mix of two tanh, a sum of two tanh; the pure mode has no such range.
STATE_BOUNDS: dict[str, tuple[float, float] | None] = {"default": (-1.0, 1.0), "no_gate": (-2.0, 2.0), "pure": None}


class CfCDrive(NamedTuple):
    """What a step needs besides the state: the feature part of the first layer, and elapsed time (one value, or one for each unit)."""

    inputs: Tensor
    elapsed: Tensor


class DroppedCfCDrive(NamedTuple):
    """`CfCDrive` with dropout factors, drawn once for a sequence so that the parallel and the walked solve see the same ones."""

    inputs: Tensor
    elapsed: Tensor
    keep: Tensor


class CfCCell(nn.Module):
    """One CfC layer; its inputs are features followed by the elapsed time in the last channel.

    With `r` the backbone's output and `s = sigmoid(time_a(r) elapsed + time_b(r))`, mode `default` gives
    `(1 - s) tanh(ff1(r)) + s tanh(ff2(r))`, `no_gate` gives `tanh(ff1(r)) + s tanh(ff2(r))`, and `pure` gives
    `A - A exp(-elapsed (|w_tau| + |ff1(r)|)) ff1(r)`.

    With `backbone_layers=0` the heads see features and state directly. `sparsity_mask`, of the shape of the head weights, multiplies the
    weights of `ff1` and `ff2` and is not trained. `backbone_dropout` acts from the second layer on, as in ncps: with one it does nothing.

    Raises:
        ConfigError: a size, mode, activation or dropout that cannot work.
    """

    structure = Dense

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        mode: Mode = "default",
        backbone_activation: Activation = "lecun_tanh",
        backbone_units: int = 128,
        backbone_layers: int = 1,
        backbone_dropout: float = 0.0,
        sparsity_mask: Float[Tensor, "state inputs"] | None = None,
    ) -> None:
        super().__init__()
        if input_size < 1 or hidden_size < 1 or backbone_layers < 0:
            sizes = f"input_size={input_size}, units={hidden_size}, backbone_layers={backbone_layers}"
            raise ConfigError(f"a CfC cell needs at least one feature, one unit and no negative number of layers, got {sizes}")
        if mode not in get_args(Mode):
            raise ConfigError(f"mode {mode!r} is unknown; choose one of {', '.join(get_args(Mode))}")
        self.input_size = input_size
        self.state_size = hidden_size
        self.output_size = hidden_size
        self.mode = mode
        self.state_bounds = STATE_BOUNDS[mode]
        # A buffer where ncps has a frozen parameter: unfreezing all parameters cannot train it, and the key in the state_dict is the same.
        self.sparsity_mask: Tensor | None
        self.register_buffer("sparsity_mask", sparsity_mask)
        self.backbone: Backbone | None = None
        head_inputs = input_size + hidden_size
        if backbone_layers:
            self.backbone = Backbone(
                input_size,
                hidden_size,
                units=backbone_units,
                layers=backbone_layers,
                activation=backbone_activation,
                dropout=backbone_dropout,
            )
            head_inputs = backbone_units
        self.ff1 = nn.Linear(head_inputs, hidden_size)
        if mode == "pure":
            self.w_tau = nn.Parameter(torch.zeros(1, hidden_size))
            self.A = nn.Parameter(torch.ones(1, hidden_size))
        else:
            self.ff2 = nn.Linear(head_inputs, hidden_size)
            self.time_a = nn.Linear(head_inputs, hidden_size)
            self.time_b = nn.Linear(head_inputs, hidden_size)
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.xavier_uniform_(weight)

    @property
    def head_names(self) -> tuple[str, ...]:
        """The affine maps that read the backbone."""
        return ("ff1",) if self.mode == "pure" else ("ff1", "ff2", "time_a", "time_b")

    def initial_state(self, batch: int) -> Float[Tensor, "batch state"]:
        """Zeros, in the dtype and on the device of the weights."""
        return next(self.parameters()).new_zeros(batch, self.state_size)

    def drive(self, x: Float[Tensor, "batch time input"]) -> CfCDrive | DroppedCfCDrive:
        """The state-free part of every step; in training with dropout it holds the factors of this call.

        Raises:
            CellError: a layer that is split was replaced by one that cannot be.
            ShapeError: `x` is not as wide as the features and the elapsed time.
        """
        self.require_plain()
        features, elapsed = split_elapsed(x, input_size=self.input_size, state_size=self.state_size)
        inputs = self.project(features)
        keep = None if self.backbone is None else self.backbone.draw_keep(inputs)
        return CfCDrive(inputs, elapsed) if keep is None else DroppedCfCDrive(inputs, elapsed, keep)

    def require_plain(self) -> None:
        """Raise `CellError` where a layer that is split, or whose weight is masked, is not a plain Linear layer."""
        if self.backbone is not None:
            require_plain(self.backbone.first, "the first layer of the backbone")
        for name in self.head_names if self.backbone is None else [name for name in self.head_names if self._is_masked(name)]:
            require_plain(getattr(self, name), name)

    def project(self, features: Float[Tensor, "*lead input"]) -> Float[Tensor, "*lead first"]:
        """The feature part of the first affine maps that see the state: the backbone's first layer or, without one, all heads."""
        if self.backbone is not None:
            return self.backbone.project(features)
        columns = slice(0, self.input_size)
        heads = [F.linear(features, self._weight(name)[:, columns], getattr(self, name).bias) for name in self.head_names]
        return torch.cat(heads, dim=-1)

    def step(self, state: Float[Tensor, "*lead state"], drive: CfCDrive | DroppedCfCDrive) -> Float[Tensor, "*lead state"]:
        """The state after one sample."""
        if self.backbone is None:
            return self._mix(drive.elapsed, *self._direct_heads(state, drive.inputs))
        reading = self.backbone.read(state, drive.inputs, _keep(drive))
        return self._mix(drive.elapsed, *(self._head(name, reading) for name in self.head_names))

    def linearize(self, state: Float[Tensor, "*lead state"], drive: CfCDrive | DroppedCfCDrive) -> tuple[Tensor, Dense]:
        """`step` and its Jacobian: the heads' derivatives pulled back through the backbone, one matrix product a layer."""
        if self.backbone is None:
            following, rows = self.linearize_direct(state, drive)
            return following, Dense(rows[..., self.input_size :])
        if not self.backbone.has_known_slopes or not all(is_plain(getattr(self, name)) for name in self.head_names):
            return Dense.linearize(lambda inner: self.step(inner, drive), state)
        reading, pull_back = self.backbone.read_with_pullback(state, drive.inputs, _keep(drive))
        heads = [self._head(name, reading) for name in self.head_names]
        following, rows = self._mix_rows(drive.elapsed, heads, [self._weight(name) for name in self.head_names])
        return following, Dense(pull_back(rows))

    def linearize_direct(self, state: Float[Tensor, "*lead state"], drive: CfCDrive | DroppedCfCDrive) -> tuple[Tensor, Tensor]:
        """`step` of a cell without a backbone and its derivative by features and state side by side, `(*lead, state, inputs)`."""
        heads = self._direct_heads(state, drive.inputs)
        return self._mix_rows(drive.elapsed, heads, [self._weight(name) for name in self.head_names])

    def readout(self, states: Float[Tensor, "*lead state"]) -> Float[Tensor, "*lead state"]:
        """The states themselves."""
        return states

    def _is_masked(self, name: str) -> bool:
        return self.sparsity_mask is not None and name in ("ff1", "ff2")

    def _weight(self, name: str) -> Tensor:
        weight: Tensor = getattr(self, name).weight
        return weight * self.sparsity_mask if self.sparsity_mask is not None and self._is_masked(name) else weight

    def _head(self, name: str, reading: Tensor) -> Tensor:
        layer = getattr(self, name)
        value: Tensor = F.linear(reading, self._weight(name), layer.bias) if self._is_masked(name) else layer(reading)
        return value

    def _direct_heads(self, state: Tensor, inputs: Tensor) -> list[Tensor]:
        columns = slice(self.input_size, None)
        parts = inputs.chunk(len(self.head_names), dim=-1)
        return [part + F.linear(state, self._weight(name)[:, columns]) for part, name in zip(parts, self.head_names, strict=True)]

    def _mix(self, elapsed: Tensor, *heads: Tensor) -> Tensor:
        if self.mode == "pure":
            level, (rate,) = self.A[0], heads
            return level - level * torch.exp(-elapsed * (self.w_tau[0].abs() + rate.abs())) * rate
        early, late = torch.tanh(heads[0]), torch.tanh(heads[1])
        gate = torch.sigmoid(heads[2] * elapsed + heads[3])
        return early + gate * late if self.mode == "no_gate" else early * (1.0 - gate) + gate * late

    def _mix_rows(self, elapsed: Tensor, heads: list[Tensor], weights: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The mixed heads, and their derivative by what `weights` act on."""
        products = [slope.unsqueeze(-1) * weight for slope, weight in zip(self._mix_slopes(elapsed, *heads), weights, strict=True)]
        return self._mix(elapsed, *heads), functools.reduce(torch.add, products)

    def _mix_slopes(self, elapsed: Tensor, *heads: Tensor) -> tuple[Tensor, ...]:
        """The derivative of `_mix` by each head; unit `i` of the mix sees unit `i` of each head alone."""
        if self.mode == "pure":
            (rate,) = heads
            decayed = torch.exp(-elapsed * (self.w_tau[0].abs() + rate.abs()))
            return (self.A[0] * decayed * (elapsed * rate.abs() - 1.0),)
        early, late = torch.tanh(heads[0]), torch.tanh(heads[1])
        gate = torch.sigmoid(heads[2] * elapsed + heads[3])
        by_gate = (late if self.mode == "no_gate" else late - early) * gate * (1.0 - gate)
        by_early = 1.0 - early.square()
        return by_early if self.mode == "no_gate" else by_early * (1.0 - gate), (1.0 - late.square()) * gate, by_gate * elapsed, by_gate

    def extra_repr(self) -> str:
        return f"input_size={self.input_size}, units={self.state_size}, mode={self.mode!r}"


def _keep(drive: CfCDrive | DroppedCfCDrive) -> Tensor | None:
    return drive.keep if isinstance(drive, DroppedCfCDrive) else None
