"""Where solves are recognised: an engine with nothing remembered, a configuration that names it, and whether each solve was recognised."""

import pytest
import torch
from reference_engine import ReferenceEngine

from pararnn import NewtonConfig
from pararnn.compiler.native import backend
from pararnn.conformance.by_address import launch_by_address
from pararnn.selection import clear_cache
from pararnn.solver import again


@pytest.fixture
def place(request, monkeypatch):
    """The name of a backend, and a device."""
    clear_cache()
    again.forget()
    torch.manual_seed(0)
    if request.param == "reference":
        made = ReferenceEngine()
        made.name = "native"
        monkeypatch.setattr(backend, "engine", lambda: made)
        monkeypatch.setattr(backend.solve, "engine", lambda: made)
    if request.param == "triton":
        from pararnn.compiler.gpu import backward, forward
        from pararnn.compiler.gpu.backend import engine

        # What was prepared for these launches is of no use to others, nor the other way round.
        for owner in (forward, backward, engine()):
            monkeypatch.setattr(owner, "_prepared", {})
        monkeypatch.setattr(backward.direct, "_known", {})
        launch_by_address(monkeypatch)
    yield {"gpu": ("triton", "cuda"), "triton": ("triton", "cpu")}.get(request.param, ("native", "cpu"))
    clear_cache()
    again.forget()


@pytest.fixture
def config(place):
    return NewtonConfig(backend=place[0])
