"""Why a `ParaCfC` may not be what its fused kernels compute: another mixing, other methods, or a projection that does more than project."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as modules

from pararnn_cfc.affine import is_plain

if TYPE_CHECKING:
    from pararnn_cfc.parallel import ParaCfC

# What the kernels compute instead of.
MEMBERS = ("structure", "state_size", "drive", "step", "linearize", "_split", "_drive", "_as_drive", "_decay", "_limited", "_state_dtype")
NAMES = frozenset(MEMBERS)
members_of = operator.attrgetter(*MEMBERS)


def obstacles(cell: ParaCfC, own: tuple[Any, ...]) -> tuple[str, ...]:
    """Every obstacle in sentences; `own` are `members_of` the class as it was made."""
    found: list[str] = []
    if cell.gate_mix != "input":
        found.append(f"it computes gate_mix='input', and this cell has gate_mix={cell.gate_mix!r}")
    kind, compiling = type(cell), torch.compiler.is_compiling()
    changed: list[str] = []
    # A compiler that looks on cannot follow the shortcut.
    if compiling or members_of(kind) != own or not NAMES.isdisjoint(cell.__dict__):
        changed = [name for name, member in zip(MEMBERS, own, strict=True) if getattr(kind, name) is not member or name in cell.__dict__]
    if changed or hasattr(kind, "jacobian"):
        found.append(f"{kind.__name__} has its own {', '.join(changed or ('jacobian',))}, and kernels compute those of ParaCfC")
    # Attributes of modules are slow to look up, and this is asked at each solve.
    layer: Any = cell.W_x if compiling else cell._modules["W_x"]
    if not is_plain(layer):
        found.append(f"W_x is a {type(layer).__name__} with its own forward, and kernels read the weight of a plain Linear layer")
    elif layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks or modules._has_any_global_hook():
        found.append("W_x has hooks, or all modules have, and kernels do not call it")
    return tuple(found)
