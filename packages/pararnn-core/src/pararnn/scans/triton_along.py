"""Launches of the diagonal scan for real tensors whose steps lie next to each other in memory, `(rows, time, state)` with a stride of one along time.

The kernels are `triton_lines` and `triton_linked` in `kernels`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pararnn.scans.launches import Launch, along_for
from pararnn.scans.triton_backend import interpreted
from pararnn.scans.triton_memory import as_real, carried, doubted, processors, words


def launch_along(
    maps: Tensor,
    terms: Tensor,
    initial: Tensor | None,
    states: Tensor | None,
    out: Tensor,
    map_grad: Tensor | None,
    *,
    reverse: bool,
    costate: bool,
    launch: Launch | None,
) -> None:
    """Fill `out`, and `map_grad` where the walk is that of costates; their stride along time is one, as that of all tensors of more than a step."""
    from pararnn.scans.kernels.triton_lines import line_kernel
    from pararnn.scans.kernels.triton_linked import linked_kernel

    rows, length, size = terms.shape
    lines = rows * size
    if launch is None:
        launch = along_for(lines, length, itemsize=terms.element_size(), processors=processors(terms.device), costate=costate)
    start = out if initial is None else initial
    saved = out if states is None else states
    result = as_real(out)
    gradient = result if map_grad is None else as_real(map_grad)
    # A thread reads a group at once if lines begin and end with whole groups, which Triton knows if they are counted so.
    height = launch.block_time // launch.groups
    whole = all(number % height == 0 for tensor in (maps, terms, saved, out) for number in (length, tensor.stride(0), tensor.stride(2)))
    unit = height if whole else 1
    inputs = [part for tensor in (maps, terms) for part in (as_real(tensor), tensor.stride(0) // unit, tensor.stride(2) // unit)]
    # An initial state is (rows, 1, state).
    inputs += [as_real(start), start.stride(0), start.stride(2), as_real(saved), saved.stride(0) // unit, saved.stride(2) // unit]
    memory = (*inputs, result, result.stride(0) // unit, result.stride(2) // unit, gradient)
    kinds: dict[str, Any] = {
        "A_TIME": maps.stride(1),
        "B_TIME": terms.stride(1),
        "STATES_TIME": saved.stride(1),
        "HAS_START": initial is not None,
        "COSTATE": costate,
        "MAP_GRAD": map_grad is not None,
        "REVERSE": reverse,
        "CARRY": carried(out.dtype)["CARRY"],
        "GROUPS": launch.groups,
        "HEIGHT": height,
        "UNIT": unit,
        **doubted(out.dtype),
        "num_stages": 1,
        "enable_fp_fusion": True,
    }
    with torch.cuda.device_of(out):
        if launch.variant == "lines":
            line_kernel[(lines,)](*memory, result, size, length // unit, **kinds, AHEAD=launch.stages > 1, ONLY_MARKED=False, num_warps=launch.warps)
            return
        tiles = math.ceil(length / launch.block_time)
        word, bits = words(out.dtype)
        # Empty memory is minus one everywhere; so is the mark of a line that is right.
        counted = (lines, 3 * lines * (tiles + tiles // launch.group + 1))
        marks, empty = torch.full((sum(counted),), -1, dtype=word, device=out.device).split(counted)
        spin = 0 if interpreted() else 1
        linked_kernel[(lines * tiles,)](
            *memory, marks, empty, lines, tiles, size, length // unit, **kinds, **bits, SPIN=spin, LINK=launch.group, num_warps=launch.warps
        )
        line_kernel[(lines,)](*memory, marks, size, length // unit, **kinds, AHEAD=False, ONLY_MARKED=True, num_warps=1)
