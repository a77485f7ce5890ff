import pytest
import torch

from pararnn.errors import ConfigError, ShapeError
from pararnn_cola.network import Network
from pararnn_cola.tasks import rollout


@pytest.fixture
def predictor():
    return lambda seed=0: Network.rnn(3, 6, 3, seed=seed, dtype=torch.float64)


def test_a_rollout_feeds_each_answer_back(predictor, generator):
    network = predictor()
    inputs = torch.randn(4, 7, 3, generator=generator, dtype=torch.float64)
    outputs, states = network(inputs)
    expected = [outputs[:, -1]]
    while len(expected) < 5:
        output, states = network.advance(expected[-1], states)
        expected.append(output)
    torch.testing.assert_close(rollout(network, inputs, 5), torch.stack(expected, 1).detach(), rtol=1e-13, atol=1e-13)


def test_runs_of_an_ensemble_roll_out_as_they_do_alone(predictor, ensemble_of, generator):
    networks = [predictor(seed) for seed in range(3)]
    inputs = torch.randn(4, 7, 3, generator=generator, dtype=torch.float64)
    together = rollout(ensemble_of(networks), inputs, 5)
    torch.testing.assert_close(together, torch.stack([rollout(network, inputs, 5) for network in networks]), rtol=1e-13, atol=1e-13)


def test_a_rollout_keeps_no_graph(predictor):
    assert rollout(predictor(), torch.zeros(1, 2, 3), 4).grad_fn is None


def test_a_network_that_does_not_predict_its_inputs_cannot_run_on_its_own():
    with pytest.raises(ConfigError, match="gives 1 values and takes 2"):
        rollout(Network.rnn(2, 4, 1), torch.zeros(1, 2, 2), 3)


def test_a_rollout_of_no_steps_is_refused(predictor):
    with pytest.raises(ConfigError, match="steps=0"):
        rollout(predictor(), torch.zeros(1, 2, 3), 0)


@pytest.mark.parametrize("shape", [(2, 3), (2, 0, 3)], ids=repr)
def test_a_rollout_starts_from_at_least_one_step(predictor, shape):
    with pytest.raises(ShapeError, match="at least one step"):
        rollout(predictor(), torch.zeros(shape), 3)
