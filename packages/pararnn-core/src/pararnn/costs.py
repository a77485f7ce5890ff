"""What an operation of torch costs: a fixed part for the call, and a part for each element."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Seconds of a call and of an element of the plainest operation; threads share an operation from `grain` elements each.

    Only ratios decide anything, so one figure a kind of device is enough: measured on two cores of a server, and on one H200.
    """

    call: float
    element: float
    grain: int | None = None

    def operation(self, elements: float) -> float:
        """Estimated seconds of one elementwise operation."""
        workers = 1 if self.grain is None else max(1, min(torch.get_num_threads(), int(elements) // self.grain))
        return self.call + elements * self.element / workers


CPU = Machine(call=2.6e-6, element=0.35e-9, grain=32768)
# Launched from Python; two units of `element` are the twelve bytes that an operation on two inputs moves.
ACCELERATOR = Machine(call=8e-6, element=1.5e-12)


def machine_of(device: torch.device) -> Machine:
    """The machine behind a device."""
    return CPU if device.type == "cpu" else ACCELERATOR
