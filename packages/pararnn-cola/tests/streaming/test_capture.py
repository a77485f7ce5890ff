"""Captured steps, replayed on a CPU from a tape that holds addresses as a CUDA graph does; test_gpu.py has the real ones."""

import pytest
import torch

from pararnn.errors import ConfigError, ShapeError
from pararnn_cola import COLA, TBPTT, TBPTT1, Network, StreamError, capture

pytestmark = pytest.mark.usefixtures("tape")


class Juggler(TBPTT1):
    """A rule of somebody else, which hands its two tensors round: they change places, and one takes up the loss."""

    def __init__(self, network, **options):
        super().__init__(network, **options)
        self.hands = [torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)]

    def _learn(self, u, target, rows, signals):
        result = super()._learn(u, target, rows, signals)
        left, right = self.hands
        self.hands = [right + result.loss, left]
        return result

    def _memory(self):
        return {"left": self.hands[0], "right": self.hands[1]}

    def _recall(self, memory):
        self.hands = [memory["left"], memory["right"]] if memory else self.hands


def walk(step, items):
    return [step(u, y).loss.clone() for u, y in items]


@pytest.mark.parametrize("name", ["COLA", "TBPTT1", "SnAp1", "EProp"])
def test_captured_steps_equal_eager_ones(name, make_learner, make_stream, assert_same):
    eager, learner = make_learner(name), make_learner(name)
    items = list(make_stream(40))
    captured = capture(learner, *items[0])
    losses = walk(captured.step, items)
    torch.testing.assert_close(losses, walk(eager.step, items), rtol=0, atol=0)
    assert_same(learner, eager)
    assert learner.steps == 40


@pytest.mark.parametrize("name", ["COLA", "TBPTT", "SnAp1"])
def test_blocks_of_captured_steps_equal_eager_steps(name, make_learner, make_stream, assert_same):
    eager, learner = make_learner(name), make_learner(name)
    items = list(make_stream(40))
    captured = capture(learner, *items[0], block=8)
    found = []
    for begin in range(0, 40, 8):
        us, ys = zip(*items[begin : begin + 8], strict=True)
        found += captured.run(torch.stack(us), torch.stack(ys)).loss.clone()
    torch.testing.assert_close(found, walk(eager.step, items), rtol=0, atol=0)
    assert_same(learner, eager)
    assert learner.steps == 40


