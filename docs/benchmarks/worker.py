"""A contestant in a process of its own, asked for one turn at a time.

Two packages that are both imported as `pararnn` cannot share a process, and a child that stays alive can be asked for a few calls,
then wait while the others have their turn: a machine that slows down during the run slows all of them alike. Requests and replies are
JSON, one a line. Standard library and torch only: the peer's environment imports this module too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from machine import extra_peak_mib
from torch import Tensor, nn

Call = Callable[[], object]
FORWARD = "forward"
BOTH = "forward+backward"
HERE = Path(__file__).parent
FEATURES = 8


@dataclass(frozen=True)
class Case:
    """A shape: sequences, samples of each, state channels."""

    batch: int
    length: int
    state: int

    def __str__(self) -> str:
        return f"({self.batch}, {self.length}, {self.state})"


class Contestant(Protocol):
    """What `serve` drives."""

    def facts(self) -> dict[str, Any]:
        """Versions of what is measured."""
        ...

    def load(self, case: Case) -> dict[str, Call]:
        """The calls to time for a shape, by name, such as `parallel/forward`."""
        ...

    def agreement(self, case: Case) -> dict[str, Any]:
        """How far the parallel states of the shape lie from the walked ones, and what else there is to say of the solve."""
        ...


def inputs(case: Case) -> Tensor:
    """Eight random features and a time gap of 0.05 to 1.05, `(batch, length, 9)`, the same for every contestant."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(case.batch, case.length, FEATURES, generator=generator)
    elapsed = 0.05 + torch.rand(case.batch, case.length, 1, generator=generator)
    return torch.cat((features, elapsed), dim=-1)


def calls_of(name: str, run: Callable[[Tensor], Tensor], module: nn.Module, case: Case) -> dict[str, Call]:
    """Forward without gradients, and forward+backward to every parameter of `module` from a fixed random output gradient."""
    x = inputs(case)
    output_gradient = torch.randn(case.batch, case.length, case.state, generator=torch.Generator().manual_seed(2))

    def forward() -> None:
        with torch.no_grad():
            run(x)

    def forward_backward() -> None:
        module.zero_grad(set_to_none=True)
        run(x).backward(output_gradient)

    return {f"{name}/{FORWARD}": forward, f"{name}/{BOTH}": forward_backward}


def turn(call: Call, *, calls: int, seconds: float) -> list[float]:
    """Milliseconds of each of up to `calls` calls, ending early once `seconds` have gone by; at least one."""
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < calls and (not times or time.perf_counter() - begin < seconds):
        start = time.perf_counter()
        call()
        times.append(round((time.perf_counter() - start) * 1e3, 4))
    return times


def serve(contestant: Contestant, *, threads: int) -> None:
    """Answer requests from standard input until it closes. Whatever libraries print goes to standard error, not into the replies."""
    torch.set_num_threads(threads)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    loaded: dict[str, Call] = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = _answer(contestant, request, loaded)
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _answer(contestant: Contestant, request: dict[str, Any], loaded: dict[str, Call]) -> dict[str, Any]:
    match request["do"]:
        case "facts":
            return contestant.facts()
        case "load":
            loaded.clear()
            loaded.update(contestant.load(Case(**request["case"])))
            return {"calls": sorted(loaded)}
        case "agreement":
            return contestant.agreement(Case(**request["case"]))
        case "turn":
            return {"ms": turn(loaded[request["call"]], calls=request["calls"], seconds=request["seconds"])}
        case "memory":
            return _memory(contestant, Case(**request["case"]), request["call"])
    raise ValueError(f"unknown request {request['do']!r}; worker.py lists them")


def _memory(contestant: Contestant, case: Case, call: str) -> dict[str, Any]:
    # A short sequence first: thread pools, lazily loaded libraries and their caches are not what the call needs.
    short = Case(case.batch, min(case.length, 64), case.state)
    contestant.load(short)[call]()
    measured = contestant.load(case)[call]
    return {"first_mib": extra_peak_mib(measured), "again_mib": extra_peak_mib(measured)}


class WorkerError(RuntimeError):
    """A contestant could not do what it was asked; the message is its own."""


class Worker:
    """A child process that runs `script` with `python`; use it as a context manager."""

    def __init__(self, name: str, python: str, script: str, *, threads: int, arguments: Sequence[str] = (), own_path: bool = True) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python, str(HERE / script), "--threads", str(threads), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment_of(threads, own_path=own_path),
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=60)

    def ask(self, do: str, **fields: object) -> dict[str, Any]:
        """The reply to one request.

        Raises:
            WorkerError: the child failed, or ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        values = {key: asdict(value) if isinstance(value, Case) else value for key, value in fields.items()}
        try:
            self._process.stdin.write(json.dumps({"do": do, **values}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerError(f"{self.name} ended with exit status {self._process.wait()} when asked for {do!r}; its own message is above")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise WorkerError(f"{self.name} could not do {do!r} {fields}: {reply['error']}\n{reply['traceback']}")
        return reply


def _environment_of(threads: int, *, own_path: bool) -> Mapping[str, str]:
    # PYTHONPATH may hold our sources, which would take the place of the peer's package of the same import name.
    kept = {key: value for key, value in os.environ.items() if own_path or key not in ("PYTHONPATH", "PYTHONHOME")}
    return kept | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads)}
