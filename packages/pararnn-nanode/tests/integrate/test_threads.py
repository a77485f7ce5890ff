"""Threads that integrate one field at once."""

import threading

import pytest
import torch

from pararnn.errors import DifferentiationError
from pararnn_nanode import NANODE, CallableField


class Waiting(torch.nn.Module):
    """`w x`, which stops in the middle of a backward pass until it is let go."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
        self.armed, self.inside, self.leave = False, threading.Event(), threading.Event()

    def forward(self, t, x):
        if self.armed:
            self.armed = False
            self.inside.set()
            assert self.leave.wait(30)
        return self.w * x


@pytest.fixture
def paused():
    """A module in whose walk back another thread is stopped, that thread's gradient, and its end."""
    module = Waiting()
    states = NANODE(CallableField(module), method="alf", gradient="reversible")(torch.ones(2, dtype=torch.float64)).sum()
    module.armed = True
    found = []
    thread = threading.Thread(target=lambda: found.extend(torch.autograd.grad(states, module.w)))
    thread.start()
    assert module.inside.wait(30)

    def end():
        module.leave.set()
        thread.join(30)
        return found[0]

    yield module, end
    end()


@pytest.mark.parametrize(
    "options", [{}, {"method": "alf", "gradient": "reversible"}, {"method": "dopri5"}, {"parallel": "windowed", "window": 4}], ids=str
)
def test_a_thread_is_refused_while_another_walks_back(paused, options):
    module, end = paused
    with pytest.raises(DifferentiationError, match="two threads"):
        NANODE(CallableField(module), **options)(torch.ones(2, dtype=torch.float64))
    alone = Waiting()
    (expected,) = torch.autograd.grad(NANODE(CallableField(alone), method="alf")(torch.ones(2, dtype=torch.float64)).sum(), alone.w)
    torch.testing.assert_close(end(), expected, rtol=1e-12, atol=1e-12)
    assert isinstance(module.w, torch.nn.Parameter)


def test_threads_may_share_a_field_where_nothing_is_replaced():
    module = Waiting()
    block = NANODE(CallableField(module))
    module.armed = True
    thread = threading.Thread(target=lambda: block(torch.ones(2, dtype=torch.float64)))
    thread.start()
    assert module.inside.wait(30)
    module.armed = False
    block(torch.ones(2, dtype=torch.float64))
    module.leave.set()
    thread.join(30)