def test_windows_that_overlap_may_be_captured(make_learner, make_stream, assert_same):
    eager, learner = (TBPTT(make_learner().network, k1=2, k2=6, lr=0.05) for _ in range(2))
    items = list(make_stream(40))
    captured = capture(learner, *items[0], block=4)
    for begin in range(0, 40, 4):
        us, ys = zip(*items[begin : begin + 4], strict=True)
        captured.run(torch.stack(us), torch.stack(ys))
    walk(eager.step, items)
    assert_same(learner, eager, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("block", [1, 3])
def test_tensors_that_change_places_are_followed(block, make_learner, make_stream):
    eager, learner = (Juggler(make_learner().network, lr=0.05) for _ in range(2))
    items = list(make_stream(9))
    captured = capture(learner, *items[0], block=block)
    for begin in range(0, 9, block):
        us, ys = zip(*items[begin : begin + block], strict=True)
        captured.run(torch.stack(us), torch.stack(ys))
    walk(eager.step, items)
    torch.testing.assert_close(learner.hands, eager.hands, rtol=0, atol=0)


@pytest.mark.parametrize("update", ["step", "accumulate"])
def test_most_steps_come_from_the_graph(update, make_learner, make_stream, monkeypatch):
    learner = make_learner(update=update)
    items = list(make_stream(20))
    captured = capture(learner, *items[0])
    eager = []
    step = learner.step
    monkeypatch.setattr(learner, "step", lambda *args, **options: eager.append(1) or step(*args, **options))
    for item in items:
        captured.step(*item)
        if update == "accumulate":
            learner.apply()
    assert 1 <= len(eager) <= 2


def test_capture_leaves_the_learner_where_it_was(make_learner, make_stream, assert_same):
    items = list(make_stream(30))
    learner, other = make_learner(), make_learner()
    walk(learner.step, items[:10])
    walk(other.step, items[:10])
    capture(learner, *items[20])
    assert learner.steps == 10
    walk(learner.step, items[10:])
    walk(other.step, items[10:])
    assert_same(learner, other)


def test_reset_between_replays_pairs_no_signals_across_it(make_learner, make_stream, assert_same):
    eager, learner = make_learner(), make_learner()
    items = list(make_stream(30))
    captured = capture(learner, *items[0])
    for one, step in ((eager, eager.step), (learner, captured.step)):
        walk(step, items[:10])
        one.reset()
        walk(step, items[10:20])
        one.reset(torch.tensor([True, False, True]))
        walk(step, items[20:])
    assert_same(learner, eager)


def test_a_reset_of_statistics_reaches_the_captured_step(make_learner, make_stream, assert_same):
    eager, learner = make_learner(), make_learner()
    items = list(make_stream(30))
    captured = capture(learner, *items[0])
    for one, step in ((eager, eager.step), (learner, captured.step)):
        walk(step, items[:15])
        one.reset(statistics=True)
        walk(step, items[15:])
    assert_same(learner, eager)


def test_a_checkpoint_loaded_between_replays_is_where_they_go_on(make_learner, make_stream, assert_same):
    eager, learner = make_learner(), make_learner()
    items = list(make_stream(30))
    captured = capture(learner, *items[0])
    walk(captured.step, items[:12])
    saved = learner.state_dict()
    walk(captured.step, items[20:])
    learner.load_state_dict(saved)
    walk(captured.step, items[12:])
    walk(eager.step, items)
    assert_same(learner, eager)
    assert learner.steps == 30


def test_eager_steps_between_replays_are_learned_from(make_learner, make_stream, assert_same):
    eager, learner = make_learner(), make_learner()
    items = list(make_stream(30))
    captured = capture(learner, *items[0])
    walk(captured.step, items[:10])
    walk(learner.step, items[10:13])
    walk(captured.step, items[13:])
    walk(eager.step, items)
    assert_same(learner, eager)


def test_weights_and_masks_are_inputs_of_the_captured_step(make_learner, make_stream, assert_same):
    eager, learner = make_learner(), make_learner()
    items = list(make_stream(30))
    rows = [(torch.rand(3, generator=torch.Generator().manual_seed(t), dtype=torch.float64), torch.arange(3) != t % 4) for t in range(30)]
    captured = capture(learner, *items[0], weight=rows[0][0], mask=rows[0][1])
    for (u, y), (weight, mask) in zip(items, rows, strict=True):
        captured.step(u, y, weight, mask)
        eager.step(u, y, weight, mask)
    assert_same(learner, eager)


def test_a_weight_that_is_a_number_is_captured(make_learner, make_stream, assert_same):
    eager, learner = make_learner(), make_learner()
    items = list(make_stream(12))
    captured = capture(learner, *items[0], weight=0.25)
    for u, y in items:
        captured.step(u, y)
        eager.step(u, y, 0.25)
    assert_same(learner, eager)


def test_accumulated_gradients_are_applied_outside_the_graph(make_learner, make_stream, assert_same):
    eager, learner = make_learner(update="accumulate"), make_learner(update="accumulate")
    items = list(make_stream(40))
    captured = capture(learner, *items[0])
    for number, (u, y) in enumerate(items):
        captured.step(u, y)
        eager.step(u, y)
        if number % 7 == 6:
            learner.apply()
            eager.apply()
        if number == 20:
            learner.optimizer.zero_grad()
            eager.optimizer.zero_grad()
    assert_same(learner, eager)


@pytest.mark.parametrize("update", ["step", "accumulate"])
def test_half_precision_sums_survive_capture(update, make_stream, assert_same):
    learner, eager = (COLA(Network.rnn(2, 5, 2, seed=0, dtype=torch.bfloat16), lr=0.05, update=update) for _ in range(2))
    items = [(u.bfloat16(), y.bfloat16()) for u, y in make_stream(20)]
    captured = capture(learner, *items[0])
    for one, step in ((learner, captured.step), (eager, eager.step)):
        walk(step, items[:10])
        # Somebody's own clipping, in place.
        for parameter in one.network.parameters():
            parameter.grad.mul_(0.5)
        walk(step, items[10:])
        one.apply()
    assert_same(learner, eager)


def test_gradients_stay_to_be_looked_at(make_learner, make_stream):
    eager, learner = make_learner(), make_learner()
    items = list(make_stream(10))
    captured = capture(learner, *items[0])
    walk(captured.step, items)
    walk(eager.step, items)
    for one, two in zip(learner.network.parameters(), eager.network.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=0, atol=0)


def test_another_rate_asks_for_another_capture(make_learner, make_stream):
    learner = make_learner()
    items = list(make_stream(5))
    captured = capture(learner, *items[0])
    walk(captured.step, items)
    learner.optimizer.param_groups[0]["lr"] = 0.5
    with pytest.raises(ConfigError, match=r"lr of group 0 is 0\.5 now, but the captured step holds 0\.05"):
        captured.step(*items[0])


def test_another_batch_is_refused(make_learner, make_stream):
    captured = capture(make_learner(), *next(make_stream(1)))
    with pytest.raises(ShapeError, match="the captured step takes"):
        captured.step(*next(make_stream(1, batch=4)))


def test_a_tensor_that_was_captured_is_asked_for(make_learner, make_stream):
    u, y = next(make_stream(1))
    captured = capture(make_learner(), u, y, weight=torch.ones(3, dtype=torch.float64))
    with pytest.raises(ShapeError, match="weight"):
        captured.step(u, y)


def test_adam_has_to_be_capturable(make_learner, make_stream):
    learner = make_learner()
    learner.optimizer = torch.optim.Adam(learner.network.parameters())
    with pytest.raises(ConfigError, match="capturable=True"):
        capture(learner, *next(make_stream(1)))


def test_an_optimizer_outside_the_step_may_be_any(make_learner, make_stream):
    learner = make_learner(update="accumulate")
    learner.optimizer = torch.optim.Adam(learner.network.parameters())
    captured = capture(learner, *next(make_stream(1)))
    walk(captured.step, make_stream(5))
    learner.apply()
    learner.optimizer.param_groups[0]["lr"] = 0.5
    walk(captured.step, make_stream(5))


def test_an_optimizer_that_counts_on_the_cpu_is_refused(make_learner, make_stream, assert_same):
    learner, untouched = make_learner(), make_learner()
    learner.optimizer = torch.optim.Adagrad(learner.network.parameters())
    with pytest.raises(ConfigError, match="keeps its step on the CPU"):
        capture(learner, *next(make_stream(1)))
    assert_same(learner, untouched)


def test_a_block_that_cuts_windows_is_refused(make_learner, make_stream, assert_same):
    learner, untouched = make_learner("TBPTT"), make_learner("TBPTT")
    with pytest.raises(StreamError, match="multiple of their length"):
        capture(learner, *next(make_stream(1)), block=3)
    assert_same(learner, untouched)


@pytest.mark.parametrize("options", [{"block": 0}, {"warmup": 0}, {"block": 2.5}])
def test_blocks_and_warm_ups_have_at_least_one_step(options, make_learner, make_stream):
    with pytest.raises(ConfigError, match="at least 1"):
        capture(make_learner(), *next(make_stream(1)), **options)


def test_shapes_of_example_that_do_not_fit_are_the_learners_error(make_learner):
    with pytest.raises(ShapeError):
        capture(make_learner(), torch.randn(3, 7, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64))
