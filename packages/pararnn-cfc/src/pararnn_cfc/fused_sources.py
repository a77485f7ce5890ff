"""What a fused solve follows from, and the views of it that engines read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from pararnn_cfc.parallel import ParaCfC

PLAIN = (Tensor, nn.Parameter)


class Sources(NamedTuple):
    """What the states follow from: samples `(batch, time, d_in)`, projection `(2 state, d_in - 1)`, bias, `u` `(state,)`, `(sequences, state)`."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    u: Tensor
    initial: Tensor


class Needs(NamedTuple):
    """Of which sources gradients are wanted."""

    x: bool
    weight: bool
    bias: bool
    u: bool
    initial: bool


def weights_of(cell: ParaCfC) -> tuple[Tensor, Tensor | None, Tensor]:
    """Projection, bias, and recurrent weights."""
    if torch.compiler.is_compiling():
        return cell.W_x.weight, cell.W_x.bias, cell.u
    # Attributes of modules are slow to look up, but for what lies in these dictionaries; a parametrised weight lies elsewhere.
    layer: Any = cell._modules["W_x"]
    weight, bias, u = layer._parameters.get("weight"), layer._parameters.get("bias"), cell._parameters.get("u")
    return (
        layer.weight if weight is None else weight,
        layer.bias if bias is None else bias,
        cell.u if u is None else u,
    )


def fit(cell: ParaCfC, sources: Sources, sequences: int, dtype: torch.dtype, *, packed: bool) -> bool:
    """Whether the sources are plain tensors of the shapes, dtypes and device that they should have, and there is something to solve."""
    x, weight, bias, u, initial = sources
    own, state, device = x.dtype, cell.d_h, x.device
    return (
        type(x) in PLAIN
        and type(weight) in PLAIN
        and type(u) in PLAIN
        and type(initial) in PLAIN
        and own == weight.dtype == u.dtype
        and dtype == initial.dtype
        and device == weight.device == u.device == initial.device
        and x.shape[2] == cell.d_in
        and weight.shape == (2 * state, cell.d_in - 1)
        and u.shape == (state,)
        and initial.shape == (sequences, state)
        and (bias is None or (type(bias) in PLAIN and bias.dtype == own and bias.device == device and bias.shape == (2 * state,)))
        and own.is_floating_point
        # Numbers that are to be read with another sign; in a compiled graph the operator sees to them.
        and (torch.compiler.is_compiling() or not any(source is not None and source.is_neg() for source in sources))
        # Nothing to solve is left to the solver, which a graph cannot hold; its operator solves nothing too.
        and (torch.compiler.is_compiling() or x.numel() > 0)
        and (not packed or x.shape[0] == 1)
    )


def features_of(samples: Tensor) -> Tensor:
    """The features `(batch * time, d_in - 1)`, a view where memory allows."""
    batch, time, width = samples.shape
    if samples.is_contiguous():
        # In one step instead of three: small solves are bound by such steps.
        return samples.as_strided((batch * time, width - 1), (width, 1))
    return samples.flatten(0, 1)[:, :-1]


def projections_of(samples: Tensor, wx: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rate and candidate `(batch, time, state)`, views of `wx`, and the gaps `(batch, time, 1)`."""
    batch, time, _ = samples.shape
    both = wx.shape[1]
    size, strides, start = (batch, time, both // 2), (time * both, both, 1), wx.storage_offset()
    return wx.as_strided(size, strides, start), wx.as_strided(size, strides, start + both // 2), samples[..., -1:]


def constants_of(sources: Sources) -> tuple[Tensor, ...]:
    """What is the same at all steps: recurrent weights, and the biases of both projections."""
    return (sources.u,) if sources.bias is None else (sources.u, *sources.bias.chunk(2))
