"""Closed-form continuous-time cells for irregularly sampled series.

`ParaCfC` is channelwise and solved by diagonal scans; `CfC` is the paper's cell with the interface of the ncps package.
"""

from pararnn_cfc.parallel import ParaCfC

__all__ = ["ParaCfC"]
