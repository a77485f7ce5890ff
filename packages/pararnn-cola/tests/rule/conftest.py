"""Small networks in double precision, and the slow and obvious oracles that rules are held to."""

import pytest
import torch
from torch.nn import functional as F

from pararnn_cola import Network
from pararnn_cola.layers.base import Moment
from pararnn_cola.learners.cola import COLA
from pararnn_cola.learners.rows import Rows
from pararnn_cola.learners.statistics import ClosureStatistics

TIME, BATCH, INPUT, STATE, OUTPUT = 25, 7, 3, 16, 2


@pytest.fixture(autouse=True)
def _double_precision():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(3)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def network():
    """A maker of equal networks."""

    def make(**options):
        return Network.rnn(INPUT, STATE, OUTPUT, seed=1, **options)

    return make


@pytest.fixture
def sequence():
    """Inputs, targets and weights of the steps, `(time, batch, ...)` and `(time,)`."""
    generator = torch.Generator().manual_seed(2)
    inputs, targets = (torch.randn(TIME, BATCH, size, generator=generator) for size in (INPUT, OUTPUT))
    return inputs, targets, 0.1 + torch.rand(TIME, generator=generator)


@pytest.fixture
def learn():
    """A function that runs a rule over a sequence with frozen weights: the gradients by name, the signals used, and the learner."""

    def run(rule, network, inputs, targets, weights, **options):
        learner = rule(network, update="accumulate", **options)
        results = [learner.step(u, y, float(w), signals=True) for u, y, w in zip(inputs, targets, weights, strict=True)]
        learner.flush()
        return {name: p.grad.clone() for name, p in network.named_parameters()}, [result.signals for result in results], learner

    return run


@pytest.fixture
def backpropagate():
    """A function that gives the gradients of `sum_t w_t mean_b loss` by autograd; `cut` keeps no more than the last step of the past."""

    def run(network, inputs, targets, weights, *, cut=False):
        for parameter in network.parameters():
            parameter.grad = None
        states, total = network.zero_state(inputs.shape[1]), 0.0
        for u, y, w in zip(inputs, targets, weights, strict=True):
            if cut:
                states = tuple(tuple(part.detach() for part in state) for state in states)
            output, states = network.advance(u, states)
            total = total + w * F.mse_loss(output, y)
        total.backward()
        return {name: p.grad.clone() for name, p in network.named_parameters()}

    return run


class Closure:
    """COLA's own equations, fed with made-up signals `d` and slopes `p` instead of those of a network."""

    def __init__(self, units, *, alpha=None, **options):
        self.learner = COLA(Network.rnn(1, units, 1, seed=0), **options)
        self.layer = self.learner.network.recurrent[0]
        if alpha is not None:
            statistics = self.learner.statistics[0] = ClosureStatistics(torch.zeros(units), self.learner.closure)
            statistics.alpha.fill_(alpha)
            statistics.observe_alpha = lambda *_: None

    def feed(self, d, p):
        """The signal that one step's `d` and `p` `(batch, units)` become."""
        moment = Moment(inputs=d[:, :1], previous=d, output=d, slope=p)
        with torch.no_grad():
            return self.learner._signal(0, self.layer, moment, d, Rows(None, True, 1.0))

    @property
    def statistics(self):
        return self.learner.statistics[0]


@pytest.fixture
def closure():
    """A maker of COLA without a network around it."""
    return Closure
