"""Parameter groups for an optimiser: state-space parameters learn slower and without weight decay.

What a parameter asks for is its attribute `_optim`, a dict of optimiser options, as in state-spaces. `copy.deepcopy` drops attributes of
parameters, so layers remember the options by name (`options_of`) and put them back (`mark`).

Source: Gu, Goel, Re (2022), appendix on optimisation: a learning rate of at most 1e-3 and no weight decay for the parameters of the state space.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from torch import nn

from pararnn.errors import ConfigError

Options: TypeAlias = dict[str, Any]

ORDINARY, NO_DECAY, STATE_SPACE = "ordinary", "no decay", "state space"


def param_groups(
    model: nn.Module, *, lr: float | None = None, weight_decay: float | None = None, ssm_lr: float | None = 1e-3, decay_norms: bool = True
) -> list[Options]:
    """Groups of the trainable parameters of `model`, to be given to any `torch.optim` optimiser.

    Args:
        model: any module; its parameters with an attribute `_optim` are those of the state spaces.
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
    groups: dict[tuple[tuple[str, Any], ...], Options] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        own = getattr(parameter, "_optim", None)
        options = _present(lr=lr, weight_decay=weight_decay)
        if own is not None:
            slow = {} if name.rpartition(".")[2] == "C" else _present(lr=ssm_lr)
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


def options_of(module: nn.Module) -> dict[str, Options]:
    """The optimiser options that parameters of `module` ask for, by name."""
    return {name: dict(parameter._optim) for name, parameter in module.named_parameters() if hasattr(parameter, "_optim")}


def mark(module: nn.Module, options: dict[str, Options]) -> None:
    """Let the parameters of `module` ask for `options` (as from `options_of`)."""
    for name, parameter in module.named_parameters():
        if name in options:
            parameter._optim = dict(options[name])  # type: ignore[attr-defined]


def _present(**options: float | None) -> Options:
    return {name: value for name, value in options.items() if value is not None}
