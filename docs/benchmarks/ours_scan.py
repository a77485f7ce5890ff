"""The side of `cpu_scan.py` that is measured: `pararnn.scan` with a named backend, and a plain addition that moves as much memory.

Started by the driver; speaks the JSON of `worker.py`.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from machine import environment
from torch import Tensor
from worker import Call, Case, serve

BACKENDS = ("torch", "numba")


class Scans:
    """Diagonal scan of `(batch, time, state)` in float32, forward only."""

    def facts(self) -> dict[str, Any]:
        """Versions."""
        return environment("pararnn-core", "numba", "numpy")

    def load(self, case: Case) -> dict[str, Call]:
        """`add` (two reads, one write, into memory that exists), and `scan/BACKEND` (two reads, one write) for each backend that can serve."""
        from pararnn import Diagonal, scan

        decay, drive = _decay_and_drive(case)
        target = torch.empty_like(drive)

        def run(backend: str) -> Call:
            def call() -> None:
                with torch.no_grad():
                    scan(Diagonal(decay), drive, backend=backend)

            return call

        calls: dict[str, Call] = {"add": lambda: torch.add(decay, drive, out=target)}
        return calls | {f"scan/{backend}": run(backend) for backend in BACKENDS if not _obstacle(backend)}

    def agreement(self, case: Case) -> dict[str, Any]:
        """For each backend the largest difference to a float64 walk, or why it cannot serve."""
        return {backend: {"cannot": obstacle} if (obstacle := _obstacle(backend)) else {"max_abs": _error(backend, case)} for backend in BACKENDS}


def _decay_and_drive(case: Case) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (case.batch, case.length, case.state)
    rate = torch.nn.functional.softplus(torch.randn(shape, generator=generator))
    return torch.exp(-rate * (0.05 + torch.rand(shape, generator=generator))), torch.randn(shape, generator=generator)


def _obstacle(backend: str) -> str:
    from pararnn import Diagonal, scan
    from pararnn.errors import BackendError

    try:
        scan(Diagonal(torch.ones(1, 2, 1)), torch.ones(1, 2, 1), backend=backend)
    except BackendError as error:
        return str(error)
    return ""


def _error(backend: str, case: Case) -> float:
    from pararnn import Diagonal, scan

    decay, drive = _decay_and_drive(case)
    state, walked = torch.zeros(case.batch, case.state, dtype=torch.float64), []
    for a, b in zip(decay.double().unbind(1), drive.double().unbind(1), strict=True):
        state = a * state + b
        walked.append(state)
    return float((scan(Diagonal(decay), drive, backend=backend) - torch.stack(walked, dim=1)).abs().max())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    serve(Scans(), threads=parser.parse_args().threads)
