import pytest
import torch

from pararnn.errors import ConfigError, ShapeError
from pararnn_cola.tasks import Adding, Batch


@pytest.fixture
def batch(generator):
    mask = torch.tensor([[True, True, True], [True, True, False]])
    return Batch(torch.randn(2, 3, 4, generator=generator), torch.randn(2, 3, 1, generator=generator), torch.tensor([0.0, 0.5, 0.5]), mask)


def test_steps_are_the_slices_over_time(batch):
    steps = list(batch.steps())
    assert len(steps) == batch.length == 3
    assert batch.size == 2
    for time, (u, y, weight, mask, reset) in enumerate(steps):
        assert torch.equal(u, batch.inputs[:, time])
        assert torch.equal(y, batch.targets[:, time])
        assert weight == float(batch.weights[time])
        assert torch.equal(mask, batch.mask[:, time])
        assert reset == (time == 0)


def test_steps_of_an_ensemble_are_repeated_for_each_run_without_a_copy(batch):
    for time, (u, y, *_) in enumerate(batch.steps((5,))):
        assert u.shape == (5, 2, 4)
        assert y.shape == (5, 2, 1)
        assert torch.equal(u[3], batch.inputs[:, time])
        assert u.untyped_storage().data_ptr() == batch.inputs.untyped_storage().data_ptr()


def test_weights_for_each_sequence_give_one_weight_a_sample():
    weights = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    steps = list(Batch(torch.zeros(2, 2, 1), torch.zeros(2, 2, 1), weights).steps())
    assert torch.equal(steps[1].weight, torch.tensor([1.0, 0.5]))
    assert steps[1].mask is None


def test_a_batch_in_another_dtype_keeps_class_indices_and_masks(batch):
    classes = Batch(batch.inputs, torch.ones(2, 3, dtype=torch.int64), batch.weights, batch.mask).to("cpu", torch.float64)
    assert (classes.inputs.dtype, classes.weights.dtype) == (torch.float64, torch.float64)
    assert (classes.targets.dtype, classes.mask.dtype) == (torch.int64, torch.bool)


@pytest.mark.parametrize("name", ["targets", "weights", "mask"])
def test_parts_that_do_not_fit_are_refused_by_name(batch, name):
    parts = {"inputs": batch.inputs, "targets": batch.targets, "weights": batch.weights, "mask": batch.mask}
    with pytest.raises(ShapeError, match=f"{name} of shape .* do not fit 2 sequences of 3 steps"):
        Batch(**{**parts, name: parts[name][..., :-1] if name == "weights" else parts[name][:, :-1]})


@pytest.mark.parametrize("shape", [(3, 4), (0, 3, 4), (2, 0, 4)], ids=repr)
def test_inputs_without_steps_are_refused(shape):
    with pytest.raises(ShapeError, match="at least one sequence and step"):
        Batch(torch.zeros(shape), torch.zeros(shape), torch.ones(3))


@pytest.mark.parametrize("size", [0, -1, 2.0, True], ids=repr)
def test_a_batch_without_sequences_is_refused(generator, size):
    with pytest.raises(ConfigError, match="at least 1 sequence"):
        Adding(10).batch(size, generator)


def test_a_generator_of_another_device_is_refused_because_data_are_the_same_everywhere():
    class Elsewhere:
        device = torch.device("cuda")

    with pytest.raises(ConfigError, match="drawn on the CPU, so that they are the same on every device"):
        Adding(10).batch(2, Elsewhere())


@pytest.mark.parametrize("generator", [None, 3], ids=repr)
def test_data_are_not_drawn_without_a_generator(generator):
    with pytest.raises(ConfigError, match=r"the generator is of type .*; give torch\.Generator\(\)"):
        Adding(10).batch(2, generator)
