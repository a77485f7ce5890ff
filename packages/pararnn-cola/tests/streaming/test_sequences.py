from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from pararnn.errors import ConfigError, DTypeError, ShapeError
from pararnn_cola import COLA, Network, StreamError, sequences, train


def sequence(length, *, batch=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, length, size, generator=generator, dtype=torch.float64) for size in (2, 2))


def by_hand(learner, items):
    """Every step of every sequence, in two loops."""
    for inputs, targets, *rest in items:
        if learner.states is not None:
            learner.init(len(inputs))
        for t in range(inputs.shape[1]):
            learner.step(inputs[:, t].clone(), targets[:, t].clone(), *(part[:, t].clone() for part in rest))
        learner.apply()
    return learner


def loader(count=10, *, batch_size=3, **options):
    inputs, targets = sequence(7, batch=count)
    return DataLoader(TensorDataset(inputs, targets), batch_size=batch_size, **options)


@pytest.mark.parametrize("update", ["step", "accumulate"])
def test_a_loader_whose_last_batch_is_smaller_is_learned_whole(update, make_learner, assert_same):
    learner, other = make_learner(update=update), make_learner(update=update)
    report = train(learner, sequences(loader()))
    assert_same(learner, by_hand(other, loader()))
    assert (report.steps, report.sequences, learner.batch) == (28, 4, (1,))


def test_every_rule_learns_sequences(rule, make_learner, assert_same):
    learner, other = make_learner(rule), make_learner(rule)
    train(learner, sequences(loader(6)))
    assert_same(learner, by_hand(other, loader(6)))


def test_sequences_may_differ_in_length(make_learner, assert_same):
    items = [sequence(length, seed=length) for length in (1, 5, 3)]
    learner, other = make_learner("TBPTT"), make_learner("TBPTT")
    report = train(learner, sequences(items))
    assert_same(learner, by_hand(other, items))
    assert (report.steps, report.sequences) == (9, 3)


def test_epochs_read_the_loader_again(make_learner, assert_same):
    learner, other = make_learner(), make_learner()
    report = train(learner, sequences(loader(6), epochs=3))
    for _ in range(3):
        by_hand(other, loader(6))
    assert_same(learner, other)
    assert report.sequences == 6


def test_weights_may_be_shared_by_all_rows_or_not(make_learner, assert_same):
    inputs, targets = sequence(4)
    shared = torch.tensor([0.5, 0.0, 1.0, 2.0], dtype=torch.float64)
    one, two = make_learner(), make_learner()
    train(one, sequences([(inputs, targets, shared)]))
    for t in range(4):
        two.step(inputs[:, t], targets[:, t], float(shared[t]))
    assert_same(one, two)
    each = torch.rand(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, two = make_learner(), make_learner()
    train(one, sequences([(inputs, targets, each)]))
    for t in range(4):
        two.step(inputs[:, t], targets[:, t], each[:, t])
    assert_same(one, two)


def test_padding_is_ignored(make_learner, assert_same):
    inputs, targets = sequence(6)
    mask = torch.arange(6) < torch.tensor([[6], [3], [1]])
    other = torch.where(mask.unsqueeze(-1), inputs, torch.full_like(inputs, float("nan")))
    one, two = make_learner(), make_learner()
    train(one, sequences([(inputs, targets, None, mask)]))
    train(two, sequences([SimpleNamespace(inputs=other, targets=targets, weights=None, mask=mask)]))
    assert_same(one, two)


def test_class_targets_have_no_feature_axis(make_learner):
    learner = make_learner(loss="cross_entropy")
    inputs, _ = sequence(5)
    assert train(learner, sequences([(inputs, torch.zeros(3, 5, dtype=torch.long))])).steps == 5


def test_ensembles_have_their_runs_before_the_batch():
    from pararnn_cola import stack_networks

    learner = COLA(stack_networks([Network.rnn(2, 5, 2, seed=seed, dtype=torch.float64) for seed in range(2)]))
    inputs, targets = (part.expand(2, -1, -1, -1) for part in sequence(4))
    assert train(learner, sequences([(inputs, targets)])).steps == 4


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda x, y: x, StreamError, r"sequence 1 is a tensor \(3, 7, 2\) without a target"),
        (lambda x, y: (x,), StreamError, "sequence 1 is a tuple of 1"),
        (lambda x, y: (x, y, None, None, 1), StreamError, "a tuple of 5"),
        (lambda x, y: (x, y[:, :-1]), StreamError, r"sequence 1: inputs begin with \(3, 7\).*targets begin with \(3, 6\)"),
        (lambda x, y: (x.transpose(0, 1), y), StreamError, r"inputs begin with \(7, 3\).*transpose"),
        (lambda x, y: (x[:, 0], y[:, 0]), ShapeError, r"\(batch, time, input\) with at least one step"),
        (lambda x, y: (x[:, :0], y[:, :0]), ShapeError, "with at least one step"),
        (lambda x, y: (x.tolist(), y), DTypeError, "inputs is of type list"),
        (lambda x, y: (x, y.tolist()), DTypeError, "targets is of type list"),
        (lambda x, y: (x, y, torch.ones(3)), ShapeError, r"weights has shape \(3,\)"),
        (lambda x, y: (x, y, None, torch.ones(7, 3, dtype=torch.bool)), ShapeError, r"mask has shape \(7, 3\)"),
    ],
)
def test_a_sequence_that_does_not_fit_is_named_by_its_number(change, error, words, learner):
    good = sequence(7)
    with pytest.raises(error, match=words):
        train(learner, sequences([good, change(*good)]))


