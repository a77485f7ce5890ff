"""The rules on a GPU give what they give on the CPU, and go on from a checkpoint of either."""

import pytest
import torch

from pararnn_cola import BPTT, RTRL, TBPTT, UORO, capture

pytestmark = pytest.mark.gpu

RULES = {
    "BPTT": BPTT,
    "TBPTT-live": lambda net, **options: TBPTT(net, 4, **options),
    "TBPTT-rerun": lambda net, **options: TBPTT(net, 2, 5, **options),
    "RTRL": RTRL,
    "UORO": UORO,
}


def moved(step, device):
    return type(step)(*(value.to(device) if isinstance(value, torch.Tensor) else value for value in vars(step).values()))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_gradients_and_checkpoints_are_those_of_the_cpu(rule, network, stream, feed):
    steps, device = stream(9, kind="ragged"), torch.device("cuda")
    here, there, resumed = network(2), network(2).to(device), network(2, seed=8).to(device)
    feed(learner := rule(here, update="accumulate"), steps[:6])
    saved = learner.state_dict()
    feed(learner, steps[6:]).flush()
    feed(rule(there, update="accumulate"), [moved(step, device) for step in steps]).flush()
    second = rule(resumed, update="accumulate")
    second.load_state_dict(saved)
    feed(second, [moved(step, device) for step in steps[6:]]).flush()
    for name, parameter in here.named_parameters():
        for other in (there, resumed):
            torch.testing.assert_close(other.get_parameter(name).grad.cpu(), parameter.grad, rtol=0, atol=1e-10)


def test_blocks_of_whole_windows_can_be_captured(network, stream):
    steps, device = [moved(step, "cuda") for step in stream(24)], torch.device("cuda")
    straight, replayed = network().to(device), network().to(device)
    one, other = TBPTT(straight, 4, lr=0.01), TBPTT(replayed, 4, lr=0.01)
    block = capture(other, steps[0].u, steps[0].y, block=4)
    for start in range(0, 24, 4):
        part = steps[start : start + 4]
        block.run(torch.stack([step.u for step in part]), torch.stack([step.y for step in part]))
    for step in steps:
        one.step(step.u, step.y)
    for mine, expected in zip(replayed.parameters(), straight.parameters(), strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-10)
