"""What SnAp-1 and e-prop share: traces through steps without a loss, gaps, resets, checkpoints, ensembles, half precision."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch.testing import assert_close

from pararnn_cola import EProp, SnAp1
from pararnn_cola.ensemble import stack_networks

EXACT = {"rtol": 1e-12, "atol": 1e-13}
RULES = pytest.mark.parametrize(
    ("rule", "options"), [(SnAp1, {}), (EProp, {}), (EProp, {"feedback": "random"})], ids=["SnAp1", "EProp", "EProp random"]
)
KINDS = pytest.mark.parametrize("kinds", [("rnn",), ("leaky",), ("leaks",), ("spiking",), ("leaks", "rnn")], ids="-".join)


def gradients(network):
    return {name: parameter.grad for name, parameter in network.named_parameters() if parameter.grad is not None}


@RULES
@KINDS
@pytest.mark.parametrize("weightless", ["y=None", "weight=0", "weights of zero"])
def test_steps_without_a_loss_carry_traces_on(rule, options, kinds, weightless, network, stream):
    inputs, targets, _ = stream()
    net, other = network(*kinds), network(*kinds)
    late, weighted = rule(net, update="accumulate", **options), rule(other, update="accumulate", **options)
    for step, (u, y) in enumerate(zip(inputs, targets, strict=True)):
        if step == len(inputs) - 1:
            late.step(u, y)
            weighted.step(u, y)
            continue
        # Losses that are there, but weigh nothing, are the obvious way to have none.
        weighted.step(u, y, torch.zeros(4, dtype=torch.float64))
        if weightless == "y=None":
            late.step(u)
        else:
            late.step(u, y, 0.0 if weightless == "weight=0" else torch.zeros(4, dtype=torch.float64))
    assert_close(gradients(net), gradients(other), **EXACT)


@RULES
@KINDS
def test_rows_with_gaps_learn_as_if_each_stream_were_alone(rule, options, kinds, network, stream):
    inputs, targets, weights = stream(batch=3)
    present = torch.rand(len(inputs), 3, generator=torch.Generator().manual_seed(1)) > 0.4
    alone, net = network(*kinds), network(*kinds)
    for row in range(3):
        learner = rule(alone, update="accumulate", **options)
        for step in present[:, row].nonzero().flatten().tolist():
            learner.step(inputs[step, row : row + 1], targets[step, row : row + 1], weights[step, row : row + 1])
    learner = rule(net, update="accumulate", **options)
    for u, y, weight, mask in zip(inputs, targets, weights, present, strict=True):
        learner.step(u.where(mask.unsqueeze(-1), torch.nan), y.where(mask.unsqueeze(-1), torch.nan), weight, mask)
    assert_close(gradients(net), {name: gradient / 3 for name, gradient in gradients(alone).items()}, **EXACT)


@RULES
@KINDS
@pytest.mark.parametrize("whole", [True, False], ids=["all rows", "one row"])
def test_a_reset_cuts_traces_in_its_rows(rule, options, kinds, whole, network, stream):
    inputs, targets, weights = stream(batch=2)
    alone, net = network(*kinds), network(*kinds)
    for row in range(2):
        pieces = [slice(0, 4), slice(4, None)] if whole or row == 1 else [slice(None)]
        for piece in pieces:
            learner = rule(alone, update="accumulate", **options)
            for u, y, weight in zip(inputs[piece, row : row + 1], targets[piece, row : row + 1], weights[piece, row : row + 1], strict=True):
                learner.step(u, y, weight)
    learner = rule(net, update="accumulate", **options)
    for step, (u, y, weight) in enumerate(zip(inputs, targets, weights, strict=True)):
        if step == 4:
            learner.reset(None if whole else torch.tensor([False, True]))
        learner.step(u, y, weight)
    assert_close(gradients(net), {name: gradient / 2 for name, gradient in gradients(alone).items()}, **EXACT)


@RULES
@KINDS
def test_a_reset_of_its_row_heals_a_trace_that_a_bad_input_spoiled(rule, options, kinds, network, stream):
    inputs, targets, weights = stream(batch=2)
    net, other = network(*kinds), network(*kinds)
    spoiled, fine = rule(net, update="accumulate", **options), rule(other, update="accumulate", **options)
    bad = inputs[0].clone()
    bad[1] = torch.nan
    spoiled.step(bad)
    fine.step(inputs[0])
    for learner in (spoiled, fine):
        learner.reset(torch.tensor([False, True]))
        for u, y, weight in zip(inputs[1:], targets[1:], weights[1:], strict=True):
            learner.step(u, y, weight)
    assert_close(gradients(net), gradients(other), rtol=0, atol=0)


@RULES
@KINDS
@pytest.mark.parametrize("at", [0, 1, 5])
def test_a_saved_learner_goes_on_bit_for_bit(rule, options, kinds, at, network, stream):
    inputs, targets, weights = stream()
    learner = rule(network(*kinds), lr=0.1, **options)
    for u, y, weight in itertools.islice(zip(inputs, targets, weights, strict=True), at):
        learner.step(u, y, weight)
    saved = learner.state_dict()
    resumed = rule(network(*kinds), lr=0.1, **options)
    for u, y, weight in itertools.islice(zip(inputs, targets, weights, strict=True), at, None):
        learner.step(u, y, weight)
    # Traces change in place, so a checkpoint taken before must not have changed with them.
    resumed.load_state_dict(saved)
    for u, y, weight in itertools.islice(zip(inputs, targets, weights, strict=True), at, None):
        resumed.step(u, y, weight)
    assert_close(dict(resumed.network.named_parameters()), dict(learner.network.named_parameters()), rtol=0, atol=0)


@RULES
@KINDS
def test_an_ensemble_learns_as_its_networks_would_alone(rule, options, kinds, network, stream):
    runs = [network(*kinds, seed=seed) for seed in range(3)]
    together = stack_networks(runs)
    data = [stream() for _ in runs]
    learners = [rule(net, lr=0.1, **options) for net in runs]
    learner = rule(together, lr=0.1, **options)
    for step in range(9):
        mask = torch.tensor([[True, True, False, True], [True, False, True, True], [False, True, True, True]]) if step % 3 else None
        u, y, weight = (torch.stack([part[step] for part in parts]) for parts in zip(*data, strict=True))
        learner.step(u, y, weight, mask)
        for run, alone in enumerate(learners):
            alone.step(u[run], y[run], weight[run], None if mask is None else mask[run])
    for name, parameter in together.named_parameters():
        assert_close(parameter, torch.stack([net.get_parameter(name) for net in runs]), rtol=1e-11, atol=1e-13)


@RULES
@KINDS
def test_a_frozen_parameter_gets_no_gradient_and_the_others_keep_theirs(rule, options, kinds, network, stream, streamed):
    data = stream()
    expected = streamed(rule, network(*kinds), *data, **options)
    net = network(*kinds)
    net.get_parameter("layers.0.weight_ih").requires_grad_(False)
    found = streamed(rule, net, *data, **options)
    assert found.keys() == expected.keys() - {"layers.0.weight_ih"}
    assert_close(found, {name: expected[name] for name in found}, rtol=0, atol=0)


@RULES
@pytest.mark.parametrize("kinds", [("rnn",), ("leaky",), ("leaks",)], ids="-".join)
def test_gradients_of_a_bfloat16_network_are_near_those_in_float64_and_traces_are_float32(rule, options, kinds, network, stream):
    half = network(*kinds).bfloat16()
    whole = copy.deepcopy(half).double()
    inputs, targets, weights = stream(batch=16)
    rounded, exact = rule(half, update="accumulate", **options), rule(whole, update="accumulate", **options)
    for u, y, weight in zip(inputs.bfloat16(), targets.bfloat16(), weights, strict=True):
        rounded.step(u, y, weight)
        exact.step(u.double(), y.double(), weight)
    assert all(trace.dtype == torch.float32 for trace in rounded.traces if trace is not None)
    for name, gradient in gradients(whole).items():
        error = torch.linalg.vector_norm(half.get_parameter(name).grad.double() - gradient) / torch.linalg.vector_norm(gradient)
        assert error < 0.05, name


@RULES
def test_a_doubled_batch_changes_nothing(rule, options, network, stream, streamed):
    inputs, targets, weights = stream()
    expected = streamed(rule, network("leaks", "rnn"), inputs, targets, weights, **options)
    doubled = (torch.cat([part, part], 1) for part in (inputs, targets, weights))
    assert_close(streamed(rule, network("leaks", "rnn"), *doubled, **options), expected, **EXACT)


@RULES
def test_a_new_batch_size_begins_with_new_traces(rule, options, network, stream):
    learner = rule(network("leaks"), update="accumulate", **options)
    for batch in (3, 5):
        learner.init(batch)
        inputs, targets, weights = stream(batch=batch)
        for u, y, weight in zip(inputs, targets, weights, strict=True):
            learner.step(u, y, weight)
        assert learner.traces[0].shape == (6, batch, 10)


def test_a_trace_is_as_large_as_what_it_tells_apart(network, stream):
    inputs, targets, _ = stream()
    shapes = {}
    for rule, kind in itertools.product((SnAp1, EProp), ("rnn", "leaky", "leaks")):
        learner = rule(network(kind))
        learner.step(inputs[0], targets[0])
        trace = learner.traces[0]
        shapes[rule.__name__, kind] = None if trace is None else tuple(trace.shape)
    assert shapes == {
        ("SnAp1", "rnn"): (6, 4, 10),
        ("SnAp1", "leaky"): (6, 4, 10),
        ("SnAp1", "leaks"): (6, 4, 10),
        ("EProp", "rnn"): None,
        ("EProp", "leaky"): (1, 4, 10),
        ("EProp", "leaks"): (6, 4, 10),
    }


@RULES
def test_the_trace_is_updated_in_place_so_that_its_memory_stays_flat(rule, options, network, stream):
    inputs, targets, _ = stream()
    learner = rule(network("leaks"), **options)
    learner.step(inputs[0], targets[0])
    address = learner.traces[0].data_ptr()
    for u, y in zip(inputs[1:], targets[1:], strict=True):
        learner.step(u, y)
    assert learner.traces[0].data_ptr() == address


@RULES
def test_there_are_no_signals_to_show_and_no_graph(rule, options, network, stream):
    inputs, targets, _ = stream()
    learner = rule(network("leaky"), **options)
    result = learner.step(inputs[0], targets[0], signals=True)
    assert result.signals is None
    assert result.output.grad_fn is None
    assert all(tensor.grad_fn is None for tensor in learner.tensors().values())
