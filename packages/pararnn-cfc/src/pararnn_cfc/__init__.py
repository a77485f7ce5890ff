"""Closed-form continuous-time cells for irregularly sampled series.

`ParaCfC` is channelwise and solved by diagonal scans; `CfC` is the paper's network with the interface of the ncps package, and `CfCCell`,
`WiredCfC` and `MixedMemoryCell` are the cells inside it.
"""

from pararnn_cfc.cfc import CfC
from pararnn_cfc.mixed_memory import MixedMemoryCell
from pararnn_cfc.ncps_cell import CfCCell
from pararnn_cfc.parallel import ParaCfC
from pararnn_cfc.wired import WiredCfC

__all__ = ["CfC", "CfCCell", "MixedMemoryCell", "ParaCfC", "WiredCfC"]
