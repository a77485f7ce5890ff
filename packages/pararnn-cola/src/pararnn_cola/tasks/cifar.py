"""The two forms in which CIFAR-10 is distributed: pickles of Python 2, and plain records."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pararnn_cola.tasks.files import Source

PIXELS = 3 * 32 * 32
RECORD = 1 + PIXELS
"""Bytes of a plain record: the label, then red, green and blue, each row by row."""


class PickledArray:
    """What an array in a pickle says of itself; standing in for the real thing, it needs no numpy, and runs no code of the file's choice."""

    shape: tuple[int, ...] = ()
    kind: str = ""
    in_rows: bool = True
    """the last axis is the one whose neighbours lie side by side"""
    content: object = b""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, dtype, by_columns, self.content = state
        self.kind, self.in_rows = dtype.kind, not by_columns

    @classmethod
    def of_buffer(cls, content: bytes, dtype: PickledDType, shape: tuple[int, ...], order: str) -> PickledArray:
        """The array as pickles of protocol 5 tell of it."""
        made = cls()
        made.shape, made.kind, made.in_rows, made.content = shape, dtype.kind, order == "C", bytes(content)
        return made

    def describe(self) -> str:
        """Shape, dtype and order, in words."""
        held = len(self.content) if isinstance(self.content, bytes) else 0
        return f"an array {self.shape} of {self.kind}{'' if self.in_rows else ', column by column'}, {held} bytes"


class PickledDType:
    """The dtype in a pickle, by its code: "u1" for bytes."""

    def __init__(self, kind: str | bytes, *_: object) -> None:
        self.kind = kind.decode() if isinstance(kind, bytes) else kind

    def __setstate__(self, state: object) -> None:
        pass


class ArraysOnly(pickle.Unpickler):
    """An unpickler that knows arrays, and refuses every other name: a pickle can call anything that its reader lets it find."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return lambda *_: PickledArray()
        if module == "numpy" and name in ("ndarray", "dtype"):
            return PickledArray if name == "ndarray" else PickledDType
        if module in ("numpy.core.numeric", "numpy._core.numeric") and name == "_frombuffer":
            return PickledArray.of_buffer
        if (module, name) == ("_codecs", "encode"):
            return lambda text, _: text.encode("latin1")
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, and CIFAR-10 holds nothing but arrays")


def read_pickle(source: Source, path: Path) -> tuple[Tensor, Tensor]:
    """Images `(n, 3, 32, 32)` and labels `(n,)`, both bytes, of a file of the Python version.

    Raises:
        InputError: the file is no such pickle.
    """
    content = source.read(path)
    try:
        batch = ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        named = {name.decode() if isinstance(name, bytes) else name: value for name, value in batch.items()}
        labels, array = named["labels"], named["data"]
    # A damaged pickle raises what it likes; all of it means the same.
    except Exception as error:
        raise source.broken(path, f"is no batch of CIFAR-10 as a pickle ({type(error).__name__}: {error})") from error
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label <= 9 for label in labels):
        raise source.broken(path, f"has for labels {_shown(labels)}; a list of whole numbers from 0 to 9 was expected")
    if not isinstance(array, PickledArray) or not isinstance(array.content, bytes):
        raise source.broken(path, f"has for pixels {_shown(array)}; an array was expected")
    whole = (array.shape, array.kind, array.in_rows, len(array.content)) == ((len(labels), PIXELS), "u1", True, PIXELS * len(labels))
    if not whole or not labels:
        raise source.broken(
            path,
            f"has {len(labels)} labels and for pixels {array.describe()}; (images, {PIXELS}) of u1, row by row, with a label for each was expected",
        )
    return torch.frombuffer(bytearray(array.content), dtype=torch.uint8).view(-1, 3, 32, 32), torch.tensor(labels, dtype=torch.uint8)


def _shown(value: object) -> str:
    if isinstance(value, list):
        kinds = sorted({type(one).__name__ for one in value})
        return f"numbers from {min(value)} to {max(value)}" if kinds == ["int"] else f"a list of {' and '.join(kinds)}"
    return value.describe() if isinstance(value, PickledArray) else f"a {type(value).__name__}"


def read_binary(source: Source, path: Path) -> tuple[Tensor, Tensor]:
    """Images `(n, 3, 32, 32)` and labels `(n,)`, both bytes, of a file of the binary version.

    Raises:
        InputError: the file does not consist of whole records, or has labels above 9.
    """
    content = source.read(path)
    if not content or len(content) % RECORD:
        raise source.broken(path, f"has {len(content)} bytes, no multiple of {RECORD}, the size of a record (10000 records, 30730000 bytes, a batch)")
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, RECORD)
    if int(records[:, 0].max()) > 9:
        raise source.broken(path, f"has the label {int(records[:, 0].max())}; those of CIFAR-10 are 0 to 9")
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].clone()
