"""Whether maps act on states of a given size: asked of the structure itself, once for each form of its leaves.

A backend that trusts the sizes of its leaves would read past their end, or broadcast them along the wrong dimension.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from pararnn.errors import ShapeError
from pararnn.structures.base import Structure

Form = tuple[tuple[int, ...], torch.dtype, torch.device]


def check_fit(transition: Structure, bias: Tensor) -> None:
    """Raise `ShapeError` unless the maps, with leading dimensions `(rows, time)`, act on states as large as those of `bias` `(rows, time, state)`."""
    forms = tuple((tuple(leaf.shape[2:]), leaf.dtype, leaf.device) for leaf in transition.leaves())
    obstacle = _obstacle(type(transition), forms, bias.shape[-1])
    if obstacle is not None:
        shapes = ", ".join(str(shape) for shape, _, _ in forms)
        raise ShapeError(
            f"the leaves of {type(transition).__name__} have shapes {shapes} after batch and time, "
            f"and do not map states of size {bias.shape[-1]}: {obstacle}",
            shapes=tuple(shape for shape, _, _ in forms),
            state=bias.shape[-1],
        )


@functools.lru_cache(maxsize=1024)
def _obstacle(structure: type[Structure], forms: tuple[Form, ...], size: int) -> str | None:
    # A batch of no maps has all shapes and costs nothing.
    maps = structure.from_leaves(*(torch.empty((0, *shape), dtype=dtype, device=device) for shape, dtype, device in forms))
    try:
        matrices = tuple(maps.to_dense().shape[1:])
        if matrices == (size, size):
            maps.apply(maps.leaves()[0].new_empty((0, size)))
            return None
    except (RuntimeError, IndexError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return f"they form matrices of shape {matrices}; give leaves that form ({size}, {size}), or terms that fit the leaves"
