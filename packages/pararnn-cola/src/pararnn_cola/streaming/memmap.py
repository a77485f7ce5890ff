"""Arrays that lie on a disk, read a small block at a time: a stream longer than the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pararnn.errors import ConfigError, ShapeError
from pararnn_cola.streaming.arrays import ends_of, opened, rows_of
from pararnn_cola.streaming.digest import digest_of
from pararnn_cola.streaming.items import Form, Step
from pararnn_cola.streaming.sources import Position, Source, at_least_one, too_short

Transform: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""`(inputs, targets) (batch, block, ...)` as they lie on the disk -> those to learn from."""


class MemmapSource(Source):
    """What `memmap_stream` makes."""

    def __init__(self, inputs: Any, targets: Any | None, batch: int, block: int, transform: Transform | None, dtype: torch.dtype | None) -> None:
        self.batch, self.block = at_least_one("batch", batch), at_least_one("block", block)
        if transform is not None and not callable(transform):
            raise ConfigError(f"transform={transform!r} is no function (inputs, targets) -> (inputs, targets)")
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise ConfigError(f"dtype={dtype!r} is no dtype of torch, such as torch.float32", dtype=dtype)
        self.inputs = opened(inputs, converted=transform is None)
        self.targets = None if targets is None else opened(targets, converted=transform is None)
        rows = len(self.inputs)
        if self.targets is not None and len(self.targets) != rows:
            raise ShapeError(f"{rows} rows of inputs, but {len(self.targets)} of targets", inputs=rows, targets=len(self.targets))
        self.rows, self.transform = rows, transform
        self.dtype = dtype or torch.get_default_dtype()
        self.length = (rows if self.targets is not None else rows - 1) // self.batch
        if self.length < 1:
            raise ShapeError(f"{rows} rows are too few for {batch} streams with a target at every step", rows=rows, batch=batch)
        self.total = self.length

    def steps(self, form: Form, start: Position) -> Iterator[tuple[Step, bool]]:
        if start.steps > self.length:
            raise too_short(f"{self.length} steps", f"{start.steps} steps")
        for begin in range(start.steps, self.length, self.block):
            count = min(self.block, self.length - begin)
            inputs, targets = (part.to(form.device, non_blocking=True) for part in self._read(begin, count))
            for t in range(count):
                yield Step(inputs[:, t], targets[:, t], reset=begin + t == 0), begin + t + 1 == self.length

    def describe(self) -> dict[str, Any]:
        arrays = [self.inputs, *([] if self.targets is None else [self.targets])]
        return {
            "kind": "rows of an array",
            "rows": self.rows,
            "streams": self.batch,
            "shapes": [list(array.shape[1:]) for array in arrays],
            "stored dtypes": [str(array.dtype) for array in arrays],
            "dtype": str(self.dtype),
            "targets of their own": self.targets is not None,
            "a transform": self.transform is not None,
            "first and last rows": digest_of([ends_of(array) for array in arrays]),
        }

    def _read(self, begin: int, count: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets `(batch, count, ...)` of the steps from `begin` on."""
        ahead = self.targets is None
        read = torch.stack([rows_of(self.inputs, row * self.length + begin, count + ahead) for row in range(self.batch)])
        if self.targets is None:
            inputs, targets = read[:, :-1], read[:, 1:]
        else:
            inputs, targets = read, torch.stack([rows_of(self.targets, row * self.length + begin, count) for row in range(self.batch)])
        if self.transform is not None:
            return self._transformed(self.transform(inputs, targets), count)
        classes = self.targets is not None and not targets.is_floating_point()
        inputs = inputs.to(self.dtype)
        targets = targets.long() if classes else targets.to(self.dtype)
        return (inputs.unsqueeze(-1) if inputs.dim() == 2 else inputs), (targets if classes or targets.dim() > 2 else targets.unsqueeze(-1))

    def _transformed(self, found: Any, count: int) -> tuple[Tensor, Tensor]:
        if not isinstance(found, tuple | list) or len(found) != 2 or not all(isinstance(part, Tensor) for part in found):
            raise ConfigError(f"transform gave {type(found).__name__} {found!r:.60}; it gives two tensors, inputs and targets (batch, block, ...)")
        inputs, targets = found
        for name, part in (("inputs", inputs), ("targets", targets)):
            if tuple(part.shape[:2]) != (self.batch, count):
                raise ShapeError(
                    f"transform gave {name} {tuple(part.shape)} for a block of ({self.batch}, {count}, ...); it may not change these two"
                )
        return inputs, targets


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

    `block` steps are read at once, and nothing else is kept in memory; of an array of numpy, not even the pages of the file stay mapped, but for one
    that is copied on write (`mmap_mode="c"`), whose changes count. Values become `dtype` (the default dtype of torch), whole-number `targets` become
    classes; `transform` takes the place of that and is given `(batch, block, ...)` as it lies on the disk: for one-hot inputs, scaling or complex
    values. A run that is resumed goes to its place in the file at once; it is refused where shapes, dtypes or the first and last rows are others,
    as they are in a file that has grown.

    Raises:
        ConfigError: the file cannot be opened, torch lacks its dtype, numpy is missing, or an option cannot work.
        ShapeError: there are fewer rows than streams, or as many targets.
    """
    return MemmapSource(inputs, targets, batch, block, transform, dtype)
