"""What the machine and this Python offer to pararnn, for `pararnn doctor`."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

from pararnn.distributions import core_version, version_of
from pararnn.findings import PEERS


def environment() -> dict[str, str]:
    """Versions, processors and CUDA devices as pairs of label and text. Imports torch if it is installed."""
    facts = {"python": f"{platform.python_version()} ({platform.system()} {platform.machine()})", "pararnn-core": core_version()}
    facts |= {name: version_of(name) or "not installed" for name in PEERS}
    facts["processors"] = str(os.cpu_count() or "unknown")
    return facts | _torch_facts()


def _torch_facts() -> dict[str, str]:
    try:
        import torch
    except (ImportError, OSError) as error:
        return {"torch threads": "unknown", "cuda devices": f"unknown: torch cannot be imported ({error})"}
    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return {"torch threads": str(torch.get_num_threads()), "cuda devices": ", ".join(devices) or "none"}


def devices(facts: Mapping[str, str]) -> tuple[str, ...]:
    """The device types to ask backends about."""
    return ("cpu",) if facts["cuda devices"].startswith(("none", "unknown")) else ("cpu", "cuda")
