"""An engine in PyTorch, which cells with several numbers a channel meet as users of a layer do."""

import pytest
import torch
from reference_engine import ReferenceEngine

from pararnn.compiler.native import backend as native
from pararnn.selection import clear_cache


@pytest.fixture
def engine(monkeypatch):
    """The reference in the place of the native engine."""
    made = ReferenceEngine()
    monkeypatch.setattr(native, "engine", lambda: made)
    monkeypatch.setattr(native.solve, "engine", lambda: made)
    clear_cache()
    torch._dynamo.reset()
    yield made
    clear_cache()
    torch._dynamo.reset()
