"""What the forward kernels of one program share: the step as device functions, and how their memory is called.

Names in the kernels: `o0` and so on are the pointers of timed operands at the first step of the sequence and the program's channels, `x0` and so on
operands that do not run along the sequence; `out` is the pointer of the states. Time strides are constants of the kernel
(`O0_TIME`), so that rows nearby are reached without arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pararnn.compiler.gpu.functions import SOURCE
from pararnn.compiler.gpu.parts import Kept, kept, read, split
from pararnn.compiler.gpu.printer import lines
from pararnn.compiler.program import Expression, Kind, Program

# Parameters that differ from call to call.
NUMBERS = ("LENGTH", "INTERVAL", "PARTS", "SWEEPS")


@dataclass(frozen=True, eq=False)
class Forward:
    """A program, and whether a number of each step may be kept in the memory of the states while the passes last."""

    program: Program
    keeps: bool

    @cached_property
    def kept(self) -> Kept | None:
        """The number that is kept; None where none is worth it."""
        return kept(self.program) if self.keeps else None

    @cached_property
    def timed(self) -> tuple[int, ...]:
        """Operands that run along the sequence."""
        return tuple(index for index, kind in enumerate(self.program.kinds) if kind.is_timed)

    @cached_property
    def fixed(self) -> tuple[int, ...]:
        """Operands that do not."""
        return tuple(index for index, kind in enumerate(self.program.kinds) if not kind.is_timed)

    @cached_property
    def functions(self) -> dict[str, Function]:
        """The step in its forms, by name: `following`, `advance`, and where a number is kept, `keep` and the forms that read it."""
        forms = {"following": self.program.value, "advance": self.program.advance}
        if self.kept is not None:
            forms |= {"keep": self.kept.making, "following_kept": self.kept.value, "advance_kept": self.kept.advance}
        return {name: Function.of(name, self, expression) for name, expression in forms.items()}

    def is_element(self, index: int) -> bool:
        """Whether the operand is read by channel and step."""
        return self.program.kinds[index] is Kind.ELEMENT

    @cached_property
    def text(self) -> str:
        """The device functions of the primitives, and the step."""
        return "\n\n".join((SOURCE, *(function.text for function in self.functions.values())))


@dataclass(frozen=True)
class Function:
    """A form of the step as device functions.

    Attributes:
        name: of the function that takes the state.
        text: of it, and of `prepare_`name where something is computed before the loops.
        reads: the timed operands that are read.
        prepared: the values computed before the loops from fixed operands.
    """

    name: str
    text: str
    reads: tuple[int, ...]
    prepared: tuple[str, ...]
    _takes: tuple[str, ...]

    @staticmethod
    def of(name: str, subject: Forward, expression: Expression) -> Function:
        operands = subject.program.operands
        fixed = [operands[index] for index in subject.fixed]
        early, late = split(expression, fixed, "f")
        prepared = tuple(f"f{index}" for index in range(len(early.outputs)))
        reads = tuple(index for index in subject.timed if operands[index] in read(late))
        takes = tuple(one for one in late.inputs if one in read(late))
        texts = [_function(name, late, takes)]
        if prepared:
            texts.insert(0, _function(f"prepare_{name}", early, fixed))
        return Function(name, "\n\n".join(texts), reads, prepared, takes)

    @property
    def preparation(self) -> list[str]:
        """The names of the values prepared for it."""
        return [f"{self.name}_{one}" for one in self.prepared]

    def call(self, state: str, suffix: str) -> str:
        """The call, with `state` and what was read into names with `suffix`."""
        return f"{self.name}({', '.join((*(self._named(one, state, suffix) for one in self._takes), 'CARRY'))})"

    def _named(self, one: str, state: str, suffix: str) -> str:
        if one == "state":
            return state
        if one == "kept":
            return f"kept{suffix}"
        if one in self.prepared:
            return f"{self.name}_{one}"
        index = int(one[1:])
        return f"x{index}{suffix}.to(CARRY)" if index in self.reads else f"x{index}"


def _function(name: str, expression: Expression, takes: Sequence[str]) -> str:
    called = {known: f"a_{known}" for known in takes}
    body, outputs = lines(expression, called, "v_", 4)
    return (
        "\n".join((f"@triton.jit\ndef {name}({', '.join((*called.values(), 'CARRY: tl.constexpr'))}):", *body, f"    return {', '.join(outputs)}"))
        + "\n"
    )


def parameters(subject: Forward) -> list[str]:
    """The parameters that all kernels over a sequence begin with: memory."""
    operands = [
        name
        for index in range(len(subject.program.kinds))
        for name in ((f"o{index}_ptr", f"o{index}_row") if index in subject.timed else (f"o{index}_ptr",))
    ]
    return ["out_ptr", "start_ptr", "start_row", "record_ptr", "bounds_ptr", *operands]


def constants(subject: Forward) -> list[str]:
    """The constants that all kernels over a sequence end with."""
    return [f"{name}: tl.constexpr" for name in ("STATE", *(f"O{index}_TIME" for index in subject.timed), "PACKED", "CARRY", "BLOCK_STATE")]


def kernel(name: str, takes: Sequence[str], body: Sequence[str]) -> str:
    """A kernel with parameters `takes`; its numbers are read as they are, so that other lengths need no compilation."""
    numbers = [number for number in NUMBERS if number in takes]
    return f"@triton.jit(do_not_specialize={numbers!r})\ndef {name}({', '.join(takes)}):\n{indented(body, 4)}"


def prologue(subject: Forward, *, tile: bool, parts: bool = False) -> list[str]:
    """What a kernel begins with: its sequence, its channels, and pointers to the first step."""
    lane = "tl.arange(0, BLOCK_STATE)" + ("[None, :]" if tile else "")
    shape = "(1, BLOCK_STATE)" if tile else "(BLOCK_STATE,)"
    text = [
        "blocks: tl.constexpr = (STATE + BLOCK_STATE - 1) // BLOCK_STATE",
        "block = tl.program_id(0) % blocks",
        *(["part = tl.program_id(0) // blocks % PARTS", "sequence = (tl.program_id(0) // blocks // PARTS).to(tl.int64)"] if parts else []),
        *([] if parts else ["sequence = (tl.program_id(0) // blocks).to(tl.int64)"]),
        "row = sequence",
        "origin = sequence * 0",
        "length = origin.to(tl.int32) + LENGTH",
        "if PACKED:",
        "    row = origin",
        "    origin = tl.load(bounds_ptr + sequence).to(tl.int64)",
        "    length = (tl.load(bounds_ptr + sequence + 1) - origin).to(tl.int32)",
        f"lane = block * BLOCK_STATE + {lane}",
        f"inside = tl.full({shape}, True, tl.int1)",
        "if STATE % BLOCK_STATE != 0:",
        "    inside = inside & (lane < STATE)",
        "out = out_ptr + (row * LENGTH + origin) * STATE + lane",
        "start = tl.load(start_ptr + sequence * start_row + lane, mask=inside, other=0.0).to(CARRY)",
    ]
    for index in subject.timed:
        if 0 < index < subject.program.together:
            # One pointer that moves with the steps, instead of many.
            text.append(f"o{index} = o0 + {index}")
            continue
        text.append(f"o{index} = o{index}_ptr + row * o{index}_row + origin * O{index}_TIME" + (" + lane" if subject.is_element(index) else ""))
    for index in subject.fixed:
        place = " + lane, mask=inside, other=0.0" if subject.program.kinds[index] is Kind.CHANNEL else ""
        text.append(f"x{index} = tl.load(o{index}_ptr{place}).to(CARRY)")
    for function in subject.functions.values():
        if function.prepared:
            fixed = ", ".join(f"x{index}" for index in subject.fixed)
            text.append(f"{', '.join(function.preparation)} = prepare_{function.name}({fixed}, CARRY)")
    return text


def indented(text: Sequence[str], indent: int) -> str:
    """Lines as text, each after `indent` spaces."""
    return "".join(f"{' ' * indent}{line}\n" for line in text)
