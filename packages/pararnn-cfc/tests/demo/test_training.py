import pytest
import torch

from pararnn.errors import ConfigError
from pararnn_cfc.demo.comparison import compare
from pararnn_cfc.demo.evaluation import LINEAR, NETWORK, evaluate
from pararnn_cfc.demo.training import TrainingConfig, build, forecast, train

CONFIG = TrainingConfig(epochs=12, batch=2, state_size=8)


def test_an_untrained_network_gives_the_reference_forecast(task):
    torch.testing.assert_close(forecast(build(task, CONFIG), task, task.series), task.reference(task.series))


def test_training_twice_with_a_seed_gives_the_same_weights(task):
    trained = []
    for _ in range(2):
        forecaster = build(task, CONFIG)
        train(forecaster, task, CONFIG)
        trained.append(forecaster.state_dict())

    torch.testing.assert_close(trained[1], trained[0], atol=0, rtol=0)


def test_training_lowers_the_loss_and_keeps_the_best_weights(task):
    forecaster = build(task, CONFIG)

    record = train(forecaster, task, CONFIG)

    assert record.losses[-1] < record.losses[0]
    assert record.validation[record.best_epoch] == min(record.validation.values())


def test_parallel_and_loop_train_alike(task):
    forecaster = build(task, CONFIG)

    comparison = compare(forecaster, forecaster, task, CONFIG)

    assert comparison.loss_difference < 1e-4
    assert len(comparison.loop_by_length) == len(comparison.lengths)


@pytest.mark.parametrize("kept_share", [1.0, 0.5], ids=["as measured", "thinned"])
def test_every_method_is_scored_on_the_same_forecasts(task, kept_share):
    evaluation = evaluate(build(task, CONFIG), task, CONFIG, kept_share=kept_share)

    assert {NETWORK, LINEAR} <= set(evaluation.scores)
    assert len({score.forecasts for score in evaluation.scores.values()}) == 1
    assert all(torch.tensor(score.rmse_by_horizon).isfinite().all() for score in evaluation.scores.values())


@pytest.mark.parametrize("option", [{"epochs": 0}, {"least_share": 0.0}], ids=str)
def test_a_configuration_that_cannot_work_is_refused(option):
    with pytest.raises(ConfigError, match=next(iter(option))):
        TrainingConfig(**option)
