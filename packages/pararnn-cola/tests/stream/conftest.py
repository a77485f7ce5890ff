"""All rules that are installed, each on a small network, and streams for them. A rule that is registered later joins these tests by itself."""

import copy
import io

import pytest
import torch

import pararnn.registry
from pararnn_cola import Network

INPUT, STATE, OUTPUT, BATCH = 2, 5, 2, 3
OPTIONS = {"TBPTT": {"k1": 3, "k2": 5}}
# COLA pools over rows, TBPTT counts steps for all rows together, UORO draws random numbers.
TOGETHER = ("COLA", "TBPTT", "UORO")
WAITING = ("BPTT", "TBPTT")


class Rule:
    """A rule by its registered name, made with what it cannot do without."""

    def __init__(self, name):
        self.name = name
        self.kind = pararnn.registry.installed().learners[name].spec.load()
        # The gradient of a batch is the mean of those of its samples, run one by one.
        self.separable = name not in TOGETHER
        # Weights may move at every step.
        self.online = name != "BPTT"
        # Losses reach .grad within their step.
        self.prompt = name not in WAITING

    def __call__(self, network, **options):
        if not self.online:
            options["update"] = "accumulate"
        return self.kind(network, **OPTIONS.get(self.name, {}), **options)

    def __repr__(self):
        return self.name


def pytest_generate_tests(metafunc):
    if "rule" in metafunc.fixturenames:
        names = sorted(pararnn.registry.installed().learners)
        metafunc.parametrize("rule", [Rule(name) for name in names], ids=names)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(3)


@pytest.fixture
def network():
    """A maker of equal small networks."""

    def make(seed=1, **options):
        return Network.rnn(INPUT, STATE, OUTPUT, **({"seed": seed, "dtype": torch.float64} | options))

    return make


@pytest.fixture
def stream():
    """A maker of inputs and targets `(time, batch, ...)`."""

    def make(time=30, batch=BATCH, *, dtype=torch.float64, seed=4):
        generator = torch.Generator().manual_seed(seed)
        return tuple(torch.randn(time, batch, size, generator=generator, dtype=torch.float64).to(dtype) for size in (INPUT, OUTPUT))

    return make


@pytest.fixture
def feed():
    """A function that steps through a stretch of a stream; a learner that only accumulates is applied every ten steps."""

    def run(learner, stream, start=0, stop=None, **options):
        results = []
        for time in range(start, len(stream[0]) if stop is None else stop):
            results.append(learner.step(stream[0][time], stream[1][time], **options))
            if learner.update == "accumulate" and time % 10 == 9:
                learner.apply()
        return results

    return run


@pytest.fixture
def snapshot():
    """A function that copies all that a learner could change: weights, gradients, optimizer, states, statistics."""

    def take(learner):
        return {
            "weights": {name: p.detach().clone() for name, p in learner.network.named_parameters()},
            "gradients": {name: None if p.grad is None else p.grad.clone() for name, p in learner.network.named_parameters()},
            "tensors": {name: tensor.clone() for name, tensor in learner.tensors().items()},
            "optimizer": copy.deepcopy(learner.optimizer.state_dict()),
            "steps": learner.steps,
            "batch": learner.batch,
            "waiting": learner.buffers.unlearned,
        }

    return take


def _equal(one, two):
    if isinstance(one, torch.Tensor):
        return isinstance(two, torch.Tensor) and one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, dict):
        return isinstance(two, dict) and one.keys() == two.keys() and all(_equal(value, two[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(_equal, one, two))
    return one == two


@pytest.fixture
def equal():
    """Whether nested values are equal to the bit."""
    return _equal


@pytest.fixture
def through_a_file():
    """A function that saves a value with torch.save and loads it as untrusted files are loaded."""

    def trip(value):
        file = io.BytesIO()
        torch.save(value, file)
        file.seek(0)
        return torch.load(file, weights_only=True)

    return trip
