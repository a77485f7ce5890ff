"""Streams on a CUDA device: captured steps against eager ones, and losses that are looked at rarely."""

import gc

import pytest
import torch

from pararnn.errors import ConfigError
from pararnn_cola import COLA, TBPTT, TBPTT1, EProp, Network, NonFiniteLossError, SnAp1, StreamError, capture, sequences, train

pytestmark = pytest.mark.gpu

BATCH, INPUT, STATE, OUTPUT = 8, 3, 32, 2
CLOSE = {"rtol": 1e-6, "atol": 1e-7}


@pytest.fixture(autouse=True)
def full_precision():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def make(rule=COLA, *arguments, optimizer=None, **options):
    network = Network.rnn(INPUT, STATE, OUTPUT, seed=0, device="cuda")
    made = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9) if optimizer is None else optimizer(network.parameters())
    return rule(network, *arguments, optimizer=made, **options)


def items(length, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randn(BATCH, size, generator=generator).cuda() for size in (INPUT, OUTPUT)) for _ in range(length)]


def walk(step, stream):
    return torch.stack([step(u, y).loss.clone() for u, y in stream])


def assert_same(one, two):
    states = [learner.network.state_dict() for learner in (one, two)]
    torch.testing.assert_close(*states, **CLOSE)


@pytest.mark.parametrize("rule", [COLA, TBPTT1, SnAp1, EProp], ids=lambda rule: rule.__name__)
def test_captured_steps_equal_eager_ones(rule):
    learner, eager, stream = make(rule), make(rule), items(200)
    captured = capture(learner, *stream[0])
    torch.testing.assert_close(walk(captured.step, stream), walk(eager.step, stream), **CLOSE)
    assert_same(learner, eager)
    assert learner.steps == 200


@pytest.mark.parametrize("arguments", [(COLA,), (TBPTT, 4)], ids=["COLA", "TBPTT"])
def test_captured_blocks_equal_eager_steps(arguments):
    learner, eager, stream = make(*arguments), make(*arguments), items(200)
    captured = capture(learner, *stream[0], block=8)
    losses = [captured.run(*(torch.stack(part) for part in zip(*stream[begin : begin + 8], strict=True))).loss.clone() for begin in range(0, 200, 8)]
    torch.testing.assert_close(torch.cat(losses), walk(eager.step, stream), **CLOSE)
    assert_same(learner, eager)


def test_steps_are_replayed_and_not_run_again(monkeypatch):
    learner, stream = make(), items(20)
    captured = capture(learner, *stream[0])
    eager, step = [], learner.step
    monkeypatch.setattr(learner, "step", lambda *args, **options: eager.append(1) or step(*args, **options))
    walk(captured.step, stream)
    assert len(eager) <= 2


def test_reset_and_checkpoints_between_replays():
    learner, eager, stream = make(), make(), items(60)
    captured = capture(learner, *stream[0])
    for one, step in ((learner, captured.step), (eager, eager.step)):
        walk(step, stream[:20])
        one.reset()
        walk(step, stream[20:30])
        saved = one.state_dict()
        walk(step, stream[:10])
        one.load_state_dict(saved)
        one.reset(torch.arange(BATCH, device="cuda") % 2 == 0)
        walk(step, stream[30:])
    assert_same(learner, eager)


def test_weights_and_masks_are_inputs():
    learner, eager, stream = make(), make(), items(40)
    generator = torch.Generator().manual_seed(2)
    rows = [(torch.rand(BATCH, generator=generator).cuda(), (torch.rand(BATCH, generator=generator) < 0.7).cuda()) for _ in range(40)]
    captured = capture(learner, *stream[0], weight=rows[0][0], mask=rows[0][1])
    for (u, y), (weight, mask) in zip(stream, rows, strict=True):
        captured.step(u, y, weight, mask)
        eager.step(u, y, weight, mask)
    assert_same(learner, eager)


@pytest.mark.parametrize("options", [{"clip": 0.5}, {"loss": "cross_entropy"}, {"update": "accumulate"}], ids=["clip", "classes", "accumulate"])
def test_options_of_a_learner_are_captured(options):
    learner, eager = make(**options), make(**options)
    stream = [(u, y.argmax(-1)) if "loss" in options else (u, y) for u, y in items(40)]
    captured = capture(learner, *stream[0])
    for one, step in ((learner, captured.step), (eager, eager.step)):
        for u, y in stream:
            step(u, y)
            if one.update == "accumulate":
                one.apply()
    assert_same(learner, eager)


def test_bfloat16_networks_are_captured():
    learner, eager = (COLA(Network.rnn(INPUT, STATE, OUTPUT, seed=0, device="cuda", dtype=torch.bfloat16)) for _ in range(2))
    stream = [(u.bfloat16(), y.bfloat16()) for u, y in items(40)]
    captured = capture(learner, *stream[0])
    walk(captured.step, stream)
    walk(eager.step, stream)
    assert_same(learner, eager)


def test_adam_is_captured_if_it_is_capturable():
    def adam(parameters):
        return torch.optim.Adam(parameters, lr=0.01, capturable=True)

    learner, eager, stream = make(optimizer=adam), make(optimizer=adam), items(40)
    captured = capture(learner, *stream[0])
    walk(captured.step, stream)
    walk(eager.step, stream)
    torch.testing.assert_close(learner.network.state_dict(), eager.network.state_dict(), rtol=1e-5, atol=1e-6)


def test_adam_that_counts_on_the_cpu_is_refused():
    with pytest.raises(ConfigError, match="capturable=True"):
        capture(make(optimizer=torch.optim.Adam), *items(1)[0])


def test_memory_stays_flat_over_replays():
    learner, stream = make(), items(10)
    captured = capture(learner, *stream[0], block=10)
    us, ys = (torch.stack(part) for part in zip(*stream, strict=True))
    for _ in range(3):
        captured.run(us, ys)
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(500):
        captured.run(us, ys)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_memory_stays_flat_over_eager_steps():
    learner, stream = make(), items(10)
    train(learner, stream)
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    train(learner, stream * 30, check_every=100)
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before


def test_data_are_moved_to_the_network():
    learner, eager = make(), make()
    stream = items(20)
    report = train(learner, [(u.cpu(), y.cpu()) for u, y in stream], device="cuda")
    walk(eager.step, stream)
    assert_same(learner, eager)
    assert report.mean_loss > 0
    inputs, targets = (torch.stack(part, 1).cpu() for part in zip(*stream, strict=True))
    assert train(make(), sequences([(inputs, targets)])).steps == 20


def test_a_loss_that_is_not_finite_is_found_within_the_steps_looked_at_together():
    stream = items(30)
    stream[12] = (stream[12][0], stream[12][1] * float("inf"))
    with pytest.raises(NonFiniteLossError, match="items 10 to 19") as caught:
        train(make(), stream, check_every=10)
    assert caught.value.data["step"] == 12


def test_a_step_that_waits_for_the_device_is_refused_and_changes_nothing():
    def curious(output, target):
        assert float(output.sum()) < float("inf")
        return (output - target).square().mean(-1)

    learner, untouched = make(loss=curious), make()
    with pytest.raises(StreamError, match="cannot be captured"):
        capture(learner, *items(1)[0])
    assert_same(learner, untouched)
    walk(learner.step, items(3))
