import io
import sys

import pytest
import torch

from pararnn.errors import ConfigError, DTypeError, InputError, ShapeError
from pararnn_cola import COLA, Network, NonFiniteLossError, Step, StreamError, TrainingReport, sequences, train


def by_hand(learner, items):
    for u, y in items:
        learner.step(u, y)
    learner.apply()
    return learner


def test_training_on_a_generator_equals_a_loop_of_steps(rule, make_learner, make_stream, assert_same):
    learner = make_learner(rule)
    report = train(learner, make_stream(30))
    assert_same(learner, by_hand(make_learner(rule), make_stream(30)))
    assert (report.steps, report.sequences, learner.steps) == (30, 1, 30)


def test_two_calls_go_on_as_one(make_learner, make_stream, assert_same):
    one, two = make_learner(), make_learner()
    items = list(make_stream(30))
    train(one, items)
    train(two, items[:11])
    train(two, iter(items[11:]))
    assert_same(one, two)


def test_steps_ends_an_endless_stream(make_learner, make_stream, assert_same):
    learner = make_learner()
    report = train(learner, make_stream(10**9), steps=12)
    assert report.steps == 12
    assert_same(learner, by_hand(make_learner(), make_stream(12)))


def test_the_last_window_is_flushed_where_the_stream_is_no_multiple_of_it(make_learner, make_stream):
    whole, cut = make_learner("TBPTT"), make_learner("TBPTT")
    train(whole, make_stream(8))
    train(cut, make_stream(10))
    assert cut.owed == 0
    assert not torch.equal(cut.network.readout.weight, whole.network.readout.weight)


def test_accumulated_gradients_move_the_weights_at_the_end(make_learner, make_stream, assert_same):
    learner, other = make_learner(update="accumulate"), make_learner(update="accumulate")
    train(learner, make_stream(10))
    assert_same(learner, by_hand(other, make_stream(10)))


def test_weights_masks_and_targets_may_be_left_out(make_learner, make_stream, assert_same):
    items = list(make_stream(4))
    mask = torch.tensor([True, False, True])
    learner, other = make_learner(), make_learner()
    (u0, y0), (u1, _), (u2, y2), (u3, y3) = items
    train(learner, [(u0, y0, 0.5), (u1, None), Step(u2, y2, mask=mask), [u3, y3, torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)]])
    other.step(u0, y0, 0.5)
    other.step(u1)
    other.step(u2, y2, mask=mask)
    other.step(u3, y3, torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64))
    assert_same(learner, other)


def test_a_step_that_resets_begins_a_sequence_in_its_rows(make_learner, make_stream, assert_same):
    items = list(make_stream(9))
    rows = torch.tensor([False, True, True])
    learner, other = make_learner(), make_learner()
    report = train(learner, [Step(u, y, reset={3: True, 6: rows}.get(t, False)) for t, (u, y) in enumerate(items)])
    for t, (u, y) in enumerate(items):
        if t == 3:
            other.reset()
        if t == 6:
            other.reset(rows)
        other.step(u, y)
    assert_same(learner, other)
    assert report.sequences == 2


def test_what_was_accumulated_moves_the_weights_before_a_reset(make_learner, make_stream):
    learner = make_learner(update="accumulate")
    before = learner.network.readout.weight.clone()
    seen = []
    train(
        learner,
        [Step(u, y, reset=t == 3) for t, (u, y) in enumerate(make_stream(6))],
        on_step=lambda step, result: seen.append(learner.network.readout.weight.equal(before)),
    )
    assert seen == [True, True, True, False, False, False]


def test_a_batch_of_another_size_may_come_with_a_reset(make_learner, make_stream):
    learner = make_learner()
    small = [Step(u, y, reset=True) for u, y in make_stream(1, batch=2)]
    train(learner, [*make_stream(3), *small])
    assert learner.batch == (2,)


def test_a_batch_of_another_size_in_midstream_is_an_error_with_its_number(make_learner, make_stream):
    with pytest.raises(ShapeError, match=r"item 3 of the stream: \(2,\) samples came after \(3,\)"):
        train(make_learner(), [*make_stream(3), *make_stream(1, batch=2)])


