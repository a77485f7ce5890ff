"""`S4Model`: S4 or S4D layers stacked as residual blocks, for classification and regression of sequences."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError, ShapeError
from pararnn.scans.api import HALF
from pararnn_s4.layers.block import ResidualBlock
from pararnn_s4.layers.checks import (
    check_entry,
    check_parameter_dtype,
    check_probability,
    check_sample,
    check_sequences,
    checked_count,
    checked_rate,
)
from pararnn_s4.layers.layer import LayerStep, SSMLayer
from pararnn_s4.layers.lengths import Checked, Lengths, mask, row_lengths
from pararnn_s4.layers.normalisation import Norm
from pararnn_s4.layers.pooling import Pool, pool
from pararnn_s4.layers.s4 import S4
from pararnn_s4.layers.s4d import S4D
from pararnn_s4.state_space.names import require_options

if TYPE_CHECKING:
    from pararnn_s4.layers.decoder import ModelDecoder

LAYERS: dict[str, type[S4] | type[S4D]] = {"s4": S4, "s4d": S4D}


class ModelState(NamedTuple):
    """What a model knows of the samples so far.

    Attributes:
        layers: the state of each layer, `(batch, features, d_state / 2)`.
        summary: what pooling needs: the sum of features, or the latest ones, `(batch, d_model)`; zeros without pooling.
        seen: samples of each row so far, `(batch,)`.
    """

    layers: tuple[Tensor, ...]
    summary: Tensor
    seen: Tensor


class S4Model(nn.Module):
    """A linear `encoder`, residual blocks of a state-space layer, pooling, a linear `head`.

    The defaults are those of the model that state-spaces gives as an example: 4 layers of 128 features, each followed by its norm, and a mean at the
    end. The mean lets every sample reach the outputs by a short way, so that training starts before the layers remember anything; take `pool="last"`
    where the end decides. A layer norm looks at one sample at a time, so that steps, chunks and padding change nothing, and needs no running
    statistics. A norm after the sum keeps features at one scale, which suits few layers; deep stacks train more steadily with `prenorm=True`, which
    leaves a path through all blocks that no norm interrupts.

    Args:
        d_input: features of a sample.
        d_output: classes, or values to regress.
        d_model: features inside.
        n_layers: residual blocks.
        layer: `"s4d"` (diagonal) or `"s4"` (diagonal plus low rank).
        pool: `"mean"` over time, the `"last"` sample, or None: an output for every sample.
        norm: `"layer"`, `"rms"`, `"batch"` or None.
        prenorm: normalise the input of each layer (and the last output), else the sum after it.
        dropout: probability on the output of each layer; tied over time with `tie_dropout`, as state-spaces trains.
        layer_options: options of every layer, as `d_state`, `dt_min`, `init`, `bidirectional`, `gate`; see `S4`.

    Raises:
        ConfigError: an option that cannot work.
        DTypeError: `dtype` is no floating one.
    """

    def __init__(
        self,
        d_input: int,
        d_output: int,
        d_model: int = 128,
        n_layers: int = 4,
        *,
        layer: Literal["s4d", "s4"] = "s4d",
        pool: Pool = "mean",
        norm: Literal["layer", "rms", "batch"] | None = "layer",
        prenorm: bool = False,
        dropout: float = 0.0,
        tie_dropout: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **layer_options: Any,
    ) -> None:
        super().__init__()
        if layer not in LAYERS:
            raise ConfigError(f"layer={layer!r} is unknown; choose 's4d' or 's4'")
        if pool not in ("mean", "last", None):
            raise ConfigError(f"pool={pool!r} is unknown; choose 'mean', 'last' or None for an output at every sample")
        d_input, d_output = checked_count("d_input", d_input), checked_count("d_output", d_output)
        d_model, n_layers = checked_count("d_model", d_model), checked_count("n_layers", n_layers)
        check_probability("dropout", dropout)
        check_parameter_dtype(dtype)
        default_init = inspect.signature(LAYERS[layer]).parameters["init"].default
        require_options(layer_options, layer_options.get("init", default_init), type(self), LAYERS[layer])
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.d_input = d_input
        self.pool: Pool = pool
        self.encoder = nn.Linear(d_input, d_model, **place)
        self.blocks = nn.ModuleList(
            ResidualBlock(
                LAYERS[layer](d_model, **layer_options, **place), norm=norm, prenorm=prenorm, dropout=dropout, tie_dropout=tie_dropout, **place
            )
            for _ in range(n_layers)
        )
        self.norm = Norm(norm if prenorm else None, d_model, **place)
        self.head = nn.Linear(d_model, d_output, **place)

    def forward(
        self,
        x: Tensor,
        state: ModelState | None = None,
        lengths: Lengths | None = None,
        rate: float = 1.0,
        return_state: bool = False,
    ) -> Any:
        """Outputs `(batch, d_output)`, or `(batch, length, d_output)` without pooling; with `return_state` also the state after the last sample.

        Args:
            x: `(batch, length, d_input)`.
            state: what is known of the samples before, from `init_state` or an earlier call. Chunks that hand it on pool over all of them, so that
                the outputs of the last chunk are those of the whole sequence.
            lengths: samples of each row that count: an int for all rows, or a list, tuple or tensor of one int a row; padding enters neither states
                nor pooling.
            rate: the time between samples over that of training: 2 for data sampled half as often. Exact: the state spaces are sampled anew.
            return_state: whether to return `(outputs, state)`.

        Raises:
            ShapeError, DTypeError, InputError, ConfigError: inputs that do not fit; the message says how.
        """
        check_sequences(x, size=self.d_input, name="d_input", owner="S4Model", dtype=self.encoder.weight.dtype)
        rate = checked_rate(rate)
        counts = row_lengths(lengths, x.shape[0], x.shape[1], x.device)
        befores, summary, seen = self._before(state, x.shape[0])
        if counts is not None:
            # What the encoder makes of NaN takes no gradient, but 0 * NaN would be one of its weights.
            x = x.masked_fill(~mask(counts, x.shape[1]).unsqueeze(-1), 0)
        features = self.encoder(x)
        asked: dict[str, Any] = {"lengths": None if counts is None else Checked(counts), "rate": rate, "return_state": return_state}
        afters: list[Any] = []
        for block, before in zip(self.blocks, befores, strict=True):
            features = block(features, before, **asked)
            if return_state:
                features, after = features
                afters.append(after)
        features = self.norm(features, counts)
        features, summary, seen = pool(features, counts, self.pool, summary, seen)
        output = self.head(features)
        return (output, ModelState(tuple(afters), summary, seen)) if return_state else output

    def init_state(self, batch: int) -> ModelState:
        """The state before the first sample.

        Raises:
            ConfigError: the layers are bidirectional, or `batch` is no count.
        """
        batch = checked_count("batch", batch, least=0)
        return ModelState(tuple(block.layer.init_state(batch) for block in self.residual_blocks()), *self.nothing_seen(batch))

    def step(self, x: Tensor, state: ModelState | None = None, *, rate: float = 1.0, mode: str = "linear") -> tuple[Tensor, ModelState]:
        """One sample `(batch, d_input)`: outputs `(batch, d_output)`, pooled over the samples so far, and the next state; see `S4.step`.

        Args:
            x: one sample a row.
            state: what is known of the samples before, from `init_state` or an earlier call; nothing if left out.
            rate: as in `forward`.
            mode: the form of a step, see `S4.decoder`.
        """
        rate = checked_rate(rate)
        return self.step_with([_layer_step(block.layer, rate, mode) for block in self.residual_blocks()], x, state)

    def step_with(self, steps: Sequence[LayerStep], x: Tensor, state: ModelState | None) -> tuple[Tensor, ModelState]:
        """`step` with each layer advanced by its own of `steps`."""
        check_sample(x, size=self.d_input, name="d_input", owner="S4Model", dtype=self.encoder.weight.dtype)
        befores, summary, seen = self._before(state, x.shape[0])
        features = self.encoder(x)
        afters: list[Any] = []
        for block, step, before in zip(self.residual_blocks(), steps, befores, strict=True):
            features, after = block.step_with(step, features, before)
            afters.append(after)
        features, summary, seen = pool(self.norm.step(features).unsqueeze(1), None, self.pool, summary, seen)
        return self.head(features.squeeze(1) if self.pool is None else features), ModelState(tuple(afters), summary, seen)

    def decoder(self, mode: str = "linear", *, rate: float = 1.0) -> ModelDecoder:
        """The steps of this model as it is now, with the constants of its state spaces computed once.

        Args:
            mode: the form of a step, see `S4.decoder`.
            rate: as in `forward`.

        Raises:
            ConfigError: the layers are bidirectional, or `mode` cannot serve.
        """
        from pararnn_s4.layers.decoder import ModelDecoder

        return ModelDecoder(self, mode=mode, rate=rate)

    def residual_blocks(self) -> list[ResidualBlock]:
        """The blocks from the bottom up."""
        return list(self.blocks)  # type: ignore[arg-type]

    def nothing_seen(self, batch: int) -> tuple[Tensor, Tensor]:
        """Summary and count of pooling before the first sample."""
        weight = self.encoder.weight
        wide = torch.float32 if weight.dtype in HALF else weight.dtype
        return weight.new_zeros(batch, weight.shape[0], dtype=wide), weight.new_zeros(batch, dtype=torch.int64)

    def _before(self, state: ModelState | None, batch: int) -> tuple[Sequence[Any], Tensor, Tensor]:
        """The states of the layers (which check them), summary and count before the first sample."""
        summary, seen = self.nothing_seen(batch)
        if state is None:
            return [None] * len(self.blocks), summary, seen
        if not isinstance(state, ModelState) or len(state.layers) != len(self.blocks):
            found = f"one of {len(state.layers)}" if isinstance(state, ModelState) else type(state).__name__
            raise ShapeError(
                f"state must be a ModelState of {len(self.blocks)} layers, got {found}; init_state(batch) and return_state=True give one, and "
                "ModelState(*state) makes one of a plain tuple (layers, summary, seen)"
            )
        check_entry(state.summary, tuple(summary.shape), summary.dtype, "state.summary")
        check_entry(state.seen, tuple(seen.shape), seen.dtype, "state.seen")
        return state


def _layer_step(layer: SSMLayer, rate: float, mode: str) -> LayerStep:
    return lambda x, state: layer.step(x, state, rate=rate, mode=mode)
