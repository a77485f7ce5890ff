from __future__ import annotations

import pytest
import torch

from pararnn_cola.study.presets import grid
from pararnn_cola.study.settings import Entry


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small():
    """The fields of an entry that trains within a tenth of a second."""
    return {
        "task": "adding",
        "task_options": {"length": 6},
        "optimizers": grid(sgd=(0.03, 0.1), adam=(0.01,)),
        "iterations": 4,
        "batch": 3,
        "state_size": 5,
        "seeds": (0, 1),
    }


@pytest.fixture
def entry(small):
    return Entry(rule="COLA", varied=({"rho": 0.9, "margin": 0.1}, {"rho": 0.99, "margin": 0.3}), clips=(1.0, None), **small)
