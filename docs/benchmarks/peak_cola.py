"""The peak of a process that learns a stream of random numbers: `python peak_cola.py COLA 1000` prints one line of JSON. Used by cpu_cola.py."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import torch
from stream_contestants import INPUT, OUTPUT, learner_of

STATE, BATCH, COUNTED = 64, 16, 10


def main(name: str, length: int) -> None:
    """Learn so many steps; BPTT sends its losses back at the end."""
    torch.set_num_threads(1)
    learner = learner_of(name, STATE, update="step")
    generator = torch.Generator().manual_seed(0)
    saved = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal saved
        saved += 1
        return tensor

    def advance(steps: int) -> None:
        for _ in range(steps):
            learner.step(torch.randn(BATCH, INPUT, generator=generator), torch.randn(BATCH, OUTPUT, generator=generator))

    begin = time.perf_counter()
    # Counting costs memory itself, so only the first steps are counted.
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        advance(COUNTED)
    advance(length - COUNTED)
    learner.apply()
    print(json.dumps({"peak_mib": peak() / 2**20, "saved_a_step": saved / COUNTED, "seconds": time.perf_counter() - begin}))


def peak() -> int:
    """Bytes. Linux begins `ru_maxrss` with the parent's peak, so it is read only where there is nothing better."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
