"""Layers with every option, small, in double precision, with timescales that sequences of some dozen samples can tell apart."""

import pytest
import torch

from pararnn_s4 import S4, S4D

TIMES = {"dt_min": 0.02, "dt_max": 0.5}

LAYERS = {
    "s4d": (S4D, {}),
    "s4d-bilinear": (S4D, {"disc": "bilinear", "init": "diag-inv"}),
    "s4d-real": (S4D, {"is_real": True, "init": "diag-real"}),
    "s4d-legs": (S4D, {"init": "diag-legs"}),
    "s4": (S4, {}),
    "s4-cauchy": (S4, {"algorithm": "cauchy"}),
    "s4-legt": (S4, {"init": "legt", "rank": 2}),
    "s4-fout": (S4, {"init": "fout"}),
    "s4-real": (S4, {"is_real": True, "init": "dplr-real"}),
}

# What stands round the state space, alone and together.
SURROUNDINGS = {
    "plain": {},
    "channels": {"channels": 3},
    "swapped channels": {"channels": 3, "swap_channels": True},
    "glu": {"activation": "glu", "channels": 2},
    "gate of the same width": {"gate": 1},
    "gate": {"gate": 2, "gate_act": "gelu", "mult_act": "gelu"},
    "gate of the width of the channels": {"gate": 2, "channels": 2},
    "gate of another width than the channels": {"gate": 4, "channels": 2},
    "bottleneck": {"bottleneck": 2},
    "bottleneck and gate": {"bottleneck": 4, "gate": 3, "gate_act": "sigmoid", "channels": 2},
    "no output linear": {"final_act": None},
    "linear output": {"final_act": "id", "activation": None},
    "old name of the output activation": {"final_act": None, "postact": "glu"},
    "shared state spaces": {"n_ssm": 2},
    "a time step for each state": {"dt_tie": False},
}


def build(kind, d_model=8, d_state=8, dtype=torch.float64, **options):
    torch.manual_seed(0)
    layer, own = LAYERS[kind]
    return layer(d_model, d_state, dtype=dtype, **{**TIMES, **own, **options})


@pytest.fixture
def make():
    return build


@pytest.fixture
def numpy():
    """Optional, as it is for torch; its numbers come from data loaders."""
    return pytest.importorskip("numpy")


@pytest.fixture(params=LAYERS)
def kind(request):
    return request.param


@pytest.fixture(params=["s4d", "s4"])
def family(request):
    return request.param


@pytest.fixture(params=SURROUNDINGS.values(), ids=SURROUNDINGS)
def surroundings(request):
    return dict(request.param)


@pytest.fixture
def sequences():
    """Random sequences `(batch, length, features)`."""

    def draw(length=19, batch=3, features=8, dtype=torch.float64, seed=1):
        return torch.randn(batch, length, features, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)

    return draw


@pytest.fixture
def random_state():
    """A random state of `layer`."""

    def draw(layer, batch=3, seed=2):
        empty = layer.init_state(batch)
        return torch.randn(empty.shape, dtype=empty.dtype, generator=torch.Generator().manual_seed(seed))

    return draw


@pytest.fixture
def walk():
    """Outputs and last state of `layer` (or a decoder) fed sample by sample."""

    def run(layer, x, state, **options):
        outputs = []
        for sample in x.unbind(1):
            y, state = layer.step(sample, state, **options)
            outputs.append(y)
        return torch.stack(outputs, 1), state

    return run


@pytest.fixture
def close():
    """Agreement to rounding: 1e-12 in double precision."""

    def check(actual, expected, atol=1e-12):
        torch.testing.assert_close(actual, expected, rtol=0, atol=atol)

    return check
