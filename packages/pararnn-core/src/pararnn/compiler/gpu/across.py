"""Shooting across programs, as source text: for few channels and long sequences.

Intervals are shared out among programs; between their sweeps a program for each block of channels corrects the entries of all intervals. The launches
are `open_sweep`, `boundary`, then `sweep` and `boundary` a few times, `write`, `boundary` once more, which judges, and `shoot` for the channels whose
states do not stand. A launch that is no longer needed finds so in `flags`, one for each channel, and returns; nothing waits for the device.

Where intervals are long, every sweep writes the states that it meets. One that finds the states of the sweep before, as it does in a cell that
forgets, leaves the rest of an interval as it is: the end is the same then, and the slope to it as good as before. So most sweeps but the first go
through the beginnings of the intervals alone. Over short intervals a number is kept instead, see `parts`, and the last pass writes the states.

Memory between the launches: `entries`, `ends`, `products`, `growths` and `regrowths` of the intervals, `(sequences, state, intervals)`, one after the
other: `boundary` is the slowest reader, and goes along the intervals.
"""

from __future__ import annotations

from pararnn.compiler.gpu.forward_subject import Forward, constants, kernel, parameters, prologue
from pararnn.compiler.gpu.passes import Pass
from pararnn.compiler.gpu.shooting import TILE, guess

PLACES = [
    "index = tl.arange(0, COUNT)[:, None] + part * COUNT",
    "whole = tl.num_programs(0).to(tl.int64) // blocks * COUNT * STATE",
    "place = (sequence * STATE + lane) * (PARTS * COUNT) + index",
    "entries = memory_ptr + place",
    "ends = entries + whole",
    "products = ends + whole",
    "growths = products + whole",
    "regrowths = growths + whole",
    # Programs hold more intervals than there are, whose steps might not be counted in 32 bits.
    "intervals = tl.cdiv(length, INTERVAL)",
    "first = tl.minimum(index, intervals) * INTERVAL",
    "exists = inside & (index < intervals)",
]


def _kernel(name: str, subject: Forward, body: list[str]) -> str:
    numbers = ["LENGTH", "PARTS", "INTERVAL", "ABSOLUTE", "RELATIVE"]
    takes = [*parameters(subject), "flags_ptr", "memory_ptr", *numbers, *constants(subject), "COUNT: tl.constexpr"]
    return kernel(name, takes, [*prologue(subject, tile=True, parts=True), *PLACES, *body])


def sweep_kernels(subject: Forward, ahead: int, checked: int) -> list[str]:
    """The kernels `open_sweep`, `sweep` and `write`; with `checked`, sweeps write states, and later ones compare them after so many steps each."""
    meets = checked > 0
    kept = subject.kept is not None and not meets
    swept = [
        "tl.store(ends, state, mask=inside & exists)",
        "tl.store(products, product, mask=inside & exists)",
        "tl.store(growths, growth, mask=inside & exists)",
        *(["tl.store(regrowths, regrowth, mask=inside & exists)"] if meets else []),
    ]
    opening = [
        *guess(subject, "start", "first - 1"),
        "state = tl.where(index == 0, start, expected)",
        "tl.store(entries, state, mask=inside & exists)",
        *Pass(subject, ahead, TILE, slopes=True, stores=kept, writes=meets, regrows=meets).lines("first", "INTERVAL"),
        *swept,
    ]
    entering = [
        "state = tl.load(entries, mask=inside & exists, other=0.0)",
        *(["regrown = tl.load(regrowths, mask=inside & exists, other=1.0)"] if meets else []),
    ]
    again = [
        *entering,
        *Pass(subject, ahead, TILE, slopes=True, loads=kept, writes=meets, regrows=meets, checked=checked).lines("first", "INTERVAL"),
        *_unless_met(swept, meets),
    ]
    flagged = [
        "flag = tl.max(tl.load(flags_ptr + sequence * STATE + lane, mask=inside, other=0))",
        "if flag > 0:",
        *(f"    {line}" for line in again),
    ]
    writing = [
        *entering,
        *Pass(subject, ahead, TILE, writes=True, loads=kept, checked=checked).lines("first", "INTERVAL"),
        *_unless_met(swept[:1], meets),
    ]
    return [_kernel("open_sweep", subject, opening), _kernel("sweep", subject, flagged), _kernel("write", subject, writing)]


