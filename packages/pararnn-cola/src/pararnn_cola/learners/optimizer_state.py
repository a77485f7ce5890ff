"""The state of an optimizer in a checkpoint: looked at before it is loaded, and loaded to the bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pararnn_cola.errors import StreamError


def check_optimizer(optimizer: torch.optim.Optimizer, saved: object) -> None:
    """Raise `StreamError` if `saved` cannot be a state of `optimizer`: other groups, or tensors that fit no parameter."""
    if not isinstance(saved, dict) or not {"state", "param_groups"} <= saved.keys() or not isinstance(saved["state"], dict):
        raise StreamError("the checkpoint's optimizer is no state_dict of one; it is damaged")
    own = optimizer.state_dict()["param_groups"]
    sizes = [[len(group["params"]) for group in groups] for groups in (saved["param_groups"], own)]
    if sizes[0] != sizes[1]:
        raise StreamError(
            f"the checkpoint's optimizer moved other parameters than this one ({sizes[0]} in its groups, {sizes[1]} here); make it from the same"
        )
    moved: dict[object, Tensor] = {}
    for mine, theirs, group in zip(own, saved["param_groups"], optimizer.param_groups, strict=True):
        if missing := sorted(mine.keys() - theirs.keys()):
            raise StreamError(f"the checkpoint's optimizer has no {', '.join(missing)}; it is damaged, or of another version of torch")
        moved.update(zip(theirs["params"], group["params"], strict=True))
    builtin = type(optimizer).__module__.startswith("torch.optim")
    for place, state in saved["state"].items():
        for name, value in state.items():
            # An optimizer of somebody else may keep what it likes; those of torch keep sums over a parameter, or over its rows or columns.
            if builtin and isinstance(value, Tensor) and place in moved and not _spread(value, moved[place]):
                raise StreamError(
                    f"the optimizer's {name} of parameter {place} is {tuple(value.shape)} in the checkpoint, the parameter "
                    f"{tuple(moved[place].shape)}; it is damaged, or of another network",
                    name=name,
                )


def load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load `saved` into `optimizer`, with numbers that it keeps in the precision that they were saved in.

    Torch casts them to that of their parameter, after which a stream does not go on to the bit (NAdam's `mu_product`).
    """
    optimizer.load_state_dict(saved)
    places = [place for group in saved["param_groups"] for place in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for place, parameter in zip(places, parameters, strict=True):
        for name, value in saved["state"].get(place, {}).items():
            loaded = optimizer.state[parameter].get(name)
            if isinstance(value, Tensor) and isinstance(loaded, Tensor) and value.dim() == 0 and value.dtype != loaded.dtype:
                optimizer.state[parameter][name] = value.to(loaded.device, copy=True)


def _spread(value: Tensor, parameter: Tensor) -> bool:
    sizes = zip(reversed(value.shape), reversed(parameter.shape), strict=False)
    return value.dim() <= parameter.dim() and all(size in (1, whole) for size, whole in sizes)
