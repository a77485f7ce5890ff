"""What the numbers were measured on, and how much memory a call needs. Standard library and torch only: the peer's environment imports it too."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import resource
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

MEBIBYTE = 2**20


def machine() -> dict[str, object]:
    """CPU model, cores this process may use, memory in GiB, load average of the last minute, operating system."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_before": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.machine()} {'-'.join(platform.libc_ver())}",
    }


def environment(*distributions: str) -> dict[str, Any]:
    """Python, torch, its thread count and vector instructions, and the versions of `distributions` (None where not installed)."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "distributions": {name: _version(name) for name in distributions},
    }


def extra_peak_mib(call: Callable[[], object]) -> float:
    """MiB by which the resident memory of this process rises at its highest while `call` runs, above what it was before.

    Freed pages are first handed back to the system, so that memory kept by the allocator does not hide a part of the rise.
    Linux resets its high-water mark for us; elsewhere the mark of the whole process life is used, which can only overstate.
    """
    gc.collect()
    _return_free_pages()
    before = _resident_bytes()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        call()
        unit = 1 if platform.system() == "Darwin" else 1024
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before) / MEBIBYTE
    call()
    return (_status_bytes("VmHWM") - before) / MEBIBYTE


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor() or platform.machine())


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _return_free_pages() -> None:
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _resident_bytes() -> int:
    if Path("/proc/self/status").exists():
        return _status_bytes("VmRSS")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}; this kernel does not report it")