def _unless_met(text: list[str], meets: bool) -> list[str]:
    return ["if met == 0:", *(f"    {line}" for line in text)] if meets else text


BOUNDARY = '''
@triton.jit(do_not_specialize=['LENGTH', 'INTERVAL', 'INTERVALS'])
def boundary(
    memory_ptr, flags_ptr, record_ptr, LENGTH, INTERVAL, INTERVALS, ABSOLUTE, RELATIVE, FIRST: tl.constexpr, JUDGE: tl.constexpr,
    STATE: tl.constexpr, CARRY: tl.constexpr, COUNT: tl.constexpr, BLOCK_STATE: tl.constexpr
):
    """Corrects the entries of all intervals of one sequence; with JUDGE, decides whether the states that were written stand."""
    blocks: tl.constexpr = (STATE + BLOCK_STATE - 1) // BLOCK_STATE
    sequence = (tl.program_id(0) // blocks).to(tl.int64)
    lane = (tl.program_id(0) % blocks) * BLOCK_STATE + tl.arange(0, BLOCK_STATE)[None, :]
    inside = tl.full((1, BLOCK_STATE), True, tl.int1) & (lane < STATE)
    flags = flags_ptr + sequence * STATE + lane
    flag = 1
    if FIRST == 0 and JUDGE == 0:
        flag = tl.max(tl.load(flags, mask=inside, other=0))
    whole = tl.num_programs(0).to(tl.int64) // blocks * INTERVALS * STATE
    index = tl.arange(0, COUNT)[:, None]
    is_first = tl.broadcast_to(index == 0, (COUNT, BLOCK_STATE))
    is_last = index == COUNT - 1
    brought = tl.zeros((1, BLOCK_STATE), CARRY)
    entered = brought
    error = tl.full((), 0.0, CARRY)
    all_near = 1
    # Of those for which there are entries, some may lie behind the end.
    there = tl.cdiv(LENGTH, INTERVAL)
    for begin in range(0, tl.where(flag > 0, INTERVALS, 0), COUNT):
        at = begin + index
        exists = inside & (at < there)
        has_next = inside & (at + 1 < there)
        place = memory_ptr + (sequence * STATE + lane) * INTERVALS + at
        end = tl.load(place + whole, mask=exists, other=0.0)
        product = tl.load(place + 2 * whole, mask=exists, other=0.0)
        expected = tl.load(place + 1, mask=has_next, other=0.0)
        corrected, update, ratio, worst, near = correct(end, product, expected, brought, is_first, has_next, ABSOLUTE, RELATIVE)
        brought = tl.sum(tl.where(is_last & is_finite(update), update, 0.0), 0)[None, :]
        all_near = tl.where(near, all_near, 0)
        if JUDGE:
            growth = tl.load(place + 3 * whole, mask=exists, other=1.0)
            grown = inside_error(from_before(ratio, entered, is_first), growth, product)
            entered = tl.sum(tl.where(is_last, ratio, 0.0), 0)[None, :]
            error = tl.maximum(error, tl.max(tl.max(tl.where(exists, grown, 0.0), 1), 0))
        else:
            tl.store(place + 1, corrected, mask=has_next)
    record = record_ptr + tl.program_id(0) * 3
    if JUDGE:
        tl.store(flags, tl.broadcast_to(tl.where(error <= 1.0, 0, 1), (1, BLOCK_STATE)), mask=inside)
        tl.store(record + 1, error.to(tl.float32))
        tl.store(record + 2, 0.0)
    else:
        if flag > 0:
            tl.store(flags, tl.broadcast_to(1 - all_near, (1, BLOCK_STATE)), mask=inside)
            if FIRST:
                tl.store(record, 1.0)
            else:
                tl.store(record, tl.load(record) + 1.0)
'''
