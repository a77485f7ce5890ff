import math

import pytest
import torch
from torch import nn

from pararnn.errors import ConfigError, DTypeError, InputError, ShapeError
from pararnn_cola import TBPTT1
from pararnn_cola.tasks import Classification, evaluation


@pytest.fixture
def data(generator):
    """40 training and 23 test sequences of 5 steps of 3 numbers, of 4 classes."""

    def part(count):
        return torch.randn(count, 5, 3, generator=generator), torch.randint(0, 4, (count,), generator=generator)

    return part(40), part(23)


@pytest.fixture
def task(data):
    return Classification(*data, classes=4)


def test_a_batch_holds_training_sequences_with_their_class_at_every_step(task, generator):
    batch = task.batch(30, generator)
    assert batch.inputs.shape == (30, 5, 3)
    assert batch.targets.shape == (30, 5)
    for sequence, targets in zip(batch.inputs, batch.targets.tolist(), strict=True):
        position = [torch.equal(sequence, one) for one in task.train[0]].index(True)
        assert targets == [int(task.train[1][position])] * 5


def test_evaluation_is_that_of_the_answers_at_the_last_step(task, network_for):
    network = network_for(task)
    sequences, labels = task.test
    answers = network(sequences.double())[0][:, -1].detach()
    result = task.evaluate(network)
    assert float(result["accuracy"]) == pytest.approx(sum(int(a.argmax()) == int(y) for a, y in zip(answers, labels, strict=True)) / 23)
    torch.testing.assert_close(result["cross_entropy"], nn.functional.cross_entropy(answers, labels), rtol=1e-12, atol=0)


@pytest.mark.parametrize("at_once", [1, 7, 23])
def test_how_many_sequences_walk_at_once_changes_nothing(task, network_for, monkeypatch, at_once):
    network = network_for(task)
    expected = task.evaluate(network)
    monkeypatch.setitem(evaluation.AT_ONCE, "cpu", at_once)
    torch.testing.assert_close(task.evaluate(network), expected, rtol=1e-12, atol=0)


def test_no_more_sequences_than_fit_walk_at_once_over_all_runs_together(task, network_for, ensemble_of, monkeypatch):
    network = ensemble_of([network_for(task, seed=seed) for seed in range(3)])
    walking = []
    advance = network.advance
    monkeypatch.setattr(network, "advance", lambda u, states: (walking.append(u.shape[:-1].numel()), advance(u, states))[1])
    monkeypatch.setitem(evaluation.AT_ONCE, "cpu", 12)
    task.evaluate(network)
    assert max(walking) == 12


def test_bytes_are_fractions_of_255(data, network_for, generator):
    (_, labels), (_, test_labels) = data
    raw = [torch.randint(0, 256, (len(part), 5, 3), generator=generator, dtype=torch.uint8) for part in (labels, test_labels)]
    stored = Classification((raw[0], labels), (raw[1], test_labels), classes=4)
    floating = Classification((raw[0] / 255, labels), (raw[1] / 255, test_labels), classes=4)
    drawn, expected = (task.batch(9, torch.Generator().manual_seed(1)).inputs for task in (stored, floating))
    torch.testing.assert_close(drawn, expected, rtol=1e-6, atol=0)
    assert stored.train[0].dtype == torch.uint8
    network = network_for(stored)
    torch.testing.assert_close(stored.evaluate(network), floating.evaluate(network), rtol=1e-6, atol=0)


def test_evaluation_puts_each_module_back_into_its_mode(task, network_for):
    network = network_for(task)
    network.readout.eval()
    modes = [module.training for module in network.modules()]
    task.evaluate(network)
    assert [module.training for module in network.modules()] == modes
    assert torch.is_grad_enabled()


def test_modes_come_back_even_if_the_network_fails(task, network_for, monkeypatch):
    network = network_for(task)

    def fail(u, states):
        assert not network.training
        raise RuntimeError("broken")

    monkeypatch.setattr(network, "advance", fail)
    with pytest.raises(RuntimeError, match="broken"):
        task.evaluate(network)
    assert network.training
    assert torch.is_grad_enabled()


def test_a_network_of_another_output_size_is_refused(task, network_for):
    network = network_for(task)
    task.output_size = 5
    with pytest.raises(ConfigError, match="asks for 5 outputs and the network gives 4; build it with input_size=3, output_size=5"):
        task.evaluate(network)


def test_a_network_that_left_the_numbers_is_right_about_nothing(task, network_for):
    network = network_for(task)
    with torch.no_grad():
        network.readout.weight.fill_(math.nan)
    assert all(math.isnan(float(value)) for value in task.evaluate(network).values())


def test_the_learner_in_place_of_its_network_is_refused_with_what_to_give(task, network_for):
    with pytest.raises(ConfigError, match=r"got a TBPTT1; give learner\.network"):
        task.evaluate(TBPTT1(network_for(task)))


def test_parts_that_are_no_pairs_of_tensors_are_refused(data):
    (sequences, labels), test = data
    with pytest.raises(DTypeError, match="test is a pair of list and Tensor"):
        Classification(data[0], (test[0].tolist(), test[1]), classes=4)
    with pytest.raises(ConfigError, match="train is of type int; give a pair"):
        Classification(3, test, classes=4)
    with pytest.raises(DTypeError, match="they have to be alike"):
        Classification((sequences.double(), labels), test, classes=4)


def test_one_class_is_nothing_to_tell_apart(data):
    with pytest.raises(ConfigError, match="classes=1"):
        Classification(*data, classes=1)


def test_labels_outside_the_classes_are_refused(data):
    with pytest.raises(InputError, match="train has labels from 0 to 3; 3 classes are 0 to 2"):
        Classification(*data, classes=3)


def test_values_that_are_not_finite_are_counted(data):
    data[1][0][4, 2, 1] = float("nan")
    with pytest.raises(InputError, match="test has 1 values that are not finite"):
        Classification(*data, classes=4)


def test_training_and_test_sequences_have_to_be_alike(data):
    (sequences, labels), test = data
    with pytest.raises(ShapeError, match="they have to be alike"):
        Classification((sequences[:, :4], labels), test, classes=4)


@pytest.mark.parametrize("cut", [lambda s, y: (s, y[:-1]), lambda s, y: (s[..., 0], y), lambda s, y: (s[:0], y[:0])], ids=["labels", "dims", "empty"])
def test_sequences_of_another_form_are_refused(data, cut):
    with pytest.raises(ShapeError, match=r"\(n, time, input\) and \(n,\) were expected"):
        Classification(cut(*data[0]), data[1], classes=4)


@pytest.mark.parametrize("change", [lambda s, y: (s, y.float()), lambda s, y: (s.int(), y)], ids=["labels", "sequences"])
def test_other_dtypes_are_refused(data, change):
    with pytest.raises(DTypeError, match="floating point or uint8, and integers"):
        Classification(change(*data[0]), data[1], classes=4)
