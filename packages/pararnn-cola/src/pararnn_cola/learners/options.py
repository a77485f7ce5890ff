"""The options of a rule by name, and what to say of one that it does not have."""

from __future__ import annotations

import difflib
import inspect
import math
import numbers
from collections.abc import Mapping
from typing import Any, NoReturn

from torch import Tensor

from pararnn.errors import ConfigError


def options_of(rule: type) -> list[str]:
    """The names of all options of `rule`, its own first; the network is none."""
    found: list[str] = []
    for kind in rule.__mro__:
        if "__init__" in vars(kind):
            parameters = inspect.signature(vars(kind)["__init__"]).parameters.values()
            named = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
            found += [name for name in named if name not in ("self", "network", *found)]
    return found


def refuse_unknown(rule: type, unknown: Mapping[str, Any]) -> NoReturn:
    """Raise `ConfigError` for options that no class of `rule` knows."""
    known, names = options_of(rule), ", ".join(unknown)
    near = [match for name in unknown for match in difflib.get_close_matches(name, known, n=3, cutoff=0.5)]
    hint = f" (did you mean {' or '.join(dict.fromkeys(near))}?)" if near else ""
    raise ConfigError(f"{rule.__name__} has no option {names}{hint}; its options are {', '.join(known)}", unknown=list(unknown))


def check_numbers(lr: object, clip: object) -> None:
    """Raise `ConfigError` if the rate or the bound of the gradient's norm is no number that could be one."""
    rate = _number(lr)
    if rate is None or not 0 <= rate < math.inf:
        raise ConfigError(f"lr={lr!r}; a rate is a finite number, not negative (an optimizer that is given has its own)", lr=lr)
    bound = _number(clip)
    if clip is not None and (bound is None or not bound > 0):
        raise ConfigError(f"clip={clip!r}; the bound of a gradient's norm is above zero, or None for no bound", clip=clip)


def _number(value: object) -> float | None:
    """`value` as a number, the least of a tensor of them; None where it is none."""
    if isinstance(value, Tensor):
        return None if value.numel() == 0 or value.is_complex() else float(value.min())
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else None
