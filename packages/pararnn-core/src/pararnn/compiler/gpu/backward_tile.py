"""The backward kernel for a middling number of channels, as source text: a program takes many intervals of its sequence at once.

A window of INTERVALS times `steps` steps lies in registers, an interval in each row of a tile; it is read once, and all of it before anything is
written. The intervals are composed, a scan over the tile's rows gives the costate that enters each of them, and a second walk over the same registers
gives the gradients. Windows follow each other from the end of the sequence. A costate from the scan must agree with the interval before it; where it
does not, because products overflowed or lost their digits, the window is walked step by step.
"""

from __future__ import annotations

from pararnn.compiler.gpu.backward_subject import Subject, indented, parameters, prologue
from pararnn.compiler.gpu.backward_walk import Loop, call_plain, summed

COMBINE = """@triton.jit
def carried(product, costate, term):
    # A costate of zero stays zero, however large the product.
    return tl.where(costate == 0.0, term, product * costate + term)


@triton.jit
def combine(product_late, term_late, product_but, term_but, product_early, term_early, product_of_but, term_of_but):
    # The last two are products and terms of all intervals but the earliest, so that the scan says what enters each of them.
    return (
        product_early * product_late,
        carried(product_early, term_late, term_early),
        product_of_but * product_late,
        carried(product_of_but, term_late, term_of_but),
    )
"""


def tile_kernel(subject: Subject, steps: int, *, start: bool) -> str:
    """The kernel of all gradients for intervals of `steps` steps."""
    loop = Loop(subject, composes=False)
    zero = "tl.zeros((1, BLOCK_STATE), CARRY)"
    # What a window that is walked adds to the sums has no rows.
    text = [
        *prologue(subject, tile=True),
        "interval = tl.arange(0, INTERVALS)[:, None]",
        "zeros = tl.zeros((INTERVALS, BLOCK_STATE), CARRY)",
        f"entry = {zero}",
        *(f"s{index} = {zero}" for index in subject.sums),
        *(f"t{index} = zeros" for index in subject.sums),
    ]
    window = [
        f"top = length - window * INTERVALS * {steps}",
        f"first = top - (interval + 1) * {steps}",
        "far = first.to(tl.int64)",
        *(f"{name}_at = {name} + far * {stride}" for name, stride in loop.moves),
        "states_at -= STATES_TIME",
    ]
    for step in range(steps):
        window.append(f"known_{step} = first + {step} >= 0")
        window += _read(loop, step)
    window += _compose(subject, steps)
    window += [
        "if doubt > 0:",
        f"    low = tl.maximum(top - INTERVALS * {steps}, 0)",
        f"    {call_plain(loop, ('entry', *(f's{index}' for index in subject.sums)), 'top', 'low')}",
        "else:",
        *(f"    {line}" for line in _spread(subject, steps)),
    ]
    end = [f"s{index} += tl.sum(t{index}, 0, keep_dims=True)" for index in subject.sums]
    if start:
        end.append("tl.store(start_ptr + sequence * STATE + lane, entry.to(start_ptr.dtype.element_ty), mask=inside)")
    end += summed(subject)
    header = ", ".join((*parameters(subject), "INTERVALS: tl.constexpr", "AGREE: tl.constexpr", "SMALLEST: tl.constexpr", "ALIASED: tl.constexpr"))
    return (
        f"{COMBINE}\n\n@triton.jit\ndef tile_kernel({header}):\n{indented(text, 4)}"
        f"    for window in range(tl.cdiv(length, INTERVALS * {steps})):\n{indented(window, 8)}{indented(end, 4)}"
    )


def _read(loop: Loop, step: int) -> list[str]:
    known = f"known_{step}"
    text = [
        f"h_{step} = tl.load(states_at + {step} * STATES_TIME, mask=inside & (first + {step} > 0), other=0.0)",
        f"c_{step} = tl.load(grad_at + {step} * GRAD_TIME, mask=inside & {known}, other=0.0)",
    ]
    for index in loop.reads:
        mask = f"inside & {known}" if loop.subject.is_element(index) else known
        text.append(f"x{index}_{step} = tl.load(o{index}_at + {step} * O{index}_TIME, mask={mask}, other=0.0)")
    return text


def _compose(subject: Subject, steps: int) -> list[str]:
    """Products and terms of the intervals, the costates that enter them, and whether to doubt those."""
    text = ["product = zeros + 1.0", "term = zeros"]
    for step in reversed(range(steps)):
        calls = ", ".join((f"state_{step}", *filter(None, [subject.calls(f"_{step}")]), "CARRY"))
        text += [
            f"state_{step} = tl.where(first + {step} == 0, start, h_{step}.to(CARRY))",
            f"rate = slope({calls})",
            f"term = tl.where(known_{step}, rate * (term + c_{step}.to(CARRY)), term)",
            f"product = tl.where(known_{step}, rate * product, product)",
        ]
    return [
        *text,
        "begun = tl.where(interval == 0, carried(product, entry, term), term)",
        "_, leaving, _, before = tl.associative_scan((product, begun, zeros + 1.0, zeros), 0, combine)",
        "before = tl.where(interval == 0, entry, before)",
        "expected = carried(product, before, term)",
        "size = tl.abs(expected - term) + tl.abs(term)",
        "agrees = tl.abs(leaving - expected) <= AGREE * size + SMALLEST",
        "doubt = tl.max(tl.max((inside & (agrees == 0)).to(tl.int32), 1), 0)",
    ]


def _spread(subject: Subject, steps: int) -> list[str]:
    """The gradients, from the costates that enter the intervals."""
    text = [
        # Rows are read and written by different threads where tensors lie differently.
        *(["if ALIASED:", "    tl.debug_barrier()"] if subject.rows else []),
        "costate = before",
    ]
    for step in reversed(range(steps)):
        calls = ", ".join((f"state_{step}", *filter(None, [subject.calls(f"_{step}")]), "CARRY"))
        text += [f"{subject.pulled('_now')} = pull(costate + c_{step}.to(CARRY), {calls})", f"costate = tl.where(known_{step}, costate_now, costate)"]
        text += [f"t{index} += tl.where(known_{step}, g{index}_now, 0.0)" for index in subject.sums]
        text += [
            f"tl.store(d{index}_at + {step} * D{index}_TIME, g{index}_now.to(d{index}_at.dtype.element_ty), mask=inside & known_{step})"
            for index in subject.rows
        ]
        text += [
            f"tl.store(d{index}_at + {step}, tl.sum(tl.where(inside, g{index}_now, 0.0), 1, keep_dims=True), mask=known_{step})"
            for index in subject.steps
        ]
    return [*text, "entry = tl.sum(tl.where(interval == INTERVALS - 1, costate, 0.0), 0, keep_dims=True)"]
