"""What the scans in Triton serve, and a probe that runs each of their kernels.

Triton is imported when the first scan is launched. The scans are `triton_diagonal` and `triton_blocks`.
"""

from __future__ import annotations

import importlib.util
import os

import torch

from pararnn.selection import Request

DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
BLOCK_DTYPES = DTYPES[:4]
# The maps of a step lie in the registers of one thread.
MOST_SLOTS = 4
OLDEST_CAPABILITY = (7, 0)
# Steps are counted in 32 bits; places in memory are not.
LONGEST = (1 << 31) - (1 << 16)


def reasons(request: Request) -> tuple[str, ...]:
    """Obstacles to the diagonal scan: no CUDA device, another dtype, more steps than are counted, or Triton is not installed."""
    return _obstacles(request, DTYPES)


def block_reasons(request: Request) -> tuple[str, ...]:
    """Obstacles to the block-diagonal scan: as of the diagonal one, complex numbers, and larger blocks than registers hold."""
    found = _obstacles(request, BLOCK_DTYPES)
    slots = request.option("slots", 2)
    if slots > MOST_SLOTS:
        found += (f"it takes blocks of at most {MOST_SLOTS} slots, the maps have {slots}",)
    return found


def _obstacles(request: Request, dtypes: tuple[str, ...]) -> tuple[str, ...]:
    found = []
    if importlib.util.find_spec("triton") is None:
        found.append("triton is not installed; pip install 'pararnn-core[triton]'")
    if request.dtype not in dtypes:
        found.append(f"it works in {', '.join(dtypes)}, the tensors are {request.dtype}")
    if request.size("time", 1) > LONGEST:
        found.append(f"it takes at most {LONGEST} steps, the request has {request.size('time')}")
    if request.device == "cpu" and not interpreted():
        found.append("it runs on CUDA devices, the tensors are on the CPU (TRITON_INTERPRET=1 interprets it there, slowly)")
    elif request.device not in ("cpu", "cuda"):
        found.append(f"it runs on CUDA devices, the tensors are on {request.device}")
    elif request.device == "cuda" and not torch.cuda.is_available():
        found.append("it runs on CUDA devices, and torch sees none here")
    elif request.device == "cuda" and (capability := torch.cuda.get_device_capability()) < OLDEST_CAPABILITY:
        found.append(f"it needs compute capability {OLDEST_CAPABILITY[0]}.{OLDEST_CAPABILITY[1]}, this GPU has {capability[0]}.{capability[1]}")
    return tuple(found)


def interpreted() -> bool:
    """Whether Triton runs its kernels in its interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def probe() -> tuple[str, ...] | None:
    """Scan a small sequence with each kernel of the diagonal scan."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    obstacles = reasons(Request.of("scan/diagonal", device=device))
    if obstacles:
        return obstacles
    from pararnn.scans.launches import in_chain, in_lines, in_tiles, linked, streaming, walking
    from pararnn.scans.triton_diagonal import scan
    from pararnn.structures.diagonal import Diagonal

    ones = torch.ones(1, 70, 2, device=device)
    for launch in (streaming(itemsize=4), walking(itemsize=4), in_chain(70, itemsize=4), in_tiles(itemsize=4)):
        scan(Diagonal(ones), ones, None, launch=launch)
    for launch in (in_lines(70, itemsize=4), linked(70, itemsize=4)):
        scan(Diagonal(ones.mT.contiguous().mT), ones.mT.contiguous().mT, None, launch=launch)
    return None


def block_probe() -> tuple[str, ...] | None:
    """Scan a small sequence with the block-diagonal scan, at once and in chunks."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    obstacles = block_reasons(Request.of("scan/block_diagonal", device=device))
    if obstacles:
        return obstacles
    from pararnn.scans.triton_blocks import scan
    from pararnn.structures.block_diagonal import BlockDiagonal

    for chunk in (70, 32):
        scan(BlockDiagonal(torch.ones(1, 70, 2, 2, 1, device=device) / 2), torch.ones(1, 70, 2, device=device), None, chunk=chunk)
    return None
