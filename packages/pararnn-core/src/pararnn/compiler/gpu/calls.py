"""A kernel with its numbers, launched with little work on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class Kernel:
    """A kernel with all its arguments that are numbers.

    The first call goes through Triton's front, which compiles for these numbers and for pointers aligned like these; later ones launch what it
    compiled.
    """

    function: Any
    grid: tuple[int, int, int]
    numbers: tuple[Any, ...]
    options: dict[str, Any]
    launch: Callable[..., Any] | None = None

    def __call__(self, memory: Sequence[Any]) -> None:
        """Launch with `memory`, which comes first: strides, and tensors, or addresses once there is a `launch`."""
        if self.launch is not None:
            self.launch(*memory, *self.numbers)
            return
        compiled = self.function[self.grid](*memory, *self.numbers, **self.options)
        # The interpreter compiles nothing.
        if compiled is not None:
            self.launch = _launcher(compiled, self.grid)


def _launcher(compiled: Any, grid: tuple[int, int, int]) -> Callable[..., Any]:
    """What launches a compiled kernel on the current stream, without the hooks of profilers."""
    from triton.runtime import driver

    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    device = driver.active.get_current_device()
    stream = driver.active.get_current_stream

    x, y, z = grid

    def launch(*arguments: Any) -> None:
        run(x, y, z, stream(device), function, metadata, None, None, None, *arguments)

    return launch
