import io
import re
import sys

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from pararnn.errors import ConfigError, DTypeError, InputError, ShapeError
from pararnn_cola import COLA, Network, NonFiniteLossError, Step, StreamError, TrainingReport, sequences, stack_networks, train


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


@pytest.mark.parametrize("kind", [int, torch.tensor, lambda flag: pytest.importorskip("numpy").bool_(flag)], ids=["int", "tensor", "numpy"])
def test_a_flag_of_another_type_is_a_bool(kind, make_learner, make_stream, assert_same):
    one, two = make_learner(), make_learner()
    report = train(one, [Step(u, y, reset=kind(t == 3)) for t, (u, y) in enumerate(make_stream(6))])
    train(two, [Step(u, y, reset=t == 3) for t, (u, y) in enumerate(make_stream(6))])
    assert_same(one, two)
    assert report.sequences == 2


@pytest.mark.parametrize(
    ("reset", "error", "words"),
    [
        (None, DTypeError, "reset is None of type NoneType"),
        (2, DTypeError, "reset is 2 of type int"),
        (0.0, DTypeError, "reset is 0.0 of type float"),
        ([True, False, True], DTypeError, "of type list"),
        (torch.zeros(3), DTypeError, "reset is torch.float32"),
        (torch.zeros(2, dtype=torch.bool), ShapeError, r"reset has shape \(2,\); one entry a sample is \(3,\)"),
    ],
)
def test_a_reset_that_is_no_flag_is_named(reset, error, words, learner, make_stream):
    with pytest.raises(error, match=f"item 2 of the stream: .*{words}"):
        train(learner, [*make_stream(2), *(Step(u, y, reset=reset) for u, y in make_stream(1))])


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


@pytest.mark.parametrize("value", [0, -1, 2.5, 2.0, "5", True, float("nan"), [1]], ids=repr)
@pytest.mark.parametrize("option", ["steps", "checkpoint_every", "check_every"])
def test_numbers_of_steps_are_whole_and_at_least_one(option, value, learner, make_stream):
    with pytest.raises(ConfigError, match=re.escape(f"{option}={value!r}; it is a whole number, at least 1")):
        train(learner, make_stream(5), **{option: value})
    assert learner.steps == 0


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


def test_steps_without_targets_make_no_report_of_losses(learner, make_stream):
    report = train(learner, [(u, None) for u, _ in make_stream(3)])
    assert (report.steps, report.mean_loss, report.loss_curve) == (3, None, ())


@pytest.mark.parametrize("data", [list, lambda: iter([]), lambda: sequences([])], ids=["list", "iterator", "loader"])
def test_data_without_a_step_are_an_error(data, learner):
    with pytest.raises(StreamError, match="no step: they are empty, or an iterator that was read before"):
        train(learner, data())


def test_a_generator_that_was_read_before_is_an_error(learner, make_stream):
    items = make_stream(5)
    train(learner, items)
    with pytest.raises(StreamError, match="read before"):
        train(learner, items)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((lambda learner: learner.network), {}, "given a Network as its learner; make one of a rule and a network"),
        ((lambda learner: None), {}, "given a NoneType as its learner"),
        ((lambda learner: COLA), {}, "given the class COLA as its learner"),
        ((lambda learner: learner), {"device": "foo"}, "device='foo' cannot be used"),
        ((lambda learner: learner), {"device": 1.5}, "device=1.5 cannot be used"),
        ((lambda learner: learner), {"checkpoint": 3}, "checkpoint=3 is no path"),
        ((lambda learner: learner), {"checkpoint": b"run.pt"}, "checkpoint=b'run.pt' is no path"),
        ((lambda learner: learner), {"on_step": 3}, "on_step=3 is no function"),
    ],
)
def test_arguments_of_another_type_are_named(arguments, options, words, learner, make_stream):
    with pytest.raises(ConfigError, match=words):
        train(arguments(learner), make_stream(3), **options)
    assert learner.steps == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_missing_is_named(learner, make_stream):
    with pytest.raises(ConfigError, match="device='cuda' cannot be used"):
        train(learner, make_stream(3), device="cuda")


def test_a_loader_of_a_stream_has_no_length_and_is_learned(make_learner, make_stream, assert_same):
    class Stream(IterableDataset):
        def __iter__(self):
            return make_stream(12)

    seen = []
    learner, other = make_learner(), make_learner()
    train(learner, DataLoader(Stream(), batch_size=None), progress=seen.append)
    assert_same(learner, by_hand(other, make_stream(12)))
    assert seen[-1].total is None


def test_a_smaller_last_batch_of_a_loader_says_what_to_do(learner):
    parts = (torch.zeros(10, 2, dtype=torch.float64) for _ in range(2))
    with pytest.raises(ShapeError, match=r"item 2 of the stream: \(2,\) samples came after \(4,\).*drop_last=True.*reset=True"):
        train(learner, DataLoader(TensorDataset(*parts), batch_size=4))


def test_the_steps_of_a_task_are_steps_of_a_stream():
    from pararnn_cola import tasks

    assert tasks.Step is Step
    batch = tasks.Adding(10).batch(4, torch.Generator().manual_seed(0))
    assert [step.reset for step in batch.steps()] == [True] + [False] * 9
    one, two = (COLA(Network.rnn(2, 5, 1, seed=0), lr=0.1) for _ in range(2))
    for _ in range(2):
        train(one, batch.steps())
    train(two, sequences([batch], epochs=2))
    for mine, other in zip(one.network.parameters(), two.network.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_one_batch_is_no_stream(learner):
    from pararnn_cola.tasks import Adding

    with pytest.raises(ConfigError, match=r"data is one Batch.*sequences\(\[batch\]\)"):
        train(learner, Adding(10).batch(4, torch.Generator()))


def test_samples_that_the_runs_of_an_ensemble_share_say_how_to_be_repeated(make_stream):
    learner = COLA(stack_networks([Network.rnn(2, 5, 2, seed=seed, dtype=torch.float64) for seed in range(2)]))
    with pytest.raises(ShapeError, match=r"x\.expand\(2, \*x\.shape\)"):
        train(learner, make_stream(3))
    assert train(learner, ((u.expand(2, *u.shape), y.expand(2, *y.shape)) for u, y in make_stream(3))).steps == 3


def test_losses_on_another_device_are_looked_at_together(make_stream, monkeypatch):
    """An ensemble's losses, like those on a GPU, are not looked at in the step."""
    networks = [Network.rnn(2, 5, 2, seed=seed, dtype=torch.float64) for seed in range(2)]
    learner = COLA(stack_networks(networks), lr=0.05)
    items = [(u.expand(2, -1, -1), y.expand(2, -1, -1)) for u, y in make_stream(30)]
    items[12] = (items[12][0], items[12][1] * torch.tensor([1.0, float("inf")]).view(2, 1, 1))
    with pytest.raises(NonFiniteLossError, match=r"the loss of runs 1 of 2 at item 12 .* items 10 to 19") as caught:
        train(learner, items, check_every=10)
    assert caught.value.data["runs"] == [1]
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


@pytest.mark.parametrize(("lengths", "total"), [((5, 7, 5), None), ((5, 5, 5), 15)])
def test_progress_foretells_no_length_where_sequences_differ(lengths, total, make_learner, make_stream):
    seen = []
    loader = [tuple(torch.stack(part, 1) for part in zip(*make_stream(length), strict=True)) for length in lengths]
    train(make_learner(), sequences(loader), progress=seen.append)
    assert seen[-1].total == total


def test_progress_of_another_type_is_refused(learner):
    with pytest.raises(ConfigError, match="progress='bar'"):
        train(learner, [], progress="bar")
