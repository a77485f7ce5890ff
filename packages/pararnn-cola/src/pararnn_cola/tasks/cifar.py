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

    content: object = b""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.content = state[-1]


class PickledDType:
    """The dtype in a pickle, of which only the length of `content` is believed."""

    def __setstate__(self, state: object) -> None:
        pass


class ArraysOnly(pickle.Unpickler):
    """An unpickler that knows arrays, and refuses every other name: a pickle can call anything that its reader lets it find."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return lambda *_: PickledArray()
        if module == "numpy" and name in ("ndarray", "dtype"):
            return PickledArray if name == "ndarray" else lambda *_: PickledDType()
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
        labels, array = list(named["labels"]), named["data"].content
        wrong = not isinstance(array, bytes) or len(array) != PIXELS * len(labels) or any(not 0 <= label <= 9 for label in labels)
    # A damaged pickle raises what it likes; all of it means the same.
    except Exception as error:
        raise source.broken(path, f"is no batch of CIFAR-10 as a pickle ({type(error).__name__}: {error})") from error
    if wrong or not labels:
        held = f"{len(array)} bytes" if isinstance(array, bytes) else type(array).__name__
        raise source.broken(path, f"has {len(labels)} labels and {held} of pixels; {PIXELS} bytes an image and labels from 0 to 9 were expected")
    return torch.frombuffer(bytearray(array), dtype=torch.uint8).view(-1, 3, 32, 32), torch.tensor(labels, dtype=torch.uint8)


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
