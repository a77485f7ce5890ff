"""The walk as source text: one pass over memory, for many lanes.

A program owns channels of one sequence and walks its steps one after the other. The rows to come are in its registers already.
"""

from __future__ import annotations

from pararnn.compiler.gpu.forward_subject import Forward, constants, kernel, parameters, prologue
from pararnn.compiler.gpu.passes import Pass


def walk_kernel(subject: Forward, ahead: int) -> str:
    """The kernel `walk`."""
    walking = Pass(subject, ahead, "(BLOCK_STATE,)", writes=True)
    text = [
        *prologue(subject, tile=False),
        "state = start",
        *walking.lines("length * 0", "length"),
        "for part in tl.static_range(3):",
        "    tl.store(record_ptr + tl.program_id(0) * 3 + part, 0.0)",
    ]
    return kernel("walk", [*parameters(subject), "LENGTH", *constants(subject)], text)


def step_kernel(subject: Forward) -> str:
    """The kernel `one_step`: `out`, which may be the state itself, from a state and operands of one step."""
    function = subject.functions["following"]
    # The row of a program is a row of the batch, and its only step the first.
    text = [
        *prologue(subject, tile=False),
        *(f"x{i}_0 = tl.load(o{i}" + (", mask=inside, other=0.0)" if subject.is_element(i) else ")") for i in function.reads),
        f"state = tl.broadcast_to({function.call('start', '_0')}, (BLOCK_STATE,))",
        "tl.store(out, state.to(out.dtype.element_ty), mask=inside)",
    ]
    return kernel("one_step", [*parameters(subject), "LENGTH", *constants(subject)], text)
