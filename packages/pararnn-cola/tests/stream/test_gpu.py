"""Streams on a GPU: what the CPU gives, with masks and weights wherever they lie, and checkpoints that change the device."""

import re

import pytest
import torch

from pararnn.errors import ConfigError, DTypeError

pytestmark = pytest.mark.gpu

TIME = 40


def walk(learner, data, weights, masks, device):
    """Masks and weights stay on the CPU, where a loader has made them."""
    for time in range(TIME):
        learner.step(data[0][time].to(device), data[1][time].to(device), weights[time], masks[time])
        if time % 7 == 3:
            learner.reset(masks[time])
        if time % 10 == 9:
            learner.step(data[0][time].to(device), mask=masks[time].to(device))
            learner.apply()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_stream_on_the_gpu_is_that_on_the_cpu(rule, dtype, network, stream):
    data, generator = stream(TIME, 4, dtype=dtype), torch.Generator().manual_seed(1)
    masks, weights = torch.rand(TIME, 4, generator=generator) > 0.3, torch.rand(TIME, 4, generator=generator)
    learners = [rule(network(num_layers=2, dtype=dtype, device=device), lr=0.005, clip=1.0) for device in ("cpu", "cuda")]
    for learner, device in zip(learners, ("cpu", "cuda"), strict=True):
        walk(learner, data, weights, masks, device)
    limit = 1e-8 if dtype is torch.float64 else 0.05
    for one, two in zip(*(learner.network.parameters() for learner in learners), strict=True):
        assert (one - two.cpu()).abs().max() < limit
    learners[1].load_state_dict(learners[0].state_dict())
    answers = [learner.step(data[0][0].to(device), data[1][0].to(device)).output for learner, device in zip(learners, ("cpu", "cuda"), strict=True)]
    torch.testing.assert_close(answers[0], answers[1].cpu())


def test_a_step_on_the_wrong_device_is_refused(rule, network, stream, feed):
    data, learner = stream(3, dtype=torch.float32), rule(network(dtype=torch.float32, device="cuda"))
    there = tuple(tensor.cuda() for tensor in data)
    feed(learner, there)
    with pytest.raises(DTypeError, match=re.escape("inputs are torch.float32 on cpu, the network is torch.float32 on cuda:0")):
        learner.step(data[0][0], there[1][0])
    with pytest.raises(DTypeError, match="the target is on cpu"):
        learner.step(there[0][0], data[1][0])
    with torch.autocast("cuda"), pytest.raises(ConfigError, match="autocast is active for cuda"):
        learner.step(there[0][0], there[1][0])
