"""Shooting inside one program, as source text: `pararnn.solver.shooting` without communication between programs.

A program owns channels of one sequence and has a window of COUNT intervals in its registers, each at its own step. It sweeps over the window until
the update of the entries is small, writes the states, and goes on with the next window from where this one ends. The update that the written states
still call for, with what the windows before left open, decides whether they stand. Where they do not, the program walks the sequence from its start.
"""

from __future__ import annotations

from pararnn.compiler.gpu.forward_subject import Forward, constants, kernel, parameters, prologue
from pararnn.compiler.gpu.passes import Pass

WALKED_AHEAD = 4
TILE = "(COUNT, BLOCK_STATE)"
SWEPT = [
    "expected, update, ratio, worst, near = correct(state, product, expected, tl.zeros_like(opening), is_first, has_next, ABSOLUTE, RELATIVE)",
    "entry = from_before(expected, opening, is_first)",
    "sweeps += 1",
    "strikes = tl.where(worst <= SHRINK * best, 0, strikes + 1)",
    "best = tl.minimum(best, worst)",
    "active = tl.where(near | (strikes >= STRIKES) | (sweeps >= SWEEPS), 0, 1)",
]


def guess(subject: Forward, opening: str, final: str) -> list[str]:
    """The first guess of an end: where the last step `final` of the interval leads from the state `opening` at the start."""
    function = subject.functions["following"]
    text = [f"final = {final}", "known = (final >= 0) & (final < length)"]
    for index in function.reads:
        mask = "inside & known" if subject.is_element(index) else "known"
        text.append(f"x{index}_0 = tl.load(o{index} + final.to(tl.int64) * O{index}_TIME, mask={mask}, other=0.0)")
    call = function.call(opening, "_0")
    return [*text, f"expected = tl.broadcast_to({call}, {TILE})", f"expected = tl.where(is_finite(expected), expected, {opening})"]


def shoot_kernel(subject: Forward, ahead: int) -> str:
    """The kernel `shoot`; with FLAGGED it works only where `flags` of a channel says so."""
    kept = subject.kept is not None
    sweep = Pass(subject, ahead, TILE, slopes=True, loads=kept)
    write = Pass(subject, ahead, TILE, writes=True, loads=kept)
    steps = "INTERVAL"
    once = []
    if kept:
        once = ["state = entry", *Pass(subject, ahead, TILE, slopes=True, stores=True).lines("first", steps), *SWEPT, "tl.debug_barrier()"]
    again = ["state = entry", *sweep.lines("first", steps), *SWEPT]
    iterate = [
        "active = 1",
        *once,
        "while active > 0:",
        *(f"    {line}" for line in again),
        "state = entry",
        *write.lines("first", steps),
        "expected, update, ratio, worst, near = correct(state, product, expected, brought, is_first, has_next, ABSOLUTE, RELATIVE)",
        "entered = from_before(ratio, brought / (ABSOLUTE + RELATIVE * tl.abs(opening)), is_first)",
        "error = tl.max(tl.max(tl.where(exists, inside_error(entered, growth, product), 0.0), 1), 0)",
        "entry = from_before(expected, opening, is_first)",
        "going_on = near & (worst <= SHRINK * best) & (sweeps < SWEEPS)",
        "best = tl.minimum(best, worst)",
        "verdict = tl.where(error <= 1.0, 1, tl.where(going_on, 0, 2))",
        "tl.debug_barrier()",
    ]
    window = [
        "first = begin + index * INTERVAL",
        "exists = inside & (first < length)",
        "has_next = inside & (first + INTERVAL < length)",
        *guess(subject, "opening", "first + (INTERVAL - 1)"),
        "entry = from_before(expected, opening, is_first)",
        "state = entry",
        f"growth = tl.zeros({TILE}, CARRY)",
        "product = growth",
        "update = growth",
        'best = tl.full((), float("inf"), CARRY)',
        "error = best",
        "verdict = 0",
        "strikes = 0",
        "sweeps = 0",
        "while verdict == 0:",
        *(f"    {line}" for line in iterate),
        "walked = tl.where(verdict == 2, 1, 0)",
        "most = tl.maximum(most, sweeps)",
        "largest = tl.maximum(largest, error)",
        "is_last = index == COUNT - 1",
        "opening = tl.sum(tl.where(is_last, state, 0.0), 0)[None, :]",
        "brought = tl.sum(tl.where(is_last, tl.abs(update), 0.0), 0)[None, :]",
        "brought = tl.where(is_finite(brought), brought, 0.0)",
        "begin += COUNT * INTERVAL",
    ]
    walk = Pass(subject, WALKED_AHEAD, "(1, BLOCK_STATE)", writes=True)
    text = [
        *prologue(subject, tile=True),
        "index = tl.arange(0, COUNT)[:, None]",
        f"is_first = tl.broadcast_to(index == 0, {TILE})",
        "opening = start",
        "brought = tl.zeros_like(start)",
        "begin = 0",
        "walked = 0",
        "most = 0",
        "largest = tl.full((), 0.0, CARRY)",
        "if FLAGGED:",
        "    flag = tl.max(tl.load(flags_ptr + sequence * STATE + lane, mask=inside, other=0))",
        "    length = tl.where(flag > 0, length, 0)",
        "while (begin < length) & (walked == 0):",
        *(f"    {line}" for line in window),
        "if walked > 0:",
        "    state = start",
        *(f"    {line}" for line in walk.lines("length * 0", "length")),
        "place = record_ptr + tl.program_id(0) * 3",
        "if (FLAGGED == 0) or (flag > 0):",
        "    tl.store(place, most.to(tl.float32))",
        "    tl.store(place + 1, largest.to(tl.float32))",
        "    tl.store(place + 2, walked.to(tl.float32))",
    ]
    numbers = ["LENGTH", "INTERVAL", "ABSOLUTE", "RELATIVE", "SWEEPS"]
    return kernel("shoot", [*parameters(subject), "flags_ptr", *numbers, *constants(subject), "COUNT: tl.constexpr", "FLAGGED: tl.constexpr"], text)
