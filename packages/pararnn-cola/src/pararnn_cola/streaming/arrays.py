"""Arrays by rows, wherever they lie: opened, judged before a run begins, and read without mapping their pages."""

from __future__ import annotations

import mmap
import os
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_cola.errors import StreamError

MAGIC = b"\x93NUMPY"
COMPARED_ROWS = 8
"""At each end, for a fingerprint."""


def opened(array: Any, *, converted: bool) -> Any:
    """`array` itself, or what lies in the `.npy` file of that path; `converted` tells that its values are to be cast to real numbers.

    Raises:
        ConfigError: it has no rows, cannot be opened, or holds what torch has no dtype for.
    """
    if not isinstance(array, str | os.PathLike):
        if not hasattr(array, "shape") or not hasattr(array, "dtype") or not len(array.shape):
            kind = f"a {type(array).__name__} of shape ()" if hasattr(array, "shape") else f"an array of type {type(array).__name__}"
            raise ConfigError(f"{kind} has no rows; give a path, a memory-mapped array or a tensor")
        _judge(array, converted)
        return array
    path = os.fspath(array)
    try:
        import numpy as np
    except ImportError as error:
        raise ConfigError(f"{path} is read by numpy, which is missing ({error}); pip install numpy, or give a tensor") from error
    try:
        with open(path, "rb") as file:
            begins = file.read(len(MAGIC))
        if begins.startswith(b"PK"):
            raise ConfigError(f"{path} is an archive (.npz), which cannot be mapped; save the array in it with np.save and give that .npy file")
        if begins != MAGIC:
            raise ConfigError(f"{path} cannot be mapped into memory: it does not begin as a .npy file does; make one with np.save")
        found = np.load(path, mmap_mode="r")
    except ConfigError:
        raise
    except Exception as error:
        # Whatever numpy meets in a header that is damaged.
        raise ConfigError(f"{path} cannot be mapped into memory ({error}); it has to be a .npy file") from error
    if not found.ndim:
        raise ConfigError(f"{path} holds one number of shape (), which has no rows; it has to be (rows, ...)")
    _judge(found, converted)
    return found


def rows_of(array: Any, begin: int, count: int) -> Tensor:
    """A copy of `count` rows from `begin` on, in the byte order of this machine.

    Raises:
        StreamError: the file has become shorter since it was opened, or is gone.
    """
    if isinstance(array, Tensor):
        return array[begin : begin + count].clone()
    import numpy as np

    # A copy-on-write array may differ from its file.
    mapped = isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap) and array.mode != "c"
    if not mapped or not array.flags.c_contiguous or array.filename is None:
        return torch.from_numpy(_native(np.array(array[begin : begin + count])))
    # Pages that are read through the mapping would count as memory of this process until the system wants them back.
    width = array.size // len(array)
    try:
        read = np.fromfile(array.filename, dtype=array.dtype, count=count * width, offset=array.offset + begin * width * array.itemsize)
    except OSError as error:
        raise StreamError(f"rows {begin} to {begin + count - 1} of {array.filename} cannot be read any more ({error})", row=begin) from error
    if read.size != count * width:
        raise StreamError(
            f"{array.filename} had {len(array)} rows when it was opened, but ends before row {begin + count} now; leave it alone while it is read",
            row=begin,
        )
    return torch.from_numpy(_native(read.reshape(count, *array.shape[1:])))


def ends_of(array: Any) -> list[Tensor]:
    """The first and the last rows, by which other data of the same shape are told apart; those between are not looked at."""
    count = min(COMPARED_ROWS, len(array))
    return [rows_of(array, 0, count), rows_of(array, len(array) - count, count)]


def _native(values: Any) -> Any:
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _judge(array: Any, converted: bool) -> None:
    """Raise `ConfigError` if rows of `array` cannot become tensors of real numbers."""
    name, dtype = _name(array), array.dtype
    if not isinstance(array, Tensor):
        import numpy as np

        try:
            # No tensor has the other byte order, and nothing is easier to put right.
            dtype = torch.from_numpy(np.empty(0, np.dtype(dtype).newbyteorder("="))).dtype
        except TypeError as error:
            raise ConfigError(
                f"{name} is of dtype {array.dtype}, which torch lacks; save it as float32, float64 or integers", dtype=str(dtype)
            ) from error
    if converted and dtype.is_complex:
        raise ConfigError(
            f"{name} is of dtype {array.dtype}, and a cast would lose the imaginary parts; give a transform to real numbers, such as "
            "torch.view_as_real(u).flatten(-2)",
            dtype=str(array.dtype),
        )


def _name(array: Any) -> str:
    path = getattr(array, "filename", None)
    return f"an array of shape {tuple(array.shape)}" if path is None else str(path)
