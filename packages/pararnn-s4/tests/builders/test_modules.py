"""The small modules around a state-space layer."""

import pytest
import torch
from torch import nn

from pararnn.errors import ConfigError
from pararnn_s4 import DropoutNd, LinearActivation

NAMES = ["id", "identity", "linear", "tanh", "relu", "gelu", "elu", "swish", "silu", "glu", "sigmoid", "softplus"]
ORDERS = pytest.mark.parametrize("transposed", [False, True], ids=["features-last", "features-first"])


@ORDERS
@pytest.mark.parametrize("name", [None, *NAMES])
def test_every_activation_keeps_the_number_of_outputs(name, transposed):
    module = LinearActivation(3, 4, transposed=transposed, activate=True, activation=name)
    assert module(torch.randn(2, 3, 5) if transposed else torch.randn(2, 5, 3)).shape == ((2, 4, 5) if transposed else (2, 5, 4))


@pytest.mark.parametrize(
    ("name", "function"),
    [("gelu", nn.functional.gelu), ("silu", nn.functional.silu), ("tanh", torch.tanh), ("glu", lambda x: x[..., :4] * torch.sigmoid(x[..., 4:]))],
)
def test_the_activation_comes_after_the_linear_map(name, function):
    module = LinearActivation(3, 4, activate=True, activation=name)
    x = torch.randn(2, 5, 3)
    torch.testing.assert_close(module(x), function(x @ module[0].weight.mT + module[0].bias))


@pytest.mark.parametrize("name", ["gelu", "glu"])
def test_both_orders_of_axes_compute_the_same(name):
    last, first = (LinearActivation(3, 4, transposed=transposed, activate=True, activation=name) for transposed in (False, True))
    first[0].weight.data.copy_(last[0].weight.data.unsqueeze(-1))
    first[0].bias.data.copy_(last[0].bias.data)
    x = torch.randn(2, 5, 3)
    torch.testing.assert_close(first(x.mT).mT, last(x))


def test_positional_arguments_mean_what_they_mean_in_lrnnx():
    module = LinearActivation(3, 4, False, True, True)
    assert isinstance(module[0], nn.Conv1d)
    assert module[0].bias is None
    assert isinstance(module[1], nn.GELU)


def test_without_activation_the_weights_have_the_names_of_a_plain_linear_map():
    assert list(LinearActivation(3, 4).state_dict()) == ["weight", "bias"]
    assert list(LinearActivation(3, 4, activate=True, activation=None).state_dict()) == ["weight", "bias"]
    assert list(LinearActivation(3, 4, activate=True).state_dict()) == ["0.weight", "0.bias"]


def test_a_gate_doubles_the_outputs_even_where_the_caller_applies_it():
    assert LinearActivation(3, 4, activation="glu").out_features == 8


def test_further_arguments_reach_the_linear_map():
    assert LinearActivation(3, 4, dtype=torch.float64).weight.dtype == torch.float64


def test_an_unknown_activation_is_refused():
    with pytest.raises(ConfigError, match="activation 'mish' is unknown; choose one of id, identity"):
        LinearActivation(3, 4, activation="mish")


def lengths_last(x, transposed):
    return x if transposed else x.movedim(-1, 1)


@ORDERS
@pytest.mark.parametrize("ndim", [2, 3, 4])
def test_a_tied_mask_is_constant_along_the_sequence(ndim, transposed):
    torch.manual_seed(0)
    x = torch.ones((16, 16, 3, 2)[:ndim] if transposed or ndim == 2 else (16, *(3, 2)[: ndim - 2], 16))
    y = lengths_last(DropoutNd(0.3, transposed=transposed)(x), transposed).reshape(16, 16, -1)
    assert torch.equal(y, y[..., :1].expand_as(y))
    assert set(y.unique().tolist()) == {0.0, torch.tensor(1 / 0.7).item()}


@ORDERS
@pytest.mark.parametrize("tie", [False, True])
def test_the_share_of_what_is_dropped_and_the_mean_are_right(tie, transposed):
    torch.manual_seed(0)
    x = torch.ones(400, 100, 5) if transposed else torch.ones(400, 5, 100)
    y = DropoutNd(0.25, tie, transposed)(x)
    torch.testing.assert_close((y == 0).float().mean().item(), 0.25, rtol=0, atol=0.01)
    torch.testing.assert_close(y.mean().item(), 1.0, rtol=0, atol=0.015)


def test_an_untied_mask_differs_along_the_sequence():
    torch.manual_seed(0)
    y = DropoutNd(0.5, tie=False)(torch.ones(4, 4, 50))
    assert not torch.equal(y, y[..., :1].expand_as(y))


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (0.5, False)])
def test_nothing_is_dropped_in_evaluation_or_at_probability_zero(p, training):
    x = torch.randn(2, 3, 4)
    assert torch.equal(DropoutNd(p).train(training)(x), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64])
def test_dropout_keeps_the_dtype(dtype):
    assert DropoutNd(0.5)(torch.ones(2, 3, 4, dtype=dtype)).dtype == dtype


def test_gradients_pass_where_values_pass():
    torch.manual_seed(0)
    x = torch.randn(4, 4, 3, requires_grad=True)
    y = DropoutNd(0.5)(x)
    y.sum().backward()
    assert torch.equal(x.grad != 0, y != 0)


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, float("nan")])
def test_probabilities_outside_of_the_range_are_refused(p):
    with pytest.raises(ConfigError, match=r"has to be in \[0, 1\)"):
        DropoutNd(p)


def test_dropout_says_what_it_does():
    assert repr(DropoutNd(0.2, tie=False)) == "DropoutNd(p=0.2, tie=False, transposed=True)"


def test_dropout_holds_nothing_but_its_options():
    assert not list(DropoutNd().parameters())
    assert not hasattr(DropoutNd(), "binomial")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@ORDERS
def test_dropout_can_be_scripted(transposed):
    module = DropoutNd(0.3, transposed=transposed)
    x = torch.ones(2, 3, 4)
    scripted = torch.jit.script(module)
    torch.manual_seed(0)
    expected = module(x)
    torch.manual_seed(0)
    assert torch.equal(scripted(x), expected)


def test_dropout_compiles_as_one_graph():
    module = torch.compile(DropoutNd(0.3), fullgraph=True, backend="eager")
    assert module(torch.ones(2, 3, 4)).shape == (2, 3, 4)
