"""What belongs to the user stays as it is, and what is given away can be written to."""

import contextlib

import pytest
import torch

from pararnn.errors import ConfigError

CONTEXTS = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
    "nested": lambda: contextlib.nullcontext() if torch.is_inference_mode_enabled() else torch.inference_mode(),
}


def arguments(stream, time):
    """Inputs, targets, weights and a mask of one step."""
    inputs, targets = stream
    generator = torch.Generator().manual_seed(time)
    weight = torch.rand(inputs.shape[1], generator=generator, dtype=inputs.dtype)
    return [inputs[time].clone(), targets[time].clone(), weight, torch.rand(inputs.shape[1], generator=generator) > 0.2]


def test_no_tensor_that_was_given_is_written_to(rule, network, stream):
    data, learner = stream(8), rule(network())
    for time in range(8):
        given = arguments(data, time)
        before = [(tensor.clone(), tensor._version) for tensor in given]
        learner.step(*given)
        learner.reset(rows=given[3])
        for tensor, (value, version) in zip(given, before, strict=True):
            assert torch.equal(tensor, value)
            assert tensor._version == version


def test_buffers_that_are_filled_anew_at_each_step_may_be_given(rule, network, stream, equal):
    data, learner, reused = stream(12), rule(network(), lr=0.05), rule(network(), lr=0.05)
    held = arguments(data, 0)
    for time in range(12):
        fresh = arguments(data, time)
        learner.step(*fresh)
        for buffer, tensor in zip(held, fresh, strict=True):
            buffer.copy_(tensor)
        reused.step(*held)
        for buffer in held:
            buffer.zero_()
    assert equal(learner.state_dict(), reused.state_dict())


def test_views_into_a_sequence_may_be_given(rule, network, stream, feed):
    """Slices along time, as `x.unbind(1)` gives them, are neither contiguous nor their own storage."""
    data, sliced = stream(12), rule(network(), lr=0.05)
    sequence = tuple(tensor.transpose(0, 1).contiguous() for tensor in data)
    before = [tensor.clone() for tensor in sequence]
    plain = rule(network(), lr=0.05)
    feed(plain, data)
    feed(sliced, tuple(tensor.unbind(1) for tensor in sequence))
    assert all(torch.equal(one, two) for one, two in zip(sequence, before, strict=True))
    for one, two in zip(plain.network.parameters(), sliced.network.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)


def test_results_may_be_written_to(rule, network, stream, equal):
    data, learner, edited = stream(12), rule(network(), lr=0.05), rule(network(), lr=0.05)
    for u, y in zip(*data, strict=True):
        learner.step(u, y, signals=True)
        result = edited.step(u, y, signals=True)
        for tensor in (result.output, result.loss):
            tensor.fill_(1e6)
        for layer in result.signals or ():
            assert layer.used.data_ptr() != layer.instantaneous.data_ptr()
            layer.used.fill_(1e6)
            layer.instantaneous.fill_(1e6)
    learner.apply()
    edited.apply()
    assert equal(learner.state_dict(), edited.state_dict())


def test_nothing_that_is_kept_or_given_holds_a_graph(rule, network, stream, feed):
    learner = rule(network())
    results = feed(learner, stream(8))
    kept = [*learner.tensors().values(), *(part for state in learner.states for part in state)]
    kept += [tensor for result in results for tensor in (result.output, result.loss)]
    assert all(tensor.grad_fn is None and not tensor.requires_grad for tensor in kept)
    assert all(p.grad is None or p.grad.grad_fn is None for p in learner.network.parameters())


def test_no_gradient_flows_into_inputs_targets_or_weights(rule, network, stream):
    data, learner = stream(6), rule(network())
    for time in range(6):
        u, y, weight, mask = arguments(data, time)
        given = [tensor.requires_grad_() for tensor in (u, y, weight)]
        learner.step(*given, mask)
        learner.apply()
        assert all(tensor.grad is None for tensor in given)


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
def test_a_step_inside_a_grad_mode_learns_what_it_learns_outside(rule, context, network, stream, feed, equal):
    data, outside, inside = stream(12), rule(network(), lr=0.05), rule(network(), lr=0.05)
    feed(outside, data)
    with context():
        inside.init(data[0].shape[1])
        made_inside = tuple(tensor + 0 for tensor in data)
        feed(inside, made_inside, 0, 5)
        inside.apply()
        inside.reset(rows=torch.zeros(data[0].shape[1], dtype=torch.bool))
    outside = rule(network(), lr=0.05)
    feed(outside, data, 0, 5)
    outside.apply()
    outside.reset(rows=torch.zeros(data[0].shape[1], dtype=torch.bool))
    feed(outside, data, 5)
    feed(inside, made_inside, 5)
    assert equal(inside.state_dict(), outside.state_dict())
    assert not any(
        tensor.is_inference() for tensor in [*inside.tensors().values(), *(p.grad for p in inside.network.parameters() if p.grad is not None)]
    )


def test_autocast_around_a_step_is_refused_and_changes_nothing(rule, network, stream, feed, snapshot, equal):
    data, learner = stream(4, dtype=torch.float32), rule(network(dtype=torch.float32))
    feed(learner, data, 0, 3)
    before = snapshot(learner)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ConfigError, match="autocast is active for cpu"):
        learner.step(data[0][3], data[1][3])
    assert equal(snapshot(learner), before)


def test_the_representation_names_the_rule_and_its_options(rule, network):
    text = repr(rule(network(), clip=0.5))
    assert text.startswith(f"{rule.kind.__name__}(RNNLayer, ")
    assert "clip=0.5" in text
    assert "optimizer=SGD" in text
