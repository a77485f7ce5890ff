"""Keeps a step that is traced from the numbers of tensors, and finds the line that asked for something."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Ways to the numbers of a tensor that no dispatch mode sees.
UNSEEN = {Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.data_ptr, Tensor.storage, Tensor.untyped_storage, Tensor.__dlpack__}


class CannotGoOnError(Exception):
    """The step asked for what only numbers could tell; raised to leave it."""


class Guard(TorchFunctionMode):
    """Calls `refuse`, which raises, where a step asks for numbers in ways that no dispatch mode sees."""

    def __init__(self, refuse: Callable[[], Any]) -> None:
        super().__init__()
        self._refuse = refuse

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func in UNSEEN:
            self._refuse()
        return func(*args, **(kwargs or {}))


def line_of_the_step() -> str:
    """File and line of the innermost caller outside of PyTorch and of this package, in parentheses; empty where there is none."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back  # type: ignore[assignment]
    return f" ({Path(frame.f_code.co_filename).name}, line {frame.f_lineno})" if frame is not None else ""


_OWN = (str(Path(__file__).parent), str(Path(torch.__file__).parent))
