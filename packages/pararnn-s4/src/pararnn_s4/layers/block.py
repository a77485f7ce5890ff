"""A residual block: normalisation, a layer over time, dropout, and the sum with what came in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError
from pararnn_s4.layers.layer import LayerStep, SSMLayer
from pararnn_s4.layers.lengths import Lengths, row_lengths
from pararnn_s4.layers.normalisation import Norm
from pararnn_s4.modules.dropout import DropoutNd


class ResidualBlock(nn.Module):
    """`x + dropout(layer(norm(x)))` with `prenorm`, else `norm(x + dropout(layer(x)))`; features `(batch, length, d_model)`.

    Raises:
        ConfigError: the layer does not give as many features as it takes.
    """

    def __init__(
        self,
        layer: SSMLayer,
        *,
        norm: str | None,
        prenorm: bool,
        dropout: float,
        tie_dropout: bool,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if layer.d_output != layer.d_model or layer.options.transposed:
            raise ConfigError(
                f"a residual block needs a layer of {layer.d_model} features in and out over (batch, length, features); this one gives "
                f"{layer.d_output}, transposed={layer.options.transposed}; leave final_act and transposed as they are"
            )
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.layer = layer
        self.norm = Norm(norm, layer.d_model, **place)
        self.prenorm = prenorm
        self.tie_dropout = tie_dropout
        self.drop = DropoutNd(dropout, tie=tie_dropout, transposed=False) if dropout > 0 else nn.Identity()

    def forward(
        self, x: Tensor, state: Tensor | None = None, *, lengths: Lengths | None = None, rate: float = 1.0, return_state: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Features of the shape of `x` `(batch, length, d_model)`, and with `return_state` the state after the last sample; see `S4`."""
        counts = row_lengths(lengths, x.shape[0], x.shape[1], x.device)
        branch = self.norm(x, counts) if self.prenorm else x
        branch = self.layer(branch, state, lengths=lengths, rate=rate, return_state=return_state)
        branch, after = branch if return_state else (branch, None)
        x = x + self.drop(branch)
        x = x if self.prenorm else self.norm(x, counts)
        return x if after is None else (x, after)

    def step_with(self, step: LayerStep, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """One sample `(batch, d_model)`, with the layer advanced by `step`."""
        if self.training and self.tie_dropout and not isinstance(self.drop, nn.Identity):
            raise ConfigError("step in training mode cannot draw a dropout mask that is one for a whole sequence; call eval() before decoding")
        branch, after = step(self.norm.step(x) if self.prenorm else x, state)
        # One sample is a sequence of length one to the dropout, which tells features and time apart.
        x = x + self.drop(branch.unsqueeze(1)).squeeze(1)
        return (x if self.prenorm else self.norm.step(x)), after
