"""Outputs of a state space over whole sequences: by convolution with its kernel, or by a scan over chunks of time."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_s4.cells.outputs import scan_outputs
from pararnn_s4.layers.convolution import convolve
from pararnn_s4.layers.options import LayerOptions
from pararnn_s4.planner import plan
from pararnn_s4.state_space.dplr import DPLRSSM


def over_time(
    ssm: Any,
    skip: Tensor,
    signal: Tensor,
    state: Tensor | None,
    counts: Tensor | None,
    *,
    options: LayerOptions,
    rate: float,
    return_state: bool,
    training: bool,
) -> tuple[Tensor, Tensor | None]:
    """Outputs of `ssm` and `skip` `(batch, heads, features, length)` for `signal` `(batch, features, length)`, and the state after it.

    Raises:
        ConfigError: a state was asked for where the kernel is cut.
    """
    batch, features, length = signal.shape
    # An empty chunk leaves the state as it is; the kernel has one lag at least, so that no formula need mind.
    lags = max(1, length if options.l_max is None else min(length, round(options.l_max / rate)))
    if lags < length and (state is not None or return_state):
        raise ConfigError(
            f"the kernel is cut at l_max={options.l_max} (rate {rate}), so a sequence of {length} has no state that stands for its past; "
            "make the layer with l_max=None, or feed chunks of at most l_max samples"
        )
    cut = lags < length or bool(options.bidirectional) or (training and options.drop_kernel > 0)
    method = "convolution" if cut or options.method == "convolution" or length == 0 else options.method
    if method == "auto":
        sizes = {"batch": batch, "length": length, "d_model": features, "state": ssm.d_state, "channels": options.heads}
        chosen = plan(**sizes, device=signal.device, dplr=isinstance(ssm, DPLRSSM), has_state=state is not None, needs_state=return_state)
        method = chosen.method
    if method == "scan":
        y, after = scan_outputs(ssm, signal, state, D=skip, rate=rate, lengths=counts if return_state else None)
        return y, after if return_state else None
    system = ssm(rate=rate)
    kernel = F.dropout(system.kernel(lags), options.drop_kernel, training)
    ahead, behind = (kernel[options.heads :], kernel[: options.heads]) if options.bidirectional else (None, kernel)
    # The skip D x is a kernel of one lag: adding it there saves two passes over the outputs.
    behind = behind + F.pad(skip.unsqueeze(-1), (0, lags - 1))
    y = convolve(signal, behind, ahead, lead=int(options.bidirectional == "exclusive"))
    if state is not None and length:
        y = y + system.response(state, length)
    if not return_state:
        return y, None
    if length == 0:
        return y, ssm.initial_state(batch) if state is None else state
    return y, system.advance(signal, state, counts)
