"""Blocks that torchdiffeq integrates."""

import pytest
import torch

from pararnn.errors import BackendError, ConfigError, InputError
from pararnn_nanode import NANODE

SAME = {"euler": "euler", "midpoint": "midpoint", "heun2": "heun", "rk4": "rk4_38"}


@pytest.fixture
def torchdiffeq():
    return pytest.importorskip("torchdiffeq")


@pytest.mark.usefixtures("torchdiffeq")
@pytest.mark.parametrize("method", SAME)
@pytest.mark.parametrize("t", [None, 0.5, [0.25, 0.5, 1.0]], ids=str)
def test_fixed_steps_are_those_of_the_block(make_block, state, method, t):
    block = make_block(method=method, backend="torchdiffeq")
    ours = NANODE(block.field, method=SAME[method])
    torch.testing.assert_close(block(state, t), ours(state, t), rtol=1e-12, atol=1e-12)
    assert block.solve(state, t).steps == ours.solve(state, t).steps


@pytest.mark.usefixtures("torchdiffeq")
def test_an_adaptive_method_agrees_to_its_tolerance(make_block, state):
    block = make_block(method="dopri5", backend="torchdiffeq", rtol=1e-9, atol=1e-9)
    ours = NANODE(block.field, method="dopri5", rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(block(state, [0.5, 1.0]), ours(state, [0.5, 1.0]), rtol=0, atol=1e-7)


@pytest.mark.usefixtures("torchdiffeq")
@pytest.mark.parametrize("method", ["dopri8", "dopri5", "bosh3", "adaptive_heun"])
def test_accepted_steps_of_an_adaptive_method_are_counted(make_block, state, method):
    block = make_block(method=method, backend="torchdiffeq", rtol=1e-4, atol=1e-5)
    found = block.solve(state)
    assert found.steps == len(accepted(block, state)) > 0


def accepted(block, state):
    """The lengths of the steps that torchdiffeq itself says it accepted."""
    import torchdiffeq

    lengths = []

    class Told(torch.nn.Module):
        def forward(self, t, x):
            return block.field(t, x)

        def callback_accept_step(self, t, x, length):
            lengths.append(length)

    torchdiffeq.odeint(Told(), state, torch.tensor([0.0, 1.0]), method=block.method, **block.options)
    return lengths


@pytest.mark.usefixtures("torchdiffeq")
def test_pieces_of_weights_are_steps_ended_at_their_edges(bucket_block, state):
    block = NANODE(bucket_block.field, method="dopri5", backend="torchdiffeq", rtol=1e-9, atol=1e-9)
    ours = NANODE(bucket_block.field, method="dopri5", rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(block(state), ours(state), rtol=0, atol=1e-7)


@pytest.mark.usefixtures("torchdiffeq")
def test_a_path_and_repeated_times(make_block, state):
    block = make_block(backend="torchdiffeq", output="path")
    torch.testing.assert_close(block(state), NANODE(block.field, output="path")(state))
    repeated = [0.0, 0.5, 0.5, 1.0]
    torch.testing.assert_close(block(state, repeated), NANODE(block.field)(state, repeated))


@pytest.mark.usefixtures("torchdiffeq")
@pytest.mark.parametrize("gradient", ["backprop", "adjoint"])
def test_gradients_reach_the_weights(make_block, state, gradient):
    block = make_block(method="dopri5", backend="torchdiffeq", gradient=gradient, rtol=1e-9, atol=1e-9)
    ours = NANODE(block.field, method="dopri5", rtol=1e-9, atol=1e-9)
    found, expected = (torch.autograd.grad(one(state).square().sum(), [*block.parameters()]) for one in (block, ours))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("torchdiffeq")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "alf"}, "has methods dopri8.*got 'alf'"),
        ({"gradient": "checkpoint"}, "has gradients backprop, adjoint, not 'checkpoint'"),
        ({"parallel": "newton"}, "fixed-step method of backend='native'"),
    ],
    ids=str,
)
def test_what_it_does_not_have_is_refused(make_block, options, words):
    with pytest.raises(ConfigError, match=words):
        make_block(backend="torchdiffeq", **options)


@pytest.mark.usefixtures("torchdiffeq")
def test_calls_it_cannot_serve_are_refused(make_block, state):
    block = make_block(backend="torchdiffeq")
    with pytest.raises(ConfigError, match="neither inputs u nor progress"):
        block(state, progress=lambda step, steps: None)
    with pytest.raises(InputError, match="two times"):
        block(state, torch.ones(3, 1))
    with pytest.raises(ConfigError, match="backend='native'"):
        block.solve(state, event=lambda t, x: x[0, 0])


def test_without_torchdiffeq_the_block_says_how_to_install_it(make_block, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendError, match="pip install"):
        make_block(backend="torchdiffeq")
