"""What holds for every task."""

import subprocess
import sys

import pytest
import torch

from pararnn.errors import ConfigError, UnknownNameError
from pararnn_cola import TBPTT1, tasks

TEXT = "to be or not to be, that is the question. " * 20


@pytest.fixture(params=["adding", "lorenz", "characters", "classification", "digits"])
def task(request):
    options = {"length": 12, "placement": 0.5}
    if request.param == "classification":
        draw = torch.Generator().manual_seed(0)
        data = torch.randn(30, 12, 3, generator=draw), torch.arange(30) % 3
        return tasks.Classification(data, data, classes=3, placement=0.5)
    if request.param == "digits":
        request.getfixturevalue("scikit_learn")
        return tasks.make("digits", placement=0.5)
    return tasks.make(request.param, **options, **({"text": TEXT} if request.param == "characters" else {}))


def test_a_batch_has_the_sizes_that_the_task_announces(task, generator):
    batch = task.batch(5, generator)
    assert batch.inputs.shape == (5, task.length, task.input_size)
    assert batch.inputs.dtype == torch.float32
    assert batch.targets.shape == ((5, task.length) if task.loss == "cross_entropy" else (5, task.length, task.output_size))
    assert torch.equal(batch.weights, tasks.loss_weights(task.length, task.placement))


def test_a_generator_decides_the_batch(task):
    first, again, other = (task.batch(5, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.targets, again.targets)
    assert not torch.equal(first.inputs, other.inputs)


def test_a_batch_uses_no_random_numbers_but_its_generators(task, generator):
    task.batch(2, generator)
    before = torch.get_rng_state()
    task.batch(5, generator)
    assert torch.equal(torch.get_rng_state(), before)


def test_evaluation_gives_the_same_numbers_again(task, network_for):
    network = network_for(task)
    before = torch.get_rng_state()
    first = task.evaluate(network)
    assert all(torch.equal(value, task.evaluate(network)[name]) for name, value in first.items())
    assert torch.equal(torch.get_rng_state(), before)


def test_evaluation_gives_float64_numbers_without_a_graph(task, network_for):
    for value in task.evaluate(network_for(task).float()).values():
        assert (value.shape, value.dtype, value.requires_grad) == ((), torch.float64, False)


def test_runs_of_an_ensemble_are_evaluated_as_they_are_alone(task, network_for, ensemble_of):
    networks = [network_for(task, seed=seed) for seed in range(3)]
    together = task.evaluate(ensemble_of(networks))
    alone = [task.evaluate(network) for network in networks]
    for name, values in together.items():
        torch.testing.assert_close(values, torch.stack([one[name] for one in alone]), rtol=1e-10, atol=1e-12)


def test_the_steps_of_a_batch_are_what_a_learner_takes(task, network_for, generator):
    network = network_for(task)
    learner = TBPTT1(network, loss=task.loss, lr=0.05)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    for step in task.batch(4, generator).to(dtype=torch.float64).steps():
        learner.step(step.u, step.y, step.weight, step.mask)
    assert all(bool((old != new).any()) for old, new in zip(before, network.parameters(), strict=True))


def test_a_task_shows_what_it_was_built_with(task):
    assert "placement=0.5" in repr(task)


@pytest.mark.gpu
def test_a_batch_on_a_device_is_the_one_of_the_cpu(task, network_for):
    here, there = (task.batch(5, torch.Generator().manual_seed(1), device) for device in (None, "cuda"))
    assert there.inputs.device.type == "cuda"
    assert torch.equal(here.inputs, there.inputs.cpu())
    network = network_for(task)
    torch.testing.assert_close(task.evaluate(network.cuda()), task.evaluate(network.cpu()), rtol=1e-6, atol=1e-6)


def test_an_unknown_task_is_answered_with_what_there_is():
    with pytest.raises(UnknownNameError, match=r"no task 'lorentz'; did you mean 'lorenz'\? there are adding, characters"):
        tasks.make("lorentz")


def test_a_task_is_named_by_a_str():
    with pytest.raises(ConfigError, match="named by a str, got NoneType; there are adding"):
        tasks.make(None)


@pytest.mark.parametrize("name", ["adding", "lorenz"])
@pytest.mark.parametrize("seed", ["a", -1, 1.0, True, 2**64], ids=repr)
def test_a_seed_that_is_none_is_refused_when_the_task_is_built(name, seed):
    with pytest.raises(ConfigError, match="a seed is a whole number from 0"):
        tasks.make(name, length=10, seed=seed)


def test_an_option_that_a_task_does_not_have_is_refused():
    with pytest.raises(ConfigError, match=r"the task 'adding' cannot be built with .*lenght"):
        tasks.make("adding", lenght=5)


def test_every_name_loads_and_every_task_of_the_registry_is_a_task():
    for name in tasks.__all__:
        assert getattr(tasks, name) is not None
    for target in tasks.TASKS.values():
        assert issubclass(getattr(tasks, target.partition(":")[2]), tasks.Task)
        assert getattr(tasks, target.partition(":")[2]).name in tasks.TASKS


def test_a_name_that_is_none_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = tasks.Nothing


@pytest.mark.integration
def test_listing_the_tasks_imports_neither_torch_nor_scikit_learn():
    code = "import sys, pararnn_cola.tasks as t; dir(t); sys.exit('torch' in sys.modules or 'sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
