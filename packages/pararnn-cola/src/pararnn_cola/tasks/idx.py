"""The idx format of MNIST and its successors: a magic number, the sizes, and bytes."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from pararnn_cola.tasks.files import Source

LABELS, IMAGES = 0x801, 0x803
"""Magic numbers: bytes in one dimension, or in three."""


def read_idx(source: Source, path: Path, magic: int) -> Tensor:
    """The bytes in a file of the kind `magic`, in their shape.

    Raises:
        InputError: the magic number is another, or the file is shorter or longer than its sizes say.

    Source: the description of the format on the page of MNIST (LeCun, Cortes and Burges).
    """
    content = source.read(path)
    start = 4 + 4 * (magic & 0xFF)
    found = int.from_bytes(content[:4], "big")
    if found != magic or len(content) < start:
        raise source.broken(
            path, f"has {len(content)} bytes and starts with the magic number {found}, {magic} was expected, and {start} bytes or more"
        )
    sizes = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    if len(content) - start != math.prod(sizes) or 0 in sizes:
        announced = " x ".join(map(str, sizes))
        raise source.broken(path, f"announces {announced} bytes after the {start} of its header but has {len(content) - start}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)[start:].view(sizes)
