"""Compiled steps in the solver; PyTorch stands in for the engine."""

import pytest
import torch
from reference_engine import ReferenceEngine

from pararnn.compiler.native import backend
from pararnn.selection import clear_cache


@pytest.fixture(autouse=True)
def engine(monkeypatch):
    """The reference in the place of the native engine."""
    made = ReferenceEngine()
    monkeypatch.setattr(backend, "engine", lambda: made)
    monkeypatch.setattr(backend.solve, "engine", lambda: made)
    clear_cache()
    torch.manual_seed(0)
    yield made
    clear_cache()
