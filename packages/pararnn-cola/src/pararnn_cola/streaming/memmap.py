"""Arrays that lie on a disk, read a small block at a time: a stream longer than the memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pararnn.errors import ConfigError, ShapeError
from pararnn_cola.streaming.items import Form, Step
from pararnn_cola.streaming.sources import Position, Source

Transform: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""`(inputs, targets) (batch, block, ...)` as they lie on the disk -> those to learn from."""


class MemmapSource(Source):
    """What `memmap_stream` makes."""

    def __init__(self, inputs: Any, targets: Any | None, batch: int, block: int, transform: Transform | None, dtype: torch.dtype | None) -> None:
        if batch < 1 or block < 1:
            raise ConfigError(f"batch={batch} and block={block}; both are at least 1", batch=batch, block=block)
        self.inputs = _opened(inputs)
        self.targets = None if targets is None else _opened(targets)
        rows = len(self.inputs)
        if self.targets is not None and len(self.targets) != rows:
            raise ShapeError(f"{rows} rows of inputs, but {len(self.targets)} of targets", inputs=rows, targets=len(self.targets))
        self.rows, self.batch, self.block, self.transform = rows, batch, block, transform
        self.dtype = dtype or torch.get_default_dtype()
        self.length = (rows if self.targets is not None else rows - 1) // batch
        if self.length < 1:
            raise ShapeError(f"{rows} rows are too few for {batch} streams with a target at every step", rows=rows, batch=batch)
        self.total = self.length

    def steps(self, form: Form, start: Position) -> Iterator[tuple[Step, bool]]:
        for begin in range(start.steps, self.length, self.block):
            count = min(self.block, self.length - begin)
            inputs, targets = (part.to(form.device, non_blocking=True) for part in self._read(begin, count))
            for t in range(count):
                yield Step(inputs[:, t], targets[:, t], reset=begin + t == 0), begin + t + 1 == self.length

    def describe(self) -> str:
        return f"{self.rows} rows in {self.batch} streams"

    def _read(self, begin: int, count: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets `(batch, count, ...)` of the steps from `begin` on."""
        ahead = self.targets is None
        read = torch.stack([_rows(self.inputs, row * self.length + begin, count + ahead) for row in range(self.batch)])
        if self.targets is None:
            inputs, targets = read[:, :-1], read[:, 1:]
        else:
            inputs, targets = read, torch.stack([_rows(self.targets, row * self.length + begin, count) for row in range(self.batch)])
        if self.transform is not None:
            return self.transform(inputs, targets)
        classes = self.targets is not None and not targets.is_floating_point()
        inputs = inputs.to(self.dtype)
        targets = targets.long() if classes else targets.to(self.dtype)
        return (inputs.unsqueeze(-1) if inputs.dim() == 2 else inputs), (targets if classes or targets.dim() > 2 else targets.unsqueeze(-1))


def memmap_stream(
    inputs: Any,
    targets: Any | None = None,
    *,
    batch: int = 1,
    block: int = 1024,
    transform: Transform | None = None,
    dtype: torch.dtype | None = None,
) -> MemmapSource:
    """The rows of an array on the disk as `batch` streams side by side.

        train(learner, memmap_stream("signal.npy", batch=16))

    `inputs` is a path to a `.npy` file, a memory-mapped array of numpy or a tensor of `torch.from_file`, `(rows, *input)` or `(rows,)`. Stream b
    begins at row `b * length`, where `length` is the number of rows (less one without `targets`) divided by `batch`; up to `batch - 1` rows at the
    end are not used. Without `targets`, each row is to be predicted from the one before; with them, `targets` `(rows, ...)` has one a row.

    `block` steps are read at once, and nothing else is kept in memory; of an array of numpy, not even the pages of the file stay mapped. Values
    become `dtype` (the default dtype of torch), whole-number `targets` become classes; `transform` takes the place of that and is given
    `(batch, block, ...)` as it lies on the disk: for one-hot inputs, or scaling. A run that is resumed goes to its place in the file at once.

    Raises:
        ConfigError: the file cannot be opened, or numpy is missing.
        ShapeError: there are fewer rows than streams, or as many targets.
    """
    return MemmapSource(inputs, targets, batch, block, transform, dtype)


def _opened(array: Any) -> Any:
    if not isinstance(array, str | os.PathLike):
        if not hasattr(array, "shape") or not len(array.shape):
            raise ConfigError(f"an array of type {type(array).__name__} has no rows; give a path, a memory-mapped array or a tensor")
        return array
    try:
        import numpy as np
    except ImportError as error:
        raise ConfigError(f"{os.fspath(array)} is read by numpy, which is missing ({error}); pip install numpy, or give a tensor") from error
    try:
        return np.load(array, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{os.fspath(array)} cannot be mapped into memory ({error}); it has to be a .npy file") from error


def _rows(array: Any, begin: int, count: int) -> Tensor:
    """A copy of `count` rows from `begin` on."""
    if isinstance(array, Tensor):
        return array[begin : begin + count].clone()
    import numpy as np

    if isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap) and array.flags.c_contiguous and array.filename is not None:
        # Pages that are read through the mapping would count as memory of this process until the system wants them back.
        width = array.size // len(array)
        read = np.fromfile(array.filename, dtype=array.dtype, count=count * width, offset=array.offset + begin * width * array.itemsize)
        return torch.from_numpy(read.reshape(count, *array.shape[1:]))
    return torch.from_numpy(np.array(array[begin : begin + count]))