def test_a_loader_that_puts_time_first_is_found_out_by_its_batch_size(learner):
    turned = DataLoader(
        TensorDataset(*sequence(7, batch=3)), batch_size=3, collate_fn=lambda items: tuple(torch.stack(part, 1) for part in zip(*items, strict=True))
    )
    with pytest.raises(StreamError, match="the loader's batch_size is 3"):
        train(learner, sequences(turned))


def test_a_loader_without_sequences_says_how_to_give_it(learner):
    with pytest.raises(ShapeError, match=r"sequences\(loader\)"):
        train(learner, loader())


def test_the_runs_of_an_ensemble_may_share_sequences():
    from pararnn_cola import stack_networks, unstack

    mask = torch.arange(4) < torch.tensor([[4], [3], [1]])
    item = (*sequence(4), torch.tensor([0.0, 1.0, 0.5, 0.5], dtype=torch.float64), mask)
    alone = [COLA(Network.rnn(2, 5, 2, seed=seed, dtype=torch.float64), lr=0.05) for seed in range(2)]
    together = COLA(stack_networks([learner.network for learner in alone]), lr=0.05)
    assert train(together, sequences([item], epochs=3)).steps == 12
    for learner, network in zip(alone, unstack(together.network), strict=True):
        train(learner, sequences([item], epochs=3))
        torch.testing.assert_close(network.state_dict(), learner.network.state_dict(), rtol=1e-12, atol=1e-12)


def test_a_batch_of_a_task_trains_an_ensemble():
    from pararnn_cola import stack_networks
    from pararnn_cola.tasks import Lorenz

    batch = Lorenz(20).batch(4, torch.Generator().manual_seed(0))
    one, two = (COLA(stack_networks([Network.rnn(3, 5, 3, seed=seed) for seed in range(2)])) for _ in range(2))
    train(one, sequences([batch]))
    train(two, batch.steps(two.network.lead))
    assert torch.equal(one.network.readout.weight, two.network.readout.weight)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_of_a_stream_of_sequences_has_no_length_and_is_learned(workers, make_learner, assert_same):
    seen = []
    learner, other = make_learner(), make_learner()
    report = train(learner, sequences(DataLoader(Episodes(), batch_size=3, num_workers=workers)), progress=seen.append)
    train(other, sequences(loader(6)))
    assert_same(learner, other)
    assert (report.steps, seen[-1].total) == (14, None)


class Episodes(IterableDataset):
    """The samples of `loader(6)` one by one, of which nobody knows how many there are."""

    def __iter__(self):
        return iter(zip(*sequence(7, batch=6), strict=True))


def test_epochs_do_not_touch_the_order_of_a_shuffled_loader(make_learner, assert_same):
    def shuffled():
        return loader(6, batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(0))

    learner, other = make_learner(), make_learner()
    train(learner, sequences(shuffled(), epochs=2))
    again = shuffled()
    assert_same(learner, by_hand(by_hand(other, again), again))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (SimpleNamespace(inputs=1, targets=2), r"got one SimpleNamespace; give sequences\(\[batch\]\)"),
        (torch.zeros(3, 4, 2), "got Tensor"),
        (7, "got int"),
    ],
)
def test_what_is_no_iterable_of_sequences_is_refused(data, words):
    with pytest.raises(ConfigError, match=words):
        sequences(data)


@pytest.mark.parametrize(("data", "epochs"), [(iter([]), 2), ([], 0), ([], 1.5), ([], True)])
def test_epochs_that_cannot_be(data, epochs):
    with pytest.raises(ConfigError, match=f"epochs={epochs}"):
        sequences(data, epochs=epochs)