@pytest.mark.parametrize(
    ("item", "error", "words"),
    [
        (torch.zeros(3, 2), StreamError, "a tensor (3, 2) without a target"),
        ((torch.zeros(3, 2),), StreamError, "a tuple of 1"),
        ((1, 2, 3, 4), StreamError, "a tuple of 4"),
        ({"u": 1}, StreamError, "of type dict"),
        (([1.0], None), DTypeError, "inputs of type list"),
        ((torch.zeros(3, 7, 2).double(), torch.zeros(3, 7, 2).double()), ShapeError, "sequences(loader)"),
        ((torch.zeros(2).double(), torch.zeros(2).double()), ShapeError, "one step is (batch, input)"),
        ((torch.zeros(3, 2), torch.zeros(3, 2)), DTypeError, "torch.float32"),
        ((torch.zeros(3, 2).double(), torch.zeros(3, 1).double()), ShapeError, "target"),
        ((torch.zeros(3, 2).double(), torch.zeros(3, 2).double(), -1.0), InputError, "not negative"),
        ((torch.full((3, 2), float("nan")).double(), torch.zeros(3, 2).double()), NonFiniteLossError, "loss"),
    ],
    ids=["tensor", "no target", "ragged", "dict", "list", "sequence", "one sample", "dtype", "target", "weight", "nan"],
)
def test_an_item_that_does_not_fit_is_named_by_its_number(item, error, words, make_learner, make_stream, assert_same):
    learner, untouched = make_learner(), make_learner()
    train(untouched, make_stream(5))
    with pytest.raises(error, match="item 5 of the stream") as caught:
        train(learner, [*make_stream(5), item])
    assert words in str(caught.value)
    assert caught.value.data["item"] == 5
    assert_same(learner, untouched)


@pytest.mark.parametrize("data", [torch.zeros(4, 3, 2), 7], ids=["tensor", "number"])
def test_data_of_which_nobody_knows_what_they_are_are_refused(data, learner):
    with pytest.raises(ConfigError):
        train(learner, data)


@pytest.mark.parametrize("option", ["steps", "checkpoint_every", "check_every"])
def test_numbers_of_steps_are_at_least_one(option, learner):
    with pytest.raises(ConfigError, match=f"{option}=0"):
        train(learner, [], **{option: 0})


def test_the_device_may_be_named(learner, make_stream):
    assert train(learner, make_stream(2), device="cpu").steps == 2
    with pytest.raises(ConfigError, match=r"device=meta, but the network is on cpu"):
        train(learner, make_stream(2), device="meta")


def test_on_step_is_given_each_result(learner, make_stream):
    seen = []
    train(learner, make_stream(3), on_step=lambda step, result: seen.append((step, result.output.shape)))
    assert seen == [(1, (3, 2)), (2, (3, 2)), (3, (3, 2))]


def test_the_report_tells_the_mean_loss_and_goes_into_json(learner, make_stream):
    losses = []
    report = train(learner, make_stream(20), on_step=lambda step, result: losses.append(result.loss.item()))
    assert isinstance(report, TrainingReport)
    assert report.mean_loss == pytest.approx(sum(losses) / 20, rel=1e-12)
    assert [loss for _, loss in report.loss_curve] == losses
    assert report.steps_per_second == pytest.approx(20 / report.seconds)
    import json

    assert json.loads(json.dumps(report.to_dict()))["steps"] == 20


def test_no_data_make_no_report_of_losses(learner):
    report = train(learner, [])
    assert (report.steps, report.mean_loss, report.loss_curve) == (0, None, ())


def test_losses_on_another_device_are_looked_at_together(make_stream, monkeypatch):
    """An ensemble's losses, like those on a GPU, are not looked at in the step."""
    from pararnn_cola import stack_networks

    networks = [Network.rnn(2, 5, 2, seed=seed, dtype=torch.float64) for seed in range(2)]
    learner = COLA(stack_networks(networks), lr=0.05)
    items = [(u.expand(2, -1, -1), y.expand(2, -1, -1)) for u, y in make_stream(30)]
    items[12] = (items[12][0], items[12][1] * float("inf"))
    with pytest.raises(NonFiniteLossError, match="items 10 to 19") as caught:
        train(learner, items, check_every=10)
    assert (caught.value.data["step"], caught.value.data["first"], caught.value.data["last"]) == (12, 10, 19)


def test_nothing_is_printed_unless_it_is_asked_for(learner, make_stream, capfd):
    train(learner, make_stream(20))
    assert capfd.readouterr() == ("", "")


def test_the_bar_goes_to_the_error_stream(learner, make_stream, capfd):
    train(learner, make_stream(20), progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "20/?" in err
    assert "steps/s" in err


def test_the_bar_knows_the_length_of_data_that_have_one(learner, make_stream, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    train(learner, list(make_stream(20)), progress=True)
    assert "20/20" in sys.stderr.getvalue()


def test_progress_may_be_a_function(learner, make_stream):
    seen = []
    report = train(learner, list(make_stream(20)), progress=seen.append)
    assert (seen[-1].steps, seen[-1].total, seen[-1].seconds_left) == (20, 20, 0)
    assert seen[-1].loss == pytest.approx(report.mean_loss)


def test_progress_is_told_how_long_sequences_take_in_all(make_learner, make_stream):
    seen = []
    loader = [tuple(torch.stack(part, 1) for part in zip(*make_stream(5), strict=True))] * 4
    train(make_learner(), sequences(loader), progress=seen.append)
    assert seen[0].total == 20


def test_progress_of_another_type_is_refused(learner):
    with pytest.raises(ConfigError, match="progress='bar'"):
        train(learner, [], progress="bar")
