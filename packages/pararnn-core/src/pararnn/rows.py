"""Rows of a batch, as whole numbers or as a mask, in the forms in which people have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, SupportsIndex, TypeAlias

import torch
from torch import Tensor

from pararnn.errors import DTypeError, ShapeError

# Arrays of other libraries say that they can be an index.
Rows: TypeAlias = Tensor | Sequence[int] | SupportsIndex
NUMBERS = {"int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"}


def mask_of(rows: Any, batch: int, device: torch.device) -> Tensor:
    """The rows that `rows` names, of a batch of `batch`, as a mask `(batch, 1)` on `device`.

    Whole numbers in a tensor, an array or a sequence are numbers of rows, booleans are a mask `(batch,)`, and a plain int is one row. Numbers on a
    GPU are waited for, to see whether there are such rows; masks are not.

    Raises:
        ShapeError: a mask has not one boolean for each row, or a number is that of no row.
        DTypeError: `rows` holds anything else; so does uint8, which is a mask to some libraries, and numbers to others.
    """
    given = _read(rows, batch)
    if given.dtype == torch.bool:
        if tuple(given.shape) != (batch,):
            raise ShapeError(f"a mask of rows has the shape (batch,) = ({batch},), got {tuple(given.shape)}; pass one boolean for each row")
        return given.to(device).unsqueeze(1)
    given = given.flatten().to(torch.int64)
    # Nothing can be waited for while a graph is recorded.
    is_seen = given.numel() and not (given.is_cuda and torch.cuda.is_current_stream_capturing())
    if is_seen and not 0 <= int(given.min()) <= int(given.max()) < batch:
        raise ShapeError(f"rows are numbers from 0 to {batch - 1}, got {given.tolist()}; pass numbers of the {batch} rows of this batch")
    mask = torch.zeros(batch, dtype=torch.bool, device=device)
    return mask.index_fill_(0, given.to(device), True).unsqueeze(1)


def _read(rows: Any, batch: int) -> Tensor:
    """`rows` as a tensor of booleans or of whole numbers."""
    kind = _kind(rows)
    if kind:
        if kind != "bool" and kind not in NUMBERS:
            _refuse(kind, batch)
        # The values of an array are read rather than its memory, whose layout torch may not know.
        return rows if isinstance(rows, Tensor) else _tensor(rows.tolist(), torch.bool if kind == "bool" else torch.int64, kind, batch)
    if isinstance(rows, int) and not isinstance(rows, bool):
        rows = [rows]
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        _refuse(repr(rows), batch)
    elements = list(rows)
    if any(_kind(one) == "uint8" for one in elements):
        _refuse("uint8", batch)
    values = [one.tolist() if _kind(one) else one for one in elements]
    found = sorted({type(value).__name__ for value in values})
    given = _tensor(values, None if values else torch.int64, " and ".join(found), batch)
    if given.dtype not in (torch.bool, torch.int64) or ("bool" in found and len(found) > 1):
        _refuse(" and ".join(found), batch)
    return given


def _kind(rows: Any) -> str:
    """The name of the dtype of a tensor, an array or a scalar of one; empty for anything else."""
    return str(rows.dtype).removeprefix("torch.") if hasattr(rows, "dtype") and hasattr(rows, "tolist") else ""


def _tensor(values: Any, dtype: torch.dtype | None, kind: str, batch: int) -> Tensor:
    try:
        return torch.tensor(values, dtype=dtype)
    except (TypeError, ValueError, RuntimeError):
        _refuse(kind, batch)


def _refuse(kind: str, batch: int) -> NoReturn:
    why = "uint8, which some take for a mask and others for numbers" if kind == "uint8" else kind
    raise DTypeError(f"rows are {why}; pass whole numbers from 0 to {batch - 1} as int64, or a mask of {batch} booleans")
