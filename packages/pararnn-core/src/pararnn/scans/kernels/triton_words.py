"""Numbers that programs publish for others that wait for them.

A published word is its own flag: memory is filled with a bit pattern that no result has, and a reader asks again for words until that is gone, each
thread for its own: threads that shared a word could see it at different times and disagree on where to go.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def publish(ptr, number, mask, WORD: tl.constexpr, NAN: tl.constexpr):
    """Store numbers as bits that are never the ones of empty memory."""
    tl.store(ptr, tl.where(number == number, number.to(WORD, bitcast=True), NAN), mask=mask, cache_modifier=".cg")


def _again_in_ptx(count: int, bits: int) -> str:
    """Reads `count` words again until none is empty, and of them only those that are: outputs, then the words so far, then where they lie."""
    places = range(count)
    copy = "".join(f"mov.b{bits} ${place}, ${count + place}; " for place in places)
    missing = "".join(f"setp.eq.s{bits} p{place}, ${place}, -1; " for place in places)
    some = "mov.pred q, p0; " + "".join(f"or.pred q, q, p{place}; " for place in places[1:])
    read = "".join(f"@p{place} ld.volatile.global.b{bits} ${place}, [${2 * count + place}]; " for place in places)
    predicates = ", ".join(f"p{place}" for place in places)
    return f"{{ .reg .pred {predicates}, q; {copy}AGAIN: {missing}{some}@!q bra READY; {read}bra AGAIN; READY: }}"


def _constraints(count: int, register: str) -> str:
    return ",".join([f"=&{register}"] * count + [register] * count + ["l"] * count)


_ONE, _TWO, _FOUR, _ONE_LONG = (tl.constexpr(_again_in_ptx(count, bits)) for count, bits in ((1, 32), (2, 32), (4, 32), (1, 64)))
_OF_ONE, _OF_TWO, _OF_FOUR, _OF_ONE_LONG = (tl.constexpr(_constraints(count, kind)) for count, kind in ((1, "r"), (2, "r"), (4, "r"), (1, "l")))


@triton.jit
def _again(word, ptr, SPIN: tl.constexpr):
    """The words once none of them is empty, of which SPIN are waited for at once. In the interpreter that is zero: all words are there."""
    place = ptr.to(tl.int64)
    if SPIN > 0:
        if word.dtype == tl.int64:
            word = tl.inline_asm_elementwise(_ONE_LONG, _OF_ONE_LONG, [word, place], dtype=tl.int64, is_pure=False, pack=1)
        elif SPIN == 1:
            word = tl.inline_asm_elementwise(_ONE, _OF_ONE, [word, place], dtype=tl.int32, is_pure=False, pack=1)
        elif SPIN == 2:
            word = tl.inline_asm_elementwise(_TWO, _OF_TWO, [word, place], dtype=tl.int32, is_pure=False, pack=2)
        else:
            word = tl.inline_asm_elementwise(_FOUR, _OF_FOUR, [word, place], dtype=tl.int32, is_pure=False, pack=4)
    return word


@triton.jit
def await_one(ptr, mask, CARRY: tl.constexpr, SPIN: tl.constexpr):
    """The published numbers at `ptr`, zero where `mask` is false."""
    word = tl.load(ptr, mask=mask, other=0, volatile=True)
    return _again(word, ptr, SPIN).to(CARRY, bitcast=True)


@triton.jit
def await_both(ptr, part, mask, CARRY: tl.constexpr, SPIN: tl.constexpr):
    """The published numbers at `ptr` and `part` behind it, which are asked for at once."""
    one = tl.load(ptr, mask=mask, other=0, volatile=True)
    two = tl.load(ptr + part, mask=mask, other=0, volatile=True)
    return _again(one, ptr, SPIN).to(CARRY, bitcast=True), _again(two, ptr + part, SPIN).to(CARRY, bitcast=True)
