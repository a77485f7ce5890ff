"""Closed-form continuous-time cells for irregularly sampled series.

`ParaCfC` is channelwise and solved by diagonal scans; `CfC` is the paper's network with the interface of the ncps package, and `CfCCell`,
`WiredCfC` and `MixedMemoryCell` are the cells inside it. Names load when they are first used, so that listing this plugin imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pararnn_cfc.cfc import CfC as CfC
    from pararnn_cfc.mixed_memory import MixedMemoryCell as MixedMemoryCell
    from pararnn_cfc.ncps_cell import CfCCell as CfCCell
    from pararnn_cfc.parallel import ParaCfC as ParaCfC
    from pararnn_cfc.wired import WiredCfC as WiredCfC

HOMES = {"CfC": "cfc", "CfCCell": "ncps_cell", "MixedMemoryCell": "mixed_memory", "ParaCfC": "parallel", "WiredCfC": "wired"}
__all__ = ["CfC", "CfCCell", "MixedMemoryCell", "ParaCfC", "WiredCfC"]


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
    return value
