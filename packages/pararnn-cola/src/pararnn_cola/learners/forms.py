"""What the tensors of a checkpoint have to look like, looked at before a learner takes them over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from pararnn_cola.errors import StreamError
from pararnn_cola.network import Network

Shape: TypeAlias = tuple[int | None, ...]
"""Sizes; None is any."""


class Form(NamedTuple):
    """A dtype and the shapes that a tensor may have."""

    dtype: torch.dtype
    shapes: tuple[Shape, ...]

    def admits(self, tensor: Tensor) -> bool:
        """Whether `tensor` is of this form."""
        return tensor.dtype == self.dtype and any(_alike(tuple(tensor.shape), shape) for shape in self.shapes)

    def __str__(self) -> str:
        return f"{' or '.join(str(shape).replace('None', '*') for shape in self.shapes)} in {self.dtype}"


@dataclass(frozen=True)
class Group:
    """Tensors by name that are there together or not at all; `needed` ones are always there."""

    forms: Mapping[str, Form]
    needed: bool = False


def check_forms(named: Mapping[str, object], groups: Iterable[Group]) -> None:
    """Raise `StreamError` if `named` are not the tensors that `groups` describe."""
    left = dict(named)
    for group in groups:
        missing = [name for name in group.forms if name not in left]
        if missing and (group.needed or len(missing) < len(group.forms)):
            raise StreamError(f"the checkpoint lacks {', '.join(missing)}, so it is damaged or of another version; go back to one of before")
        for name, form in group.forms.items():
            tensor = left.pop(name, None)
            if name not in missing and not (isinstance(tensor, Tensor) and form.admits(tensor)):
                found = f"{tuple(tensor.shape)} in {tensor.dtype}" if isinstance(tensor, Tensor) else f"a {type(tensor).__name__}"
                raise StreamError(f"{name} is {found} in the checkpoint, this learner keeps {form}; it is damaged, or of another network", name=name)
    if left:
        raise StreamError(f"the checkpoint has {', '.join(left)}, which this learner does not keep; it is damaged, or of another network")


def state_forms(network: Network, batch: tuple[int, ...], prefix: str = "state") -> dict[str, Form]:
    """The forms of the states of all layers, by the names that checkpoints have for them."""
    zero = network.zero_state(*batch)
    return {
        f"{prefix}.{index}.{part}": Form(tensor.dtype, (tuple(tensor.shape),))
        for index, state in enumerate(zero)
        for part, tensor in enumerate(state)
    }


def _alike(found: tuple[int, ...], expected: Shape) -> bool:
    return len(found) == len(expected) and all(want in (None, size) for size, want in zip(found, expected, strict=True))
