"""The scan in plain PyTorch: a walk, or two passes over chunks of time, whichever is cheaper.

Cut time into chunks of `L` steps. A first pass walks all chunks at once from zero and keeps, for each, where it ends and the product of
its maps; a scan over the chunks (this very function, one level up) turns these into the state each chunk starts from; a second
pass walks all chunks again from there. About `2 L + T / L` operations instead of `T`, and nothing of length `T` is stored but the result.

Never a division by a cumulative product, never logarithms: both fail for maps that are zero, negative or small. Products of maps may
overflow or underflow where the states do not; then the second pass does not end where the first said it would, and the walk answers instead.

Source: the chunk-wise form of the parallel prefix sum, Blelloch (1990), "Prefix sums and their applications", section 1.3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.costs import Machine, machine_of
from pararnn.scans.segments import Offsets, by_length
from pararnn.selection import Request
from pararnn.structures.base import Structure

# Shorter chunks than this are never worth their second pass.
SHORT = 8


def reasons(request: Request) -> tuple[str, ...]:
    """Obstacles: none, this is the backend that always works."""
    return ()


def probe() -> None:
    """Scan a small sequence."""
    from pararnn.structures.diagonal import Diagonal

    scan(Diagonal(torch.ones(1, 64, 2)), torch.ones(1, 64, 2), None)


def scan(transition: Structure, bias: Tensor, initial: Tensor | None, *, offsets: Offsets | None = None, reverse: bool = False) -> Tensor:
    """`h[t] = A[t] h[t-1] + b[t]` for `bias` `(rows, time, state)`; not differentiable, `pararnn.scan` is.

    `initial` is `(rows, segments, state)`, one segment without `offsets`. Without it, each segment starts from zero and its first map is never read.
    """
    if offsets is None:
        return _scan(transition, bias, None if initial is None else initial[:, 0], reverse=reverse)
    states = torch.empty_like(bias, memory_format=torch.contiguous_format)
    rows, _, size = bias.shape
    for group in by_length(offsets, reverse=reverse, device=bias.device):
        # (rows, segments, steps) of the group become rows of one scan; steps past a segment's end are computed and dropped.
        segments, steps = group.positions.shape
        part = _scan(
            transition.map(lambda leaf, at=group.positions: leaf[:, at].flatten(0, 1)),  # type: ignore[misc]
            bias[:, group.positions].flatten(0, 1),
            None if initial is None else initial[:, group.segments].flatten(0, 1),
            reverse=False,
        )
        states[:, group.positions[group.inside]] = part.view(rows, segments, steps, size)[:, group.inside]
    return states


def _scan(transition: Structure, bias: Tensor, initial: Tensor | None, *, reverse: bool) -> Tensor:
    states = torch.empty_like(bias, memory_format=torch.contiguous_format)
    if bias.numel() == 0:
        return states
    rows, length, size = bias.shape
    chunk = chunk_length(rows, length, size, type(transition), machine_of(bias.device))
    if chunk >= length or not _two_passes(transition, bias, initial, states, chunk, reverse=reverse):
        _walk(_steps(transition, bias, dim=1, reverse=reverse), initial, states, dim=1, reverse=reverse)
    return states


def _two_passes(transition: Structure, bias: Tensor, initial: Tensor | None, states: Tensor, chunk: int, *, reverse: bool) -> bool:
    """Fill `states` in chunks; false, with nothing usable written, where products of maps overflow or underflow and the states do not."""
    length = bias.shape[1]
    chunks = length // chunk
    # Steps that fill no chunk are walked at the end, which is the beginning of time in reverse.
    body, rest = slice(chunks * chunk), slice(chunks * chunk, length)
    if reverse:
        body, rest = slice(length - chunks * chunk, length), slice(length - chunks * chunk)
    chunked = transition.map(lambda leaf: leaf[:, body].unflatten(1, (chunks, chunk)))
    steps = _steps(chunked, bias[:, body].unflatten(1, (chunks, chunk)), dim=2, reverse=reverse)

    total, end = steps[0]
    for maps, term in steps[1:]:
        end = maps.apply_add(end, term)
        total = maps.compose(total)
    # The end of the first chunk holds what follows from the initial state; each later chunk starts where the one before ends.
    ends = _scan(total, end, initial, reverse=reverse)
    first = (torch.zeros_like(ends[:, 0]) if initial is None else initial).unsqueeze(1)
    starts = torch.cat((ends[:, 1:], first) if reverse else (first, ends[:, :-1]), dim=1)
    if initial is None:
        # Without an initial state the very first map is never read: the zero it would meet could be multiplied by infinity.
        steps[0] = (_without_first(steps[0][0], reverse=reverse), steps[0][1])
    pieces = states[:, body].unflatten(1, (chunks, chunk))
    _walk(steps, starts, pieces, dim=2, reverse=reverse)
    # Where the products kept their precision, each chunk ends where its successor was started.
    reached = pieces[:, :, 0 if reverse else -1]
    allowed = torch.finfo(reached.dtype).eps ** 0.5 * reached.abs().amax(1, keepdim=True)
    if not bool(((reached - ends).abs() <= allowed).all()):
        return False
    tail = _steps(transition.map(lambda leaf: leaf[:, rest]), bias[:, rest], dim=1, reverse=reverse)
    _walk(tail, ends[:, 0 if reverse else -1], states[:, rest], dim=1, reverse=reverse)
    return True


def _steps(transition: Structure, bias: Tensor, *, dim: int, reverse: bool) -> list[tuple[Structure, Tensor]]:
    """Map and term of each step along `dim`, in the order in which they are walked."""
    make = type(transition).from_leaves
    maps = [make(*leaves) for leaves in zip(*(leaf.unbind(dim) for leaf in transition.leaves()), strict=True)]
    steps = list(zip(maps, bias.unbind(dim), strict=True))
    return steps[::-1] if reverse else steps


def _walk(steps: list[tuple[Structure, Tensor]], state: Tensor | None, states: Tensor, *, dim: int, reverse: bool) -> None:
    """Walk `steps` from `state` and write where each leads into `states` along `dim`."""
    slots = states.unbind(dim)
    for (maps, term), slot in zip(steps, slots[::-1] if reverse else slots, strict=True):
        state = slot.copy_(term) if state is None else maps.apply_add(state, term, out=slot)


def _without_first(maps: Structure, *, reverse: bool) -> Structure:
    """`maps` `(rows, chunks)` with the map of the chunk that is walked first set to zero."""

    def clear(leaf: Tensor) -> Tensor:
        leaf = leaf.clone(memory_format=torch.contiguous_format)
        leaf[:, -1 if reverse else 0] = 0
        return leaf

    return maps.map(clear)


def chunk_length(rows: int, length: int, size: int, structure: type[Structure], machine: Machine) -> int:
    """The number of steps a chunk should have; `length` where a plain walk is cheaper."""
    compose, apply = structure.cost(size)
    best, cost = length, length * machine.operation(rows * apply)
    chunk = SHORT
    while chunk * 2 <= length:
        chunks = length // chunk
        passes = 2 * machine.operation(rows * chunks * apply) + machine.operation(rows * chunks * compose)
        total = chunk * passes + min(chunks, 4 * chunks**0.5) * machine.call
        if total < cost:
            best, cost = chunk, total
        chunk *= 2
    return best
