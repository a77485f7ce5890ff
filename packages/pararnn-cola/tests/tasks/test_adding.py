import pytest
import torch

from pararnn.errors import ConfigError
from pararnn_cola.tasks import Adding


@pytest.mark.parametrize("length", [2, 3, 10, 51], ids="T{}".format)
def test_targets_are_the_sum_of_the_marked_numbers_so_far(generator, length):
    batch = Adding(length).batch(9, generator)
    for sequence, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        total = 0.0
        for (number, marker), (target,) in zip(sequence, targets, strict=True):
            if marker == 1:
                total += number
            assert target == pytest.approx(total, abs=1e-6)


@pytest.mark.parametrize("length", [2, 3, 10, 51], ids="T{}".format)
def test_each_half_has_one_marker(generator, length):
    numbers, markers = Adding(length).batch(200, generator).inputs.unbind(-1)
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert set(markers.unique().tolist()) <= {0.0, 1.0}
    assert (markers[:, : length // 2].sum(1) == 1).all()
    assert (markers[:, length // 2 :].sum(1) == 1).all()


def test_every_step_of_a_half_is_marked_at_times(generator):
    assert (Adding(6).batch(500, generator).inputs[..., 1].sum(0) > 0).all()


def test_with_the_loss_at_the_last_step_its_target_is_the_whole_sum(generator):
    batch = Adding(20, "last").batch(4, generator)
    torch.testing.assert_close(batch.targets[:, -1, 0], batch.inputs.prod(-1).sum(1))
    assert batch.weights.tolist() == [0.0] * 19 + [1.0]


def test_evaluation_is_the_mean_squared_error_of_1000_sequences(network_for):
    task = Adding(8, seed=3)
    network = network_for(task)
    test = task.batch(1000, torch.Generator().manual_seed(3)).to(dtype=torch.float64)
    errors = (network(test.inputs)[0] - test.targets).square()
    result = task.evaluate(network)
    torch.testing.assert_close(result["mse_last"], errors[:, -1].mean().detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(result["mse_all"], errors.mean().detach(), rtol=1e-12, atol=0)


def test_a_network_that_knows_only_the_mean_has_a_last_error_of_one_sixth(network_for):
    network = network_for(Adding())
    with torch.no_grad():
        network.readout.weight.zero_()
        network.readout.bias.fill_(1.0)
    assert float(Adding().evaluate(network)["mse_last"]) == pytest.approx(1 / 6, abs=0.02)


def test_one_step_has_no_two_halves():
    with pytest.raises(ConfigError, match="length=1; a sequence with a marker in either half has at least 2 steps"):
        Adding(1)
