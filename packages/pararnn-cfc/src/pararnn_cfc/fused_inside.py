"""The projection inside of the kernels: where features are few, computing it takes fewer bytes than writing it down and reading it back.

The program of `fused_program` then starts from samples instead of projections: its operands are the features and the gap, one number a step each,
then the recurrent weights and the biases as before, then for each feature the weights of rate and candidate, by channel. Nothing of the size of the
states is written or read but the states, and the gradients of the weights are summed where they arise.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pararnn.compiler.program import Expression, Kind, Operation, Program, Value
from pararnn.compiler.simplify import without_dead
from pararnn_cfc.fused_program import program
from pararnn_cfc.fused_sources import Sources, constants_of

# Every feature takes registers for the rows that are read ahead, for two weights, and for two sums of gradients.
MOST_FEATURES = 10
RATE, CANDIDATE, GAP = "o0", "o1", "o2"


@functools.lru_cache(maxsize=64)
def program_inside(dtype: torch.dtype, bound: float | None, features: int, *, guarded: bool, biased: bool) -> Program:
    """`fused_program.program` with the projection of so many features in front."""
    outside = program(dtype, bound, guarded=guarded, biased=biased)
    kinds = (*(Kind.STEP for _ in range(features)), *outside.kinds[2:], *(Kind.CHANNEL for _ in range(2 * features)))
    value, advance = (_projected(expression, features, len(outside.kinds)) for expression in (outside.value, outside.advance))
    pull = _pulled(outside.pull, features, len(outside.kinds))
    return replace(outside, kinds=kinds, value=value, advance=advance, pull=pull, together=features + 1)


def operands(x: Tensor, weight: Tensor, constants: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The operands for samples `x` `(batch, time, features + 1)`, the weight `(2 state, features)`, and the constants of the other program."""
    *features, elapsed = _columns(x)
    # Those of a feature next to each other along the channels, in one launch.
    return (*features, elapsed, *constants, *rows_of(weight).unbind(0))


def views_of(sources: Sources, across: Tensor) -> tuple[Tensor, ...]:
    """The same, with the weights as `rows_of` gives them."""
    *features, elapsed = _columns(sources.x)
    return (*features, elapsed, *constants_of(sources), *across.unbind(0))


def addresses_of(sources: Sources, across: Tensor) -> tuple[int, ...] | None:
    """Where `views_of` gives views of; None where that does not lie as it did at the first solve."""
    x, _, bias, u, initial = sources
    at, recurrent, weights = x.data_ptr(), u.data_ptr(), across.data_ptr()
    together, is_plain = at | recurrent | weights | initial.data_ptr(), x.is_contiguous() and u.is_contiguous()
    biases: tuple[int, ...] = ()
    if bias is not None:
        biases = bias.data_ptr(), bias.data_ptr() + bias.shape[0] // 2 * bias.itemsize
        together, is_plain = together | biases[0], is_plain and bias.is_contiguous()
    if not is_plain or together & 15:
        return None
    row = across.shape[1] * across.itemsize
    features, rows = range(at, at + x.shape[2] * x.itemsize, x.itemsize), range(weights, weights + across.shape[0] * row, row)
    return (*features, recurrent, *biases, *rows)


def weight_gradient(rows: Tensor | Sequence[Tensor], weight: Tensor) -> Tensor:
    """The gradient of the weight from those of its rows as `rows_of` gives them."""
    found = (rows if isinstance(rows, Tensor) else torch.stack([*rows])).view(weight.shape[1], 2, weight.shape[0] // 2)
    return found.permute(1, 2, 0).reshape(weight.shape).to(weight.dtype)


def rows_of(weight: Tensor) -> Tensor:
    """For each feature the weights of the rate, then those of the candidate, `(2 features, state)`."""
    state, features = weight.shape[0] // 2, weight.shape[1]
    return weight.view(2, state, features).permute(2, 0, 1).contiguous().view(2 * features, state)


def _columns(x: Tensor) -> tuple[Tensor, ...]:
    """The features and the gap `(batch, time, 1)` each, next to each other in memory, as the program says."""
    return (x if x.stride(2) == 1 else x.contiguous()).unsqueeze(-1).unbind(2)


def _names(features: int, before: int) -> dict[Value, Value]:
    """What the operands of the other program, `before` in number, are called in this one."""
    moved: dict[Value, Value] = {f"o{index}": f"o{index + features - 2}" for index in range(2, before)}
    return {RATE: f"{RATE}_{features - 1}", CANDIDATE: f"{CANDIDATE}_{features - 1}", **moved}


def _projection(features: int, before: int) -> tuple[tuple[Operation, ...], list[tuple[str, str, str]]]:
    """Operations that make rate and candidate from the operands; and of each feature its name and those of its weights."""
    first = before + features - 2
    taken = [(f"o{index}", f"o{first + 2 * index}", f"o{first + 2 * index + 1}") for index in range(features)]
    made = []
    for goal, which in ((RATE, 1), (CANDIDATE, 2)):
        for index, names in enumerate(taken):
            result = f"{goal}_{index}"
            if index == 0:
                made.append(Operation(result, "mul", (names[0], names[which])))
                continue
            made.append(Operation(f"{result}_part", "mul", (names[0], names[which])))
            made.append(Operation(result, "add", (f"{goal}_{index - 1}", f"{result}_part")))
    return tuple(made), taken


def _inputs(expression: Expression, features: int, before: int) -> tuple[str, ...]:
    own = expression.inputs[: len(expression.inputs) - before]
    return (*own, *(f"o{index}" for index in range(before - 2 + 3 * features)))


def _projected(expression: Expression, features: int, before: int) -> Expression:
    """`expression` behind the projection, its outputs unchanged."""
    names, (made, _) = _names(features, before), _projection(features, before)

    def new(value: Value) -> Value:
        return names.get(value, value)

    moved = (replace(one, arguments=tuple(map(new, one.arguments))) for one in expression)
    return Expression(_inputs(expression, features, before), (*made, *moved), tuple(map(new, expression.outputs)))


def _pulled(pull: Expression, features: int, before: int) -> Expression:
    """The gradients by state, features, gap, constants, and weights."""
    inner, (_, taken) = _projected(pull, features, before), _projection(features, before)
    of_state, of_rate, of_candidate, *others = inner.outputs
    parts = []
    for index, (feature, rate, candidate) in enumerate(taken):
        parts += [
            Operation(f"by_rate_{index}", "mul", (of_rate, rate)),
            Operation(f"by_candidate_{index}", "mul", (of_candidate, candidate)),
            Operation(f"of_feature_{index}", "add", (f"by_rate_{index}", f"by_candidate_{index}")),
            Operation(f"of_rate_{index}", "mul", (of_rate, feature)),
            Operation(f"of_candidate_{index}", "mul", (of_candidate, feature)),
        ]
    of_features = (f"of_feature_{index}" for index in range(features))
    of_weights = (name for index in range(features) for name in (f"of_rate_{index}", f"of_candidate_{index}"))
    return without_dead(Expression(inner.inputs, (*inner.operations, *parts), (of_state, *of_features, *others, *of_weights)))
