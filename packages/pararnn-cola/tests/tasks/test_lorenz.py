import pytest
import torch

from pararnn.errors import ConfigError
from pararnn_cola.tasks import Lorenz
from pararnn_cola.tasks.lorenz import attractor, trajectory, velocity

START = torch.tensor([[1.0, 2.0, 20.0], [-5.0, -7.0, 25.0]], dtype=torch.float64)


def test_the_velocity_is_that_of_the_equations():
    for state in START.tolist():
        x, y, z = state
        expected = torch.tensor([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], dtype=torch.float64)
        torch.testing.assert_close(velocity(torch.tensor(state, dtype=torch.float64).unsqueeze(1))[:, 0], expected, rtol=1e-15, atol=0)


def test_trajectories_agree_with_a_much_finer_step():
    coarse, fine = trajectory(START, 20, 0.05), trajectory(START, 20, 0.05, substeps=64)
    assert float((coarse - fine).abs().max()) < 2e-3


def test_the_error_falls_with_the_fourth_power_of_the_step():
    exact = trajectory(START, 8, 0.05, substeps=128)
    errors = [float((trajectory(START, 8, 0.05, substeps=substeps) - exact).abs().max()) for substeps in (4, 8, 16)]
    assert 12 < errors[0] / errors[1] < 20
    assert 12 < errors[1] / errors[2] < 20


def test_trajectories_agree_with_scipy(scipy_integrate):
    times = [0.05 * step for step in range(1, 21)]
    for start, mine in zip(START, trajectory(START, 20, 0.05, substeps=32), strict=True):
        solved = scipy_integrate.solve_ivp(
            lambda _, s: [10 * (s[1] - s[0]), s[0] * (28 - s[2]) - s[1], s[0] * s[1] - 8 / 3 * s[2]],
            (0, 1),
            start.tolist(),
            method="DOP853",
            t_eval=times,
            rtol=1e-12,
            atol=1e-12,
        )
        torch.testing.assert_close(mine, torch.tensor(solved.y.T.tolist(), dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_samples_are_on_the_attractor_and_normalised():
    samples = attractor(8, 2000, 0.05, 1)
    assert samples.shape == (8, 2000, 3)
    assert samples.mean((0, 1)).abs().max() < 0.1
    assert (samples.std((0, 1)) - 1).abs().max() < 0.05
    assert samples.abs().max() < 4


def test_a_sequence_is_followed_by_its_own_next_sample(generator):
    batch = Lorenz(30).batch(6, generator)
    assert batch.inputs.shape == batch.targets.shape == (6, 30, 3)
    assert torch.equal(batch.targets[:, :-1], batch.inputs[:, 1:])
    samples = attractor(8, 2000, 0.05, 1)
    for sequence, targets in zip(batch.inputs, batch.targets, strict=True):
        which, start = ((samples - sequence[0]).abs().sum(-1) == 0).nonzero()[0].tolist()
        assert torch.equal(samples[which, start : start + 30], sequence)
        assert torch.equal(samples[which, start + 1 : start + 31], targets)


def test_the_longest_sequence_is_a_whole_trajectory(generator):
    batch = Lorenz(1999).batch(1, generator)
    whole = torch.cat([batch.inputs[0, :1], batch.targets[0]])
    assert any(torch.equal(whole, samples) for samples in attractor(8, 2000, 0.05, 1))


def test_tests_are_other_trajectories_than_those_of_the_training():
    training, tests = attractor(8, 2000, 0.05, 1), attractor(32, 400, 0.05, 2)
    assert torch.cdist(training[:, ::50].reshape(-1, 3), tests[:, ::50].reshape(-1, 3)).min() > 0


@pytest.mark.parametrize("observed", [1, 2, 3])
def test_the_first_coordinates_are_observed(generator, observed):
    whole = Lorenz(10).batch(4, torch.Generator().manual_seed(5))
    task = Lorenz(10, observed=observed)
    assert torch.equal(task.batch(4, generator).inputs, whole.inputs[..., :observed])
    assert task.input_size == task.output_size == observed


def test_evaluation_equals_a_literal_loop(network_for):
    task = Lorenz(observed=2)
    network = network_for(task, readout_scale=0.5)
    samples = attractor(32, 400, 0.05, 2)[..., :2].double()
    one_step, errors = [], []
    with torch.no_grad():
        for sample in samples:
            states = network.zero_state(1)
            for time in range(100):
                output, states = network.advance(sample[None, time], states)
                if time >= 20:
                    one_step.append(float((output[0] - sample[time + 1]).square().mean()))
            errors.append([])
            for ahead in range(60):
                errors[-1].append(float((output[0] - sample[100 + ahead]).square().mean().sqrt()))
                output, states = network.advance(output, states)
    valid = [next((ahead for ahead, error in enumerate(run) if error > 0.4), 60) for run in errors]
    result = task.evaluate(network)
    assert float(result["mse_one_step"]) == pytest.approx(sum(one_step) / len(one_step), rel=1e-12)
    assert float(result["rmse_20"]) == pytest.approx(sum(sum(run[:20]) for run in errors) / (32 * 20), rel=1e-12)
    assert float(result["rmse_60"]) == pytest.approx(sum(min(error, 10) for run in errors for error in run) / (32 * 60), rel=1e-12)
    assert float(result["valid_steps"]) == pytest.approx(sum(valid) / 32, rel=1e-12)
    assert 0 < float(result["valid_steps"]) < 60


def test_a_network_that_diverges_has_no_valid_step_and_a_bounded_error(network_for):
    network = network_for(Lorenz(), activation="linear")
    with torch.no_grad():
        network.recurrent[0].weight_hh.mul_(1e8)
    result = Lorenz().evaluate(network)
    assert float(result["rmse_60"]) == 10
    assert float(result["valid_steps"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 2000}, "at most 1999 steps"),
        ({"length": 0}, "at least 1"),
        ({"dt": 0.0}, "dt above 0 and at most 0.1"),
        ({"dt": 0.2}, "dt above 0 and at most 0.1"),
        ({"dt": float("nan")}, "dt above 0 and at most 0.1"),
        ({"observed": 4}, "the first 1, 2 or 3"),
        ({"observed": 0}, "the first 1, 2 or 3"),
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Lorenz(**options)
