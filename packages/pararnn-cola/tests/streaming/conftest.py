"""Learners of every registered rule, streams to feed them, and a recorder that replays steps on a CPU as a CUDA graph does on a GPU."""

from __future__ import annotations

import contextlib
import importlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from pararnn_cola import Network
from pararnn_cola.plugin import pararnn_register_learners
from pararnn_cola.streaming import capture as capture_module

BATCH, INPUT, STATE, OUTPUT = 3, 2, 5, 2
OPTIONS = {"TBPTT": {"k1": 4}}
RULES = {spec.name: spec.target for spec in pararnn_register_learners()}


def make(rule="COLA", *, seed=0, momentum=0.9, lr=0.05, **options):
    module, _, name = RULES[rule].partition(":")
    network = Network.rnn(INPUT, STATE, OUTPUT, seed=seed, dtype=torch.float64)
    optimizer = torch.optim.SGD(network.parameters(), lr=lr, momentum=momentum)
    torch.manual_seed(seed)
    return getattr(importlib.import_module(module), name)(network, optimizer=optimizer, **OPTIONS.get(rule, {}), **options)


def stream(length, *, batch=BATCH, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(length):
        u, y = (torch.randn(batch, size, generator=generator, dtype=torch.float64) for size in (INPUT, OUTPUT))
        yield u, y


def weights_of(learner):
    return {name: value.clone() for name, value in learner.network.state_dict().items()}


@pytest.fixture(params=sorted(RULES))
def rule(request):
    return request.param


@pytest.fixture
def learner():
    return make()


@pytest.fixture
def make_learner():
    return make


@pytest.fixture
def make_stream():
    return stream


@pytest.fixture
def assert_same():
    def check(one, two, **tolerance):
        tolerance = tolerance or {"rtol": 0, "atol": 0}
        torch.testing.assert_close(weights_of(one), weights_of(two), **tolerance)

    return check


class Tape(TorchDispatchMode):
    """Operations with the very tensors that they read and wrote; `replay` runs them again on those, whatever anybody else holds by then."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, found))
        return found

    @torch.no_grad()
    def replay(self):
        # A CUDA graph writes to memory past torch, so that no tensor's version moves.
        touched = [part for _, args, kwargs, recorded in self.calls for part in tree_flatten((args, kwargs, recorded))[0]]
        with torch.autograd._unsafe_preserve_version_counter(tuple(part for part in touched if isinstance(part, torch.Tensor))):
            for function, args, kwargs, recorded in self.calls:
                again = function(*args, **kwargs)
                for old, new in zip(tree_flatten(recorded)[0], tree_flatten(again)[0], strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


@pytest.fixture
def tape(monkeypatch):
    """Captures go on a tape instead of into a CUDA graph."""

    def record(body, device):
        taken = Tape()
        with taken:
            body()
        return taken.replay

    monkeypatch.setattr(capture_module, "record", record)
    monkeypatch.setattr(capture_module, "aside", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(capture_module, "require_device", lambda device: None)
