"""The C source of a program: passes made from its expressions, and the loops of `csrc` around them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import torch

from pararnn.compiler.native.graph import Stage
from pararnn.compiler.native.printer import lines, number
from pararnn.compiler.native.stages import backward_stages, forward_stages
from pararnn.compiler.program import Kind, Operation, Program, Value

PREFIXES = {torch.float32: "f", torch.float64: "d"}


def forward_source(program: Program, dtype: torch.dtype) -> str:
    """Walk and shooting of `program`, states carried in `dtype`."""
    stages = forward_stages(program)
    slots = _Slots(program.operands, stages.still.outputs, stages.early.outputs, ("STATE", "NEXT", "CURRENT", "PRODUCT", "GROWTH"))
    (following,), (ahead, slope) = stages.value.outputs, stages.advance.outputs
    shared = _shared(program)
    passes = (
        _pass("still", stages.still, slots, _kept(stages.still.outputs)),
        _pass("early", stages.early, slots, _kept(stages.early.outputs)),
        _pass("early_uniform", stages.brief, slots, _kept(stages.brief.outputs), shared=shared),
        _pass("value", stages.value, slots, {"NEXT": following}, state="STATE"),
        _pass("value_uniform", stages.value, slots, {"NEXT": following}, state="STATE", shared=shared),
        _pass("advance", stages.advance, slots, {"CURRENT": ahead}, state="CURRENT", slope=slope),
    )
    return _text(program, dtype, slots, passes, single=("NEXT", "CURRENT", "PRODUCT", "GROWTH"), loops=("walk.h", "shooting.h"))


def backward_source(program: Program, dtype: torch.dtype, needs: tuple[bool, ...]) -> str:
    """Gradients of those operands of `program` that are needed, and of the initial state."""
    stages = backward_stages(program, needs)
    *prepared, slope = stages.early.outputs
    slots = _Slots(program.operands, stages.still.outputs, prepared, ("STATE", "COSTATE", "SLOPE", "GRADIENTS"), spread=len(program.kinds))
    wanted, shared = [f"GRADIENTS + {index}" for index, need in enumerate(needs) if need], _shared(program)
    gradients = dict(zip(wanted, stages.late.outputs, strict=True))
    summed = {f"GRADIENTS + {index}" for index, kind in enumerate(program.kinds) if not kind.is_timed}
    passes = (
        _pass("still", stages.still, slots, _kept(stages.still.outputs)),
        _pass("early", stages.early, slots, _kept(prepared) | {"SLOPE": slope}, state="STATE"),
        _pass("early_uniform", stages.early, slots, _kept(prepared) | {"SLOPE": slope}, state="STATE", shared=shared),
        _pass("late", stages.late, slots, gradients, state="STATE"),
        _pass("late_uniform", stages.late, slots, gradients, state="STATE", shared=shared, summed=summed),
    )
    return _text(program, dtype, slots, passes, single=(), loops=("backward.h",), needs=needs)


def _shared(program: Program) -> frozenset[str]:
    """The operands that are one number a step."""
    return frozenset(name for name, kind in zip(program.operands, program.kinds, strict=True) if kind is Kind.STEP)


def _kept(values: Sequence[Value]) -> dict[str, Value]:
    """Results that lie in slots of their own name; constants need none."""
    return {value: value for value in values if isinstance(value, str)}


class _Slots:
    """Where values lie: the operands, what is kept of the passes, then the arrays that the loops know by name.

    The last of those may stand for several, `spread` in number.
    """

    def __init__(
        self, operands: Sequence[str], lasting: Sequence[Value], prepared: Sequence[Value], named: Sequence[str], *, spread: int = 1
    ) -> None:
        self.places = {name: str(index) for index, name in enumerate((*operands, *_kept(lasting), *_kept(prepared)))}
        self.lasting = frozenset(_kept(lasting))
        self.named = {name: len(self.places) + index for index, name in enumerate(named)}
        self.size = len(self.places) + len(named) - 1 + spread

    def place(self, name: str) -> str:
        """The index of a slot, as C has it."""
        return self.places.get(name, name)


def _pass(
    name: str,
    stage: Stage,
    slots: _Slots,
    stores: Mapping[str, Value],
    *,
    state: str = "",
    slope: Value | None = None,
    shared: Set[str] = frozenset(),
    summed: Set[str] = frozenset(),
) -> str:
    """A pass as a C function, over steps and then lanes; with a `slope`, it carries the product of slopes and how much errors have grown.

    What follows from `shared` inputs alone is computed once a step. To the places in `summed` is added, instead of stored.
    """
    if not stores:
        return f"static void {name}(const Bank *bank, long steps, long lanes) {{ (void)bank, (void)steps, (void)lanes; }}"
    carries = {"state": state, "costate": "COSTATE"}
    sources = {value: carries[value] if value in carries else slots.place(value) for value in stage.inputs}
    targets = {f"to_{index}": slots.place(place) for index, place in enumerate(stores)}
    truths: set[str] = set()
    once = _following(shared & sources.keys(), stage.operations)
    before = [f"const real {value} = *from_{value};" for value in sources if value in once]
    before += lines([operation for operation in stage.operations if operation.result in once], truths)
    body = [f"const real {value} = from_{value}[i];" for value in sources if value not in once]
    body += lines([operation for operation in stage.operations if operation.result not in once], truths)
    if slope is not None:
        targets |= {"product": "PRODUCT", "growth": "GROWTH"}
        body += [f"product[i] = {number(slope, truths)} * product[i];", "growth[i] = larger_size(growth[i], product[i]);"]
    body += [f"to_{index}[i] {'+=' if place in summed else '='} {number(value, truths)};" for index, (place, value) in enumerate(stores.items())]
    pointers = [f"const real *from_{value} = bank->base[{place}] + s * bank->stride[{place}];" for value, place in sources.items()]
    pointers += [f"real *{target} = bank->base[{place}] + s * bank->stride[{place}];" for target, place in targets.items()]
    return "\n".join(
        (
            f"static APART void {name}(const Bank *bank, long steps, long lanes) {{",
            "    for (long s = 0; s < steps; s++) {",
            *(f"        {line}" for line in (*pointers, *before)),
            "#pragma omp simd",
            "        for (long i = 0; i < lanes; i++) {",
            *(f"            {line}" for line in body),
            "        }",
            "    }",
            "}",
        )
    )


def _following(names: Set[str], operations: Sequence[Operation]) -> set[str]:
    """The names, and those of the results that follow from them alone."""
    found = set(names)
    for operation in operations:
        named = [argument for argument in operation.arguments if isinstance(argument, str)]
        if named and found.issuperset(named):
            found.add(operation.result)
    return found


def _text(
    program: Program,
    dtype: torch.dtype,
    slots: _Slots,
    passes: Sequence[str],
    *,
    single: Sequence[str],
    loops: Sequence[str],
    needs: Sequence[bool] | None = None,
) -> str:
    prefix = PREFIXES[dtype]
    known = needs if needs is not None else [False] * len(program.kinds)
    varies = [kind.is_timed for kind in program.kinds] + [name not in slots.lasting for name in list(slots.places)[len(program.kinds) :]]
    varies += [True] * (slots.size - len(varies))
    pairs = list(zip(program.kinds, known, strict=True))
    definitions = [
        f"typedef {prefix}_real real;",
        f"typedef {prefix}_word word;",
        f"#define T(name) {prefix}_##name",
        f"#define EPSILON {torch.finfo(dtype).eps.hex()}",
        f"enum {{ OPERANDS = {len(program.kinds)}, SLOTS = {slots.size}, TILES = {slots.size - len(single)} }};",
        f"enum {{ {', '.join(f'{name} = {place}' for name, place in slots.named.items())} }};",
        _flags("TIMED", [kind.is_timed for kind in program.kinds]),
        _flags("SHARED", [kind is Kind.STEP for kind in program.kinds]),
        _flags("VARIES", varies),
    ]
    if needs is not None:
        definitions += [_flags("ELEMENT", [kind is Kind.ELEMENT and need for kind, need in pairs]), _flags("NEEDED", list(needs))]
    functions = (_include("common.h"), *_functions("float32.h", "f"), *_functions("float64.h", "d"), _include("powers.h"))
    return "\n".join((*functions, *definitions, _include("frame.h"), *map(_include, loops), *passes)) + "\n"


def _flags(name: str, flags: Sequence[bool]) -> str:
    return f"static const unsigned char {name}[] = {{{', '.join(str(int(flag)) for flag in flags)}}};"


def _functions(constants: str, prefix: str) -> tuple[str, ...]:
    return _include(constants), f"#define T(name) {prefix}_##name", _include("functions.h"), "#undef T"


def _include(name: str) -> str:
    return f'#include "{name}"'


def expanded(text: str) -> str:
    """A source with the files of `csrc` in place of the lines that include them, so that it is complete by itself."""
    files = {_include(file.name): file.name for file in _folder().glob("*.h")}
    return "\n".join(_content(files[line]) if line in files else line for line in text.split("\n"))


@functools.cache
def _content(name: str) -> str:
    return (_folder() / name).read_text()


def _folder() -> Path:
    return Path(__file__).parent / "csrc"
