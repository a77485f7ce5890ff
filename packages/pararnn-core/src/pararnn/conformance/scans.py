"""Scans held to the definition: shared by the checks of structures, which scan through `pararnn.scan`, and of backends."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from pararnn.conformance.comparison import difference
from pararnn.conformance.laws import STATE, Example
from pararnn.errors import ConformanceError
from pararnn.scans.reference import walk
from pararnn.structures.base import Structure

LENGTHS = (0, 1, 2, 7, 65, 130)
SEGMENTS = (3, 0, 7, 1, 0, 40)
Scan: TypeAlias = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One recurrence in words and numbers: maps `(rows, time, ...)`, terms `(rows, time, state)`, start `(rows, state)` or None."""

    words: str
    transition: Structure
    bias: Tensor
    initial: Tensor | None
    reverse: bool

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that have gradients, by name."""
        leaves = {f"leaf {index} of the maps": leaf for index, leaf in enumerate(self.transition.leaves())}
        return leaves | {"the terms": self.bias} | ({} if self.initial is None else {"the initial state": self.initial})

    def with_tensors(self, *tensors: Tensor) -> Case:
        """The same recurrence with other tensors, in the order of `tensors()`."""
        count = len(self.transition.leaves())
        maps = type(self.transition).from_leaves(*tensors[:count])
        initial = None if self.initial is None else tensors[-1]
        return Case(words=self.words, transition=maps, bias=tensors[count], initial=initial, reverse=self.reverse)

    def differentiable(self) -> Case:
        """The same recurrence on leaf tensors that require gradients."""
        return self.with_tensors(*(tensor.detach().clone().requires_grad_() for tensor in self.tensors().values()))


def cases(example: Example, dtype: torch.dtype, device: str = "cpu", lengths: tuple[int, ...] = LENGTHS) -> Iterator[Case]:
    """Recurrences of every length, one and three rows, both directions, with and without an initial state."""
    for length, rows, reverse, started in itertools.product(lengths, (1, 3), (False, True), (True, False)):
        # Maps below one in size, so that long products neither vanish nor grow beyond what a comparison can tell.
        maps = example((rows, length), STATE, seed=length, dtype=dtype).map(lambda leaf: (0.7 * leaf).to(device))
        words = f"T = {length}, batch {rows}, {'reverse' if reverse else 'forward'}, {'with' if started else 'without'} initial state, {dtype}"
        bias = torch.randn(rows, length, STATE, dtype=dtype, device=device)
        initial = torch.randn(rows, STATE, dtype=dtype, device=device) if started else None
        yield Case(words=words, transition=maps, bias=bias, initial=initial, reverse=reverse)


def packed_reference(case: Case, starts: Tensor) -> Tensor:
    """The states of one row that holds `SEGMENTS` one after the other, each walked alone from its row of `starts`."""
    pieces, begin = [], 0
    for segment, length in enumerate(SEGMENTS):
        part = slice(begin, begin + length)
        maps = case.transition.map(lambda leaf, part=part: leaf[:, part])  # type: ignore[misc]
        pieces.append(walk(maps, case.bias[:, part], starts[segment : segment + 1], reverse=case.reverse))
        begin += length
    return torch.cat(pieces, dim=1)


def hold_gradients(case: Case, scan: Callable[[Case], Tensor], what: str) -> None:
    """Raise `ConformanceError` unless `scan` and the walk have equal gradients by everything."""
    ours, truth = case.differentiable(), case.differentiable()
    found, expected = _gradients(ours, scan(ours)), _gradients(truth, walk(truth.transition, truth.bias, truth.initial, reverse=truth.reverse))
    for name, gradient, reference in zip(case.tensors(), found, expected, strict=True):
        if (how := difference(gradient, reference, "gradients")) is not None:
            raise ConformanceError(f"{case.words}: the gradient of {what} by {name} and that of the walk differ {how}")


def _gradients(case: Case, states: Tensor) -> list[Tensor]:
    probe = torch.arange(states.numel(), device=states.device).cos().reshape(states.shape).to(states.dtype)
    loss = (states * probe).sum().abs() + states.abs().sum()
    inputs = list(case.tensors().values())
    gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
    return [torch.zeros_like(tensor) if gradient is None else gradient for gradient, tensor in zip(gradients, inputs, strict=True)]
