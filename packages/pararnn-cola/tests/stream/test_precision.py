"""Networks in half precision: sums and statistics stay in float32."""

import pytest
import torch

from pararnn_cola import COLA, TBPTT1, StreamError

HALF = [torch.bfloat16, torch.float16]


def rounded(network, dtype):
    """The same values in float64."""
    low = network(dtype=dtype)
    exact = network(dtype=torch.float64)
    exact.load_state_dict(low.state_dict())
    return low, exact


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_gradients_of_a_half_precision_network_are_those_of_double_within_its_rounding(rule, dtype, network, stream, feed):
    low, exact = rounded(network, dtype)
    data = stream(9, dtype=dtype)
    learners = [rule(low, update="accumulate"), rule(exact, update="accumulate")]
    feed(learners[0], data)
    feed(learners[1], tuple(tensor.double() for tensor in data))
    for learner in learners:
        learner.flush()
    for (name, one), two in zip(low.named_parameters(), exact.parameters(), strict=True):
        assert one.grad.dtype == dtype
        error = ((one.grad.double() - two.grad).norm() / two.grad.norm()).item()
        # COLA divides by differences of signals, and UORO's factors grow: both magnify rounding.
        limit = 0.5 if rule.name in ("COLA", "UORO") else 0.08
        assert error < limit * (1 if dtype is torch.bfloat16 else 0.5), f"{name}: {error}"


@pytest.mark.parametrize("kind", [COLA, TBPTT1])
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_many_small_gradients_add_up_instead_of_stalling(kind, dtype, network):
    """One gradient of size 1, then 3000 of size 2^-10: bfloat16 alone would stay at 1."""
    net = network(dtype=dtype)
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    learner = kind(net, update="accumulate")
    u, y = torch.ones(1, 2, dtype=dtype), torch.ones(1, 2, dtype=dtype)
    learner.step(u, y)
    for _ in range(3000):
        learner.step(u, y, 2.0**-10)
    expected = -(1 + 3000 / 1024)
    torch.testing.assert_close(net.readout.bias.grad.double(), torch.full((2,), expected, dtype=torch.float64), rtol=1e-2, atol=0)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_statistics_and_losses_are_float32(dtype, network, stream, feed):
    learner = COLA(network(dtype=dtype))
    results = feed(learner, stream(6, dtype=dtype))
    kept = {name: tensor.dtype for name, tensor in learner.tensors().items() if name.startswith("memory") and "valid" not in name}
    assert set(kept.values()) == {torch.float32}
    assert results[-1].loss.dtype is torch.float32
    assert results[-1].output.dtype is dtype
    assert learner.states[0][0].dtype is dtype


def test_a_float32_target_serves_a_half_precision_network(rule, network, stream):
    inputs, targets = stream(3, dtype=torch.bfloat16)
    one, two = rule(network(dtype=torch.bfloat16)), rule(network(dtype=torch.bfloat16))
    for u, y in zip(inputs, targets, strict=True):
        assert torch.equal(one.step(u, y).loss, two.step(u, y.float()).loss)


def test_a_sum_too_large_for_float16_is_clipped_before_it_overflows(network, stream, feed):
    learner = TBPTT1(network(dtype=torch.float16), clip=1.0, lr=0.01, update="accumulate")
    feed(learner, stream(9, dtype=torch.float16), weight=2e4)
    assert not all(p.grad.isfinite().all() for p in learner.network.parameters())
    learner.apply()
    assert all(p.isfinite().all() for p in learner.network.parameters())
    assert torch.stack([p.grad.float().norm() for p in learner.network.parameters()]).norm().item() == pytest.approx(1.0, rel=1e-2)


@pytest.mark.parametrize("change", [lambda gradient: gradient.mul_(0.25), lambda gradient: gradient.zero_()], ids=["scaled", "zeroed"])
def test_what_somebody_else_does_to_a_half_precision_gradient_counts(change, network, stream, feed):
    inputs, targets = stream(5, dtype=torch.bfloat16)
    learner = TBPTT1(net := network(dtype=torch.bfloat16), update="accumulate")
    feed(learner, (inputs, targets), 0, 4)
    for p in net.parameters():
        change(p.grad)
    expected = [p.grad.clone() for p in net.parameters()]
    learner.step(inputs[4], targets[4], torch.zeros(3))
    assert all(torch.equal(p.grad, gradient) for p, gradient in zip(net.parameters(), expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_moving_a_network_after_its_first_step_is_noticed(rule, dtype, network, stream, feed, snapshot, equal):
    data, learner = stream(6), rule(network())
    feed(learner, data, 0, 4)
    learner.network.to(dtype)
    before = snapshot(learner)
    with pytest.raises(StreamError, match=f"the network moved from torch.float64 on cpu to {dtype} on cpu after its first step"):
        learner.step(data[0][4].to(dtype), data[1][4].to(dtype))
    assert equal(snapshot(learner), before)


def test_a_network_may_move_before_its_first_step(rule, network, stream, feed):
    learner = rule(network(dtype=torch.float32))
    learner.network.double()
    feed(learner, stream(6))
    assert all(p.dtype is torch.float64 and p.grad.dtype is torch.float64 for p in learner.network.parameters() if p.grad is not None)
