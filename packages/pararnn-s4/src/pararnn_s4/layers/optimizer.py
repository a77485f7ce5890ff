"""Parameter groups for an optimiser: state-space parameters learn slower and without weight decay.

What a parameter asks for is its attribute `_optim`, a dict of optimiser options, as in state-spaces. Copies of a parameter, and what
`load_state_dict(assign=True)` or `to_empty` put in its place, have no attributes, so state spaces know by name what theirs ask for
(`StateSpace.optimizer_options`); an attribute, which may be newer, goes before.

Source: Gu, Goel, Re (2022), appendix on optimisation: a learning rate of at most 1e-3 and no weight decay for the parameters of the state space.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from torch import nn

from pararnn.errors import ConfigError
from pararnn_s4.state_space.base import StateSpace

Options: TypeAlias = dict[str, Any]

# `torch.nn.utils.prune` renames a parameter to `NAME_orig`, `parametrize` to `parametrizations.NAME.original`.
OWN_NAME = re.compile(r"(?:^|\.)(?:parametrizations\.)?([^.]+?)(?:_orig)?(?:\.original\d*)?$")
ORDINARY, NO_DECAY, STATE_SPACE = "ordinary", "no decay", "state space"


def param_groups(
    model: nn.Module, *, lr: float | None = None, weight_decay: float | None = None, ssm_lr: float | None = 1e-3, decay_norms: bool = True
) -> list[Options]:
    """Groups of the trainable parameters of `model`, to be given to any `torch.optim` optimiser.

    Args:
        model: any module; the parameters of the state spaces in it, and others with an attribute `_optim`, get what they ask for.
        lr: learning rate of the ordinary parameters, and of the outputs `C` of state spaces; None leaves it to the optimiser.
        weight_decay: weight decay of the ordinary parameters; None leaves it to the optimiser.
        ssm_lr: learning rate of the other state-space parameters (time steps, A, B, P); None: `lr` for them too. A rate that a layer was made
            with (`S4(lr=...)`) goes before.
        decay_norms: whether biases and the scales of normalisations decay like the rest.

    The first group holds the ordinary parameters. Every group has its `name`, which optimisers keep.

    Raises:
        ConfigError: a rate is negative, or `model` has no trainable parameter.
    """
    for option, value in (("lr", lr), ("weight_decay", weight_decay), ("ssm_lr", ssm_lr)):
        if value is not None and not value >= 0:
            raise ConfigError(f"{option} must be at least 0, got {value}")
    asked = _asked(model)
    groups: dict[tuple[tuple[str, Any], ...], Options] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        own = asked.get(id(parameter))
        options = _present(lr=lr, weight_decay=weight_decay)
        if own is not None:
            slow = {} if _own_name(name) == "C" else _present(lr=ssm_lr)
            options, label = {**options, **slow, **own}, STATE_SPACE
        elif not decay_norms and parameter.ndim < 2:
            options, label = {**options, "weight_decay": 0.0}, NO_DECAY
        else:
            label = ORDINARY
        key = (("name", label), *sorted(options.items()))
        groups.setdefault(key, {"params": [], **options, "name": label})["params"].append(parameter)
    if not groups:
        raise ConfigError(f"{type(model).__name__} has no trainable parameter")
    return sorted(groups.values(), key=lambda group: (ORDINARY, NO_DECAY, STATE_SPACE).index(group["name"]))


def _asked(model: nn.Module) -> dict[int, Options]:
    """What parameters ask for, by their id."""
    named: dict[int, Options | None] = {}
    for module in model.modules():
        if isinstance(module, StateSpace):
            named |= {id(parameter): module.optimizer_options.get(_own_name(name)) for name, parameter in module.named_parameters()}
    wanted = ((id(parameter), getattr(parameter, "_optim", named.get(id(parameter)))) for parameter in model.parameters())
    return {key: options for key, options in wanted if options is not None}


def _own_name(name: str) -> str:
    found = OWN_NAME.search(name)
    return found[1] if found else name


def _present(**options: float | None) -> Options:
    return {name: value for name, value in options.items() if value is not None}
