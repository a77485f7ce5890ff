"""Steps inside contexts that a caller may have opened around them: `inference_mode`, `no_grad`, `autocast`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from pararnn.errors import ConfigError

Method = TypeVar("Method", bound=Callable[..., Any])


def keeps_state(method: Method) -> Method:
    """Run `method` outside `torch.inference_mode`: tensors made in there could never be written to, or learned through, again."""

    @functools.wraps(method)
    def outside(*args: Any, **options: Any) -> Any:
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):
                return method(*args, **options)
        return method(*args, **options)

    return cast(Method, outside)


def plain(value: Tensor) -> Tensor:
    """`value` without what ties it to its maker: a graph that gradients would flow back into, or inference mode."""
    if value.is_inference():
        return value.clone()
    return value.detach() if value.requires_grad else value


def refuse_autocast(device: torch.device) -> None:
    """Raise `ConfigError` where autocast would change the precision of single operations in the middle of a rule."""
    if torch.is_autocast_enabled(device.type):
        raise ConfigError(
            f"torch.autocast is active for {device.type}; a learner keeps its sums and statistics in float32 by itself, and has to know the dtype of "
            "all else: take the step out of autocast, and for half precision make the network so, Network.rnn(..., dtype=torch.bfloat16)",
            device=str(device),
        )
