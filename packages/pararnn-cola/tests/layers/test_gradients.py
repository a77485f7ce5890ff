from __future__ import annotations

import copy

import pytest
import torch
from torch.testing import assert_close

from pararnn_cola import COLA, TBPTT1

KINDS = ["rnn", "leaky", "leaks", "fast_sigmoid", "arctan", "triangle", "lstm", "maps", "rows"]
STACKS = [
    ("leaky", "rnn"),
    ("lstm", "lstm"),
    ("rnn", "lstm", "leaks"),
    ("fast_sigmoid", "leaky"),
    ("arctan", "triangle", "lstm"),
    ("maps", "maps", "maps"),
    ("rows", "rows"),
]
EXACT = {"rtol": 1e-12, "atol": 1e-13}
NETWORKS = pytest.mark.parametrize("kinds", [*[(kind,) for kind in KINDS], *STACKS], ids="-".join)


@NETWORKS
@pytest.mark.parametrize("batch", [1, 4], ids="B{}".format)
def test_tbptt1_gives_the_gradients_of_autograd_with_the_state_detached_before_each_step(kinds, batch, network, stream, backpropagate, streamed):
    net = network(*kinds)
    inputs, targets = stream(net, batch)
    expected = backpropagate(net, inputs, targets, detached=True)
    assert_close(streamed(TBPTT1, net, inputs, targets), expected, **EXACT)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "lstm"])
@pytest.mark.parametrize("batch", [1, 4], ids="B{}".format)
def test_the_recursion_of_exact_signals_gives_the_gradients_of_backpropagation_through_time(kind, batch, network, stream, backpropagate):
    net = network(kind)
    inputs, targets = stream(net, batch)
    expected = backpropagate(net, inputs, targets, detached=False)
    (layer,) = net.recurrent
    state, steps = layer.zero_state(batch), []
    with torch.no_grad():
        for u, y in zip(inputs, targets, strict=True):
            state, moment = layer.observe(u, state)
            error = (net.readout(moment.output) - y) * (2 / y.shape[-1])
            steps.append((moment, moment.slope * net.readout.to_output(error, moment.output)))
        found = {name: torch.zeros_like(parameter) for name, parameter in layer.named_parameters()}
        following = None
        for moment, instantaneous in reversed(steps):
            delta = instantaneous
            if following is not None:
                later, signal = following
                delta = delta + moment.slope * layer.signal_to_previous(signal, later) + later.leak * signal
            layer.add_gradients(found, delta, torch.zeros_like(delta), moment, 1 / batch)
            following = moment, delta
    assert_close(found, {name: expected[f"layers.0.{name}"] for name in found}, **EXACT)


@NETWORKS
@pytest.mark.parametrize("project", ["use", "estimate"])
def test_cola_gives_finite_gradients_and_signals_within_its_bounds(kinds, project, network, stream):
    net = network(*kinds)
    inputs, targets = stream(net)
    learner = COLA(net, project=project, rho_alpha=0.5, rho_mu=0.5, update="accumulate")
    for u, y in zip(inputs, targets, strict=True):
        result = learner.step(u, y, signals=True)
    for signals in result.signals:
        moved = signals.instantaneous != 0
        gain = signals.used[moved] / signals.instantaneous[moved]
        # A bound at the estimate is none where a slope is steeper, but for the floor of the denominator.
        lowest = 1 / 1.9 - 1e-12 if project == "use" else 0.0
        assert bool(((gain > lowest) & (gain <= 10 + 1e-9)).all())
    assert any(bool((signals.used != signals.instantaneous).any()) for signals in result.signals)
    assert all(bool(parameter.grad.isfinite().all()) for parameter in net.parameters())


@NETWORKS
def test_cola_whose_coefficients_stay_zero_is_tbptt1(kinds, network, stream, streamed):
    net = network(*kinds)
    inputs, targets = stream(net)
    # Without a first pair there are no coefficients, so a single step shows the rule at zero.
    expected = streamed(TBPTT1, copy.deepcopy(net), inputs[:1], targets[:1])
    assert_close(streamed(COLA, net, inputs[:1], targets[:1]), expected, rtol=0, atol=0)


@pytest.mark.parametrize("rule", [TBPTT1, COLA], ids=lambda rule: rule.__name__)
@NETWORKS
def test_inputs_that_are_not_contiguous_change_nothing(kinds, rule, network, stream, streamed):
    net = network(*kinds)
    inputs, targets = stream(net)
    expected = streamed(rule, copy.deepcopy(net), inputs, targets)
    strided = torch.stack([inputs, inputs], -1)[..., 0]
    assert not strided[0].is_contiguous()
    assert_close(streamed(rule, net, strided, targets.mT.contiguous().mT), expected, **EXACT)


