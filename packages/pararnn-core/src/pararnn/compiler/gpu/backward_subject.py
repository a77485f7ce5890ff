"""What the backward kernels of one program share: which gradients they give, the expressions behind them, and how their memory is called.

Names in the kernels: `states`, `grad`, `o0` and so on are the pointers of the sequence's first step, `d0` and so on those of the gradients of
`ELEMENT` and `STEP` operands; `s0` and so on are sums over the steps for `CHANNEL` and `SCALAR` operands. Time strides are constants of the kernel
(`O0_TIME`), so that rows nearby are reached without arithmetic. At `work_ptr` lie numbers in the precision of the carry that kernels leave for each
other: what is known of the intervals, parts of sums, and for the gradient of a `STEP` operand a row for each block of channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pararnn.compiler.gpu.functions import SOURCE
from pararnn.compiler.gpu.parts import read
from pararnn.compiler.gpu.printer import lines
from pararnn.compiler.program import Expression, Kind, Program, Value
from pararnn.compiler.simplify import without_dead


@dataclass(frozen=True, eq=False)
class Subject:
    """A program and the operands whose gradients are needed."""

    program: Program
    needs: tuple[bool, ...]

    def _of(self, *kinds: Kind) -> tuple[int, ...]:
        return tuple(index for index, kind in enumerate(self.program.kinds) if kind in kinds)

    def _needed(self, *kinds: Kind) -> tuple[int, ...]:
        return tuple(index for index in self._of(*kinds) if self.needs[index])

    @cached_property
    def timed(self) -> tuple[int, ...]:
        """Operands that run along the sequence."""
        return self._of(Kind.ELEMENT, Kind.STEP)

    @cached_property
    def fixed(self) -> tuple[int, ...]:
        """Operands that do not."""
        return self._of(Kind.CHANNEL, Kind.SCALAR)

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Operands whose gradients are rows of the sequence: `ELEMENT`."""
        return self._needed(Kind.ELEMENT)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Operands whose gradients are one number for each step: `STEP`."""
        return self._needed(Kind.STEP)

    @cached_property
    def sums(self) -> tuple[int, ...]:
        """Operands whose gradients are summed over the steps."""
        return self._needed(Kind.CHANNEL, Kind.SCALAR)

    @cached_property
    def gradients(self) -> tuple[int, ...]:
        """All operands whose gradients are needed, in order."""
        return tuple(index for index, needed in enumerate(self.needs) if needed)

    @cached_property
    def pull(self) -> Expression:
        """The gradients by the state and by the needed operands."""
        outputs = self.program.pull.outputs
        return _giving(self.program.pull, (outputs[0], *(outputs[1 + index] for index in self.gradients)))

    @cached_property
    def slope(self) -> Expression:
        """The derivative of the next state by the state."""
        return _giving(self.program.advance, self.program.advance.outputs[1:])

    @cached_property
    def slope_operands(self) -> frozenset[int]:
        """The operands that the slope depends on."""
        used = read(self.slope)
        return frozenset(index for index, name in enumerate(self.slope.inputs[1:]) if name in used)

    def is_element(self, index: int) -> bool:
        """Whether the operand is read by channel and step."""
        return self.program.kinds[index] is Kind.ELEMENT

    def calls(self, suffix: str) -> str:
        """The arguments for operands of the device functions; timed ones were read into names with `suffix`."""
        return ", ".join(f"x{index}{suffix}.to(CARRY)" if index in self.timed else f"x{index}" for index in range(len(self.program.kinds)))

    def pulled(self, suffix: str = "") -> str:
        """The names that results of `pull` are given."""
        return ", ".join((f"costate{suffix}", *(f"g{index}{suffix}" for index in self.gradients)))


def _giving(expression: Expression, outputs: Sequence[Value]) -> Expression:
    return without_dead(Expression(expression.inputs, expression.operations, tuple(outputs)))


def functions(subject: Subject) -> str:
    """The device functions of the primitives, and `pull` and `slope` of the program."""
    return f"{SOURCE}\n\n{_function('pull', subject.pull)}\n\n{_function('slope', subject.slope)}"


def _function(name: str, expression: Expression) -> str:
    body, outputs = lines(expression, {known: known for known in expression.inputs}, "v_", 4)
    # A gradient may be a constant; what is stored and summed has the shape of the others.
    shape = f"tl.zeros_like({expression.inputs[0]})"
    results = [text if isinstance(value, str) else f"{shape} + {text}" for value, text in zip(expression.outputs, outputs, strict=True)]
    text = [f"@triton.jit\ndef {name}({', '.join(expression.inputs)}, CARRY: tl.constexpr):", *body, f"    return {', '.join(results)}"]
    return "\n".join(text) + "\n"


def parameters(subject: Subject) -> list[str]:
    """The parameters of every kernel, in order: pointers, numbers, constants."""
    operands = [f"o{index}_ptr" for index in range(len(subject.program.kinds))]
    pointers = [
        "states_ptr",
        "initial_ptr",
        "grad_ptr",
        *operands,
        *(f"d{index}_ptr" for index in subject.rows),
        "start_ptr",
        "sums_ptr",
        "bounds_ptr",
    ]
    rows = ["states_row", "initial_row", "grad_row", *(f"o{i}_row" for i in subject.timed), *(f"d{i}_row" for i in subject.rows)]
    places = [*(f"d{index}_from" for index in subject.steps), "sums_at", "terms_at", "doubts_at"]
    return [*pointers, "work_ptr", *rows, *places, "ROWS", "LENGTH", "STATE", "PARTS", *(f"{name}: tl.constexpr" for name in constants(subject))]


def constants(subject: Subject) -> list[str]:
    """The constants that every kernel has."""
    reads = [f"O{index}_TIME" for index in subject.timed]
    return ["STATES_TIME", "GRAD_TIME", "GRAD_LANE", *reads, *(f"D{index}_TIME" for index in subject.rows), "PACKED", "CARRY", "BLOCK_STATE"]


def prologue(subject: Subject, *, tile: bool = False) -> list[str]:
    """What a kernel begins with: its sequence, its channels, and pointers to the first step."""
    lane = "tl.arange(0, BLOCK_STATE)" + ("[None, :]" if tile else "")
    text = [
        "blocks = tl.cdiv(STATE, BLOCK_STATE)",
        "block = (tl.program_id(0) % blocks).to(tl.int64)",
        "part = tl.program_id(0) // blocks % PARTS",
        "sequence = (tl.program_id(0) // blocks // PARTS).to(tl.int64)",
        "row = sequence",
        "origin = sequence * 0",
        "length = origin.to(tl.int32) + LENGTH",
        "if PACKED:",
        "    row = origin",
        "    origin = tl.load(bounds_ptr + sequence).to(tl.int64)",
        "    length = (tl.load(bounds_ptr + sequence + 1) - origin).to(tl.int32)",
        f"lane = block * BLOCK_STATE + {lane}",
        "inside = lane < STATE",
        # A number of a step becomes one for each channel by this: Triton's interpreter mixes up truth values of different shapes.
        "here = (lane * 0).to(tl.int32)",
        "states = states_ptr + row * states_row + origin * STATES_TIME + lane",
        "grad = grad_ptr + row * grad_row + origin * GRAD_TIME + lane * GRAD_LANE",
        "start = tl.load(initial_ptr + sequence * initial_row + lane, mask=inside, other=0.0).to(CARRY)",
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
    text += [f"d{index} = d{index}_ptr + row * d{index}_row + origin * D{index}_TIME + lane" for index in subject.rows]
    text += [f"d{index} = work_ptr + d{index}_from + (block * ROWS + row) * LENGTH + origin" for index in subject.steps]
    return text


def indented(text: Sequence[str], indent: int) -> str:
    """Lines as text, each after `indent` spaces."""
    return "".join(f"{' ' * indent}{line}\n" for line in text)
