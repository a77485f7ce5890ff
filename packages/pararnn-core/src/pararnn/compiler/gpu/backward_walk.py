"""Kernels that walk back through time one step after the other, as source text: the gradients of all operands, and the composition of an interval.

`walk_kernel` gives all gradients: a program owns channels of one sequence, or of one interval of it whose entering costate is known. `compose_kernel`
gives for each interval the slope of its leaving costate by the entering one, and at `terms_at` the leaving costate that follows from zero. Rows are
read some steps before they are needed: the registers that a step has used up are filled with the row that many steps on. Gradients may be written
over the operands: a program reads a row before it writes that row, and no other program reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pararnn.compiler.gpu.backward_subject import Subject, constants, indented, parameters, prologue

How = Literal["whole", "folded", "bounded"]
# Intervals that a program reads at once when it folds them.
AT_ONCE = 8


@dataclass(frozen=True)
class Loop:
    """What is done at each step, in lines: `now` from what has been read with a suffix, `store` to places `back` steps before the pointers."""

    subject: Subject
    composes: bool

    @property
    def reads(self) -> tuple[int, ...]:
        """The timed operands that are read."""
        subject = self.subject
        return tuple(index for index in subject.timed if not self.composes or index in subject.slope_operands)

    @property
    def moves(self) -> list[tuple[str, str]]:
        """The pointers that move with the steps, each with its time stride."""
        subject = self.subject
        written = () if self.composes else (*((f"d{i}", f"D{i}_TIME") for i in subject.rows), *((f"d{i}", "1") for i in subject.steps))
        return [("states", "STATES_TIME"), ("grad", "GRAD_TIME"), *((f"o{i}", f"O{i}_TIME") for i in self.reads), *written]

    @property
    def carried(self) -> tuple[str, ...]:
        """What goes from step to step."""
        return ("product", "term", "least", "growth") if self.composes else ("costate", *(f"s{i}" for i in self.subject.sums))

    def load(self, suffix: str, back: str, lanes: str, go: str, later: str) -> list[str]:
        """Read the row `back` steps before the pointers; `lanes` guards channels, `go` numbers of a step, `later` the state before it."""
        text = [
            f"h{suffix} = tl.load(states_at - {back} * STATES_TIME, mask={later}, other=0.0)",
            f"c{suffix} = tl.load(grad_at - {back} * GRAD_TIME, mask={lanes}, other=0.0)",
        ]
        for index in self.reads:
            mask = lanes if self.subject.is_element(index) else go
            text.append(f"x{index}{suffix} = tl.load(o{index}_at - {back} * O{index}_TIME, mask={mask}, other=0.0)")
        return text

    def now(self, suffix: str, first: str | None) -> list[str]:
        """One step; `first` says whether it may be the first of the sequence."""
        subject = self.subject
        text = [f"state = h{suffix}.to(CARRY)"]
        if first is not None:
            text.append(f"state = tl.where({first}, start, state)")
        if self.composes:
            # An operand that the slope does not depend on has not been read.
            calls = ", ".join(
                (f"x{i}{suffix}.to(CARRY)" if i in self.reads else "0.0") if i in subject.timed else f"x{i}"
                for i in range(len(subject.program.kinds))
            )
            return [
                *text,
                f"rate = slope(state, {calls}, CARRY)" if calls else "rate = slope(state, CARRY)",
                f"term = rate * (term + c{suffix}.to(CARRY))",
                "product = product * rate",
                "least = tl.minimum(least, tl.abs(product))",
                "growth = growth * tl.maximum(tl.abs(rate), 1.0)",
            ]
        calls = ", ".join(("state", *filter(None, [subject.calls(suffix)]), "CARRY"))
        text.append(f"{subject.pulled()} = pull(costate + c{suffix}.to(CARRY), {calls})")
        return [*text, *(f"s{index} += g{index}" for index in subject.sums)]

    def store(self, back: str) -> list[str]:
        """Write what belongs to the step `back` steps before the pointers."""
        if self.composes:
            return []
        rows = [f"tl.store(d{i}_at - {back} * D{i}_TIME, g{i}.to(d{i}_at.dtype.element_ty), mask=inside)" for i in self.subject.rows]
        steps = [f"tl.store(d{i}_at - {back}, tl.sum(tl.where(inside, g{i}, 0.0)))" for i in self.subject.steps]
        return rows + steps

    @property
    def arguments(self) -> list[str]:
        """What `plain` takes, besides what is carried, the steps and the constants."""
        return [*(name for name, _ in self.moves), *(f"x{index}" for index in self.subject.fixed), "start", "inside", "here"]


def plain(loop: Loop) -> str:
    """A device function that walks steps `high - 1` down to `low` by the definition, without reading ahead."""
    name = "plain_compose" if loop.composes else "plain"
    fixed = [f"{constant}: tl.constexpr" for constant in constants(loop.subject)]
    places = [f"{name}_at = {name} + far * {stride}" for name, stride in loop.moves]
    places[0] = "states_at = states + (far - 1) * STATES_TIME"
    step = [
        "at = high - 1 - back",
        "far = at.to(tl.int64)",
        *places,
        *loop.load("", "0", "inside", "at >= 0", "inside & (here + at > 0)"),
        # Several threads may hold one number: none may read a row that another one has written over.
        *([] if loop.composes else ["tl.debug_barrier()"]),
        *loop.now("", "at == 0"),
        *loop.store("0"),
    ]
    return (
        f"@triton.jit\ndef {name}({', '.join((*loop.arguments, *loop.carried, 'high', 'low', *fixed))}):\n"
        f"    for back in range(high - low):\n{indented(step, 8)}    return {', '.join(loop.carried)}\n"
    )


def call_plain(loop: Loop, carried: tuple[str, ...], high: str, low: str) -> str:
    """The line that calls `plain`, which changes what is `carried` under these names."""
    name = "plain_compose" if loop.composes else "plain"
    return f"{', '.join(carried)} = {name}({', '.join((*loop.arguments, *carried, high, low, *constants(loop.subject)))})"


def rolling(loop: Loop, ahead: int, *, warps: int) -> str:
    """The lines of a kernel that walk steps `high - 1` down to `low`, reading `ahead` steps ahead."""
    text = [
        f"left = (high - low) % {ahead}",
        f"batches = (high - low) // {ahead}",
        call_plain(loop, loop.carried, "high", "high - left"),
        "far = (high - left - 1).to(tl.int64)",
        *(f"{name}_at = {name} + far * {stride}" for name, stride in loop.moves),
        "states_at -= STATES_TIME",
        "go = batches > 0",
        f"first = high - left - {ahead}",
        "lanes = inside & (here + batches > 0)",
        "later = lanes & (here + first > 0)",
    ]
    last = ahead - 1
    for slot in range(ahead):
        text += loop.load(f"_{slot}", str(slot), "lanes", "go", "later" if slot == last else "lanes")
    # One warp may not write a row that another has not read; what is written now was read in the round before.
    body = ["tl.debug_barrier()"] if warps > 1 and loop.subject.rows and not loop.composes else []
    body += ["go = batch + 1 < batches", "lanes = inside & (here + batch + 1 < batches)", f"later = lanes & (here + first > {ahead})"]
    for slot in range(ahead):
        body += loop.now(f"_{slot}", "first == 0" if slot == last else None)
        body += loop.load(f"_{slot}", str(ahead + slot), "lanes", "go", "later" if slot == last else "lanes")
        body += loop.store(str(slot))
    body += [*(f"{name}_at -= {ahead} * {stride}" for name, stride in loop.moves), f"first -= {ahead}"]
    return indented(text, 4) + "    for batch in range(batches):\n" + indented(body, 8)


def _interval(ahead: int) -> list[str]:
    """The steps `low` to `high` of interval `part`, counted from the end of the sequence; all but the first one have the same number of steps."""
    return [
        f"steps = tl.cdiv(tl.cdiv(length, PARTS), {ahead}) * {ahead}",
        "high = tl.maximum(length - part * steps, 0)",
        "low = tl.maximum(high - steps, 0)",
        "place = (sequence * PARTS + part) * STATE + lane",
    ]


def _folded() -> list[str]:
    """The costate that enters the interval, from all those of the sequence in turn, and whether it is doubtful, which all programs must agree on."""
    fold = []
    for slot in range(AT_ONCE):
        fold += [
            f"known = inside & (here + later + {slot} < PARTS)",
            f"product_{slot} = tl.load(work_ptr + begin + {slot} * STATE, mask=known, other=1.0)",
            f"term_{slot} = tl.load(work_ptr + terms_at + begin + {slot} * STATE, mask=known, other=0.0)",
        ]
    for slot in range(AT_ONCE):
        fold += [
            f"costate = tl.where(here + later + {slot} == part, leaving, costate)",
            f"leaving = tl.where(leaving == 0.0, term_{slot}, product_{slot} * leaving + term_{slot})",
            'doubts = tl.where(tl.abs(leaving) < float("inf"), doubts, 1)',
        ]
    return [
        "leaving = tl.zeros_like(costate)",
        "doubts = here",
        f"for later in range(0, PARTS, {AT_ONCE}):",
        "    begin = (sequence * PARTS + later) * STATE + lane",
        *(f"    {line}" for line in fold),
        "doubt = tl.max(doubts)",
    ]


def walk_kernel(subject: Subject, ahead: int, *, warps: int, cut: How, start: bool) -> str:
    """The kernel of all gradients; `start` where the initial state's gradient is needed.

    A sequence that is `cut` has been composed: each program folds all intervals, or `backward_boundary` has found what enters them.
    """
    loop = Loop(subject, composes=False)
    zero = "tl.zeros((BLOCK_STATE,), CARRY)"
    text = [*prologue(subject), *_interval(ahead), f"costate = {zero}", *(f"s{index} = {zero}" for index in subject.sums)]
    if cut == "folded":
        text += _folded()
    elif cut == "bounded":
        text += [
            "doubt = tl.max(tl.load(work_ptr + doubts_at + sequence * STATE + lane, mask=inside, other=0.0))",
            "costate = tl.load(work_ptr + place, mask=inside, other=0.0)",
        ]
    if cut != "whole":
        text += [
            # Where products say too little about the costates, the last interval's program walks the whole sequence.
            "if doubt > 0:",
            "    costate = tl.zeros_like(costate)",
            "    high = tl.where(part == 0, length, 0)",
            "    low = tl.zeros_like(high)",
        ]
    end = []
    if start:
        end += [
            "if (low == 0) & ((high > 0) | (part == 0)):",
            "    tl.store(start_ptr + sequence * STATE + lane, costate.to(start_ptr.dtype.element_ty), mask=inside)",
        ]
    end += summed(subject)
    return (
        f"@triton.jit\ndef walk_kernel({', '.join(parameters(subject))}):\n{indented(text, 4)}{rolling(loop, ahead, warps=warps)}{indented(end, 4)}"
    )


def summed(subject: Subject) -> list[str]:
    """Lines that store the program's part of each sum, `(sums, sequences * PARTS, STATE)`."""
    whole = "tl.num_programs(0) // blocks"
    place = f"({{slot}} * ({whole}) + sequence * PARTS + part) * STATE + lane"
    return [
        f"tl.store(sums_ptr + sums_at + {place.format(slot=slot)}, s{index}.to(sums_ptr.dtype.element_ty), mask=inside)"
        for slot, index in enumerate(subject.sums)
    ]


def compose_kernel(subject: Subject, ahead: int, *, warps: int) -> str:
    """The kernel that composes each interval: the products, and the costates from zero."""
    loop = Loop(subject, composes=True)
    one = "tl.full((BLOCK_STATE,), 1.0, CARRY)"
    text = [
        *prologue(subject),
        *_interval(ahead),
        f"product = {one}",
        "term = tl.zeros((BLOCK_STATE,), CARRY)",
        f"least = {one}",
        f"growth = {one}",
    ]
    end = [
        # A product that lost its digits on the way, and may have grown again, says nothing.
        'product = tl.where((least < TINY) & (growth > GROWTH), float("nan"), product)',
        "tl.store(work_ptr + place, product, mask=inside)",
        "tl.store(work_ptr + terms_at + place, term, mask=inside)",
    ]
    header = f"@triton.jit\ndef compose_kernel({', '.join((*parameters(subject), 'TINY: tl.constexpr', 'GROWTH: tl.constexpr'))}):\n"
    return f"{header}{indented(text, 4)}{rolling(loop, ahead, warps=warps)}{indented(end, 4)}"