@NETWORKS
def test_a_frozen_parameter_gets_no_gradient_and_the_others_keep_theirs(kinds, network, stream, streamed):
    net = network(*kinds)
    inputs, targets = stream(net)
    expected = streamed(TBPTT1, copy.deepcopy(net), inputs, targets)
    net.get_parameter("layers.0.weight_hh").requires_grad_(False)
    net.get_parameter("readout.bias").requires_grad_(False)
    found = streamed(TBPTT1, net, inputs, targets)
    assert found.keys() == expected.keys() - {"layers.0.weight_hh", "readout.bias"}
    assert_close(found, {name: expected[name] for name in found}, rtol=0, atol=0)


@pytest.mark.parametrize("kinds", [("leaky",), ("leaks",), ("lstm",), ("maps",), ("rows",), ("leaky", "lstm")], ids="-".join)
@pytest.mark.parametrize("rule", [TBPTT1, COLA], ids=lambda rule: rule.__name__)
def test_gradients_of_a_bfloat16_network_are_near_those_in_float64(kinds, rule, network, stream, streamed):
    half = network(*kinds).to(torch.bfloat16)
    whole = copy.deepcopy(half).double()
    inputs, targets = (tensor.bfloat16() for tensor in stream(half, batch=16))
    expected = streamed(rule, whole, inputs.double(), targets.double())
    found = streamed(rule, half, inputs, targets.float())
    for name, gradient in expected.items():
        error = torch.linalg.vector_norm(found[name].double() - gradient) / torch.linalg.vector_norm(gradient)
        # COLA divides by 1 - mu p, as small as the margin, which magnifies the rounding of p tenfold.
        assert error < (0.05 if rule is TBPTT1 else 0.3), name


@NETWORKS
def test_rows_with_gaps_learn_as_if_each_stream_were_alone(kinds, network, stream):
    net = network(*kinds)
    inputs, targets = stream(net, batch=3)
    present = torch.rand(len(inputs), 3, generator=torch.Generator().manual_seed(1)) > 0.4
    alone = copy.deepcopy(net)
    for row in range(3):
        learner = TBPTT1(alone, update="accumulate")
        for step in present[:, row].nonzero().flatten().tolist():
            learner.step(inputs[step, row : row + 1], targets[step, row : row + 1])
    learner = TBPTT1(net, update="accumulate")
    for u, y, mask in zip(inputs, targets, present, strict=True):
        blank = mask.reshape(3, *(1,) * (u.dim() - 1))
        learner.step(u.where(blank, torch.nan), y.where(mask.unsqueeze(-1), torch.nan), mask=mask)
    expected = {name: parameter.grad / 3 for name, parameter in alone.named_parameters()}
    assert_close({name: parameter.grad for name, parameter in net.named_parameters()}, expected, **EXACT)


@NETWORKS
def test_statistics_leave_out_the_rows_that_are_masked(kinds, network, stream):
    net = network(*kinds)
    inputs, targets = stream(net, batch=3)
    fewer, masked = COLA(copy.deepcopy(net), update="accumulate"), COLA(net, update="accumulate")
    mask = torch.tensor([True, False, True])
    for u, y in zip(inputs, targets, strict=True):
        fewer.step(u[mask], y[mask])
        masked.step(u, y, mask=mask)
    for one, two in zip(fewer.statistics, masked.statistics, strict=True):
        for name in ("S", "Q", "N", "M", "alpha", "mu"):
            assert_close(getattr(two, name), getattr(one, name), rtol=1e-9, atol=1e-30)


@NETWORKS
def test_a_saved_learner_goes_on_bit_for_bit(kinds, network, stream):
    net = network(*kinds)
    inputs, targets = stream(net)
    learner = COLA(net, lr=0.05)
    for u, y in zip(inputs[:4], targets[:4], strict=True):
        learner.step(u, y)
    saved = learner.state_dict()
    resumed = COLA(network(*kinds), lr=0.05)
    resumed.load_state_dict(saved)
    for u, y in zip(inputs[4:], targets[4:], strict=True):
        learner.step(u, y)
        resumed.step(u, y)
    assert_close(dict(resumed.network.named_parameters()), dict(net.named_parameters()), rtol=0, atol=0)
